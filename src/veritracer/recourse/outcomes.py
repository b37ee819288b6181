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
from veritracer.param_sets import ParamSet
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


def prove_shown(module: nn.Module, problem: Problem, shown: Shown, *, radius: bool = True) -> Proof:
    """Certificates for the shown values, or for the region around them; ``radius`` looks for the largest."""
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
    found = certify(module, shown.x[rows], target, problem.param_set, radius=radius)
    where = rows.cpu().numpy()
    for name, array in proof.arrays().items():
        if name != "radius" or radius:
            array[where] = getattr(found, name)
    if not radius:  # the proof at kappa itself is all that is known
        proof.radius[proof.certified] = problem.param_set.kappa
    # A bound that does not prove anything has no condition either, but the proof at a smaller radius may.
    proof.conditional[~proof.certified] = False
    _look_at_smaller_radii(module, problem, shown, proof)
    return proof


def _look_at_smaller_radii(module: nn.Module, problem: Problem, shown: Shown, proof: Proof) -> None:
    """Set whether the proofs of rows that are certified only below kappa need that x keeps its decision."""
    rows = np.flatnonzero(~proof.certified & (proof.radius > 0))
    for radius in np.unique(proof.radius[rows]):
        some = rows[proof.radius[rows] == radius]
        part = torch.from_numpy(some).to(shown.x.device)
        region = Box(proof.lower[part], proof.upper[part])
        target = region if not problem.reach.is_point else shown.x_cf[part]
        found = certify(module, shown.x[part], target, problem.param_set.at(float(radius)), radius=False)
        proof.conditional[some] = found.conditional


def verdicts(
    problem: Problem, shown: Shown, proof: Proof, options: Options
) -> tuple[NDArray[np.str_], NDArray[np.object_]]:
    """The status and the reason of each row."""
    valid = shown.valid.cpu().numpy()
    status = np.where(proof.certified, "certified", np.where(valid, "valid", "none"))
    favourable = (shown.sign > 0).cpu().numpy() & options.only_unfavourable
    unclear, complete = ~shown.clear.cpu().numpy(), shown.complete.cpu().numpy()
    reason = np.empty(len(valid), dtype=object)
    reason[unclear] = reasons.TOO_CLOSE
    reason[favourable] = reasons.FAVOURABLE  # also where it is close: nobody was turned down
    open_ = ~favourable & ~unclear
    _say_certified(reason, open_ & proof.certified, proof, complete, problem.param_set)
    helpers = _what_would_help(problem, shown, proof, options)
    never = _never(problem, shown, open_)
    for i in (open_ & ~proof.certified).nonzero()[0].tolist():
        if valid[i]:
            helps, radius = helpers.get(i, []), float(proof.radius[i])
            reason[i] = reasons.uncertified(problem.param_set, radius, helps, complete=bool(complete[i]))
        elif i in never:
            reason[i] = reasons.IMPOSSIBLE
        else:
            reason[i] = reasons.not_found(helpers.get(i, []), complete=bool(complete[i]))
    return status, reason


def _say_certified(
    reason: NDArray[np.object_],
    rows: NDArray[np.bool_],
    proof: Proof,
    complete: NDArray[np.bool_],
    models: ParamSet,
) -> None:
    """Writes the reason of certified rows: a few sentences for any number of them."""
    for method in np.unique(proof.method[rows]):
        for conditional in (False, True):
            for done in (False, True):
                alike = rows & (proof.method == method) & (proof.conditional == conditional)
                sentence = reasons.certified(models, str(method), conditional=conditional, complete=done)
                reason[alike & (complete == done)] = sentence


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
    return dict(
        zip(
            rows.tolist(),
            reasons.sufficient_relaxations(part, shown.x_cf[rows], options.max_changes),
            strict=True,
        )
    )


def _never(problem: Problem, shown: Shown, searched: NDArray[np.bool_]) -> set[int]:
    """The searched rows of which it is proved that no legal row of theirs is decided otherwise today."""
    rows = (~shown.valid & torch.from_numpy(searched).to(shown.valid.device)).nonzero().squeeze(-1)
    if len(rows) == 0:
        return set()
    proved = reasons.impossible(problem.encoding, problem.param_set, shown.x[rows], shown.sign[rows])
    return set(rows[proved].tolist())
