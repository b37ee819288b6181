"""Issued promises that can be audited, and updates that keep them."""

from __future__ import annotations

from veritracer.errors import PromiseError
from veritracer.ledger.auditing import Audit, audit
from veritracer.ledger.calibration import Calibration, calibrate
from veritracer.ledger.displacement import Displacement, measure
from veritracer.ledger.ledger import Ledger, head_of, open_ledger
from veritracer.ledger.promises import Counts, IssuingModel, Promises, SetRequirement, digest_of
from veritracer.ledger.records import new_key
from veritracer.ledger.requests import Issued, Request
from veritracer.ledger.snapshot import Snapshot
from veritracer.ledger.update import UpdateReport
from veritracer.ledger.verdicts import MEANING, VERDICTS, Verdict
from veritracer.ledger.verification import Finding, Verification

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
    "PromiseError",
    "Promises",
    "Request",
    "SetRequirement",
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
