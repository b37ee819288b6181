"""One call of ``explain``: encode the rows, search, decode, and certify the decoded rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import check_exact
from veritracer.certificate import CHUNK, Certificates, certify
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.options import ExplainOptions
from veritracer.proving import CASCADE, Decisions, decide
from veritracer.schema import Schema
from veritracer.search.exact import closest_linear, countable, exhaustive, is_linear
from veritracer.search.linearised import Solutions, assess
from veritracer.search.outcomes import (
    Outcome,
    Outcomes,
    disagreed,
    doubted,
    implausible,
    impossible,
    outcomes_of,
)
from veritracer.search.polish import Accepted, alternatives, limit_changes, undo_changes
from veritracer.search.problem import SearchProblem, certified_region, cost_weights
from veritracer.search.prototypes import search_toward_prototypes
from veritracer.search.reference import INLIER, ReferenceData
from veritracer.search.solve import Start, anchor_to_data, closest

NEIGHBOURS = 8
"""Nearest training rows that are compared for the start of a row."""

FALLBACK_KAPPAS = (0.8, 0.5, 0.2, 0.0)
"""Shares of kappa tried for rows that cannot be certified at kappa itself."""


@dataclass(frozen=True)
class Explanation:
    """The inputs of one call of ``explain``; ``of`` computes its result."""

    module: nn.Module
    encoding: Encoding
    param_set: ParamSet
    threshold: float | None
    propose: Callable[[Tensor], Tensor] | None
    reference: ReferenceData
    options: ExplainOptions

    def of(self, table: Any) -> Counterfactuals:
        """Return the counterfactuals of a raw table."""
        if self.options.effort == "exact":
            check_exact(self.param_set)
        x = self.encoding.encode(table).to(self.param_set.center[0].device)
        today = decide(self.module, x)
        wanted = today.clear.clone()
        if self.options.only_unfavourable:
            wanted &= today.sign < 0
        if self.options.refine:
            some = x[wanted], today.sign[wanted]
            wanted[wanted.clone()] &= ~impossible(self.encoding, self.param_set, *some)
        budget = math.inf if self.options.time_budget is None else self.options.time_budget
        deadline = time.monotonic() + budget
        whole = self._problem(table, x, today.sign)
        parts = [_unsearched(x, (~wanted).nonzero().squeeze(-1))]
        parts += [
            self._search(whole.select(rows), rows, lambda: time.monotonic() > deadline)
            for rows in torch.split(wanted.nonzero().squeeze(-1), CHUNK)
            if len(rows) > 0
        ]
        return self._conclude(table, x, today, Solutions.joined(parts), deadline)

    def _problem(self, table: Any, x: Tensor, sign: Tensor) -> SearchProblem:
        """Return the problem of all rows, inside the quantile bounds and each person's own limits."""
        problem = self._unlimited(x, sign)
        if not self.options.refine:
            return problem
        if self.reference.quantile_bounds is not None and not self.options.extremes:
            problem = self.reference.quantile_bounds.applied_to(problem)
        shares = _shares(self.encoding.schema, self.options.limits)
        return problem.with_bounds(*_own_limits(self.encoding, table, x, shares)) if shares else problem

    def _unlimited(self, x: Tensor, sign: Tensor) -> SearchProblem:
        """Return the problem of the rows, inside the bounds of the schema alone."""
        weights = cost_weights(self.encoding, self.options.cost).to(x)
        region = certified_region(self.encoding, self.options.overshoot, self.options.drift)
        return SearchProblem.of(self.encoding, self.param_set, x, sign, weights, region)

    def _conclude(
        self, table: Any, x: Tensor, today: Decisions, solutions: Solutions, deadline: float
    ) -> Counterfactuals:
        """Return the counterfactuals as people read them, with certificates of exactly these values."""
        whole = self.encoding.schema.frame(table)
        if isinstance(table, pd.DataFrame):  # in the caller's order of columns
            whole = whole[[name for name in table.columns if name in whole.columns]]
        frame, shown, valid = self._show(whole, x, today, solutions)
        unmet = self._unmet(shown, today.sign[solutions.row] < 0, valid)
        refused: dict[int, str] = {}
        if unmet:
            failing = torch.zeros_like(valid)
            failing[list(unmet)] = True
            why = {int(solutions.row[i]): unmet[i] for i in sorted(unmet, reverse=True)}
            solutions, lost = solutions.without(failing, x)
            frame, shown, valid = self._show(whole, x, today, solutions)
            refused = {i: why[int(solutions.row[i])] for i in lost.nonzero().squeeze(-1).tolist()}
        # Personal limits are left out: the shown rows keep them already.
        problem = self._unlimited(x[solutions.row], today.sign[solutions.row])
        certificates = self._certify(problem, shown.x_cf, valid, deadline)
        clear = today.clear[solutions.row]
        outcome, reason = outcomes_of(problem, clear, shown, certificates, self.options)
        doubtful = self._doubtful(problem, shown.x_cf)
        for i in (doubtful.any(-1) & valid).nonzero().squeeze(-1).tolist():
            names = [self.encoding.schema.names[k] for k in doubtful[i].nonzero().squeeze(-1).tolist()]
            reason[i] += doubted(names)
        for i, sentence in refused.items():
            outcome[i], reason[i] = Outcome.UNMET, sentence
        original = whole.iloc[solutions.row.cpu().numpy()]
        return self._result((original, frame), problem, shown, certificates, (outcome, reason))

    def _certify(self, problem: SearchProblem, x_cf: Tensor, valid: Tensor, deadline: float) -> Certificates:
        """Return certificates of the shown values, or of the region around them; none where not valid."""
        n, covered = len(problem), problem.covered(x_cf)
        largest, effort = self.options.search_radius, self.options.effort
        blank = Certificates(
            certified=np.zeros(n, dtype=bool),
            worst_logit=np.full(n, np.inf),
            method=np.full(n, "", dtype=np.array(CASCADE).dtype),
            conditional=np.zeros(n, dtype=bool),
            radius=np.zeros(n),
            favourable=(problem.sign > 0).cpu().numpy(),
            valid=valid.cpu().numpy(),
            slack=np.full(n, np.inf),
            model_digest=self.param_set.center_digest,
            param_set=self.param_set,
            encoding_digest=self.encoding.digest,
            threshold=self.threshold,
            counterexample=np.full(n, None, dtype=object) if effort == "exact" else None,
        )
        rows = valid.nonzero().squeeze(-1)
        if len(rows) == 0:
            return blank
        target = covered.select(rows) if isinstance(covered, Box) else covered[rows]
        timed = effort == "exact" and math.isfinite(deadline)
        proofs = certify(
            self.module,
            problem.x[rows],
            target,
            self.param_set,
            radius=largest,
            effort=effort,
            time_budget=max(0.0, deadline - time.monotonic()) if timed else None,
        )
        where = rows.cpu().numpy()
        for name in ("certified", "worst_logit", "method", "slack"):
            getattr(blank, name)[where] = getattr(proofs, name)
        if blank.counterexample is not None:
            blank.counterexample[where] = proofs.counterexample
        # A bound without a proof has no condition either, but the proof at a smaller radius may have one.
        blank.conditional[where] = proofs.conditional & proofs.certified
        assert blank.radius is not None
        if proofs.radius is not None:
            blank.radius[where] = proofs.radius
        else:  # the proof at kappa itself is all that is known
            blank.radius[blank.certified] = self.param_set.kappa
        self._certify_at_smaller_radii(problem, covered, blank)
        return blank

    def _certify_at_smaller_radii(
        self, problem: SearchProblem, covered: Tensor | Box, certificates: Certificates
    ) -> None:
        """Set whether proofs that hold only below kappa need that x keeps its decision."""
        assert certificates.radius is not None
        rows = np.flatnonzero(~certificates.certified & (certificates.radius > 0))
        for radius in np.unique(certificates.radius[rows]):
            some = rows[certificates.radius[rows] == radius]
            part = torch.from_numpy(some).to(problem.x.device)
            target = covered.select(part) if isinstance(covered, Box) else covered[part]
            smaller = self.param_set.at(float(radius))
            proofs = certify(self.module, problem.x[part], target, smaller, radius=False)
            certificates.conditional[some] = proofs.conditional

    def _result(
        self,
        tables: tuple[pd.DataFrame, pd.DataFrame],
        problem: SearchProblem,
        shown: Solutions,
        certificates: Certificates,
        outcomes: Outcomes,
    ) -> Counterfactuals:
        """Return everything that is known as one value."""
        number = shown.alternative.cpu().numpy()
        original, frame = tables if self.options.n == 1 else (_numbered(table, number) for table in tables)
        covered = problem.covered(shown.x_cf)
        box = covered if isinstance(covered, Box) else Box(covered, covered)
        valid = np.where(certificates.valid, "valid", "none")
        agreement = self.reference.agreement(shown.x_cf, problem.sign < 0)
        return Counterfactuals(
            frame=frame,
            original=original,
            status=np.where(certificates.certified, "certified", valid),
            outcome=outcomes[0],
            reason=outcomes[1],
            certificates=certificates,
            x=problem.x.cpu(),
            x_cf=shown.x_cf.cpu(),
            region=Box(box.lower.cpu(), box.upper.cpu()),
            row=shown.row.cpu().numpy(),
            alternative=number,
            agreement=np.where(certificates.valid, agreement, np.nan),
            encoding=self.encoding,
            reference=self.reference,
            options=self.options,
        )

    def _unmet(self, shown: Solutions, wanted: Tensor, valid: Tensor) -> dict[int, str]:
        """Return the valid counterfactuals that do not meet a requirement, with the reason."""
        unmet: dict[int, str] = {}
        there = valid.cpu().numpy()
        if self.options.plausible:
            factor = self.reference.outlier_factor(shown.x_cf, wanted)
            unmet |= {
                int(i): implausible(float(factor[i])) for i in np.flatnonzero(there & (factor > INLIER))
            }
        if self.options.agreement is not None:
            share = self.reference.agreement(shown.x_cf, wanted)
            lacking = np.flatnonzero(there & (share < self.options.agreement))
            unmet |= {int(i): disagreed(float(share[i])) for i in lacking}
        return unmet

    def _show(
        self, whole: pd.DataFrame, x: Tensor, today: Decisions, solutions: Solutions
    ) -> tuple[pd.DataFrame, Solutions, Tensor]:
        """Return what people read, its encoding as solutions, and a mask of those decided otherwise today.

        A point whose decoded values are no counterfactual (a narrow column cannot hold every number) is not
        shown: the row keeps its own values.
        """
        start, sign, x_cf = x[solutions.row], today.sign[solutions.row], solutions.x_cf
        original = whole.iloc[solutions.row.cpu().numpy()]
        while True:
            frame = self.encoding.decode(x_cf, original=original, start=start)
            shown = self.encoding.encode(frame, out_of_range="ignore").to(start)
            valid = self._turned(shown, start, sign)
            lost = (x_cf != start).any(-1) & ~valid
            if not bool(lost.any()):
                return frame, solutions._replace(x_cf=shown), valid
            x_cf = torch.where(lost.unsqueeze(-1), start, x_cf)

    def _turned(self, x_cf: Tensor, x: Tensor, sign: Tensor) -> Tensor:
        """Return a mask of the rows that today's model decides otherwise; unchanged rows are not decided."""
        valid = torch.zeros_like(sign, dtype=torch.bool)
        rows = (x_cf != x).any(-1).nonzero().squeeze(-1)
        valid[rows] = decide(self.module, x_cf[rows]).sign != sign[rows]
        return valid

    def _search(self, problem: SearchProblem, rows: Tensor, expired: Callable[[], bool]) -> Solutions:
        """Return the solutions of these rows of the table, by refinement or straight from the start."""
        if not self.options.refine:
            return assess(problem, problem.legal(self._begin(problem)))._replace(row=rows)

        def solver(part: SearchProblem) -> Solutions:
            return self._with_less_harm(part, self._solve(part, expired), expired)

        solutions = self._at_smaller_kappas(problem, solver(problem), solver)
        if self.options.n > 1:
            solutions = alternatives(problem, solutions, self.options.n, solver, self._accepts(problem))
        return solutions._replace(
            row=rows[solutions.row], complete=torch.full_like(solutions.complete, not expired())
        )

    def _solve(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
        """Return the best point of each row, without changes that it does not need."""
        solutions = self._best(problem, expired)
        return undo_changes(problem, solutions, self._still_accepted(problem, solutions.x_cf))

    def _with_less_harm(
        self, problem: SearchProblem, solutions: Solutions, expired: Callable[[], bool]
    ) -> Solutions:
        """Search rows with doubtful changes once more, with the direction of these changes closed.

        The second result counts if it is proved, accepted, and has fewer doubtful changes.
        """
        doubtful = self._doubtful(problem, solutions.x_cf)
        rows = (doubtful.any(-1) & solutions.proved).nonzero().squeeze(-1)
        if len(rows) == 0 or expired():
            return solutions
        closed = problem.select(rows).without_moves(doubtful[rows], solutions.x_cf[rows])
        second = self._solve(closed, expired)
        fewer = self._doubtful(closed, second.x_cf).sum(-1) < doubtful[rows].sum(-1)
        some = (second.proved & fewer).nonzero().squeeze(-1)
        some = some[self._accepts(closed)(second.x_cf[some], some)]
        return solutions.replace(rows[some], second.select(some))

    def _doubtful(self, problem: SearchProblem, x_cf: Tensor) -> Tensor:
        """Return a mask (n, n_features) of the changes that the panel expects to do harm."""
        return self.reference.doubtful(problem.encoding, problem.x, x_cf, problem.sign < 0)

    def _best(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
        """Return the best point of each row: by enumeration if its legal rows are few, else by search."""
        if self._has_prototypes or self.options.plausibility:
            return self._searched(problem, expired)
        few = countable(problem)
        small, large = few.nonzero().squeeze(-1), (~few).nonzero().squeeze(-1)
        solutions = assess(problem, problem.x)
        if len(large) > 0:
            solutions = solutions.merge(large, self._searched(problem.select(large), expired))
        if len(small) > 0:
            whole = exhaustive(problem.select(small), self.options.max_changes, expired=expired)
            solutions = solutions.merge(small, whole)
        return solutions

    def _searched(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
        """Return the best point that the search finds for each row."""

        def best(part: SearchProblem) -> Solutions:
            return (
                self._toward_prototypes(part, expired)
                if self._has_prototypes
                else self._closest(part, expired)
            )

        solutions = best(problem)
        if self.options.plausibility and len(self.reference.neighbours) > 0:
            solutions = anchor_to_data(
                problem,
                solutions,
                lambda points: self.reference.neighbours.nearest(points)[0],
                self.options.plausibility,
                expired=expired,
            )
        if self.options.max_changes is not None:
            solutions = limit_changes(problem, solutions, self.options.max_changes, best)
        return solutions

    @property
    def _has_prototypes(self) -> bool:
        """Return whether the search goes toward prototypes; a given ``plausibility`` takes their place."""
        return self.reference.has_prototypes and self.options.plausibility is None

    def _toward_prototypes(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
        """Return counterfactuals near prototypes that the panel accepts; failing that, the closest ones."""
        solutions = search_toward_prototypes(problem, self.reference, self._accepts(problem), expired=expired)
        rows = (~solutions.proved).nonzero().squeeze(-1)
        return solutions.merge(rows, self._closest(problem.select(rows), expired)) if len(rows) else solutions

    def _accepts(self, problem: SearchProblem) -> Accepted:
        """Return the acceptance test: by the panel's teachers and, if it is required, by plausibility.

        Held-out members are never consulted, so that their agreement stays independent.
        """

        def accepted(points: Tensor, rows: Tensor) -> Tensor:
            return (self._margin(problem, points, rows) >= 0) & self._inlying(problem, points, rows)

        return accepted

    def _still_accepted(self, problem: SearchProblem, x_cf: Tensor) -> Accepted:
        """Return a test if points are as acceptable as ``x_cf`` (n, d).

        Where the teachers accept ``x_cf``, they must accept the point; elsewhere their margin must not fall.
        Where plausibility is required, an inlier must stay one.
        """
        everybody = torch.arange(len(x_cf), device=x_cf.device)
        least = self._margin(problem, x_cf, everybody).clamp(max=0)
        outlying = ~self._inlying(problem, x_cf, everybody)

        def accepted(points: Tensor, rows: Tensor) -> Tensor:
            passed = self._margin(problem, points, rows) >= least[rows]
            return passed & (self._inlying(problem, points, rows) | outlying[rows])

        return accepted

    def _margin(self, problem: SearchProblem, points: Tensor, rows: Tensor) -> Tensor:
        """Return the margin of the panel's teachers at points of these rows; 0 without a panel."""
        if self.reference.panel is None:
            return torch.zeros_like(problem.sign[rows])
        return self.reference.panel_margin(points, problem.sign[rows] < 0)

    def _inlying(self, problem: SearchProblem, points: Tensor, rows: Tensor) -> Tensor:
        """Return a mask of the points that are plausible enough; all are, unless it is required."""
        if not self.options.plausible:
            return torch.ones_like(rows, dtype=torch.bool)
        factor = self.reference.outlier_factor(points, problem.sign[rows] < 0)
        return torch.from_numpy(factor <= INLIER).to(points.device)

    def _closest(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
        """Return the closest certified counterfactuals, without a look at the panel."""
        if not is_linear(problem):
            return closest(problem, self._starts(), expired=expired)
        solutions = closest_linear(problem, expired=expired)
        rows = (~solutions.proved).nonzero().squeeze(-1)  # the program leaves missing cells alone
        if len(rows) == 0:
            return solutions
        return solutions.merge(rows, closest(problem.select(rows), self._starts(), expired=expired))

    def _at_smaller_kappas(
        self, problem: SearchProblem, solutions: Solutions, solver: Callable[[SearchProblem], Solutions]
    ) -> Solutions:
        """Search rows without a proof at smaller kappas; keep the result at the largest one with a proof.

        A kappa is skipped unless the point that came closest is proved there; the last one is always tried.
        """
        best = solutions.x_cf
        for share in FALLBACK_KAPPAS:
            rows = (~solutions.proved).nonzero().squeeze(-1)
            if len(rows) == 0:
                break
            smaller = replace(problem.select(rows), model_set=self.param_set.at(share * self.param_set.kappa))
            promising = (smaller.worst_logit(best[rows], CASCADE) < 0) | (share == FALLBACK_KAPPAS[-1])
            some = promising.nonzero().squeeze(-1)
            if len(some) > 0:
                solutions = solutions.merge(rows[some], solver(smaller.select(some)))
        return solutions

    def _starts(self) -> list[Start]:
        first = [self._begin] if self.propose is not None else []
        near = [self._from_neighbours] if len(self.reference.neighbours) > 0 else []
        return [*first, *near, _mirrored]

    def _begin(self, problem: SearchProblem) -> Tensor:
        if self.propose is not None:
            return self.propose(problem.x)
        return self._from_neighbours(problem) if len(self.reference.neighbours) > 0 else problem.x

    def _from_neighbours(self, problem: SearchProblem) -> Tensor:
        """Return the best of the nearest training rows that are decided otherwise by proof, made legal."""
        best = assess(problem, problem.x)
        for sign in (1.0, -1.0):
            rows = (problem.sign == -sign).nonzero().squeeze(-1)
            part = problem.select(rows)
            near = self.reference.neighbours.decided(problem.model_set, part.x, sign, NEIGHBOURS)
            for k in range(near.shape[1]):
                best = best.merge(rows, assess(part, part.legal(near[:, k])))
        return best.x_cf


def _shares(schema: Schema, limits: Mapping[str, float]) -> dict[str, float]:
    """Return the share of a person's own value by which each limited feature may change."""
    shares = dict(limits)
    for feature in schema.features:
        if feature.limit is not None:
            shares[feature.name] = min(feature.limit, shares.get(feature.name, math.inf))
    return shares


def _own_limits(
    encoding: Encoding, table: Any, x: Tensor, shares: Mapping[str, float]
) -> tuple[Tensor, Tensor]:
    """Return the bounds of limited features, (n, d) each, encoded.

    They are a share of the person's own value, beyond the encoding's range too; a missing one stays so.
    """
    lower, upper = torch.zeros_like(x), torch.ones_like(x)
    numbers = encoding.numbers(table).to(x)
    for name, share in shares.items():
        position = encoding.schema.names.index(name)
        block, value = encoding.blocks[position], numbers[:, position]
        span = share * value.abs()
        known = ~torch.isnan(value)
        for end, raw in ((lower, value - span), (upper, value + span)):
            ends = encoding.units.interval(name, raw, raw)[0].to(x)
            end[:, block.start] = torch.where(known, ends, x[:, block.start])
    return lower, upper


def _mirrored(problem: SearchProblem) -> Tensor:
    """Return every column at the other end of its bounds: far away, but with another tangent than x."""
    return problem.lower + problem.upper - problem.x


def _unsearched(x: Tensor, rows: Tensor) -> Solutions:
    """Return the rows of a table that are not searched, as they are."""
    unproved = torch.full_like(rows, torch.inf, dtype=x.dtype)
    complete = torch.ones_like(rows, dtype=torch.bool)
    return Solutions(rows, torch.zeros_like(rows), x[rows], unproved, unproved, complete)


def _numbered(frame: pd.DataFrame, number: NDArray[np.int64]) -> pd.DataFrame:
    """Return the frame with one more level in its index: the number of the alternative."""
    return frame.set_index(pd.Index(number, name="alternative"), append=True)
