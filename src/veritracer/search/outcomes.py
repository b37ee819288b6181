"""Describe the end of the search for each row: an outcome for programs, and a reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import UNCONDITIONAL
from veritracer.certificate import Certificates, chunks
from veritracer.encoding import Encoding
from veritracer.errors import listing
from veritracer.formatting import round_down
from veritracer.models.param_sets import ParamSet
from veritracer.options import ExplainOptions
from veritracer.proving import ProofBatch, prove
from veritracer.search.linearised import Solutions
from veritracer.search.problem import SearchProblem
from veritracer.times import month_length


class Outcome(Enum):
    """Ends of the search for one row. Reasons begin with the value; programs compare members."""

    FAVOURABLE = "already favourable"
    TOO_CLOSE = "today's decision on this row is within rounding of the other one"
    CERTIFIED = "certified"
    IMPOSSIBLE = (
        "none exists: under these constraints every row that this person could have is decided as today"
    )
    OUT_OF_TIME = "the time budget ran out before one was found"
    NOT_FOUND = "no certified counterfactual was found under these constraints"
    UNMET = "the counterfactual that was found does not meet the requirements"


SO_FAR = "the time budget ran out: the best certified answer so far"

LEAST_AGREEMENT = 0.5
"""Least share of the panel's held-out members that must accept the counterfactual of a notice or promise."""

MOST_ROWS_RELAXED = 2000
"""Maximum number of rows without a certificate whose constraints are relaxed one by one."""

Outcomes = tuple[NDArray[np.object_], NDArray[np.object_]]
"""An ``Outcome`` and a reason in words for each row, (n,) each."""


def outcomes_of(
    problem: SearchProblem,
    clear: Tensor,
    shown: Solutions,
    certificates: Certificates,
    options: ExplainOptions,
) -> Outcomes:
    """Return the outcome and the reason of each shown counterfactual.

    Row i of ``problem`` is the row that counterfactual i is for; ``clear`` (n,) is false where rounding could
    change today's decision on it.
    """
    favourable = certificates.favourable & options.only_unfavourable
    unclear, complete = ~clear.cpu().numpy(), shown.complete.cpu().numpy()
    outcome, reason = (np.empty(len(problem), dtype=object) for _ in range(2))
    for rows, ended in ((unclear, Outcome.TOO_CLOSE), (favourable, Outcome.FAVOURABLE)):
        outcome[rows], reason[rows] = ended, ended.value  # favourable last: these need no counterfactual
    searched = ~favourable & ~unclear
    certified = searched & certificates.certified
    outcome[certified] = Outcome.CERTIFIED
    _describe_certified(reason, certified, certificates, complete)
    failed = (searched & ~certificates.certified).nonzero()[0]
    outcome[failed], reason[failed] = explain_failures(problem, shown, certificates, options, failed)
    return outcome, reason


def explain_failures(
    problem: SearchProblem,
    shown: Solutions,
    certificates: Certificates,
    options: ExplainOptions,
    rows: NDArray[np.int64],
) -> Outcomes:
    """Return why these rows have no certified counterfactual, with the constraints that prevent one."""
    helpful = _sufficient(problem, shown, options, rows)
    never, broken = _impossible_rows(problem, certificates, rows), certificates.broken
    outcome, reason = (np.empty(len(rows), dtype=object) for _ in range(2))
    for k, i in enumerate(rows.tolist()):
        complete = bool(shown.complete[i])
        outcome[k] = Outcome.IMPOSSIBLE if i in never else _failed(complete)
        if certificates.valid[i]:
            assert certificates.radius is not None
            radius = float(certificates.radius[i])
            reason[k] = _uncertified(
                problem.model_set,
                radius,
                helpful.get(i, []),
                complete=complete,
                broken=bool(broken[i]),
            )
        else:
            reason[k] = (
                Outcome.IMPOSSIBLE.value
                if i in never
                else f"{_failed(complete).value}{_help(helpful.get(i, []))}"
            )
    return outcome, reason


def _describe_certified(
    reason: NDArray[np.object_],
    rows: NDArray[np.bool_],
    certificates: Certificates,
    complete: NDArray[np.bool_],
) -> None:
    """Write the reasons of certified rows: a few sentences for any number of them."""
    for method in np.unique(certificates.method[rows]):
        for conditional in (False, True):
            for done in (False, True):
                alike = rows & (certificates.method == method) & (certificates.conditional == conditional)
                models = certificates.param_set
                sentence = _certified(models, str(method), conditional=conditional, complete=done)
                reason[alike & (complete == done)] = sentence


