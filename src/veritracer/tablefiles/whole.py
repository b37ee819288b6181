"""A table that is read as a whole, to learn from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from veritracer.errors import DataError, message, unknown_name
from veritracer.schema import Schema
from veritracer.tablefiles.cells import inferred, typed
from veritracer.tablefiles.limits import Limits
from veritracer.tablefiles.opening import open_table


def read_table(
    path: str,
    *,
    schema: Schema | None = None,
    ignore: Sequence[str] = (),
    separator: str = ",",
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> pd.DataFrame:
    """The whole table without the columns to ignore: typed by the schema, or by what its cells allow."""
    with open_table(path, separator=separator, limits=limits) as table:
        for name in ignore:
            if name not in table.names:
                raise DataError(unknown_name("a column to ignore", name, table.names))
        kept = [name for name in table.names if name not in ignore]
        if not kept:
            remedy = "ignore fewer of them"
            raise DataError(message(f"columns to read in {table.name}", "none", remedy))
        pieces, size = [], 0
        for piece in table.pieces:
            pieces.append(piece.select(kept))
            size += pieces[-1].nbytes
            limits.check_whole(table.name, size)
        if schema is None:
            return inferred(pa.Table.from_batches(pieces), is_text=table.is_text)
        start, frames = 0, []
        for piece in pieces:
            frames.append(typed(piece, schema, is_text=table.is_text, start=start))
            start += piece.num_rows
        return pd.concat(frames)
