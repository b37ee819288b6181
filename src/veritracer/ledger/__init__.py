"""Issued recourse that can be audited, and updates that keep what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.errors import PromiseError
from veritracer.lazy import attach

__all__ = [
    "MEANING",
    "VERDICTS",
    "Audit",
    "Calibration",
    "Counts",
    "Displacement",
    "Finding",
    "Issued",
    "IssuingModel",
    "Ledger",
    "Limit",
    "PromiseError",
    "Promises",
    "Snapshot",
    "UpdateReport",
    "Verdict",
    "Verification",
    "audit",
    "calibrate",
    "digest_of",
    "head_of",
    "measure",
    "new_key",
    "open_ledger",
]

if TYPE_CHECKING:
    from veritracer.ledger.auditing import Audit, audit
    from veritracer.ledger.calibration import Calibration, calibrate
    from veritracer.ledger.chain import Finding, Verification
    from veritracer.ledger.constrained_update import UpdateReport
    from veritracer.ledger.displacement import Displacement, measure
    from veritracer.ledger.issuing import Issued
    from veritracer.ledger.layout import new_key
    from veritracer.ledger.ledger import Ledger, head_of, open_ledger
    from veritracer.ledger.promises import Counts, IssuingModel, Limit, Promises, digest_of
    from veritracer.ledger.reading import Snapshot
    from veritracer.ledger.verdicts import MEANING, VERDICTS, Verdict
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "auditing": ["Audit", "audit"],
            "calibration": ["Calibration", "calibrate"],
            "chain": ["Finding", "Verification"],
            "constrained_update": ["UpdateReport"],
            "displacement": ["Displacement", "measure"],
            "issuing": ["Issued"],
            "layout": ["new_key"],
            "ledger": ["Ledger", "head_of", "open_ledger"],
            "promises": ["Counts", "IssuingModel", "Limit", "Promises", "digest_of"],
            "reading": ["Snapshot"],
            "verdicts": ["MEANING", "VERDICTS", "Verdict"],
        },
    )
