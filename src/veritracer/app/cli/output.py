"""Output of the command line: frames and colour on a terminal, plain text in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from veritracer.tables import Progress as Watch
    from veritracer.tables import RunSummary

ON_TERMINAL = sys.stdout.isatty()


def _console() -> Console:
    return Console(force_terminal=ON_TERMINAL, highlight=False)


def _errors() -> Console:
    """Return the console for progress, which is silent unless stderr is a terminal."""
    watched = sys.stderr.isatty()
    return Console(stderr=True, force_terminal=watched, quiet=not watched)


def spinner(text: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """Show a spinner on stderr while the block runs, if it is a terminal."""
    return nullcontext() if quiet else _errors().status(text)


def _columns() -> tuple[ProgressColumn, ...]:
    """Return what a bar shows."""
    return (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[Watch | None]:
    """Show a bar on stderr with the rows done and the time left, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with Progress(*_columns(), console=_errors(), transient=True) as bar:
        task = bar.add_task(text, total=None)

        def watch(done: int, share: float | None) -> None:
            total = None if share is None else 1.0
            bar.update(task, description=f"{text}: {done:,} rows", total=total, completed=share or 0.0)

        yield watch


@contextmanager
def stages(text: str, *, quiet: bool = False) -> Iterator[Callable[[str, float], None] | None]:
    """Show a bar on stderr for work in stages, if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with Progress(*_columns(), console=_errors(), transient=True) as bar:
        task = bar.add_task(text, total=None)

        def watch(stage: str, share: float) -> None:
            bar.update(task, description=stage, total=1.0, completed=share)

        yield watch


def say(*lines: str) -> None:
    """Print lines of plain text."""
    for line in lines:
        _console().print(line, markup=False, soft_wrap=not ON_TERMINAL)


def say_commands(lines: Iterable[str]) -> None:
    """Print commands, indented, each on one line however wide the terminal is: they are to be copied."""
    for line in lines:
        _console().print(f"  {line}", markup=False, soft_wrap=True)


def note(sentences: Iterable[str], *, quiet: bool = False) -> None:
    """Print notes on stderr, each on one line."""
    for sentence in () if quiet else sentences:
        print("note:", " ".join(sentence.split()), file=sys.stderr)


def print_json(content: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: framed on a terminal, in columns of text elsewhere."""
    if ON_TERMINAL:
        table = Table(title=title, title_justify="left", box=box.ROUNDED)
        for column in header:  # fold, not cut: an address must be whole to be of use
            table.add_column(column, overflow="fold", no_wrap=column == header[0])
        for row in rows:
            table.add_row(*map(Text, row))
        _console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows)]
    say(title, *lines, "")


def percent(share: float | None) -> str:
    """Format a share with one decimal, and never as 100 % unless it is all."""
    from veritracer import formatting  # here: it brings pandas

    return formatting.format_percent(share, fixed=True)


def outcome_lines(found: RunSummary) -> list[str]:
    """Say in two lines how the rows of a table ended."""
    counts = found.counts
    asked = counts["rows"] - counts["favourable"]
    first = f"{counts['rows']:,} rows, {counts['favourable']:,} of them already favourable."
    if not asked:
        return [first]
    return [
        first,
        f"Recourse for the other {asked:,}: {counts['certified']:,} certified at {found.facts['models']}, "
        f"which is {percent(counts['certified'] / asked)}; {counts['valid']:,} accepted today without proof; "
        f"{counts['none']:,} without recourse.",
    ]
