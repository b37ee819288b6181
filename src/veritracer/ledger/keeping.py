"""What live promises ask of the next model: which sets it must stay in, and what no set can protect."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.errors import TrainingError, message
from veritracer.ledger.candidate import Candidate
from veritracer.ledger.intersection import EmptyIntersectionError, Intersection
from veritracer.ledger.promised import IssuingModel, Limit
from veritracer.ledger.reading import rows_for
from veritracer.ledger.sources import View, raw_needed
from veritracer.ledger.verdicts import Judge
from veritracer.param_sets import ParamSet

MOST_PENALISED = 20_000
"""Promises without a set, at most, that a penalty looks at."""


class PromiseError(TrainingError):
    """No acceptable model keeps what was promised; ``report`` has the numbers where an update was tried."""

    def __init__(self, sentence: str, report: object = None) -> None:
        super().__init__(sentence)
        self.report = report


@dataclass(frozen=True)
class Demand:
    """Live promises that ask the next model to stay in one set; ``reason`` says why none protects them.

    ``reason`` is empty where staying in the set keeps them by proof.
    """

    limit: Limit
    issuing: IssuingModel
    reason: str = ""

    @property
    def param_set(self) -> ParamSet:
        """The set."""
        return self.issuing.param_set(self.limit.kappa)

    def __str__(self) -> str:
        many = f"{self.limit.count:,} promises" if self.limit.count != 1 else "1 promise"
        return f"{many} of {self.limit.model[:12]} at kappa = {self.limit.kappa:g}"


@dataclass(frozen=True)
class Demands:
    """All demands of the live promises, those that can be met by staying in a set and the others."""

    provable: tuple[Demand, ...]
    others: tuple[Demand, ...]

    @classmethod
    def of(cls, view: View, candidate: Candidate, *, least_kappa: float = 0.0) -> Demands:
        """The demands on the model that ``candidate`` becomes, which keeps its encoding and its threshold.

        Promises below ``least_kappa`` are not asked to be kept by proof: their sets leave too little room.
        """
        judge, models = Judge(candidate), view.models()
        found = []
        for limit in view.limits():
            issuing = models[limit.model]
            reason = judge.obstacle(issuing)
            if not reason and limit.kappa == 0:
                reason = "valid on its day, nothing proved"
            elif not reason and limit.kappa < least_kappa:
                reason = f"proved below kappa = {least_kappa:g} only"
            found.append(Demand(limit, issuing, reason))
        provable = sorted((d for d in found if not d.reason), key=lambda d: (d.limit.model, d.limit.kappa))
        return cls(tuple(provable), tuple(d for d in found if d.reason))

    @property
    def tightest(self) -> tuple[Demand, ...]:
        """The smallest set of each issuing model: its sets are nested, so the others hold with it."""
        first: dict[str, Demand] = {}
        for demand in self.provable:
            first.setdefault(demand.limit.model, demand)
        return tuple(first.values())

    def without(self, demand: Demand) -> Demands:
        """The demands that are left when the promises behind one are released."""
        return Demands(tuple(d for d in self.provable if d is not demand), self.others)

    def unproved(self) -> dict[str, int]:
        """How many promises no set protects, by the reason."""
        counts: Counter[str] = Counter()
        for demand in self.others:
            counts[demand.reason] += demand.limit.count
        return dict(counts)

    def intersection(self, candidate: Candidate) -> Intersection | None:
        """The models that meet all provable demands; None where there are none.

        Raises ``PromiseError`` where no model does, and says which promises conflict.
        """
        tight = self.tightest
        if not tight:
            return None
        try:
            return Intersection.of([demand.param_set for demand in tight], candidate.theta)
        except EmptyIntersectionError as error:
            pairs = [f"{tight[i]} with {tight[j]}" for i, j in error.pairs]
            received = "; ".join(pairs) or " and ".join(map(str, tight)) + ", for which none was found"
            expected = "a model that keeps all promises by proof"
            remedy = "release the promises of one side, or raise least_kappa to keep some without a proof"
            raise PromiseError(
                message(expected, f"promises that exclude each other: {received}", remedy)
            ) from error


@dataclass(frozen=True)
class Exposed:
    """Promises that no set protects, as inputs of the model: what a penalty looks at.

    ``lower`` and ``upper`` are the ends of what was promised, (n, d); ``sign`` is the decision to stay away
    from, (n,).
    """

    lower: Tensor
    upper: Tensor
    sign: Tensor

    def __len__(self) -> int:
        return len(self.sign)


def exposed(view: View, candidate: Candidate, demands: Demands) -> Exposed:
    """The promises without a set, and the conditional ones, for which staying in the set is not enough.

    At most ``MOST_PENALISED``, evenly from what the source gives. Of a region that is not known as a whole it
    is what is known.
    """
    models = view.models()
    open_ = {(d.limit.model, d.limit.kappa) for d in demands.others}
    parts = [Exposed(*(torch.empty(0, candidate.encoding.dim).double(),) * 2, torch.empty(0).double())]
    for promises in view.promises(raw_for=raw_needed(view, candidate.encoding.digest)):
        wanted = promises.conditional.copy()
        for model, kappa in open_:
            if model == promises.model:
                wanted |= promises.kappa == kappa
        taken = _evenly(torch.from_numpy(wanted.nonzero()[0]))
        rows = rows_for(candidate.encoding, promises, models[promises.model])
        sign = torch.where(torch.from_numpy(promises.favourable)[taken], 1.0, -1.0).double()
        parts.append(Exposed(rows.lower[taken], rows.upper[taken], sign))
    whole = Exposed(*(torch.cat([getattr(p, f) for p in parts]) for f in ("lower", "upper", "sign")))
    some = _evenly(torch.arange(len(whole)))
    return Exposed(whole.lower[some], whole.upper[some], whole.sign[some])


def _evenly(rows: Tensor) -> Tensor:
    """At most ``MOST_PENALISED`` of the rows, spread over all of them."""
    if len(rows) <= MOST_PENALISED:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, MOST_PENALISED, dtype=torch.float64).long()]
