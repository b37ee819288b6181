"""The command line as a person meets it: run as a process, read from its pipes."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import veritracer
from optional import posix
from processes import CLEAN, assert_refused, run, run_many
from veritracer import datasets

# ---------------------------------------------------------------- help and version


def test_every_verb_has_help_with_an_example(tmp_path: Path) -> None:
    single = [[verb] for verb in ("demo", "fit", "explain", "certify", "inspect", "report", "datasets")]
    verbs = [[], *single, *(["datasets", verb] for verb in ("list", "fetch", "write"))]
    for verb, done in zip(verbs, run_many([[*verb, "--help"] for verb in verbs], tmp_path), strict=True):
        assert (done.returncode, done.stderr) == (0, "")
        assert f"Usage: {' '.join(['veritracer', *verb])}" in done.stdout
        assert "Example: veritracer " in done.stdout


def test_alone_it_shows_its_help(tmp_path: Path) -> None:
    alone, asked, group = run_many([[], ["--help"], ["datasets"]], tmp_path)
    assert alone.stdout == asked.stdout
    assert "fetch" in group.stdout
    assert [alone.returncode, group.returncode] == [0, 0]


def test_version_and_the_installed_script() -> None:
    script = Path(sys.executable).with_name("veritracer")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, env=CLEAN, check=False)
    assert done.stdout == f"veritracer {veritracer.__version__}\n"
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- bench figures


def test_figures_of_the_paper_write_the_picture_and_a_conclusion(tmp_path: Path) -> None:
    done = run("bench", "figures", cwd=tmp_path, env={"FORCE_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    picture = tmp_path / "out" / "paper_examples.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in picture.parent.iterdir()] == ["paper_examples.png"]
    assert "\x1b" not in done.stdout  # plain text in a pipe, whatever the environment wishes
    assert re.search(r"f0 = x1 - x2 - 2 +\(-4, -1\) +yes +simul-crown +-0\.200 +1\.044", done.stdout)
    assert re.search(r"f1 = x1 - x2 - 1\.5 +none exists", done.stdout)
    assert "cannot break the promise" in done.stdout
    assert done.stdout.endswith("Picture: out/paper_examples.png\n")


@pytest.mark.long
def test_figures_of_the_paper_as_json(tmp_path: Path) -> None:
    done = run("bench", "figures", "--json", "--out", str(tmp_path / "new" / "folder"))
    told = json.loads(done.stdout)
    assert told["delta"] == 1.9
    assert Path(told["picture"]).is_file()
    certificates = [example["certificate"] for example in told["examples"]]
    assert [c and c["certified"] for c in certificates] == [True, None, True, True]
    assert [c["conditional"] for c in certificates if c] == [False, False, True]


def test_frames_on_a_terminal() -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    env = {**CLEAN, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-m", "veritracer", "datasets", "list"], stdout=theirs, stderr=theirs, env=env
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:  # Linux says so at the end of a terminal
            pass
    os.close(ours)
    assert process.returncode == 0
    assert "╭" in seen.decode()
    assert "\x1b[" in seen.decode()


# ---------------------------------------------------------------- datasets


def test_list_names_rows_licence_and_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "ctg.csv.gz").touch()
    done = run("datasets", "list", "--data-dir", str(tmp_path))
    lines = {line.split()[0]: line for line in done.stdout.splitlines()[2:] if line}
    assert set(lines) == set(datasets.names())
    assert str(tmp_path / "ctg.csv.gz") in lines["ctg"]
    assert "10,459" in lines["heloc"]
    assert "FICO's own terms of use" in lines["heloc"]
    assert "veritracer datasets fetch taiwan_credit" in lines["taiwan_credit"]
    assert "\x1b" not in done.stdout


def test_list_as_json_reads_the_environment(tmp_path: Path) -> None:
    (tmp_path / "who.csv.gz").touch()
    done = run("datasets", "list", "--json", env={"VERITRACER_DATA": str(tmp_path)})
    told = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert told["who"]["path"] == str(tmp_path / "who.csv.gz")
    assert told["heloc"]["path"] is None
    assert told["ctg"]["downloadable"]


BAD = [
    (["datasets", "fetch", "ctg", "helok"], "did you mean 'heloc'"),
    (["datasets", "fetch", "heloc"], "fico"),
    (["datasets", "fetch", "ctg", "who", "--url", "http://127.0.0.1/x"], "one by one"),
    (["datasets", "fetch"], "missing argument"),
    (["datasets", "fetch", "ctg", "--url", "file:///etc/hostname"], "http or https"),
    (["demo", "--outt", "x"], "no such option: --outt"),
    (["demo", "--out", "file"], "the file file"),
    (["demmo"], "demmo"),
]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for (_, says), done in zip(BAD, run_many([args for args, _ in BAD], tmp_path), strict=True):
        assert_refused(done)
        assert says in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_bad_input_of_a_process(tmp_path: Path) -> None:
    assert_refused(run("datasets", "fetch", "helok", cwd=tmp_path))


TEXT = b"a,b\n1,2\n"
KNOWN = f"""
from veritracer.datasets import loading
source = loading.DatasetSource("t", 1, "s", "l", "h", "-", loading.digest({TEXT!r}), header="a,b")
loading.SOURCES["ctg"] = source
"""


class Server(http.server.ThreadingHTTPServer):
    """Answers /ok with the text, /other with another one, and /slow never, but notes that it was asked."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.asked, self.leave = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.server.asked.set()
            self.server.leave.wait(60)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(TEXT if self.path == "/ok" else TEXT * 2)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.leave.set()
        running.shutdown()
        thread.join()


