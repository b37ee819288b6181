"""The command line run as a process, and what a refusal looks like.

Most of the time of a short command goes into importing other people's packages. ``run`` and ``run_many`` fork
their process from one that has these already, and nothing of ours.
``run_here`` needs no process at all; it cannot tell whether a command imports too much, or leaves something
behind in its process.
"""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

THREE_PARTS = re.compile(r"expected .+, got .+ — .+\n")
CLEAN = {k: v for k, v in os.environ.items() if k != "VERITRACER_DATA" and not k.lower().endswith("_proxy")}
CLEAN["OMP_NUM_THREADS"] = "1"

MANY = """
import io, json, sys
from veritracer.app.cli import main
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

FORKING = """
import os, sys
for name in ("numpy", "scipy.stats", "pandas", "pyarrow", "torch", "sklearn.base", "typer", "rich.console"):
    __import__(name)
import json
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
else:
    sys.exit()
os.setsid()
os.chdir(asked["cwd"])
os.environ.clear()
os.environ.update(asked["env"])
for number, (name, mode) in enumerate(zip(asked["streams"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
    os.dup2(os.open(name, mode), number)
sys.stdin, sys.stdout, sys.stderr = (open(n, m, encoding="utf-8") for n, m in enumerate("rww"))
sys.argv, sys.path[0] = asked["argv"], asked["cwd"]
sys.path[1:1] = filter(None, asked["env"].get("PYTHONPATH", "").split(os.pathsep))
exec(compile(asked["program"], "<forked>", "exec"), {"__name__": "__main__"})
"""
PLAIN = "import sys; {before}from veritracer.app.cli import main; main()"
SECONDS = 300

Done = subprocess.CompletedProcess[str]


def run(
    *args: str,
    before: str = "",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | bytes | None = None,
) -> Done:
    """``veritracer args``; with ``before``, after these statements."""
    given = stdin.encode() if isinstance(stdin, str) else stdin or b""
    program = PLAIN.format(before=f"{before}; " if before else "")
    return _forked(program, ["veritracer", *args], args, cwd, env or {}, given)


def run_many(commands: list[list[str]], cwd: Path) -> list[Done]:
    """Each of the commands, in one process."""
    done = _forked(MANY, ["-c", json.dumps(commands)], (), cwd, {}, b"")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return [
        subprocess.CompletedProcess(*pair) for pair in zip(commands, *zip(*answers, strict=True), strict=True)
    ]


def run_here(commands: list[list[str]], cwd: Path) -> list[Done]:
    """Each of the commands, in this process."""
    from veritracer.app.cli import main

    done = []
    before = sys.argv, signal.getsignal(signal.SIGINT)
    try:
        for args in commands:
            sys.argv = ["veritracer", *args]
            said, noted = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
            with chdir(cwd), redirect_stdout(said), redirect_stderr(noted), warnings.catch_warnings():
                warnings.simplefilter("default")  # the suite makes errors of them
                try:
                    main()
                except SystemExit as end:
                    code = end.code
            told = []
            for stream in (said, noted):
                stream.flush()
                told.append(stream.buffer.getvalue().decode())
            done.append(subprocess.CompletedProcess(args, code, *told))
    finally:
        sys.argv = before[0]
        signal.signal(signal.SIGINT, before[1])
    return done


@cache
def _parent() -> subprocess.Popen[str]:
    """The process that others are forked from; it ends with this one, which closes its input."""
    return subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=CLEAN
    )


def _forked(
    program: str, argv: list[str], args: Any, cwd: Path | None, env: dict[str, str], given: bytes
) -> Done:
    """What a forked process did that runs this program."""
    if not hasattr(os, "fork"):
        return _started(program, argv, args, cwd, env, given)
    parent = _parent()
    assert parent.stdin
    assert parent.stdout
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        for path, content in zip(streams, (given, b"", b""), strict=True):
            path.write_bytes(content)
        asked = {"program": program, "argv": argv, "cwd": str(cwd or Path.cwd()), "env": {**CLEAN, **env}}
        parent.stdin.write(json.dumps({**asked, "streams": [str(path) for path in streams]}) + "\n")
        parent.stdin.flush()
        if not select.select([parent.stdout], [], [], SECONDS)[0]:
            parent.kill()
            _parent.cache_clear()
            raise TimeoutError(f"{argv} took more than {SECONDS} seconds")
        code = int(parent.stdout.readline())
        told = [path.read_bytes().decode() for path in streams[1:]]
    return subprocess.CompletedProcess(args, code, *told)


def _started(
    program: str, argv: list[str], args: Any, cwd: Path | None, env: dict[str, str], given: bytes
) -> Done:
    """What a new process did that runs this program: slower, and works on Windows."""
    started = f"import sys; sys.argv = {argv!r}; exec({program!r}, {{'__name__': '__main__'}})"
    surroundings = {**CLEAN, "PYTHONUTF8": "1", **env}
    command = [sys.executable, "-c", started]
    done = subprocess.run(
        command, input=given, capture_output=True, cwd=cwd, env=surroundings, timeout=SECONDS, check=False
    )
    out, err = (said.decode().replace("\r\n", "\n") for said in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(args, done.returncode, out, err)


def assert_refused(done: Done) -> None:
    """One sentence in three parts on stderr, exit code 2, nothing on stdout."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert THREE_PARTS.fullmatch(done.stderr), done.stderr
    assert "Traceback" not in done.stderr
