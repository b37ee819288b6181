"""Table to tensor and back, and the projection onto rows that a person could have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = ["Block", "Encoding"]

if TYPE_CHECKING:
    from veritracer.encoding.encoding import Encoding
    from veritracer.encoding.layout import Block
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "layout": ["Block"],
            "encoding": ["Encoding"],
        },
    )
