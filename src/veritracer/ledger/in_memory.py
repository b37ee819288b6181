"""Promises in memory, read in the same way as those of a ledger: for experiments, and for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.ledger.kept_models import describe
from veritracer.ledger.promised import IssuingModel, Limit, Promises, RawRows
from veritracer.ledger.regions import promised_ends
from veritracer.ledger.snapshot import Counts, Told
from veritracer.ledger.texts import rows_of
from veritracer.ledger.times import Moment, moment
from veritracer.recourse import Counterfactuals


@dataclass(frozen=True)
class InMemory:
    """Promises that nobody wrote down."""

    issuing: tuple[IssuingModel, ...]
    pieces: tuple[Promises, ...]
    at: Moment = None

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[InMemory]:
        """The same promises on that day."""
        yield replace(self, at=at)

    def models(self) -> dict[str, IssuingModel]:
        """The issuing models by digest."""
        return {model.digest: model for model in self.issuing}

    def promises(self, *, chunk: int = 50_000, raw_for: Collection[str] = ()) -> Iterator[Promises]:
        """The promises that have not expired, in pieces of one issuing model; raw values come with all."""
        now = moment(self.at)
        for piece in self.pieces:
            live = np.flatnonzero(piece.expires > now)
            for start in range(0, len(live), chunk):
                yield select(piece, live[start : start + chunk])

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """The raw values that people were shown, and their own."""
        found: dict[int, Told] = {}
        for piece in self.pieces:
            some = select(piece, np.flatnonzero(np.isin(piece.sequence, list(sequence))))
            assert some.raw is not None, "promises of which only encoded rows are known"
            shown, own = rows_of(some.raw.shown), rows_of(some.raw.original)
            told = map(Told, shown, (row if k else None for row, k in zip(own, some.raw.known, strict=True)))
            found |= zip(some.sequence.tolist(), told, strict=True)
        return [found[number] for number in sequence]

    def limits(self) -> list[Limit]:
        """The sets that live promises ask a later model to stay in, by model, from the smallest on."""
        every: Counter[tuple[str, float]] = Counter()
        some: Counter[tuple[str, float]] = Counter()
        for piece in self.promises():
            for kappa, conditional in zip(piece.kappa.tolist(), piece.conditional.tolist(), strict=True):
                every[piece.model, kappa] += 1
                some[piece.model, kappa] += conditional
        return [Limit(*key, count, some[key]) for key, count in sorted(every.items())]

    def counts(self) -> Counts:
        """How many are live and how many have expired."""
        total, live = sum(map(len, self.pieces)), sum(map(len, self.promises()))
        return Counts(live, total - live, 0, 0)

    def __add__(self, other: InMemory) -> InMemory:
        """The promises of both."""
        known = self.models()
        more = tuple(model for model in other.issuing if model.digest not in known)
        return InMemory(self.issuing + more, self.pieces + other.pieces)


def in_memory(
    found: Counterfactuals,
    module: nn.Module,
    *,
    threshold: float = 0.5,
    ids: Sequence[Any] | None = None,
    expires: float = np.inf,
    first: int = 1,
) -> InMemory:
    """The counterfactuals of ``found`` as promises of ``module``, numbered from ``first``."""
    issuing = describe(module, found.encoding, threshold, found.norm, found.radius_rule)
    rows = np.flatnonzero(found.status != "none")
    names = found.person.tolist() if ids is None else [ids[person] for person in found.person.tolist()]
    taken = torch.from_numpy(rows)
    # A region was promised only where something was proved of it.
    proved = torch.from_numpy(found.certified | (found.radius > 0)).unsqueeze(-1)
    lower, upper = (torch.where(proved, end, found.x_cf)[taken] for end in (found.lower, found.upper))
    piece = Promises(
        model=issuing.digest,
        sequence=np.arange(first, first + len(rows)),
        ids=[str(names[row]) for row in rows.tolist()],
        issued=np.zeros(len(rows)),
        expires=np.full(len(rows), float(expires)),
        kappa=np.where(found.certified, found.kappa, found.radius)[rows],
        conditional=found.conditional[rows],
        radius=found.radius[rows],
        worst_logit=found.worst_logit[rows],
        favourable=found.favourable[rows],
        x_cf=found.x_cf[taken],
        x=found.x[taken],
        lower=lower,
        upper=upper,
        raw=_raw(found, rows),
    )
    return InMemory((issuing,), (piece,))


def _raw(found: Counterfactuals, rows: NDArray[np.intp]) -> RawRows:
    """What people were shown, what they have, and how far they may go."""
    shown, own = (frame.iloc[rows].reset_index(drop=True) for frame in (found.frame, found.original))
    ends = promised_ends(found)
    known, cut = np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    return RawRows(shown, own, known, ends.lower[rows], ends.upper[rows], cut)


def select(piece: Promises, rows: NDArray[np.intp]) -> Promises:
    """Some of the promises."""
    some: Promises = _select(piece, rows, torch.from_numpy(rows))
    return some


def _select(value: Any, rows: NDArray[np.intp], taken: Tensor) -> Any:
    if isinstance(value, Promises | RawRows):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: _select(part, rows, taken) for name, part in parts.items()})
    if isinstance(value, Tensor):
        return value[taken]
    if isinstance(value, pd.DataFrame):
        return value.iloc[rows].reset_index(drop=True)
    if isinstance(value, list):
        return [value[row] for row in rows.tolist()]
    return value[rows] if isinstance(value, np.ndarray) else value
