"""How each row ended: what is proved of the values that are shown, or why there are none; and the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import UNCONDITIONAL
from veritracer.certificate import certify, chunks
from veritracer.encoding import Encoding
from veritracer.errors import listing
from veritracer.formatting import round_down
from veritracer.models.param_sets import ParamSet
from veritracer.options import ExplainOptions
from veritracer.proving import CASCADE, ProofBatch, prove

if TYPE_CHECKING:
    from veritracer.refine.problem import Problem


class Outcome(Enum):
    """How one row ended. The value is how its reason begins, for those who read it; code compares members."""

    FAVOURABLE = "already favourable"
    TOO_CLOSE = "today's decision on this row is within rounding of the other one, so there is none to leave"
    CERTIFIED = "certified"
    IMPOSSIBLE = (
        "none exists: under these constraints every row that this person could have is decided as today"
    )
    OUT_OF_TIME = "the time budget ran out before one was found"
    NOT_FOUND = "no certified counterfactual was found under these constraints"
    UNMET = "the answer that was found does not meet what was required"


SO_FAR = "the time budget ran out: the best certified answer so far"

BELIEVED = 0.5
"""Advice goes out, in a letter or as a promise, if this share of the panel's held-out members believes it."""

MOST_ROWS_RELAXED = 2000
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
        method=np.full(n, "", dtype=np.array(CASCADE).dtype),
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


class Endings(NamedTuple):
    """The status of each row, how it ended (an ``Outcome``), and that in words."""

    status: NDArray[np.str_]
    outcome: NDArray[np.object_]
    reason: NDArray[np.object_]

    def unmet(self, rows: Mapping[int, str]) -> None:
        """Enter that the answers of these rows were not given, and why."""
        for i, reason in rows.items():
            self.outcome[i], self.reason[i] = Outcome.UNMET, reason


def endings(problem: Problem, shown: Shown, proof: Proof, options: ExplainOptions) -> Endings:
    """How each row ended."""
    valid = shown.valid.cpu().numpy()
    status = np.where(proof.certified, "certified", np.where(valid, "valid", "none"))
    favourable = (shown.sign > 0).cpu().numpy() & options.only_unfavourable
    unclear, complete = ~shown.clear.cpu().numpy(), shown.complete.cpu().numpy()
    outcome, reason = (np.empty(len(valid), dtype=object) for _ in range(2))
    for rows, ended in ((unclear, Outcome.TOO_CLOSE), (favourable, Outcome.FAVOURABLE)):
        outcome[rows], reason[rows] = ended, ended.value  # favourable last: nobody was turned down
    open_ = ~favourable & ~unclear
    outcome[open_ & proof.certified] = Outcome.CERTIFIED
    _say_certified(reason, open_ & proof.certified, proof, complete, problem.param_set)
    helpers = _what_would_help(problem, shown, proof, options)
    never = _never(problem, shown, open_)
    for i in (open_ & ~proof.certified).nonzero()[0].tolist():
        helps, done = helpers.get(i, []), bool(complete[i])
        outcome[i] = Outcome.IMPOSSIBLE if i in never else _in_vain(done)
        if valid[i]:
            reason[i] = _uncertified(problem.param_set, float(proof.radius[i]), helps, complete=done)
        else:
            reason[i] = Outcome.IMPOSSIBLE.value if i in never else _not_found(helps, complete=done)
    return Endings(status, outcome, reason)


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
                sentence = _certified(models, str(method), conditional=conditional, complete=done)
                reason[alike & (complete == done)] = sentence


def _searched(shown: Shown, options: ExplainOptions) -> NDArray[np.bool_]:
    """Which rows a counterfactual was looked for."""
    asked = shown.clear & ((shown.sign < 0) if options.only_unfavourable else torch.ones_like(shown.clear))
    searched: NDArray[np.bool_] = asked.cpu().numpy()
    return searched


def _what_would_help(
    problem: Problem, shown: Shown, proof: Proof, options: ExplainOptions
) -> dict[int, list[str]]:
    """For rows that were searched to the end in vain: the features whose constraint would have to give."""
    if not options.refine:
        return {}
    without = _searched(shown, options) & ~proof.certified & shown.complete.cpu().numpy()
    rows = torch.from_numpy(without.nonzero()[0][:MOST_ROWS_RELAXED])
    if len(rows) == 0:
        return {}
    part = problem.select(rows.to(problem.x.device))
    return dict(
        zip(
            rows.tolist(),
            sufficient_relaxations(part, shown.x_cf[rows], options.max_changes),
            strict=True,
        )
    )


