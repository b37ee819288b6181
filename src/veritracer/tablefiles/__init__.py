"""Tables in files and pipes: CSV and Parquet, read and written piece by piece.

``open_table`` reads, ``typed`` and ``inferred`` give cells their types, ``open_sink`` writes; a file of any
length needs the memory of a few pieces. Parquet, and fast CSV, come from the package pyarrow.
"""

from __future__ import annotations

from veritracer.tablefiles.cells import inferred, typed
from veritracer.tablefiles.limits import Limits
from veritracer.tablefiles.opening import Table, open_table
from veritracer.tablefiles.sinks import Sink, open_sink
from veritracer.tablefiles.whole import read_table

__all__ = ["Limits", "Sink", "Table", "inferred", "open_sink", "open_table", "read_table", "typed"]
