"""Find the principal reasons of a decision: the features that weighed most against a person.

A counterfactual is one way to another decision, and may change other features than these. The contribution of
a feature is its Shapley value in the logit, between the person's row and training rows that the model accepts
(interventional, like SHAP's permutation explainer): the features of an accepted row are replaced by the
person's own in a random order, and then in the opposite order, and each feature is credited with the
difference. The contributions sum to the logit minus its mean over the accepted rows.
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
"""Number of accepted training rows that a person is compared with."""

MOST_REASONS = 4
"""Maximum number of reasons: more are "not likely to be helpful" (Regulation B, comment 9(b)(2)-1)."""

LEAST_SHARE = 0.1
"""A principal reason weighs at least this share of the heaviest one."""


class PrincipalReason(NamedTuple):
    """A feature that weighed against a person, the direction of an improvement, and its part of the logit."""

    feature: str
    direction: Direction
    contribution: float


def principal_reasons(found: Counterfactuals, i: int) -> list[PrincipalReason]:
    """Return the features that weighed most against row ``i``, the heaviest first.

    The list is empty if the row is favourable, or if no accepted training row is known.
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
    """Return the Shapley values (F,) of the logit of ``x`` (d,) against accepted rows (m, d)."""
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
    """Return evenly spread training rows that today's model accepts, (at most ``ACCEPTED_ROWS``, d)."""
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
    """Return the direction in which feature ``k`` would have to change to approach the accepted rows."""
    block = found.encoding.blocks[k]
    feature = block.feature
    cell = to_python(found.cells[feature.name][0][i])
    if is_missing(cell) or cell in feature.missing_codes:
        return "state"
    if not feature.is_numeric and feature.kind != "ordinal":
        return "change"
    return "raise" if float(x[block.start]) < float(typical[block.start]) else "reduce"
