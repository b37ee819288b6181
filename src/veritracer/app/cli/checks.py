"""Checks before any work starts: inputs exist, and outputs do not overwrite other files."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from veritracer import tables
from veritracer.errors import DataError, LedgerError, ModelFileError, message
from veritracer.files import writable
from veritracer.model_folder import DOCUMENT

if TYPE_CHECKING:
    from veritracer.app.cli.options import ReadOptions

MARKS = (b"recourse.", b'name="generator" content="veritracer')
"""Every file that a command writes has one of these near its start or end."""

LOOKED_AT = 1 << 16
"""Bytes at either end of a file that are searched for a mark."""


def check_table(path: str, reading: ReadOptions, *, lenient: bool = False) -> tuple[str, ...] | None:
    """Return the columns of a table; refuse one that cannot be opened before heavy imports.

    None of standard input, which can be read only once. ``lenient`` does not mind rows of too few cells.
    """
    if path == tables.STANDARD:
        return None
    with closing(
        tables.read_batches(path, reading.query, csv=reading.csv, collect_rejects=lenient)
    ) as batches:
        return next(batches).columns


def check_ledger(place: str) -> None:
    """Refuse a ledger's file that does not exist before heavy imports."""
    if "://" not in place and not Path(place).exists():
        remedy = "check the path, or issue a promise first"
        raise LedgerError(message("a ledger that exists", f"no file {place}", remedy))


def check_output(out: str | Path | None, inputs: Iterable[str | Path], *, force: bool) -> None:
    """Refuse to overwrite an input, or a file that veritracer did not write.

    Links are followed: another name of an input is still the input. Standard input is its file, where it
    was redirected from one. ``force`` allows all but folders and what is no file.
    """
    if out is None or str(out) == tables.STANDARD or not os.path.lexists(out):
        return
    path = Path(out)
    if not path.is_file() or force:
        return  # folders and devices are the opener's to refuse
    for name in inputs:
        if _same(path, name):
            read = "standard input" if str(name) == tables.STANDARD else str(name)
            got = f"{path}, which is {read}" if str(path) != read else f"{path} for both"
            raise DataError(message("an output apart from what is read", got, "name another file"))
    if not _ours(path):
        got = f"{path}, which is there and was not written by veritracer"
        raise DataError(message("a new file", got, "name another one, or write over it with --force"))


def check_apart(out: str | None, table: str) -> None:
    """Refuse to write into the folder that is read: the next run would read what this one wrote."""
    read = Path(table)
    if out is None or tables.is_url(out) or not read.is_dir():
        return
    if Path(out).resolve().is_relative_to(read.resolve()):
        raise DataError(message(f"a place outside of {table}", out, "name a place beside it"))


def check_new(out: str | None, *, force: bool) -> None:
    """Refuse to overwrite any file: the results of promises may exist nowhere else."""
    path = Path(out or tables.STANDARD)
    if path.is_file() and not force:
        remedy = "name another file, or write over it with --force"
        raise DataError(message("a new file", f"{path}, which is there", remedy))


def _same(path: Path, name: str | Path) -> bool:
    """Return True if both names are of the same file."""
    try:
        local = tables.local_path(str(name))
        there = os.fstat(0) if local == tables.STANDARD else Path(local).stat()
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and os.path.samestat(path.stat(), there)


def _ours(path: Path) -> bool:
    """Return True if a file is empty or has one of our marks."""
    try:
        ends = _ends(path)
    except OSError:
        return False
    return not ends or any(mark in ends for mark in MARKS)


def _ends(path: Path) -> bytes:
    """Return the first and last bytes of a file; of a compressed one only the first, decompressed."""
    if path.suffix.casefold() == ".gz":
        with gzip.open(path) as packed:
            return packed.read(LOOKED_AT)
    with path.open("rb") as file:
        first = file.read(LOOKED_AT)
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        return first + file.read(LOOKED_AT)


def check_rejects(
    rejects: Path | None, inputs: Sequence[str | Path], out: str | Path | None = None, *, force: bool
) -> None:
    """Refuse a file for rejected rows that is an input, the output, or not a CSV file."""
    check_output(rejects, inputs, force=force)
    if rejects is not None and out is not None and rejects.absolute() == Path(out).absolute():
        raise DataError(message("a file of its own for rejected rows", f"{out} for both", "name another one"))
    if rejects is not None and rejects.suffix.casefold() != ".csv":
        raise DataError(message("a .csv file for rejected rows", str(rejects), "name it rejects.csv"))


def check_folder(out: Path) -> None:
    """Refuse a place where a model cannot be saved before anything is trained."""
    remedy = "choose another name"
    if out.exists() and not out.is_dir():
        raise ModelFileError(message("a folder for the model", f"the file {out}", remedy))
    if out.is_dir() and not (out / DOCUMENT).exists() and any(out.iterdir()):
        raise ModelFileError(message("a new folder or a saved model to replace", f"the folder {out}", remedy))
    place = out.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ModelFileError(message("a folder for the model", f"{place}, which is a file", remedy))
    probe = place / f".{out.name}.probe"
    with writable(probe):
        probe.mkdir()
        probe.rmdir()
