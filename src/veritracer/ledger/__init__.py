"""Issued recourse that can be audited, and updates that keep what was promised."""

from veritracer.ledger.book import Counts, Ledger, at_hand
from veritracer.ledger.issuing import Issued
from veritracer.ledger.promised import IssuingModel, Limit, Promises
from veritracer.ledger.sealing import new_key
from veritracer.ledger.verifying import Finding, Verification

__all__ = [
    "Counts",
    "Finding",
    "Issued",
    "IssuingModel",
    "Ledger",
    "Limit",
    "Promises",
    "Verification",
    "at_hand",
    "new_key",
]
