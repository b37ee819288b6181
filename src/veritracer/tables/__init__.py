"""Tables in files, pipes and databases: read, explained or certified, and written in batches.

``TableSource`` reads tables of any length in bounded memory, and ``run_table`` runs a job over their batches
on an engine. What imports pandas or torch is imported from its module: ``cells.read_table`` reads a whole
table, ``issuing.issue_table`` issues promises, and ``partitions.explain_batches`` serves libraries that have
partitions.
"""

from __future__ import annotations

from veritracer.tables.columns import check_columns, check_ids
from veritracer.tables.csv_blocks import CSVFormat
from veritracer.tables.jobs import ADDED, Batch, BatchResult, Job, Reject, Verb, collect_warnings
from veritracer.tables.outputs import Output, RunFolder, StreamOutput, open_output
from veritracer.tables.pairs import paired
from veritracer.tables.places import STANDARD, find_tables, is_many, is_url, local_path, without_password
from veritracer.tables.reading import TableSource, read_batches
from veritracer.tables.runs import Progress, RunSummary, do_batch, run_table
from veritracer.tables.writing import Format, altered_note, open_rejects, open_sink, rejects_note

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
    "check_columns",
    "check_ids",
    "collect_warnings",
    "do_batch",
    "find_tables",
    "is_many",
    "is_url",
    "local_path",
    "open_output",
    "open_rejects",
    "open_sink",
    "paired",
    "read_batches",
    "rejects_note",
    "run_table",
    "without_password",
]
