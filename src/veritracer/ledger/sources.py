"""Where promises are read from, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from veritracer.ledger.book import Ledger
from veritracer.ledger.promised import IssuingModel, Limit, Promises
from veritracer.ledger.snapshot import Told
from veritracer.ledger.times import Moment


class View(Protocol):
    """Promises in one state and at one time: whatever is read from it belongs together."""

    def models(self) -> Mapping[str, IssuingModel]:
        """The issuing models by digest."""

    def promises(self, *, chunk: int = ..., raw_for: Collection[str] = ()) -> Iterator[Promises]:
        """The live promises, each piece of one issuing model; raw values too where it is in ``raw_for``."""

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """The raw values that people were shown, and their own."""

    def limits(self) -> list[Limit]:
        """The sets that live promises ask a later model to stay in."""

    def counts(self) -> Any:
        """How many promises are live, expired, released and erased."""


class Source(Protocol):
    """Where promises are read from: a ``Ledger``, a ``Snapshot`` of one, or promises ``in_memory``."""

    def snapshot(self, at: Moment = None) -> AbstractContextManager[View]:
        """The promises as they are now, on the day ``at``."""


def raw_needed(view: View, encoding_digest: str) -> set[str]:
    """The issuing models whose promises a model with that encoding has to read in raw values."""
    return {m.digest for m in view.models().values() if m.encoding.digest != encoding_digest}


@contextmanager
def reading(place: Source | str | os.PathLike[str] | None) -> Iterator[Source | None]:
    """The source itself, or the ledger at that path or URL, which must exist, open for the block."""
    if isinstance(place, str | os.PathLike):
        with Ledger(place, create=False) as opened:
            yield opened
    else:
        yield place
