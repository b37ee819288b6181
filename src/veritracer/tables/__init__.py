"""Tables in files, pipes and databases, read and written in batches.

``open_table`` reads a table of any length in bounded memory, ``apply_schema`` and ``infer_types`` give its
cells their types, ``exact_columns`` and ``open_sink`` write them so that they read back exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "ADDED",
    "ROWS",
    "STANDARD",
    "CSVFormat",
    "Format",
    "Partners",
    "Rejects",
    "Sink",
    "TablePlace",
    "TableSource",
    "apply_schema",
    "check_columns",
    "check_ids",
    "check_pairs",
    "find_tables",
    "format_of",
    "infer_types",
    "is_many",
    "is_url",
    "local_path",
    "open_rejects",
    "open_sink",
    "open_table",
    "read_table",
    "rows_digest",
    "without_password",
]

if TYPE_CHECKING:
    from veritracer.tables.cells import apply_schema, infer_types, read_table
    from veritracer.tables.csv_blocks import CSVFormat
    from veritracer.tables.places import (
        STANDARD,
        TablePlace,
        find_tables,
        is_many,
        is_url,
        local_path,
        without_password,
    )
    from veritracer.tables.reading import (
        ADDED,
        ROWS,
        TableSource,
        check_columns,
        check_ids,
        check_pairs,
        open_table,
        rows_digest,
    )
    from veritracer.tables.rejects import Partners, Rejects, open_rejects
    from veritracer.tables.writing import Format, Sink, format_of, open_sink
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cells": ["apply_schema", "infer_types", "read_table"],
            "csv_blocks": ["CSVFormat"],
            "places": [
                "STANDARD",
                "TablePlace",
                "find_tables",
                "is_many",
                "is_url",
                "local_path",
                "without_password",
            ],
            "reading": [
                "ADDED",
                "ROWS",
                "TableSource",
                "check_columns",
                "check_ids",
                "check_pairs",
                "open_table",
                "rows_digest",
            ],
            "rejects": ["Partners", "Rejects", "open_rejects"],
            "writing": ["Format", "Sink", "format_of", "open_sink"],
        },
    )
