"""Records that wait for their place in the chain: in memory, on disk once they are many."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from typing import IO

from veritracer.ledger.records import Record

IN_MEMORY = 64 * 2**20
"""Bytes up to which records are kept in memory; more go to a file without a name."""

_LENGTHS = struct.Struct("<8i")


class Spool:
    """Records in the order in which they were put, to be read once they are all there."""

    def __init__(self) -> None:
        # Closed by close(); a file without a name is gone with the process, whatever ends it.
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def put(self, record: Record) -> None:
        """Nothing; the record is kept."""
        self.file.write(_LENGTHS.pack(*(-1 if part is None else len(part) for part in record)))
        self.file.write(b"".join(part for part in record if part is not None))
        self.count += 1

    def __iter__(self) -> Iterator[Record]:
        self.file.seek(0)
        for _ in range(self.count):
            lengths = _LENGTHS.unpack(self.file.read(_LENGTHS.size))
            yield Record(*(None if n < 0 else self.file.read(n) for n in lengths))  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing; what was kept is gone."""
        self.file.close()
