"""Output of the command line: frames and colour on a terminal, plain text in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

ON_TERMINAL = sys.stdout.isatty()


def _console() -> Console:
    return Console(force_terminal=ON_TERMINAL, highlight=False)


@contextmanager
def spinner(text: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr, if it is a terminal.

    The block may call the function it gets with the text of its next step; elsewhere that is printed.
    """
    if quiet:
        yield lambda step: None
    elif sys.stderr.isatty():
        with Console(stderr=True, force_terminal=True).status(text) as status:
            yield status.update
    else:
        yield lambda step: print(f"{step} ...", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str, *, quiet: bool = False) -> Iterator[Callable[[int | str, float | None], None] | None]:
    """Show a bar on stderr, if it is a terminal: the rows done or the current step, and the time left."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(text, total=None)

        def show(done: int | str, share: float | None) -> None:
            step = done if isinstance(done, str) else f"{text}: {done:,} rows"
            bar.update(task, description=step, total=None if share is None else 1.0, completed=share or 0.0)

        yield show


def say(*lines: str, wrap: bool = True) -> None:
    """Print lines of plain text; without ``wrap`` each stays on one line, as a command to be copied does."""
    for line in lines:
        _console().print(line, markup=False, soft_wrap=not (wrap and ON_TERMINAL))


def show_help(context: typer.Context) -> None:
    """Print the help of a group of commands where none of them is named."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def note(sentences: Iterable[str], *, quiet: bool = False) -> None:
    """Print notes on stderr, each on one line."""
    for sentence in () if quiet else sentences:
        print("note:", " ".join(sentence.split()), file=sys.stderr)


def print_json(content: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False))


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, most: int | None = None
) -> None:
    """Print a table: framed on a terminal, in columns of text elsewhere; at most so many rows of it."""
    if most is not None and len(rows) > most:
        title, rows = f"{title}, {len(rows) - most:,} more in --json", rows[:most]
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
