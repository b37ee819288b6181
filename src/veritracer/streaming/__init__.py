"""A saved model applied to tables of any length, piece by piece, in bounded memory."""

from __future__ import annotations

from veritracer.streaming.certifying import Certified, certify_tables
from veritracer.streaming.explaining import Explained, explain_table
from veritracer.streaming.pieces import Watch

__all__ = ["Certified", "Explained", "Watch", "certify_tables", "explain_table"]
