"""Table to tensor and back, and the projection onto rows that a person could have."""

from __future__ import annotations

from veritracer.encoding.layout import Block
from veritracer.encoding.table_encoding import Encoding

__all__ = ["Block", "Encoding"]
