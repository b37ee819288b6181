"""Tables in files, pipes and databases: read, explained or certified, and written in batches.

``TableSource`` reads tables of any length in bounded memory, ``run_table`` runs a job over their batches on
an engine, ``issue_table`` issues promises, and ``explain_batches`` serves libraries that have partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "ADDED",
    "STANDARD",
    "Batch",
    "BatchResult",
    "CSVFormat",
    "Format",
    "Job",
    "Output",
    "Progress",
    "Reject",
    "RunFolder",
    "RunSummary",
    "StreamOutput",
    "TableSource",
    "Verb",
    "altered_note",
    "apply_schema",
    "check_columns",
    "check_ids",
    "collect_warnings",
    "do_batch",
    "explain_batches",
    "find_tables",
    "infer_types",
    "is_many",
    "is_url",
    "issue_table",
    "local_path",
    "open_output",
    "open_rejects",
    "open_sink",
    "paired",
    "read_batches",
    "read_table",
    "rejects_note",
    "run_table",
    "without_password",
]

if TYPE_CHECKING:
    from veritracer.tables.cells import apply_schema, infer_types, read_table
    from veritracer.tables.columns import check_columns, check_ids
    from veritracer.tables.csv_blocks import CSVFormat
    from veritracer.tables.issuing import issue_table
    from veritracer.tables.jobs import ADDED, Batch, BatchResult, Job, Reject, Verb, collect_warnings
    from veritracer.tables.outputs import Output, RunFolder, StreamOutput, open_output
    from veritracer.tables.pairs import paired
    from veritracer.tables.partitions import explain_batches
    from veritracer.tables.places import STANDARD, find_tables, is_many, is_url, local_path, without_password
    from veritracer.tables.reading import TableSource, read_batches
    from veritracer.tables.runs import Progress, RunSummary, do_batch, run_table
    from veritracer.tables.writing import Format, altered_note, open_rejects, open_sink, rejects_note
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cells": ["apply_schema", "infer_types", "read_table"],
            "columns": ["check_columns", "check_ids"],
            "csv_blocks": ["CSVFormat"],
            "issuing": ["issue_table"],
            "jobs": ["ADDED", "Batch", "BatchResult", "Job", "Reject", "Verb", "collect_warnings"],
            "outputs": ["Output", "RunFolder", "StreamOutput", "open_output"],
            "pairs": ["paired"],
            "partitions": ["explain_batches"],
            "places": ["STANDARD", "find_tables", "is_many", "is_url", "local_path", "without_password"],
            "reading": ["TableSource", "read_batches"],
            "runs": ["Progress", "RunSummary", "do_batch", "run_table"],
            "writing": ["Format", "altered_note", "open_rejects", "open_sink", "rejects_note"],
        },
    )
