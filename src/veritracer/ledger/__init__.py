"""Issued recourse that can be audited, and updates that keep what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "VERDICTS",
    "Audit",
    "Counts",
    "Finding",
    "Issued",
    "IssuingModel",
    "Ledger",
    "Limit",
    "PromiseError",
    "Promises",
    "Snapshot",
    "UpdateReport",
    "Verification",
    "at_hand",
    "audit",
    "head_of",
    "new_key",
]

if TYPE_CHECKING:
    from veritracer.ledger.auditing import Audit, audit
    from veritracer.ledger.book import Ledger, at_hand, head_of
    from veritracer.ledger.issuing import Issued
    from veritracer.ledger.keeping import PromiseError
    from veritracer.ledger.promised import IssuingModel, Limit, Promises
    from veritracer.ledger.sealing import new_key
    from veritracer.ledger.snapshot import Counts, Snapshot
    from veritracer.ledger.update_report import UpdateReport
    from veritracer.ledger.verdicts import VERDICTS
    from veritracer.ledger.verifying import Finding, Verification
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "auditing": ["Audit", "audit"],
            "book": ["Ledger", "at_hand", "head_of"],
            "issuing": ["Issued"],
            "keeping": ["PromiseError"],
            "promised": ["IssuingModel", "Limit", "Promises"],
            "sealing": ["new_key"],
            "snapshot": ["Counts", "Snapshot"],
            "update_report": ["UpdateReport"],
            "verdicts": ["VERDICTS"],
            "verifying": ["Finding", "Verification"],
        },
    )
