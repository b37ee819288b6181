"""Promises that are in no database, so that a test can make up what no ledger would hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import veritracer as vt
from veritracer.ledger.promises import (
    Counts,
    IssuingModel,
    Promises,
    SetRequirement,
    promised_region,
    select,
)
from veritracer.ledger.records import raw_rows
from veritracer.times import Moment, to_timestamp


@dataclass(frozen=True)
class InMemory:
    """A stand-in for a ledger, and for a snapshot of it."""

    issuing: tuple[IssuingModel, ...]
    pieces: tuple[Promises, ...]
    at: Moment = None
    place: str = ""
    head: str = ""

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[InMemory]:
        yield replace(self, at=at)

    def models(self) -> dict[str, IssuingModel]:
        return {model.digest: model for model in self.issuing}

    def raw_needed(self, encoding_digest: str) -> set[str]:
        return {model.digest for model in self.issuing if model.encoding.digest != encoding_digest}

    def promises(
        self, *, chunk: int = 50_000, raw_for: Collection[str] = (), since: int = 0
    ) -> Iterator[Promises]:
        now = to_timestamp(self.at)
        for piece in self.pieces:
            live = np.flatnonzero((piece.expires > now) & (piece.sequence > since))
            for start in range(0, len(live), chunk):
                yield select(piece, live[start : start + chunk])

    def shown(self, sequence: int) -> dict[str, Any]:
        for piece in self.pieces:
            one = select(piece, np.flatnonzero(piece.sequence == sequence))
            if len(one):
                known = not bool(torch.isnan(one.x).any())
                return {
                    "sequence": sequence,
                    "id": one.ids[0],
                    "favourable": bool(one.favourable[0]),
                    "values": raw_rows(one.shown)[0],
                    "original": raw_rows(one.original)[0] if known else None,
                }
        raise KeyError(sequence)

    def requirements(self) -> list[SetRequirement]:
        every: Counter[tuple[str, float]] = Counter()
        some: Counter[tuple[str, float]] = Counter()
        for piece in self.promises():
            for kappa, conditional in zip(piece.kappa.tolist(), piece.conditional.tolist(), strict=True):
                every[piece.model, kappa] += 1
                some[piece.model, kappa] += conditional
        return [SetRequirement(*key, count, some[key]) for key, count in sorted(every.items())]

    def counts(self) -> Counts:
        total, live = sum(map(len, self.pieces)), sum(map(len, self.promises()))
        return Counts(live, total - live, 0, 0)

    def __add__(self, other: InMemory) -> InMemory:
        known = self.models()
        more = tuple(model for model in other.issuing if model.digest not in known)
        return InMemory(self.issuing + more, self.pieces + other.pieces)


def in_memory(
    found: vt.Counterfactuals,
    module: nn.Module,
    *,
    threshold: float = 0.5,
    ids: Sequence[Any] | None = None,
    expires: float = np.inf,
    first: int = 1,
) -> InMemory:
    """The counterfactuals as promises of ``module``, numbered from ``first``; nothing is checked."""
    issuing = IssuingModel.of(module, found.encoding, threshold, found.param_set)
    rows = np.flatnonzero(found.status != "none")
    names = found.row.tolist() if ids is None else [ids[person] for person in found.row.tolist()]
    taken = torch.from_numpy(rows)
    shown, own = (frame.iloc[rows].reset_index(drop=True) for frame in (found.frame, found.original))
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
        region=promised_region(found)[rows],
        shown=shown,
        original=own,
    )
    return InMemory((issuing,), (piece,))
