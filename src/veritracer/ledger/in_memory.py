"""Promises in memory, read in the same way as those of a ledger: for experiments, and for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.ledger.kept_models import describe
from veritracer.ledger.promised import IssuingModel, Limit, Promises
from veritracer.ledger.times import Moment, moment
from veritracer.recourse import Counterfactuals


class Counted(NamedTuple):
    """How many promises there are of each kind."""

    live: int
    expired: int
    released: int = 0
    erased: int = 0


@dataclass(frozen=True)
class InMemory:
    """Promises that nobody wrote down."""

    issuing: tuple[IssuingModel, ...]
    pieces: tuple[Promises, ...]

    def models(self) -> dict[str, IssuingModel]:
        """The issuing models by digest."""
        return {model.digest: model for model in self.issuing}

    def promises(self, at: Moment = None, *, chunk: int = 50_000) -> Iterator[Promises]:
        """The promises that have not expired at that time, in pieces of one issuing model."""
        now = moment(at)
        for piece in self.pieces:
            live = np.flatnonzero(piece.expires > now)
            for start in range(0, len(live), chunk):
                yield select(piece, live[start : start + chunk])

    def limits(self, at: Moment = None) -> list[Limit]:
        """The sets that live promises ask a later model to stay in, by model, from the smallest on."""
        every: Counter[tuple[str, float]] = Counter()
        some: Counter[tuple[str, float]] = Counter()
        for piece in self.promises(at):
            for kappa, conditional in zip(piece.kappa.tolist(), piece.conditional.tolist(), strict=True):
                every[piece.model, kappa] += 1
                some[piece.model, kappa] += conditional
        return [Limit(*key, count, some[key]) for key, count in sorted(every.items())]

    def counts(self, at: Moment = None) -> Counted:
        """How many are live and how many have expired."""
        total, live = sum(map(len, self.pieces)), sum(map(len, self.promises(at)))
        return Counted(live, total - live)

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
    )
    return InMemory((issuing,), (piece,))


def select(piece: Promises, rows: NDArray[np.intp]) -> Promises:
    """Some of the promises."""
    taken = torch.from_numpy(rows)

    def part(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[taken]
        return [value[row] for row in rows.tolist()] if isinstance(value, list) else value[rows]

    values = {f.name: getattr(piece, f.name) for f in fields(piece)}
    return Promises(**{k: v if k == "model" else part(v) for k, v in values.items()})
