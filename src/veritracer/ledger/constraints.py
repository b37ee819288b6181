"""Train a model inside the sets that live promises require.

Promises with a proof require the next model to stay in their sets; the others are left to a penalty.
``update`` does both, for any torch MLP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box, ibp_upper, trace
from veritracer.errors import EmptyIntersectionError, PromiseError, TrainingError, message
from veritracer.ledger.promises import IssuingModel, SetRequirement, encoded_rows
from veritracer.ledger.snapshot import Snapshot
from veritracer.ledger.verdicts import AuditedModel
from veritracer.models.intersection import Intersection
from veritracer.models.network import Network, Theta, from_module, threshold_logit, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.training.fine_tuning import fine_tune

MAX_PENALISED = 20_000
"""The largest number of promises without a set in a penalty."""

MARGIN = 0.1
"""The margin (logit) by which a promise without a proof should be kept; beyond it there is no penalty."""

PENALTY_BATCH = 512
"""Promises in the penalty of one step."""


@dataclass(frozen=True)
class SetConstraint:
    """Live promises that require the next model to stay in one set.

    ``reason`` says why staying in the set does not keep them by proof; it is empty where it does.
    """

    requirement: SetRequirement
    issuing: IssuingModel
    reason: str = ""

    @property
    def param_set(self) -> ParamSet:
        """Return the set."""
        return self.issuing.param_set(self.requirement.kappa)

    def __str__(self) -> str:
        many = f"{self.requirement.count:,} promises" if self.requirement.count != 1 else "1 promise"
        return f"{many} of {self.requirement.model[:12]} at kappa = {self.requirement.kappa:g}"


@dataclass(frozen=True)
class SetConstraints:
    """All requirements of live promises: those met by staying in a set, and the others."""

    provable: tuple[SetConstraint, ...]
    others: tuple[SetConstraint, ...]

    @classmethod
    def of(cls, view: Snapshot, audited: AuditedModel, *, least_kappa: float = 0.0) -> SetConstraints:
        """Return the constraints on the successor of ``audited``, with the same encoding and threshold.

        Promises below ``least_kappa`` are not asked to be kept by proof: their sets leave too little room.
        """
        models = view.models()
        found = [_constraint(audited, one, models[one.model], least_kappa) for one in view.requirements()]
        provable = [one for one in found if not one.reason]
        provable.sort(key=lambda one: (one.requirement.model, one.requirement.kappa))
        return cls(tuple(provable), tuple(one for one in found if one.reason))

    @property
    def tightest(self) -> tuple[SetConstraint, ...]:
        """Return the smallest set of each issuing model; its sets are nested, so the others hold too."""
        first: dict[str, SetConstraint] = {}
        for constraint in self.provable:
            first.setdefault(constraint.requirement.model, constraint)
        return tuple(first.values())

    def without(self, constraint: SetConstraint) -> SetConstraints:
        """Return the constraints that are left when the promises behind one are released."""
        return SetConstraints(tuple(d for d in self.provable if d is not constraint), self.others)

    def unproved(self) -> dict[str, int]:
        """Return how many promises no set protects, by reason."""
        counts: Counter[str] = Counter()
        for constraint in self.others:
            counts[constraint.reason] += constraint.requirement.count
        return dict(counts)

    def intersection(self, audited: AuditedModel) -> Intersection | None:
        """Return the models that meet all provable constraints; None if there are no constraints.

        Raises ``PromiseError`` where no model does, and says which promises conflict.
        """
        tight = self.tightest
        if not tight:
            return None
        try:
            return Intersection.of([constraint.param_set for constraint in tight], audited.theta)
        except EmptyIntersectionError as error:
            pairs = [f"{tight[i]} with {tight[j]}" for i, j in error.pairs]
            received = "; ".join(pairs) or " and ".join(map(str, tight)) + ", for which none was found"
            expected = "a model that keeps all promises by proof"
            remedy = "release the promises of one side, or raise least_kappa to keep some without a proof"
            raise PromiseError(
                message(expected, f"promises that exclude each other: {received}", remedy)
            ) from error


def _constraint(
    audited: AuditedModel, requirement: SetRequirement, issuing: IssuingModel, least_kappa: float
) -> SetConstraint:
    """Return the constraint of one requirement, and whether a set can protect its promises."""
    reason = audited.incompatibility(issuing)
    if not reason and requirement.kappa == 0:
        reason = "valid on its day, nothing proved"
    elif not reason and requirement.kappa < least_kappa:
        reason = f"proved below kappa = {least_kappa:g} only"
    return SetConstraint(requirement, issuing, reason)


@dataclass(frozen=True)
class UnprotectedPromises:
    """Promises that no set protects, as inputs of the model for a penalty.

    ``lower`` and ``upper`` are the ends of what was promised, (n, d); ``sign`` is the decision to stay away
    from, (n,).
    """

    lower: Tensor
    upper: Tensor
    sign: Tensor

    def __len__(self) -> int:
        return len(self.sign)


def unprotected(view: Snapshot, audited: AuditedModel, constraints: SetConstraints) -> UnprotectedPromises:
    """Return the promises without a set, and the conditional ones, which a set alone does not keep.

    At most ``MAX_PENALISED``, spread evenly over all. Of a region that is not known as a whole, the known
    part is used.
    """
    models = view.models()
    open_ = {(d.requirement.model, d.requirement.kappa) for d in constraints.others}
    parts = [
        UnprotectedPromises(*(torch.empty(0, audited.encoding.dim).double(),) * 2, torch.empty(0).double())
    ]
    for promises in view.promises(raw_for=view.raw_needed(audited.encoding.digest)):
        wanted = promises.conditional.copy()
        for model, kappa in open_:
            if model == promises.model:
                wanted |= promises.kappa == kappa
        taken = _evenly(torch.from_numpy(wanted.nonzero()[0]))
        _, _, region, _ = encoded_rows(audited.encoding, promises, models[promises.model])
        sign = torch.where(torch.from_numpy(promises.favourable)[taken], 1.0, -1.0).double()
        parts.append(UnprotectedPromises(region.lower[taken], region.upper[taken], sign))
    whole = UnprotectedPromises(
        *(torch.cat([getattr(p, f) for p in parts]) for f in ("lower", "upper", "sign"))
    )
    some = _evenly(torch.arange(len(whole)))
    return UnprotectedPromises(whole.lower[some], whole.upper[some], whole.sign[some])


def _evenly(rows: Tensor) -> Tensor:
    """Return at most ``MAX_PENALISED`` of the rows, spread over all of them."""
    if len(rows) <= MAX_PENALISED:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, MAX_PENALISED, dtype=torch.float64).long()]


def train_inside(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    common: Intersection | None = None,
    *,
    unprotected: UnprotectedPromises | None = None,
    penalty: float = 1.0,
    held: Callable[[Theta], Tensor] | None = None,
    **options: Any,
) -> nn.Sequential:
    """Return the module after some epochs on encoded rows and 0/1 labels, in every set of ``common``.

    Training starts from the module itself, or from the closest model in all sets, and is projected back
    after each step; ``common.contains`` is true of the result. Promises that no set protects,
    ``unprotected``, are pushed to their side by a hinge of weight ``penalty``; ``held`` is added to the loss
    as it is. ``options`` are those of ``fine_tune``.
    """
    network, theta = from_module(module)
    project: Callable[[Theta], Theta] | None = None
    if common is not None:
        project = common.project
        module = to_module(network, project(tuple(t.detach() for t in theta)))
    penalties = [] if held is None else [held]
    if unprotected is not None and len(unprotected) and penalty > 0:
        penalties.append(_Hinge(network, unprotected, penalty, options.get("random_state", 0)))
    tuned = fine_tune(
        module,
        x,
        y,
        project=project,
        penalty=_sum_of(penalties) if penalties else None,
        **options,
    )
    if not all(bool(t.isfinite().all()) for t in tuned.parameters()):
        remedy = "give a smaller learning_rate"
        raise TrainingError(message("finite weights", "nan or infinity after the update", remedy))
    assert common is None or common.contains(tuned), "a projection left the set"
    return tuned


def _sum_of(penalties: Sequence[Callable[[Theta], Tensor]]) -> Callable[[Theta], Tensor]:
    return lambda theta: torch.stack([penalty(theta) for penalty in penalties]).sum()


class _Hinge:
    """The penalty: how far promises are on the wrong side of their margin, on average over those that are."""

    def __init__(
        self, network: Network, unprotected: UnprotectedPromises, weight: float, random_state: int
    ) -> None:
        self.network, self.unprotected, self.weight = network, unprotected, weight
        self.random = torch.Generator().manual_seed(random_state)
        self.points = bool((unprotected.lower == unprotected.upper).all())

    def __call__(self, theta: Theta) -> Tensor:
        """Return the penalty at these parameters, on a random part of the promises."""
        some = torch.randperm(len(self.unprotected), generator=self.random)[:PENALTY_BATCH]
        lower, upper, sign = (
            getattr(self.unprotected, name)[some].to(theta[0]) for name in ("lower", "upper", "sign")
        )
        if self.points:
            wrong = sign * self.network.logit(theta, lower)
        else:
            alone = ParamSet.of(self.network, theta, kappa=0.0)
            wrong = ibp_upper(alone, trace(alone, Box(lower, upper)), sign)
        excess = torch.relu(wrong + MARGIN)
        return self.weight * excess.sum() / (excess.detach() > 0).sum().clamp(min=1)


def split(y: Tensor, share: float, random_state: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions to learn from and positions to judge on, with both labels in proportion."""
    rng = np.random.default_rng(random_state)
    held = []
    for label in (0, 1):
        rows = np.flatnonzero(y.numpy() == label)
        held.append(rng.permutation(rows)[: max(round(share * len(rows)), 1)])
    aside = np.sort(np.concatenate(held))
    train = np.setdiff1d(np.arange(len(y)), aside)
    if len(train) == 0:
        received = f"{len(y):,} rows"
        raise TrainingError(message("new rows to learn from and some to judge on", received, "give more"))
    return train, aside


@torch.no_grad()
def quality(module: nn.Module, x: Tensor, y: Tensor, threshold: float) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on encoded rows."""
    network, theta = from_module(module)
    logit = network.logit(tuple(t.double() for t in theta), x.double())
    right = (logit > 0) == (y > 0.5)
    shifted = logit + threshold_logit(threshold)
    loss = nn.functional.binary_cross_entropy_with_logits(shifted, y.double())
    return float(right.double().mean()), float(loss)
