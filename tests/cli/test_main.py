"""What the command exits with and says whatever happens inside, and bars on a terminal."""

from __future__ import annotations

import errno
import io
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest

from veritracer import cli
from veritracer.cli import app, printing
from veritracer.cli.verbs import demo
from veritracer.errors import DataError


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Listened to as in a fresh process, and afterwards as before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ends(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code where the verb raises this."""

    def fail() -> int:
        raise error

    monkeypatch.setattr(app, "run", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(str(ended.value.code))


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (DataError("expected a,\n got b — c"), 2, "expected a, got b — c\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError(errno.ENOSPC, "full"), 2, "expected room for the output, got No space left on device — "),
        (ModuleNotFoundError("no", name="matplotlib.figure"), 2, "pip install 'veritracer[bench]'\n"),
    ],
)
def test_what_is_said_of_an_end(
    error: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ends(monkeypatch, error) == code
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), ModuleNotFoundError("no", name="ours"), ValueError("a bug")]
)
def test_a_bug_is_a_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(error), match=str(error.args[-1])):
        ends(monkeypatch, error)


def test_a_reader_that_leaves_ends_it_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        assert ends(monkeypatch, BrokenPipeError()) == 0
        out.write("what was still to be said")
    assert (tmp_path / "out").read_text() == ""


def test_an_import_that_was_cut_short_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("half a module") from None
        return 0

    monkeypatch.setattr(app, "run", cut)
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    assert capsys.readouterr().err == "interrupted\n"


# ---------------------------------------------------------------- on a terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal() -> Iterator[Terminal]:
    """What is shown where somebody watches stderr."""
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(Terminal()) as screen:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "100")
        yield screen


def test_rows_are_counted() -> None:
    with terminal() as screen, printing.progress("explaining") as watch:
        assert watch is not None
        watch(1200, None)
        watch(2400, 0.5)
    assert "explaining: 2,400 rows" in screen.getvalue()
    assert "50%" in screen.getvalue()


def test_stages_are_named() -> None:
    with terminal() as screen, printing.stages("reading") as watch:
        assert watch is not None
        watch("training model 2", 0.25)
    assert "training model 2" in screen.getvalue()
    assert "25%" in screen.getvalue()


def test_steps_of_the_demo_turn_a_spinner() -> None:
    with terminal() as screen, demo._steps(quiet=False) as tell:
        tell("a year passes")
    assert "a year passes" in screen.getvalue()
    assert "… a year passes" not in screen.getvalue()


def test_the_quiet_see_nothing() -> None:
    bars = (printing.progress("explaining", quiet=True), printing.stages("reading", quiet=True))
    with terminal() as screen, bars[0] as watch, bars[1] as stage:
        assert (watch, stage) == (None, None)
    assert screen.getvalue() == ""


def test_a_folder_for_the_demo_goes_where_it_fails(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset"), demo._new_folder(tmp_path / "new" / "folder"):
        raise DataError("no dataset")
    assert not list(tmp_path.iterdir())
