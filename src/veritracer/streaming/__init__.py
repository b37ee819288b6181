"""A saved model applied to tables of any length, piece by piece, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "Certified",
    "Explained",
    "IssueTerms",
    "Notes",
    "Nowhere",
    "Watch",
    "certify_tables",
    "check_columns",
    "check_ids",
    "explain_table",
    "issue_table",
    "letter_folder",
]

if TYPE_CHECKING:
    from veritracer.streaming.certifying import Certified, certify_tables
    from veritracer.streaming.columns import check_columns, check_ids
    from veritracer.streaming.explaining import Explained, explain_table
    from veritracer.streaming.issuing import IssueTerms, Nowhere, issue_table
    from veritracer.streaming.letters import letter_folder
    from veritracer.streaming.pieces import Notes, Watch
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "certifying": ["Certified", "certify_tables"],
            "columns": ["check_columns", "check_ids"],
            "explaining": ["Explained", "explain_table"],
            "issuing": ["IssueTerms", "Nowhere", "issue_table"],
            "letters": ["letter_folder"],
            "pieces": ["Notes", "Watch"],
        },
    )
