"""A saved model applied to tables of any length, chunk by chunk, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "Certified",
    "Explained",
    "IssueTerms",
    "Notes",
    "NullSink",
    "PendingOutputs",
    "Predicted",
    "Watch",
    "certify_tables",
    "explain_table",
    "issue_table",
    "predict_table",
    "table_digest",
]

if TYPE_CHECKING:
    from veritracer.streaming.certifying import Certified, Predicted, certify_tables, predict_table
    from veritracer.streaming.chunks import Notes, Watch
    from veritracer.streaming.explaining import (
        Explained,
        IssueTerms,
        NullSink,
        explain_table,
        issue_table,
    )
    from veritracer.streaming.pending import PendingOutputs, table_digest
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "certifying": ["Certified", "Predicted", "certify_tables", "predict_table"],
            "chunks": ["Notes", "Watch"],
            "explaining": ["Explained", "IssueTerms", "NullSink", "explain_table", "issue_table"],
            "pending": ["PendingOutputs", "table_digest"],
        },
    )
