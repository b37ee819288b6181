"""Bytes from a file or from standard input: counted, unpacked, and looked at before they are read."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import BinaryIO

from veritracer.errors import DataError, message
from veritracer.tablefiles.limits import Limits

STANDARD = "-"
"""The name that stands for standard input, or for standard output."""

HEAD = 1 << 20
"""Bytes that are looked at in order to find out what a file is; a header has to fit into them."""


class Counted(io.RawIOBase):
    """A stream that starts with ``head`` and goes on with ``rest``, and knows how far it is."""

    def __init__(self, head: bytes, rest: BinaryIO, measured: BinaryIO) -> None:
        self.head, self.rest, self.measured = io.BytesIO(head), rest, measured
        self.behind = 0

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; fewer only at the end."""
        first = self.head.read(size)
        missing = size - len(first) if size >= 0 else -1
        data = first + self.rest.read(missing) if missing else first
        self.behind += len(data)
        return data

    def close(self) -> None:
        """Close what is below, unless it is standard input."""
        if self.measured is not sys.stdin.buffer:
            self.rest.close()
            self.measured.close()
        super().close()

    @property
    def consumed(self) -> int:
        """How many bytes of the file (packed ones, where it is packed) were read."""
        try:
            return self.measured.tell()
        except (OSError, ValueError):  # a pipe has no position, a closed file neither
            return self.behind


def open_bytes(path: str, limits: Limits) -> tuple[bytes, Counted, int | None]:
    """The first bytes of the file, the stream of all of them, and the size of the file where it has one."""
    measured = sys.stdin.buffer if path == STANDARD else _opened(path)
    first = measured.read(2)
    rest: BinaryIO = measured
    if first == b"\x1f\x8b":
        rest, first = _Unpacked(path, first, measured, limits), b""  # type: ignore[assignment]  # reads alike
    try:
        head = first + rest.read(HEAD - len(first))
    except (OSError, EOFError, zlib.error, DataError) as error:
        Counted(b"", rest, measured).close()
        if isinstance(error, DataError):
            raise
        raise DataError(message(f"a whole gzip file in {path}", str(error), "pack it again")) from None
    size = None if path == STANDARD else Path(path).stat().st_size
    return head, Counted(head, rest, measured), size


class _Unpacked(io.RawIOBase):
    """What is packed in some bytes and a stream after them, as long as it is not absurdly much."""

    def __init__(self, name: str, head: bytes, rest: BinaryIO, limits: Limits) -> None:
        self.name, self.limits, self.unpacked = name, limits, 0
        self.packed = _Joined(head, rest)
        self.file = gzip.GzipFile(fileobj=io.BufferedReader(self.packed))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.unpacked += len(data)
        self.limits.check_unpacked(self.name, self.packed.taken, self.unpacked)
        return data

    def close(self) -> None:
        self.file.close()
        super().close()


class _Joined(io.RawIOBase):
    """Some bytes, then a stream; counts what was taken."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.parts, self.taken = [io.BytesIO(head), rest], 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # bytes-like is what it gets
        data = self.parts[0].read(len(buffer)) or self.parts[1].read(len(buffer))
        buffer[: len(data)] = data
        self.taken += len(data)
        return len(data)


def _opened(path: str) -> BinaryIO:
    place = Path(path)
    if place.is_dir():
        remedy = "name a CSV or Parquet file"
        raise DataError(message("a file with a table", f"the folder {path}", remedy))
    try:
        return place.open("rb")
    except FileNotFoundError:
        remedy = "check the name, or pass - for standard input"
        raise DataError(message("a file with a table", f"no file {path}", remedy)) from None
    except OSError as error:
        received = f"{path}, which can not be read ({error.strerror})"
        raise DataError(message("a file with a table", received, "check its permissions")) from None
