"""One call of ``explain``: encode the rows, search, decode, and certify the decoded rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
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
from veritracer.options import ExplainOptions, drift_within
from veritracer.proving import CASCADE, Decisions, decide
from veritracer.schema import Schema
from veritracer.search.exact import closest_linear, countable, exhaustive, is_linear
from veritracer.search.linearised import Solutions, assess
from veritracer.search.outcomes import (
    Outcome,
    Outcomes,
    disagreed,
    implausible,
    impossible,
    outcomes_of,
    proved_for,
)
from veritracer.search.polish import alternatives, limit_changes
from veritracer.search.problem import CoveredRegion, SearchProblem, certified_region, cost_weights
from veritracer.search.prototypes import search_toward_prototypes
from veritracer.search.reference import INLIER, ReferenceData
from veritracer.search.solve import Start, anchor_to_data, closest
from veritracer.times import month_length, whole_months

NEIGHBOURS = 8
"""Nearest training rows that are compared for the start of a row."""

FALLBACK_KAPPAS = (0.8, 0.5, 0.2, 0.0)
"""Shares of kappa tried for rows that cannot be certified at kappa itself."""

Spans = Callable[[Tensor], tuple[Tensor, Tensor]]
"""How far a feature may change below and above people's own values (n,), in raw units."""


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
        moves = _ageing(self.encoding, self.options.duration)
        if moves:
            problem = problem.with_bounds(*_within(self.encoding, table, x, moves))
        if not self.options.refine:
            return problem
        if self.reference.quantile_bounds is not None and not self.options.extremes:
            problem = self.reference.quantile_bounds.applied_to(problem)
        limits = _limits(self.encoding, self.options.limits)
        return problem.with_bounds(*_within(self.encoding, table, x, limits)) if limits else problem

    def _unlimited(self, x: Tensor, sign: Tensor) -> SearchProblem:
        """Return the problem of the rows, inside the bounds of the schema alone."""
        weights = cost_weights(self.encoding, self.options.cost).to(x)
        return SearchProblem.of(
            self.encoding, self.param_set, x, sign, weights, self._region(self.options.drift)
        )

    def _region(self, drift: Mapping[str, float | Sequence[float]]) -> CoveredRegion:
        return certified_region(self.encoding, self.options.overshoot, drift)

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
        for i, sentence in refused.items():
            outcome[i], reason[i] = Outcome.UNMET, sentence
        months = self._months(problem, shown.x_cf, certificates)
        for i in np.flatnonzero((months > 0) & ~certificates.certified).tolist():
            reason[i] += proved_for(int(months[i]))
        original = whole.iloc[solutions.row.cpu().numpy()]
        return self._result((original, frame), problem, shown, certificates, (outcome, reason), months)

    def _months(self, problem: SearchProblem, x_cf: Tensor, certificates: Certificates) -> NDArray[np.int64]:
        """Return the whole months of the term for which each counterfactual is certified, (n,).

        Where it is not certified for the whole term, the most months with a proof are searched by bisection.
        """
        schema, drift = self.encoding.schema, self.options.drift
        most = whole_months(self.options.duration)
        months = np.where(certificates.certified, most, 0)
        ageing = drift_within(schema, self.options.duration)
        shorter = {name for name, moves in ageing.items() if drift[name] == moves}  # others are the caller's
        rows = np.flatnonzero(certificates.valid & ~certificates.certified)
        if not shorter or len(rows) == 0:
            return months
        regions = []
        for month in range(most + 1):
            then = drift_within(schema, month_length(month))
            regions.append(self._region({**drift, **{name: then.get(name, 0.0) for name in shorter}}))
        overshoot, down, up = (torch.stack(parts) for parts in zip(*regions, strict=True))
        part = torch.from_numpy(rows)
        least, highest = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), most)
        while (open_ := least < highest).any():
            middle = np.where(open_, (least + highest + 1) // 2, 0)
            region = CoveredRegion(overshoot[middle], down[middle], up[middle])
            target = region.around(x_cf[part], problem.x[part])
            proofs = certify(self.module, problem.x[part], target, self.param_set, radius=False)
            least = np.where(open_ & proofs.certified, middle, least)
            highest = np.where(open_ & ~proofs.certified, middle - 1, highest)
        months[rows] = least
        return months

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
        months: NDArray[np.int64],
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
            months=months,
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
            return self._solve(part, expired)

        solutions = self._at_smaller_kappas(problem, solver(problem), solver)
        if self.options.n > 1:
            solutions = alternatives(problem, solutions, self.options.n, solver)
        return solutions._replace(
            row=rows[solutions.row], complete=torch.full_like(solutions.complete, not expired())
        )

    def _solve(self, problem: SearchProblem, expired: Callable[[], bool]) -> Solutions:
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
        favourable = problem.sign < 0

        def accepted(points: Tensor, rows: Tensor) -> Tensor:
            passed = self.reference.panel_accepts(points, favourable[rows])
            if self.options.plausible:
                factor = self.reference.outlier_factor(points, favourable[rows])
                passed &= torch.from_numpy(factor <= INLIER).to(passed.device)
            return passed

        solutions = search_toward_prototypes(problem, self.reference, accepted, expired=expired)
        rows = (~solutions.proved).nonzero().squeeze(-1)
        return solutions.merge(rows, self._closest(problem.select(rows), expired)) if len(rows) else solutions

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


def _limits(encoding: Encoding, limits: Mapping[str, float]) -> dict[str, Spans]:
    """Return how far each limited feature may change: by a share of the person's own value."""

    def span(share: float) -> Spans:
        return lambda value: (share * value.abs(), share * value.abs())

    return {name: span(share) for name, share in _shares(encoding.schema, limits).items()}


def _ageing(encoding: Encoding, term: timedelta) -> dict[str, Spans]:
    """Return how far features that move one way by themselves may change: as far as they move in the term."""

    def span(least: float, most: float) -> Spans:
        return lambda value: (torch.full_like(value, -least), torch.full_like(value, most))

    return {f.name: span(*f.drift_within(term)) for f in encoding.schema.features if f.moves_one_way}


def _within(encoding: Encoding, table: Any, x: Tensor, spans: Mapping[str, Spans]) -> tuple[Tensor, Tensor]:
    """Return bounds (n, d) that are so far from each person's own values, encoded.

    They may lie beyond the encoding's range; a missing value stays missing.
    """
    lower, upper = torch.zeros_like(x), torch.ones_like(x)
    numbers = encoding.numbers(table).to(x)
    for name, span in spans.items():
        position = encoding.schema.names.index(name)
        block, value = encoding.blocks[position], numbers[:, position]
        below, above = span(value)
        known = ~torch.isnan(value)
        for end, raw in ((lower, value - below), (upper, value + above)):
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
