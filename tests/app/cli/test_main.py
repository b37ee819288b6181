"""How the command ends, and what it shows to somebody who watches; asked in this process."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import typer

from veritracer import datasets as library
from veritracer.app import cli
from veritracer.app.cli import app, datasets, output
from veritracer.app.cli.options import ReadOptions
from veritracer.app.cli.places import check_table
from veritracer.app.cli.runs import TableOptions
from veritracer.errors import DataError, message
from veritracer.tables import BatchResult, Reject, RunSummary


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BaseException], int | str | None]]:
    """The exit code of a command that raises so."""
    before = signal.getsignal(signal.SIGINT)

    def ended(error: BaseException) -> int | str | None:
        def run() -> int:
            raise error

        monkeypatch.setattr(app, "run", run)
        with pytest.raises(SystemExit) as found:
            cli.main()
        return found.value.code

    yield ended
    signal.signal(signal.SIGINT, before)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
NO_EXTRA = ModuleNotFoundError("No module named 'jinja2'", name="jinja2.environment")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError(message("a table", "none", "name one")), 2, "expected a table, got none — name one\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (FULL, 2, "expected room for the output, got No space left on device — free some space, or write"),
        (NO_EXTRA, 2, "expected the package jinja2, got an install without it — pip install 'veritracer[rep"),
    ],
)
def test_how_a_command_ends(
    ends: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    assert ends(error) == code
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), ModuleNotFoundError(name="own"), KeyError("x")]
)
def test_a_bug_is_a_traceback(ends: Callable[[BaseException], int], error: Exception) -> None:
    with pytest.raises(type(error)):
        ends(error)


def test_whoever_reads_no_further_ends_it_in_silence(
    ends: Callable[[BaseException], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert ends(BrokenPipeError()) == 0
        out.write("what comes after")
    assert (tmp_path / "out").read_text() == ""  # its descriptor leads nowhere


def test_an_import_that_ctrl_c_cut_short_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half of a module") from None
        return 0

    monkeypatch.setattr(app, "run", run)
    try:
        with pytest.raises(SystemExit) as found:
            cli.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (found.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_an_abort_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(*args: object, **more: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(app, "app", abort)
    with pytest.raises(KeyboardInterrupt):
        app.run()


# ---------------------------------------------------------------- somebody watches


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What somebody sees; to be called in the test itself, before which pytest exchanges the streams."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    return made


def test_rows_and_stages_are_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with output.progress("explaining") as watch:
        assert watch is not None
        watch(1234, 0.5)
    with output.progress("calibrating") as told:
        assert told is not None
        told("simulating updates", 0.25)
    shown = terminal.getvalue()
    assert "explaining: 1,234 rows" in shown
    assert "simulating updates" in shown
    assert "25%" in shown


def test_nothing_is_shown_in_a_pipe_or_where_it_is_to_be_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = watched(monkeypatch)
    with output.progress("explaining", quiet=True) as watch, output.spinner("s", quiet=True) as tell:
        assert watch is None
        tell("the next step")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with output.progress("explaining") as watch, output.spinner("s"):
        assert watch is None


def test_steps_turn_a_spinner_or_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with output.spinner("Starting") as tell:
        tell("a year passes")
    assert "a year passes" in terminal.getvalue()
    assert "a year passes ..." not in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with output.spinner("Starting") as tell:
        tell("a year passes")
    assert sys.stderr.getvalue() == "a year passes ...\n"  # type: ignore[attr-defined]


# ---------------------------------------------------------------- tables, runs, datasets


def test_standard_input_is_read_once() -> None:
    assert check_table("-", ReadOptions()) is None
    rows = TableOptions(out="folder")
    with pytest.raises(DataError, match="expected tables that can be read again, got standard input"):
        rows.open_output({}, rows.inputs("-", lambda table: None))


def test_a_run_is_told_in_words_or_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter(rows=10, favourable=3, certified=5, valid=1, none=1)
    whole = BatchResult(
        "t.000000", "", None, counts, {"models": "near"}, {"kind": "a note"}, [Reject(3, "a word", {})]
    )
    made = RunSummary((replace(whole, altered=7), *[BatchResult(f"t.{i}", "") for i in range(3)]), 2)
    rows = TableOptions(out="out", rejects=Path("bad.csv"))
    rows.print_notes(made)
    notes = capsys.readouterr().err.splitlines()
    assert notes[0] == "note: a note"
    assert "7 cells" in notes[1]
    assert notes[2] == "note: 1 row was rejected, see bad.csv; the first: a word"
    rows.print_summary(made, ["10 rows"])
    assert capsys.readouterr().out == "2 of 4 batches were done before.\n10 rows\n"
    TableOptions(out="out", as_json=True).print_summary(made, [], head="abc")
    told = json.loads(capsys.readouterr().out)
    assert (told["out"], told["batches"], told["done_before"], told["certified"]) == ("out", 4, 2, 5)
    assert (told["rejected"], told["head"], told["notes"]) == (1, "abc", ["a note"])
    TableOptions(out="out", quiet=True).print_summary(made, ["10 rows"])
    assert capsys.readouterr().out == ""


def test_a_run_that_is_stopped_says_what_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = TableOptions(out=str(tmp_path / "out"))
    out = rows.open_output({}, rows.inputs("people.csv", lambda table: None))
    (tmp_path / "out" / "_batches").mkdir()
    (tmp_path / "out" / "_batches" / "people.csv.000000.json").touch()
    with pytest.raises(KeyError), rows.running("explaining", out):
        raise KeyError
    said = f"note: 1 batches are complete in {tmp_path}/out; the same command continues\n"
    assert capsys.readouterr().err == said


def test_a_dataset_is_fetched_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []

    def fetched(name: str, *, data_dir: Path, url: str | None) -> Path:
        asked.append((name, data_dir))
        return data_dir / name

    monkeypatch.setattr(library, "fetch", fetched)
    datasets.fetch(["ctg", "taiwan_credit"])
    assert asked == [("ctg", Path("data")), ("taiwan_credit", Path("data"))]
    said = capsys.readouterr().out
    assert "ctg: data/ctg" in said
    assert f"export VERITRACER_DATA={Path('data').resolve()}" in said
    datasets.write("breast_cancer", out=str(tmp_path / "t.csv"))
    written = pd.read_csv(tmp_path / "t.csv")
    assert capsys.readouterr().out == f"breast_cancer: {len(written)} rows in {tmp_path}/t.csv\n"
    assert len(written) == len(library.load("breast_cancer").X)
