"""Tables in files, pipes and databases: read, explained or certified, and written in batches.

``open_table`` reads a table of any length in bounded memory, and ``run_table`` runs a job over its batches on
an engine. What imports pandas or torch is imported from its module: ``cells.read_table`` reads a whole table,
``issuing.issue_table`` issues promises, and ``partitions.explain_batches`` serves libraries with their own
partitions.
"""

from __future__ import annotations

from veritracer.tables.csv_blocks import CSVFormat
from veritracer.tables.inputs import TableInputs, paired
from veritracer.tables.jobs import Batch, Job, Verb
from veritracer.tables.notes import Notes
from veritracer.tables.outputs import FileOutput, FolderOutput, Output, StreamOutput, is_folder, open_output
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

__all__ = [
    "ADDED",
    "ROWS",
    "STANDARD",
    "Batch",
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
    "check_columns",
    "check_ids",
    "do_batch",
    "find_tables",
    "format_of",
    "is_folder",
    "is_many",
    "is_url",
    "local_path",
    "note_of",
    "open_output",
    "open_rejects",
    "open_sink",
    "open_table",
    "paired",
    "rows_digest",
    "run_table",
    "without_password",
]
