"""How each row ended: what is proved of the values that are shown, and a status and a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds import Box
from veritracer.certificate import certify
from veritracer.recourse import reasons
from veritracer.recourse.options import Options
from veritracer.refine import Problem

MOST_RELAXED = 2000
"""For so many rows without a certificate it is found out which constraint would have to give."""


class Shown(NamedTuple):
    """The rows, what is shown for them (both encoded), today's decisions, and how the search went."""

    x: Tensor
    x_cf: Tensor
    sign: Tensor
    clear: Tensor
    valid: Tensor
    complete: Tensor


@dataclass(frozen=True)
class Proof:
    """What was proved of each shown row, and of which region around it; nothing where it is not valid."""

    certified: NDArray[np.bool_]
    radius: NDArray[np.float64]
    worst_logit: NDArray[np.float64]
    method: NDArray[np.str_]
    conditional: NDArray[np.bool_]
    lower: Tensor
    upper: Tensor

    def arrays(self) -> dict[str, Any]:
        """The arrays by name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}


def prove_shown(module: nn.Module, problem: Problem, shown: Shown) -> Proof:
    """Certificates for the shown values, or for the region around them."""
    n = len(shown.x)
    region = problem.region(shown.x_cf)
    box = region if isinstance(region, Box) else Box(region, region)
    proof = Proof(
        certified=np.zeros(n, dtype=bool),
        radius=np.zeros(n),
        worst_logit=np.full(n, np.inf),
        method=np.full(n, "", dtype="<U11"),
        conditional=np.zeros(n, dtype=bool),
        lower=box.lower,
        upper=box.upper,
    )
    rows = shown.valid.nonzero().squeeze(-1)
    if len(rows) == 0:
        return proof
    target = region.select(rows) if isinstance(region, Box) else region[rows]
    found = certify(module, shown.x[rows], target, problem.param_set)
    where = rows.cpu().numpy()
    for name, array in proof.arrays().items():
        array[where] = getattr(found, name)
    # A bound that does not prove anything has no condition either.
    proof.conditional[~proof.certified] = False
    return proof


def verdicts(
    problem: Problem, shown: Shown, proof: Proof, options: Options
) -> tuple[NDArray[np.str_], NDArray[np.object_]]:
    """The status and the reason of each row."""
    n = len(shown.x)
    valid = shown.valid.cpu().numpy()
    status = np.where(proof.certified, "certified", np.where(valid, "valid", "none"))
    helpers = _what_would_help(problem, shown, proof, options)
    never = _never(problem, shown, proof)
    reason = np.empty(n, dtype=object)
    for i in range(n):
        complete = bool(shown.complete[i])
        if not shown.clear[i]:
            reason[i] = reasons.TOO_CLOSE
        elif options.only_unfavourable and shown.sign[i] > 0:
            reason[i] = reasons.FAVOURABLE
        elif proof.certified[i]:
            conditional = bool(proof.conditional[i])
            reason[i] = reasons.certified(
                problem.param_set.kappa, str(proof.method[i]), conditional=conditional, complete=complete
            )
        elif valid[i]:
            reason[i] = reasons.uncertified(float(proof.radius[i]), helpers.get(i, []), complete=complete)
        elif i in never:
            reason[i] = reasons.IMPOSSIBLE
        else:
            reason[i] = reasons.not_found(helpers.get(i, []), complete=complete)
    return status, reason


def _searched(shown: Shown, options: Options) -> NDArray[np.bool_]:
    """Which rows a counterfactual was looked for."""
    asked = shown.clear & ((shown.sign < 0) if options.only_unfavourable else torch.ones_like(shown.clear))
    searched: NDArray[np.bool_] = asked.cpu().numpy()
    return searched


def _what_would_help(problem: Problem, shown: Shown, proof: Proof, options: Options) -> dict[int, list[str]]:
    """For rows that were searched to the end in vain: the features whose constraint would have to give."""
    if not options.refine:
        return {}
    without = _searched(shown, options) & ~proof.certified & shown.complete.cpu().numpy()
    rows = torch.from_numpy(without.nonzero()[0][:MOST_RELAXED])
    if len(rows) == 0:
        return {}
    part = problem.select(rows.to(problem.x.device))
    return dict(zip(rows.tolist(), reasons.sufficient_relaxations(part, shown.x_cf[rows]), strict=True))


def _never(problem: Problem, shown: Shown, proof: Proof) -> set[int]:
    """The rows of which it is proved that no legal row of theirs is decided otherwise today."""
    rows = (~shown.valid & shown.clear).nonzero().squeeze(-1)
    if len(rows) == 0:
        return set()
    proved = reasons.impossible(problem.encoding, problem.param_set, shown.x[rows], shown.sign[rows])
    return set(rows[proved].tolist())
