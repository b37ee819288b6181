"""Where promises are read from, whatever holds them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from veritracer.ledger.book import Ledger
from veritracer.ledger.promised import IssuingModel, Limit, Promises
from veritracer.ledger.times import Moment


class Source(Protocol):
    """Where promises are read from: a ``Ledger``, or promises ``in_memory``."""

    def models(self) -> Mapping[str, IssuingModel]:
        """The issuing models by digest."""

    def promises(self, at: Moment = None, *, chunk: int = ...) -> Iterator[Promises]:
        """The live promises at that time, each piece of one issuing model."""

    def limits(self, at: Moment = None) -> list[Limit]:
        """The sets that live promises ask a later model to stay in."""

    def counts(self, at: Moment = None) -> Any:
        """How many promises are live, expired, released and erased."""


@contextmanager
def reading(place: Source | str | os.PathLike[str] | None) -> Iterator[Source | None]:
    """The source itself, or the ledger at that path or URL, which must exist, open for the block."""
    if isinstance(place, str | os.PathLike):
        with Ledger(place, create=False) as opened:
            yield opened
    else:
        yield place
