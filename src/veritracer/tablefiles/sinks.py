"""Where a table goes, piece by piece: a file that appears only when it is whole, or standard output."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from veritracer.errors import DataError, message
from veritracer.tablefiles.bytestreams import STANDARD

Format = Literal["csv", "parquet", "jsonl"]
FORMATS: dict[str, Format] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl"}


class Sink(Protocol):
    """Takes a table piece by piece; every piece has the same columns and types."""

    def write(self, piece: pa.Table) -> None:
        """Write one more piece."""
        ...


def format_of(path: str | None) -> Format:
    """What to write, from the name of the file; standard output gets CSV."""
    if path is None or path == STANDARD:
        return "csv"
    suffix = Path(path).suffix.casefold()
    if suffix not in FORMATS and not _is_special(Path(path)):
        remedy = "name a file that ends in one of these"
        raise DataError(message(f"an output of the kind {', '.join(FORMATS)}", repr(path), remedy))
    return FORMATS.get(suffix, "csv")


@contextmanager
def open_sink(path: str | None, *, kind: Format | None = None) -> Iterator[Sink]:
    """Where to write; ``None`` or ``-`` is standard output.

    The file is written as ``NAME.partial`` and renamed at the end. If anything goes wrong it disappears, and
    what was there before stays.
    """
    chosen = kind or format_of(path)
    if path is None or path == STANDARD:
        with _written(sys.stdout.buffer, chosen) as sink:
            yield sink
        sys.stdout.flush()
        return
    place = Path(path)
    with writable(place), whole_file(place) as file, _written(file, chosen) as sink:
        yield sink


@contextmanager
def whole_file(place: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its place only when the block ends well."""
    if _is_special(place):
        with place.open("wb") as file:
            yield file
        return
    partial = place.with_name(f"{place.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(place)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def writable(place: Path) -> Iterator[None]:
    """Turns what the file system refuses into one sentence, before and while the block writes."""
    if place.is_dir():
        raise DataError(message("a file to write", f"the folder {place}", "name a file in it"))
    if not place.parent.is_dir():
        received = f"no folder {place.parent}"
        raise DataError(message(f"a folder for {place.name}", received, "create it first"))
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.errno:
            raise
        received = os.strerror(error.errno)
        remedy = "nothing was kept: free some space, or choose another place"
        raise DataError(message(f"{place} to be written", received, remedy)) from None


def _is_special(place: Path) -> bool:
    """Whether this is a device or a pipe, which can not be renamed."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def _written(file: BinaryIO, kind: Format) -> Iterator[Sink]:
    writers: dict[Format, Callable[[BinaryIO], _Csv | _Parquet | _Lines]] = {
        "csv": _Csv,
        "parquet": _Parquet,
        "jsonl": _Lines,
    }
    writer = writers[kind](file)
    yield writer
    writer.finish()
    file.flush()


class _Csv:
    """CSV, with quotes in those pieces that need them."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.begun = file, False

    def write(self, piece: pa.Table) -> None:
        if not self.begun:
            line = io.StringIO()
            csv.writer(line, lineterminator="\n").writerow(piece.schema.names)
            self.file.write(line.getvalue().encode())
            self.begun = True
        self.file.write(_as_csv(piece))

    def finish(self) -> None:
        pass


def _as_csv(piece: pa.Table) -> bytes:
    for style in ("none", "needed"):
        out = io.BytesIO()
        options = arrow_csv.WriteOptions(include_header=False, quoting_style=style)
        try:
            arrow_csv.write_csv(piece, out, write_options=options)
        except pa.ArrowInvalid:  # a separator, a quote or a line's end inside of a cell
            continue
        return out.getvalue()
    raise AssertionError("quotes hold any text")


class _Parquet:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.writer: parquet.ParquetWriter | None = None

    def write(self, piece: pa.Table) -> None:
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.file, piece.schema)
        self.writer.write_table(piece)

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()


class _Lines:
    """One JSON object on each line."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, piece: pa.Table) -> None:
        for row in piece.to_pylist():
            plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            self.file.write((json.dumps(plain, ensure_ascii=False) + "\n").encode())
        self.file.flush()

    def finish(self) -> None:
        pass
