"""What a verb may write over: never what it reads, and of what is there only our own."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from veritracer import tablefiles
from veritracer.errors import DataError, message

Force = Annotated[
    bool,
    typer.Option("--force", help="Write over a file that is there, whoever made it.", show_default=False),
]

MARKS = (b"recourse.", b'name="generator" content="veritracer')
"""One of these is near an end of every file that a verb writes: a column's name, or a page's maker."""

LOOKED_AT = 1 << 16
"""Bytes at either end of a file in which its mark is looked for."""


def check_output(out: str | Path | None, inputs: Iterable[str | Path], *, force: bool) -> None:
    """Refuse to write to ``out`` where it is a file that is read, or one that is not ours.

    Links are followed: another name of an input is still the input. Standard input is its file, where it
    was redirected from one. ``force`` allows all but folders and what is no file.
    """
    if out is None or str(out) == tablefiles.STANDARD or not os.path.lexists(out):
        return
    path = Path(out)
    if not path.is_file() or force:
        return  # folders and devices are the opener's to refuse
    for name in inputs:
        if _same(path, name):
            read = "standard input" if str(name) == tablefiles.STANDARD else str(name)
            got = f"{path}, which is {read}" if str(path) != read else f"{path} for both"
            raise DataError(message("an output apart from what is read", got, "name another file"))
    if not _ours(path):
        got = f"{path}, which is there and was not written by veritracer"
        raise DataError(message("a new file", got, "name another one, or write over it with --force"))


def _same(path: Path, name: str | Path) -> bool:
    """Whether both are one file, by whatever names."""
    try:
        there = os.fstat(0) if str(name) == tablefiles.STANDARD else Path(name).stat()
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and os.path.samestat(path.stat(), there)


def _ours(path: Path) -> bool:
    """Whether a file is empty or bears one of our marks."""
    try:
        ends = _ends(path)
    except OSError:
        return False
    return not ends or any(mark in ends for mark in MARKS)


def _ends(path: Path) -> bytes:
    """The first and the last bytes of a file, unpacked where it is compressed (then only the first)."""
    if path.suffix.casefold() == ".gz":
        with gzip.open(path) as packed:
            return packed.read(LOOKED_AT)
    with path.open("rb") as file:
        first = file.read(LOOKED_AT)
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        return first + file.read(LOOKED_AT)
