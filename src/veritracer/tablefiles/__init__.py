"""Tables in files and pipes: CSV and Parquet, read and written piece by piece.

``open_table`` reads, ``typed`` and ``inferred`` give cells their types, ``open_sink`` writes; a file of any
length needs the memory of a few pieces. Parquet, and fast CSV, come from the package pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "STANDARD",
    "Limits",
    "Sink",
    "Table",
    "inferred",
    "open_sink",
    "open_table",
    "read_table",
    "typed",
    "writable",
]

if TYPE_CHECKING:
    from veritracer.tablefiles.bytestreams import STANDARD
    from veritracer.tablefiles.cells import inferred, typed
    from veritracer.tablefiles.limits import Limits
    from veritracer.tablefiles.opening import Table, open_table
    from veritracer.tablefiles.sinks import Sink, open_sink, writable
    from veritracer.tablefiles.whole import read_table
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "bytestreams": ["STANDARD"],
            "cells": ["inferred", "typed"],
            "limits": ["Limits"],
            "opening": ["Table", "open_table"],
            "sinks": ["Sink", "open_sink", "writable"],
            "whole": ["read_table"],
        },
    )
