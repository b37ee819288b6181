"""The command line run as a process, and what a refusal looks like."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

THREE_PARTS = re.compile(r"expected .+, got .+ — .+\n")
CLEAN = {k: v for k, v in os.environ.items() if k != "VERITRACER_DATA" and not k.lower().endswith("_proxy")}
CLEAN["OMP_NUM_THREADS"] = "1"

MANY = """
import io, json, sys
from veritracer.cli import main
answers, real = [], (sys.stdout, sys.stderr)
for args in json.loads(sys.argv[1]):
    sys.argv = ["veritracer", *args]
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    said = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    sys.stdout, sys.stderr = real
    answers.append([code, *said])
print(json.dumps(answers))
"""

Done = subprocess.CompletedProcess[str]


def run(
    *args: str,
    before: str = "",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | bytes | None = None,
) -> Done:
    """``veritracer args``; with ``before``, after these statements."""
    command = ["-m", "veritracer"]
    if before:
        command = ["-c", f"import sys; {before}; from veritracer.cli import main; main()"]
    done = subprocess.run(
        [sys.executable, *command, *args],
        capture_output=True,
        env={**CLEAN, **(env or {})},
        cwd=cwd,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        check=False,
        timeout=300,
    )
    return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_many(commands: list[list[str]], cwd: Path) -> list[Done]:
    """Each of the commands, in one process: most of the time of a short one goes into imports."""
    command = [sys.executable, "-c", MANY, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return [
        subprocess.CompletedProcess(*pair) for pair in zip(commands, *zip(*answers, strict=True), strict=True)
    ]


def assert_refused(done: Done) -> None:
    """One sentence in three parts on stderr, exit code 2, nothing on stdout."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert THREE_PARTS.fullmatch(done.stderr), done.stderr
    assert "Traceback" not in done.stderr
