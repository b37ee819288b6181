"""Tables in files, pipes and databases: read, explained or certified, and written in batches.

``open_table`` reads a table of any length in bounded memory, ``run_table`` runs a job over its batches on an
engine, ``issue_table`` issues promises, and ``explain_batches`` serves libraries with their own partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "ADDED",
    "ROWS",
    "STANDARD",
    "CSVFormat",
    "FileOutput",
    "FolderOutput",
    "Format",
    "Job",
    "Notes",
    "Output",
    "Progress",
    "Rejects",
    "RunSummary",
    "Sink",
    "StreamOutput",
    "TableInputs",
    "TablePlace",
    "TableSource",
    "Verb",
    "altered_note",
    "apply_schema",
    "check_columns",
    "check_ids",
    "do_batch",
    "explain_batches",
    "find_tables",
    "format_of",
    "infer_types",
    "is_folder",
    "is_many",
    "is_url",
    "issue_table",
    "local_path",
    "note_of",
    "open_output",
    "open_rejects",
    "open_sink",
    "open_table",
    "paired",
    "read_table",
    "rows_digest",
    "run_table",
    "without_password",
]

if TYPE_CHECKING:
    from veritracer.tables.cells import apply_schema, infer_types, read_table
    from veritracer.tables.csv_blocks import CSVFormat
    from veritracer.tables.inputs import TableInputs, paired
    from veritracer.tables.issuing import issue_table
    from veritracer.tables.jobs import Job, Verb
    from veritracer.tables.notes import Notes
    from veritracer.tables.outputs import (
        FileOutput,
        FolderOutput,
        Output,
        StreamOutput,
        is_folder,
        open_output,
    )
    from veritracer.tables.partitions import explain_batches
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
        open_table,
        rows_digest,
    )
    from veritracer.tables.rejects import Rejects, note_of, open_rejects
    from veritracer.tables.runs import Progress, RunSummary, do_batch, run_table
    from veritracer.tables.writing import Format, Sink, altered_note, format_of, open_sink
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "cells": ["apply_schema", "infer_types", "read_table"],
            "csv_blocks": ["CSVFormat"],
            "inputs": ["TableInputs", "paired"],
            "issuing": ["issue_table"],
            "jobs": ["Job", "Verb"],
            "notes": ["Notes"],
            "outputs": ["FileOutput", "FolderOutput", "Output", "StreamOutput", "is_folder", "open_output"],
            "partitions": ["explain_batches"],
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
                "open_table",
                "rows_digest",
            ],
            "rejects": ["Rejects", "note_of", "open_rejects"],
            "runs": ["Progress", "RunSummary", "do_batch", "run_table"],
            "writing": ["Format", "Sink", "altered_note", "format_of", "open_sink"],
        },
    )
