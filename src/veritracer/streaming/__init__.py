"""A saved model applied to tables of any length, piece by piece, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "Certified",
    "Explained",
    "IssueTerms",
    "Nowhere",
    "Watch",
    "certify_tables",
    "explain_table",
    "issue_table",
    "letter_folder",
]

if TYPE_CHECKING:
    from veritracer.streaming.certifying import Certified, certify_tables
    from veritracer.streaming.explaining import Explained, explain_table
    from veritracer.streaming.issuing import IssueTerms, Nowhere, issue_table
    from veritracer.streaming.letters import letter_folder
    from veritracer.streaming.pieces import Watch
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "certifying": ["Certified", "certify_tables"],
            "explaining": ["Explained", "explain_table"],
            "issuing": ["IssueTerms", "Nowhere", "issue_table"],
            "letters": ["letter_folder"],
            "pieces": ["Watch"],
        },
    )
