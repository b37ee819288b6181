"""Convert a table to a tensor and back, and project onto rows that a person could have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Block", "Encoding"]

if TYPE_CHECKING:
    from veritracer.encoding.encoding import Encoding
    from veritracer.encoding.projection import Block


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the cells of a file are read without torch."""
    modules = {"Encoding": "encoding", "Block": "projection"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
