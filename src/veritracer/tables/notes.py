"""Collect warnings about data, so that each kind of them is reported once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from veritracer.errors import AdviceWarning, DataWarning


@dataclass
class Notes:
    """The first sentence of each kind of warning, and in how many batches there was one.

    ``seen`` maps a kind (what a message expected) to both; it survives JSON and pickling.
    """

    seen: dict[str, tuple[str, int]] = field(default_factory=dict)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Collect the warnings about data and advice inside the block instead of showing them."""
        with warnings.catch_warnings(record=True) as caught:
            for category in (DataWarning, AdviceWarning):
                warnings.simplefilter("always", category)
            yield
        texts = [warning.message.args[0] for warning in caught if isinstance(warning.message, Warning)]
        for kind, text in {getattr(text, "expected", text): text for text in reversed(texts)}.items():
            self.add(str(kind), str(text))

    def add(self, kind: str, text: str, count: int = 1) -> None:
        """Add a sentence; of one kind the first is kept."""
        first, before = self.seen.get(kind, (text, 0))
        self.seen[kind] = first, before + count

    def merge(self, other: Notes) -> None:
        """Add the notes of later rows."""
        for kind, (text, count) in other.seen.items():
            self.add(kind, text, count)

    def sentences(self) -> list[str]:
        """Return one sentence for each kind."""
        return [
            text + (f" (and {count - 1:,} more batches like it)" if count > 1 else "")
            for text, count in self.seen.values()
        ]
