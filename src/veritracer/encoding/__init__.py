"""Convert tables to tensors and back, and project encoded rows onto legal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Block", "Encoding", "Outside"]

if TYPE_CHECKING:
    from veritracer.encoding.encoding import Encoding, Outside
    from veritracer.encoding.projection import Block
else:

    def __getattr__(name: str) -> Any:
        """Import the public names when they are first used: the cells of a file are read without torch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from veritracer.encoding import encoding

        return getattr(encoding, name)
