"""Issued recourse that can be audited, and updates that keep what was promised."""

from veritracer.ledger.promised import IssuingModel, Limit, Promises

__all__ = ["IssuingModel", "Limit", "Promises"]
