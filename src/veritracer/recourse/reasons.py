"""Why there is no certified counterfactual, and what would have to give."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from veritracer.bounds import UNCONDITIONAL, Box
from veritracer.certificate import chunks
from veritracer.encoding import Encoding
from veritracer.errors import listing
from veritracer.param_sets import ParamSet
from veritracer.proving import Question, prove
from veritracer.refine import Problem
from veritracer.schema.values import rounded_down

FAVOURABLE = "already favourable"
TOO_CLOSE = "today's decision on this row is within rounding of the other one, so there is none to leave"
IMPOSSIBLE = "none exists: under these constraints every row that this person could have is decided as today"
OUT_OF_TIME = "the time budget ran out before one was found"
NOT_FOUND = "no certified counterfactual was found under these constraints"
UNMET = "the answer that was found does not meet what was required"
SO_FAR = "the time budget ran out: the best certified answer so far"


def certified(models: ParamSet, method: str, *, conditional: bool, complete: bool) -> str:
    """What was proved."""
    scope = ", as long as the original row keeps its decision" if conditional else ""
    proof = f"certified at {models} by {method}{scope}"
    return proof if complete else f"{proof} ({SO_FAR})"


def uncertified(models: ParamSet, radius: float, suffices: Sequence[str], *, complete: bool) -> str:
    """Why a valid counterfactual is not certified, up to which kappa it is, and what would help."""
    first = NOT_FOUND if complete else OUT_OF_TIME
    reach = "certified at no kappa"
    if radius > 0:
        reach = f"certified only up to {models.at(float(rounded_down(radius)))}"
    return f"{first}; this one is valid today, but {reach}{_help(suffices)}"


def not_found(suffices: Sequence[str], *, complete: bool) -> str:
    """Why there is none at all, and what would help."""
    return f"{NOT_FOUND if complete else OUT_OF_TIME}{_help(suffices)}"


def disagreed(share: float) -> str:
    """Why an answer is not given that the panel does not believe."""
    return f"{UNMET}: {share:.0%} of the independent models that were held out believe it"


def implausible(factor: float) -> str:
    """Why an answer is not given that looks like nobody."""
    return f"{UNMET}: it is unlike the people who have the wanted label (outlier factor {factor:.2g})"


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
        question = Question(x[rows], everything, -sign[rows])
        parts.append(prove(alone, question, UNCONDITIONAL, decide=True).worst_logit < 0)
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