def _sufficient(
    problem: SearchProblem, shown: Solutions, options: ExplainOptions, rows: NDArray[np.int64]
) -> dict[int, list[str]]:
    """Return the features of completely searched rows whose constraint prevents a counterfactual."""
    if not options.refine or options.agreement is not None or options.plausible:
        return {}  # more than a proof was requested
    some = torch.from_numpy(rows)
    some = some[shown.complete.cpu()[some]][:MOST_ROWS_RELAXED].to(problem.x.device)
    if len(some) == 0:
        return {}
    names = sufficient_relaxations(problem.select(some), shown.x_cf[some], options.max_changes)
    return dict(zip(some.tolist(), names, strict=True))


def _impossible_rows(problem: SearchProblem, certificates: Certificates, rows: NDArray[np.int64]) -> set[int]:
    """Return the rows that provably have no legal row with another decision today."""
    some = torch.from_numpy(rows[~certificates.valid[rows]]).to(problem.x.device)
    if len(some) == 0:
        return set()
    proved = impossible(problem.encoding, problem.model_set, problem.x[some], problem.sign[some])
    return set(some[proved].tolist())


def _certified(models: ParamSet, method: str, *, conditional: bool, complete: bool) -> str:
    """Describe the certificate of a row."""
    scope = ", as long as the original row keeps its decision" if conditional else ""
    proof = f"certified at {models} by {method}{scope}"
    return proof if complete else f"{proof} ({SO_FAR})"


def _uncertified(
    models: ParamSet, radius: float, sufficient: Sequence[str], *, complete: bool, broken: bool
) -> str:
    """Describe why a valid counterfactual is not certified, its radius, and what would help."""
    proved = "certified at no kappa"
    if radius > 0:
        proved = f"certified only up to {models.at(float(round_down(radius)))}"
    if broken:
        proved = f"broken by a model at {models}, and {proved}"
    return f"{_failed(complete).value}; this one is valid today, but {proved}{_help(sufficient)}"


def proved_for(months: int) -> str:
    """Describe the part of the term for which a counterfactual without a certificate is certified."""
    days = month_length(months).days
    word = "month" if months == 1 else "months"
    return f"; it is certified for {months} {word}, not for the whole term (term='{days}d')"


def disagreed(share: float) -> str:
    """Describe why a counterfactual that the panel does not accept is withheld."""
    return f"{Outcome.UNMET.value}: {share:.0%} of the held-out independent models accept it"


def implausible(factor: float) -> str:
    """Describe why a counterfactual that is an outlier is withheld."""
    unlike = "it is unlike the people who have the wanted label"
    return f"{Outcome.UNMET.value}: {unlike} (outlier factor {factor:.2g})"


def _failed(complete: bool) -> Outcome:
    """Return the outcome of a search without a proof."""
    return Outcome.NOT_FOUND if complete else Outcome.OUT_OF_TIME


def _help(sufficient: Sequence[str]) -> str:
    if not sufficient:
        return ""
    names = listing(sufficient) if len(sufficient) == 1 else f"one of {listing(sufficient)}"
    return f"; one would be found if {names} could change freely"


@torch.no_grad()
def impossible(encoding: Encoding, param_set: ParamSet, x: Tensor, sign: Tensor) -> Tensor:
    """Return a mask (n,) of rows that provably have no counterfactual for today's model.

    All legal rows of a person lie in one box. If the bound over it proves that all of them are decided like
    ``x``, none is a counterfactual. Only bounds that assume nothing about ``x`` are valid here.
    """
    alone, parts = param_set.at(0.0), []
    for rows in chunks(x):
        everything = Box(*encoding.limits(x[rows]))
        batch = ProofBatch(x[rows], everything, -sign[rows])
        parts.append(prove(alone, batch, UNCONDITIONAL, sign_only=True).worst_logit < 0)
    return torch.cat(parts)


@torch.no_grad()
def sufficient_relaxations(problem: SearchProblem, closest: Tensor, most: int | None) -> list[list[str]]:
    """Return the features of each row that would make a certificate possible if only they were free.

    Each constrained feature is tried at its ends (or at every category) from the closest point found, which
    is legal. Those named have been proved to work, with at most ``most`` changes, and only at values that
    their constraint rules out; others may still work together with further changes.
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
            barred = ((tried < problem.lower) | (tried > problem.upper)).any(-1)
            works = open_ & (barred & (problem.worst_logit(tried) < 0)).cpu()
            if most is not None:
                works &= (encoding.changed(tried, problem.x).sum(-1) <= most).cpu()
            for row in works.nonzero().squeeze(-1).tolist():
                found[row].append(block.feature.name)
            open_ &= ~works
    return found


def _values(group: slice | None, values: slice, x: Tensor) -> list[Tensor]:
    """Return the values of a feature's columns that are tried: each category, or both ends of a number."""
    if group is None:
        return [x.new_tensor([0.0]), x.new_tensor([1.0])]
    width, categories = group.stop - group.start, values.stop - values.start
    return list(torch.eye(width, dtype=x.dtype, device=x.device)[:categories])
