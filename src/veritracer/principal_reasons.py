"""Find what weighed most against somebody, compared with people whom the model accepts.

A principal reason is not what a counterfactual changes: that is one way to another decision, and may lead
past the reasons. A feature's part is its Shapley value in the logit between a row that the model accepts and
the person's own, averaged over accepted training rows (interventional, as SHAP's permutation explainer has
it): in the accepted row features are replaced by the person's own in random order, and then in the opposite
one, and each is credited with what it changed. The parts of all features sum to the logit minus its mean over
those rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from veritracer.changes import Direction
from veritracer.formatting import is_missing, to_python

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

ACCEPTED_ROWS = 128
"""Accepted training rows that a person is compared with."""

MOST_REASONS = 4
"""Principal reasons, at most: more are "not likely to be helpful" (Regulation B, comment 9(b)(2)-1)."""

LEAST_SHARE = 0.1
"""What weighs less than this share of the heaviest reason is no principal one."""


class PrincipalReason(NamedTuple):
    """What weighed against somebody: a feature, which way it would have to go, its part of the logit."""

    feature: str
    direction: Direction
    contribution: float


def principal_reasons(found: Counterfactuals, i: int) -> list[PrincipalReason]:
    """Return the features that weighed most against row ``i``, the heaviest first.

    None where the row is favourable, or no accepted training row is known.
    """
    accepted = found.accepted
    if found.favourable[i] or len(accepted) == 0:
        return []
    x = found.x[i].double().cpu()
    parts = contributions(found, x, accepted)
    least = LEAST_SHARE * float(parts.min())
    order = parts.argsort().tolist()[:MOST_REASONS]
    chosen = [k for k in order if float(parts[k]) < 0 and float(parts[k]) <= least]
    typical = accepted.mean(0)
    return [
        PrincipalReason(found.encoding.schema.names[k], _direction(found, i, k, x, typical), float(parts[k]))
        for k in chosen
    ]


@torch.no_grad()
def contributions(found: Counterfactuals, x: Tensor, accepted: Tensor) -> Tensor:
    """Return the part of each feature (F,) in the logit of ``x`` (d,), compared with accepted rows (m, d)."""
    owner, features = found.encoding.owner, len(found.encoding.blocks)
    rng = torch.Generator().manual_seed(0)
    total = torch.zeros(features, dtype=torch.float64)
    order = torch.rand(len(accepted), features, generator=rng).argsort(-1)
    for one_way in (order, order.flip(-1)):
        place = one_way.argsort(-1)  # the step at which each feature becomes the person's own
        steps = torch.arange(features + 1).reshape(-1, 1, 1)
        theirs = place[:, owner] < steps  # (F + 1, m, d)
        rows = torch.where(theirs, x, accepted)
        logit = _logit(found, rows.reshape(-1, len(x))).reshape(features + 1, -1)
        changed = logit.diff(dim=0).T  # (m, F), in the order of the walk
        total += changed.gather(-1, place).mean(0)
    return total / 2


def accepted_rows(found: Counterfactuals) -> Tensor:
    """Return training rows that today's model accepts, evenly spread: (at most so many, d)."""
    rows = found.reference.neighbours.rows
    if len(rows) == 0:
        return rows
    return found.reference.neighbours.subsample(_logit(found, rows) > 0, ACCEPTED_ROWS)


def _logit(found: Counterfactuals, x: Tensor) -> Tensor:
    models = found.param_set
    center = tuple(t.detach().to("cpu", torch.float64) for t in models.center)
    logit: Tensor = models.network.logit(center, x)
    return logit


def _direction(found: Counterfactuals, i: int, k: int, x: Tensor, typical: Tensor) -> Direction:
    """Return which way feature ``k`` is from the accepted rows, as somebody would be asked to go."""
    block = found.encoding.blocks[k]
    feature = block.feature
    cell = to_python(found.cells[feature.name][0][i])
    if is_missing(cell) or cell in feature.missing_codes:
        return "state"
    if not feature.is_numeric and feature.kind != "ordinal":
        return "change"
    return "raise" if float(x[block.start]) < float(typical[block.start]) else "reduce"
