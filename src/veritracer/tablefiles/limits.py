"""What a table may ask of the machine: whatever asks for more is refused in one sentence, before it is read.

A few bytes can stand for very many: gzip packs a thousand to one, and a page of a Parquet file can declare a
billion equal rows. Every limit is far above what honest tables need, and its message names a way around it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from veritracer.errors import DataError, listing, message

UNKNOWN = 16 << 30
"""Bytes of memory that are assumed where the system does not tell."""

CONTAINER = Path("/sys/fs/cgroup/memory.max")


@cache
def _half_of_the_memory() -> int:
    """Half of what this machine, or the container on it, has."""
    known = hasattr(os, "sysconf")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else UNKNOWN
    allowed = CONTAINER.read_text().strip() if CONTAINER.exists() else ""
    return min(memory, int(allowed) if allowed.isdigit() else memory) // 2


@dataclass(frozen=True)
class Limits:
    """The limits of one table; those of :func:`open_table` are ``Limits()``.

    Attributes
    ----------
    columns
        Columns of a table.
    unpacked
        How many times its own size a gzip file may unpack to, beyond the first ``unpacked_free`` bytes.
    unpacked_free
        Bytes that any gzip file may unpack to.
    group_rows, group_bytes
        Rows of one row group of a Parquet file, and its unpacked bytes, as the file declares them.
    whole
        Bytes of a table that is read as a whole, to learn from; None is half of the machine's memory.
    """

    columns: int = 10_000
    unpacked: int = 200
    unpacked_free: int = 64 << 20
    group_rows: int = 1 << 26
    group_bytes: int = 8 << 30
    whole: int | None = None

    def check_names(self, name: str, names: Sequence[str]) -> None:
        """Nothing; refuses too many columns, and columns of the same name."""
        if len(names) > self.columns:
            remedy = "leave out the columns that are no features"
            received = f"{len(names):,} in {name}"
            raise DataError(message(f"at most {self.columns:,} columns", received, remedy))
        twice = sorted(column for column, count in Counter(names).items() if count > 1)
        if twice:
            received = f"{listing(twice)} more than once in {name}"
            raise DataError(message("each column once", received, "rename or drop the duplicates"))

    def check_unpacked(self, name: str, packed: int, unpacked: int) -> None:
        """Nothing; refuses a gzip file that unpacks to far more than tables do."""
        if unpacked > max(self.unpacked_free, self.unpacked * packed):
            expected = f"a gzip file that unpacks to at most {self.unpacked} times its size"
            received = f"{unpacked >> 20:,} MiB from the first {packed:,} bytes of {name}"
            raise DataError(message(expected, received, "unpack it first if that is meant (gunzip)"))

    def check_group(self, name: str, number: int, rows: int, size: int) -> None:
        """Nothing; refuses a row group of a Parquet file that declares absurdly much."""
        if rows > self.group_rows or size > self.group_bytes:
            expected = f"row groups of at most {self.group_rows:,} rows and {self.group_bytes >> 30} GiB"
            received = f"{rows:,} rows and {size / 2**30:.1f} GiB in group {number} of {name}"
            remedy = (
                "write the file in smaller groups: pyarrow.parquet.write_table(..., row_group_size=100_000)"
            )
            raise DataError(message(expected, received, remedy))

    def check_whole(self, name: str, size: int) -> None:
        """Nothing; refuses a table that would fill the memory when it is read as a whole."""
        most = _half_of_the_memory() if self.whole is None else self.whole
        if size > most:
            half = ", half of the memory" if self.whole is None else ""
            expected = f"a table of at most {most / 2**30:.3g} GiB{half} to read as a whole"
            remedy = "give a sample of its rows"
            raise DataError(message(expected, f"more in {name}", remedy))