@pytest.mark.long
def test_fetch_from_a_mirror(server: Server, tmp_path: Path) -> None:
    before = f"exec({KNOWN!r})"
    done = run("datasets", "fetch", "ctg", "--url", server.url("/ok"), before=before, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")] == ["data/ctg.csv.gz"]
    assert f"export VERITRACER_DATA={tmp_path / 'data'}" in done.stdout


def test_fetch_of_other_content_writes_nothing(server: Server, tmp_path: Path) -> None:
    done = run("datasets", "fetch", "ctg", "--url", server.url("/other"), cwd=tmp_path)
    assert_refused(done)
    assert "sha256" in done.stderr
    assert not list(tmp_path.iterdir())


@posix
def test_interrupted(server: Server, tmp_path: Path) -> None:
    # A suite that a shell runs in the background inherits that interrupts are ignored: undo it first.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{listen}; from veritracer.app.cli import main; main()"
    command = [sys.executable, "-c", program, "datasets", "fetch", "ctg", "--url", server.url("/slow")]
    with subprocess.Popen(
        command, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert server.asked.wait(60)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, ("", "interrupted\n"))
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- a base install


@pytest.mark.long
@pytest.mark.parametrize(("absent", "extra"), [("typer", "cli"), ("matplotlib", "report")])
def test_a_missing_extra_is_named(absent: str, extra: str, tmp_path: Path) -> None:
    done = run("bench", "figures", before=f"sys.modules[{absent!r}] = None", cwd=tmp_path)
    assert_refused(done)
    assert done.stderr.endswith(f"— pip install 'veritracer[{extra}]'\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_bench_says_what_its_pictures_need(tmp_path: Path) -> None:
    without = "sys.modules['matplotlib'] = None"
    done = run("bench", "--smoke", "--stop-after", "0", "--out", "made", before=without, cwd=tmp_path)
    assert done.returncode == 1  # nothing was measured
    assert "note: expected matplotlib for the pictures, got an install without it" in done.stderr
    assert "pip install 'veritracer[bench]'" in done.stderr
    assert (tmp_path / "made" / "results.md").exists()
    assert not (tmp_path / "made" / "plots").exists()
