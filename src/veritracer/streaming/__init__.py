"""A saved model applied to tables of any length, piece by piece, in bounded memory."""

from __future__ import annotations

from veritracer.streaming.certifying import Certified, certify_tables
from veritracer.streaming.explaining import Explained, explain_table
from veritracer.streaming.issuing import IssueTerms, Nowhere, issue_table
from veritracer.streaming.letters import letter_folder
from veritracer.streaming.pieces import Watch

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
