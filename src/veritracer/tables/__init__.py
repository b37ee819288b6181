"""Tables in files and pipes: CSV and Parquet, read and written chunk by chunk.

``open_table`` reads, ``typed`` and ``inferred`` give cells their types, ``open_sink`` writes; a file of any
length needs the memory of a few chunks. Parquet, and fast CSV, come from the package pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "STANDARD",
    "Found",
    "Limits",
    "Partners",
    "Rejects",
    "Sink",
    "Table",
    "check_columns",
    "check_ids",
    "check_pairs",
    "format_of",
    "inferred",
    "is_database",
    "is_many",
    "local_path",
    "open_rejects",
    "open_sink",
    "open_table",
    "read_table",
    "tables_in",
    "typed",
    "without_password",
]

if TYPE_CHECKING:
    from veritracer.tables.cells import inferred, read_table, typed
    from veritracer.tables.places import (
        Found,
        is_database,
        is_many,
        local_path,
        tables_in,
        without_password,
    )
    from veritracer.tables.reading import (
        STANDARD,
        Limits,
        Table,
        check_columns,
        check_ids,
        check_pairs,
        open_table,
    )
    from veritracer.tables.writing import (
        Partners,
        Rejects,
        Sink,
        format_of,
        open_rejects,
        open_sink,
    )
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cells": ["inferred", "read_table", "typed"],
            "reading": [
                "STANDARD",
                "Limits",
                "Table",
                "check_columns",
                "check_ids",
                "check_pairs",
                "open_table",
            ],
            "places": ["Found", "is_database", "is_many", "local_path", "tables_in", "without_password"],
            "writing": [
                "Partners",
                "Rejects",
                "Sink",
                "format_of",
                "open_rejects",
                "open_sink",
            ],
        },
    )