def _never(problem: Problem, shown: Shown, searched: NDArray[np.bool_]) -> set[int]:
    """The searched rows of which it is proved that no legal row of theirs is decided otherwise today."""
    rows = (~shown.valid & torch.from_numpy(searched).to(shown.valid.device)).nonzero().squeeze(-1)
    if len(rows) == 0:
        return set()
    proved = impossible(problem.encoding, problem.param_set, shown.x[rows], shown.sign[rows])
    return set(rows[proved].tolist())


def _certified(models: ParamSet, method: str, *, conditional: bool, complete: bool) -> str:
    """What was proved."""
    scope = ", as long as the original row keeps its decision" if conditional else ""
    proof = f"certified at {models} by {method}{scope}"
    return proof if complete else f"{proof} ({SO_FAR})"


def _uncertified(models: ParamSet, radius: float, suffices: Sequence[str], *, complete: bool) -> str:
    """Why a valid counterfactual is not certified, up to which kappa it is, and what would help."""
    reach = "certified at no kappa"
    if radius > 0:
        reach = f"certified only up to {models.at(float(round_down(radius)))}"
    return f"{_in_vain(complete).value}; this one is valid today, but {reach}{_help(suffices)}"


def _not_found(suffices: Sequence[str], *, complete: bool) -> str:
    """Why there is none at all, and what would help."""
    return f"{_in_vain(complete).value}{_help(suffices)}"


def disagreed(share: float) -> str:
    """Why an answer is not given that the panel does not believe."""
    return f"{Outcome.UNMET.value}: {share:.0%} of the independent models that were held out believe it"


def implausible(factor: float) -> str:
    """Why an answer is not given that looks like nobody."""
    unlike = "it is unlike the people who have the wanted label"
    return f"{Outcome.UNMET.value}: {unlike} (outlier factor {factor:.2g})"


def _in_vain(complete: bool) -> Outcome:
    """What a search without a proof ended with."""
    return Outcome.NOT_FOUND if complete else Outcome.OUT_OF_TIME


def _help(suffices: Sequence[str]) -> str:
    if not suffices:
        return ""
    names = listing(suffices) if len(suffices) == 1 else f"one of {listing(suffices)}"
    return f"; one would be found if {names} could change freely"


@torch.no_grad()
def impossible(encoding: Encoding, param_set: ParamSet, x: Tensor, sign: Tensor) -> Tensor:
    """Which rows (n,) have provably no counterfactual for today's model, whatever they change.

    All legal rows of a person lie in one box; if the bound over it says that every one of them is decided as
    ``x`` is, none of them is a counterfactual. Only bounds that assume nothing about ``x`` will do here.
    """
    alone, parts = param_set.at(0.0), []
    for rows in chunks(x):
        everything = Box(*encoding.limits(x[rows]))
        batch = ProofBatch(x[rows], everything, -sign[rows])
        parts.append(prove(alone, batch, UNCONDITIONAL, sign_only=True).worst_logit < 0)
    return torch.cat(parts)


@torch.no_grad()
def sufficient_relaxations(problem: Problem, closest: Tensor, most: int | None) -> list[list[str]]:
    """For each row the features that, set free alone, would make a certified counterfactual possible.

    Each constrained feature is tried at its ends (or at every category) from the closest point found.
    What is named has been proved to work, with at most ``most`` changes; what is not named may still work
    together with other changes.
    """
    encoding = problem.encoding
    found: list[list[str]] = [[] for _ in range(len(problem))]
    for k, block in enumerate(encoding.blocks):
        if block.feature.action == "free" or encoding.fitted[k].constant:
            continue
        open_ = torch.ones(len(problem), dtype=torch.bool)
        for value in _values(block.group, block.values, problem.x):
            tried = closest.clone()
            tried[:, block.start : block.stop] = 0.0
            tried[:, block.group or slice(block.start, block.start + 1)] = value
            works = open_ & (problem.worst(tried) < 0).cpu()
            if most is not None:
                works &= (encoding.changed(tried, problem.x).sum(-1) <= most).cpu()
            for row in works.nonzero().squeeze(-1).tolist():
                found[row].append(block.feature.name)
            open_ &= ~works
    return found


def _values(group: slice | None, values: slice, x: Tensor) -> list[Tensor]:
    """What a feature's columns are set to: each category, or both ends of a number."""
    if group is None:
        return [x.new_tensor([0.0]), x.new_tensor([1.0])]
    width, categories = group.stop - group.start, values.stop - values.start
    return list(torch.eye(width, dtype=x.dtype, device=x.device)[:categories])
