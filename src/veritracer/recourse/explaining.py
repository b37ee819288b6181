"""One call of ``explain`` from raw rows to counterfactuals: who is asked, what is found, how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.certificate import CHUNK
from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.options import ExplainOptions
from veritracer.proving import Decisions, decide
from veritracer.recourse.counterfactuals import Counterfactuals
from veritracer.recourse.evidence import INLIER, Evidence
from veritracer.recourse.exact import exact, is_linear
from veritracer.recourse.leading import led
from veritracer.recourse.outcomes import (
    Endings,
    Proof,
    Shown,
    disagreed,
    endings,
    implausible,
    impossible,
    prove_shown,
)
from veritracer.refine.exhaustive import countable, exhaustive
from veritracer.refine.problem import Drift, Problem, certified_region, cost_weights
from veritracer.refine.search import Found, assess
from veritracer.refine.selection import alternatives, at_most
from veritracer.refine.solve import Start, nearer_the_data, solve
from veritracer.schema import Schema

NEIGHBOURS = 8
"""Training rows that a row without a proved answer starts from: the best of so many nearest ones."""

FALLBACK_KAPPAS = (0.8, 0.5, 0.2, 0.0)
"""Shares of kappa that are tried for rows that cannot be certified at kappa itself."""


class Answers(NamedTuple):
    """The points found: for whom, which alternative, the point (m, d), and whether the time sufficed."""

    person: Tensor
    alternative: Tensor
    x_cf: Tensor
    complete: Tensor

    @classmethod
    def joined(cls, parts: list[Answers]) -> Answers:
        """All of them, sorted by person."""
        whole = cls(*(torch.cat(column) for column in zip(*parts, strict=True)))
        order = torch.argsort(whole.person, stable=True)
        return cls(*(column[order] for column in whole))

    def without(self, failing: Tensor, x: Tensor) -> tuple[Answers, Tensor]:
        """The answers that are left without those, and which rows (m,) have none any more.

        A person keeps the alternatives that do not fail; one of whom all fail keeps their own values.
        """
        passing = torch.zeros(len(x), dtype=torch.bool, device=failing.device)
        passing[self.person[~failing]] = True
        none = failing & ~passing[self.person]
        kept = ~failing | (none & (self.alternative == 0))
        left = Answers(*(column[kept] for column in self))
        number = torch.arange(len(left.person), device=failing.device)
        number -= torch.searchsorted(left.person, left.person)
        x_cf = torch.where(none[kept].unsqueeze(-1), x[left.person], left.x_cf)
        return Answers(left.person, number, x_cf, left.complete), none[kept]


class Told(NamedTuple):
    """People's own rows, what they are told instead, and both to the model."""

    original: pd.DataFrame
    frame: pd.DataFrame
    shown: Shown


@dataclass(frozen=True)
class Explanation:
    """Everything that one call of ``explain`` needs; ``of`` answers it."""

    module: nn.Module
    encoding: Encoding
    param_set: ParamSet
    radius_rule: RadiusRule | float
    threshold: float | None
    propose: Callable[[Tensor], Tensor] | None
    evidence: Evidence
    options: ExplainOptions

    def of(self, table: Any) -> Counterfactuals:
        """The counterfactuals of a raw table."""
        x = self.encoding.encode(table).to(self.param_set.center[0].device)
        today = decide(self.module, x)
        asked = today.clear.clone()
        if self.options.only_unfavourable:
            asked &= today.sign < 0
        if self.options.refine:
            some = x[asked], today.sign[asked]
            asked[asked.clone()] &= ~impossible(self.encoding, self.param_set, *some)
        deadline = time.monotonic() + (self.options.time_budget or 0.0)
        timed = self.options.time_budget is not None
        parts = [_unanswered(x, (~asked).nonzero().squeeze(-1))]
        whole = self._problem(table, x, today.sign)
        parts += [
            self._search(whole.select(rows), rows, lambda: timed and time.monotonic() > deadline)
            for rows in torch.split(asked.nonzero().squeeze(-1), CHUNK)
            if len(rows) > 0
        ]
        return self._conclude(table, x, today, Answers.joined(parts))

    def _problem(self, table: Any, x: Tensor, sign: Tensor) -> Problem:
        """What is asked for all rows, within the limits of the data and of what may be asked of people."""
        problem = self._unlimited(x, sign)
        if not self.options.refine:
            return problem
        if self.evidence.usual is not None and not self.options.extremes:
            problem = self.evidence.usual.within(problem)
        shares = _shares(self.encoding.schema, self.options.limits)
        return problem.within(*_own_limits(self.encoding, table, x, shares)) if shares else problem

    def _unlimited(self, x: Tensor, sign: Tensor) -> Problem:
        """What is asked for the rows, within the limits of the schema alone."""
        prices = cost_weights(self.encoding, self.options.cost).to(x)
        region = certified_region(self.encoding, self.options.overshoot, self.options.drift)
        return Problem.of(self.encoding, self.param_set, x, sign, prices, region)

    def _conclude(self, table: Any, x: Tensor, today: Decisions, answers: Answers) -> Counterfactuals:
        """The answers as people read them, with certificates and reasons for exactly these values."""
        whole = self.encoding.schema.frame(table)
        if isinstance(table, pd.DataFrame):  # in the caller's order of columns
            whole = whole[[name for name in table.columns if name in whole.columns]]
        told = self._tell(whole, x, today, answers)
        unmet = self._unmet(told.shown)
        turned_down: dict[int, str] = {}
        if unmet:
            failing = torch.zeros_like(told.shown.valid)
            failing[list(unmet)] = True
            why = {int(answers.person[i]): unmet[i] for i in sorted(unmet, reverse=True)}
            answers, none_left = answers.without(failing, x)
            told = self._tell(whole, x, today, answers)
            rows = none_left.nonzero().squeeze(-1).tolist()
            turned_down = {i: why[int(answers.person[i])] for i in rows}
        # Without the limits of a person, which the shown rows keep already.
        problem = self._unlimited(told.shown.x, told.shown.sign)
        proof = prove_shown(self.module, problem, told.shown, radius=self.options.search_radius)
        ended = endings(problem, told.shown, proof, self.options)
        ended.unmet(turned_down)
        return self._result(told, answers, proof, ended, problem.cost(told.shown.x_cf))

    def _tell(self, whole: pd.DataFrame, x: Tensor, today: Decisions, answers: Answers) -> Told:
        """What people have and what they read, and what that is to the model."""
        own, sign = x[answers.person], today.sign[answers.person]
        original = whole.iloc[answers.person.cpu().numpy()]
        frame, x_cf, valid = self._show(answers.x_cf, original, own, sign)
        return Told(
            original, frame, Shown(own, x_cf, sign, today.clear[answers.person], valid, answers.complete)
        )

    def _result(
        self, told: Told, answers: Answers, proof: Proof, ended: Endings, cost: Tensor
    ) -> Counterfactuals:
        """Everything that is known, as one value."""
        shown, valid = told.shown, told.shown.valid.cpu().numpy()
        number = answers.alternative.cpu().numpy()
        several = self.options.n > 1
        return Counterfactuals(
            frame=_numbered(told.frame, number) if several else told.frame,
            original=_numbered(told.original, number) if several else told.original,
            **ended._asdict(),
            valid=valid,
            **proof.arrays(),
            cost=cost.cpu().numpy(),
            n_changes=self.encoding.changed(shown.x_cf, shown.x).sum(-1).cpu().numpy(),
            favourable=(shown.sign > 0).cpu().numpy(),
            person=answers.person.cpu().numpy(),
            alternative=number,
            **self._set_and_options(),
            x=shown.x.cpu(),
            x_cf=shown.x_cf.cpu(),
            lower=proof.lower.cpu(),
            upper=proof.upper.cpu(),
            agreement=np.where(valid, self.evidence.agreement(shown.x_cf, shown.sign < 0), np.nan),
            evidence=self.evidence,
        )

    def _set_and_options(self) -> dict[str, Any]:
        """The fields that are the same for all rows: which models are spoken of, and what was asked."""
        return {
            "n": self.options.n,
            "kappa": self.param_set.kappa,
            "norm": self.param_set.norm,
            "radius_rule": self.radius_rule,
            "overshoot": self.options.overshoot,
            "drift": {name: Drift.of(asked).asked for name, asked in self.options.drift.items()},
            "model_digest": self.param_set.center_digest,
            "encoding_digest": self.encoding.digest,
            "threshold": self.threshold,
            "param_set": self.param_set,
            "encoding": self.encoding,
        }

    def _unmet(self, shown: Shown) -> dict[int, str]:
        """Of the valid answers those that do not meet what was required, and why they are not given."""
        found: dict[int, str] = {}
        there, wanted = shown.valid.cpu().numpy(), shown.sign < 0
        if self.options.plausible:
            factor = self.evidence.outlier_factor(shown.x_cf, wanted)
            found |= {
                int(i): implausible(float(factor[i])) for i in np.flatnonzero(there & (factor > INLIER))
            }
        if self.options.agreement is not None:
            share = self.evidence.agreement(shown.x_cf, wanted)
            lacking = np.flatnonzero(there & (share < self.options.agreement))
            found |= {int(i): disagreed(float(share[i])) for i in lacking}
        return found

    def _show(
        self, x_cf: Tensor, original: pd.DataFrame, own: Tensor, sign: Tensor
    ) -> tuple[pd.DataFrame, Tensor, Tensor]:
        """What people read, what that is encoded to, and where it is decided otherwise today.

        A point whose decoded values are not a counterfactual (a narrow column cannot hold every number)
        is not shown: the row keeps its own values.
        """
        while True:
            frame = self.encoding.decode(x_cf, original=original, start=own)
            shown = self.encoding.encode(frame, out_of_range="ignore").to(own)
            valid = self._turned(shown, own, sign)
            lost = (x_cf != own).any(-1) & ~valid
            if not bool(lost.any()):
                return frame, shown, valid
            x_cf = torch.where(lost.unsqueeze(-1), own, x_cf)

    def _turned(self, x_cf: Tensor, x: Tensor, sign: Tensor) -> Tensor:
        """Where today's model decides otherwise; a row that nothing changed is not looked at again."""
        valid = torch.zeros_like(sign, dtype=torch.bool)
        rows = (x_cf != x).any(-1).nonzero().squeeze(-1)
        valid[rows] = decide(self.module, x_cf[rows]).sign != sign[rows]
        return valid

    def _search(self, problem: Problem, rows: Tensor, expired: Callable[[], bool]) -> Answers:
        """The answers of these rows, by refinement or straight from the start."""
        if not self.options.refine:
            found = assess(problem, problem.legal(self._begin(problem)))
            return _single(rows, found.x_cf, complete=True)

        def solver(part: Problem) -> Found:
            return self._solve(part, expired)

        found = self._at_smaller_kappas(problem, solver(problem), solver)
        if self.options.n == 1:
            return _single(rows, found.x_cf, complete=not expired())
        several = alternatives(problem, found, self.options.n, solver)
        count = rows.new_tensor([len(options) for options in several])
        number = torch.cat([torch.arange(c, device=rows.device) for c in count.tolist()])
        points = torch.cat([option.x_cf for options in several for option in options])
        person = rows.repeat_interleave(count)
        return Answers(person, number, points, torch.full_like(person, not expired(), dtype=torch.bool))

    def _solve(self, problem: Problem, expired: Callable[[], bool]) -> Found:
        """The best point of each row, within the limits that were asked for."""
        if self._is_led or self.options.plausibility:
            return self._searched(problem, expired)
        few = countable(problem)
        small, large = few.nonzero().squeeze(-1), (~few).nonzero().squeeze(-1)
        found = assess(problem, problem.x)
        if len(large) > 0:
            found = found.merge(large, self._searched(problem.select(large), expired))
        if len(small) > 0:
            whole = exhaustive(problem.select(small), self.options.max_changes, expired=expired)
            found = found.merge(small, whole)
        return found

    def _searched(self, problem: Problem, expired: Callable[[], bool]) -> Found:
        """The best point that the search finds for each row."""

        def best(part: Problem) -> Found:
            return self._led(part, expired) if self._is_led else self._closest(part, expired)

        found = best(problem)
        if self.options.plausibility and len(self.evidence.neighbours) > 0:
            found = nearer_the_data(
                problem,
                found,
                lambda points: self.evidence.neighbours.nearest(points)[0],
                self.options.plausibility,
                expired=expired,
            )
        if self.options.max_changes is not None:
            found = at_most(problem, found, self.options.max_changes, best)
        return found

    @property
    def _is_led(self) -> bool:
        """Whether answers follow role models until the panel is content: unless a soft pull was asked for."""
        return self.evidence.leads and self.options.plausibility is None

    def _led(self, problem: Problem, expired: Callable[[], bool]) -> Found:
        """Answers on the way to a role model that the panel believes; the closest where there are none."""
        favourable = problem.sign < 0

        def accepted(points: Tensor, rows: Tensor) -> Tensor:
            content = self.evidence.believed(points, favourable[rows])
            if self.options.plausible:
                factor = self.evidence.outlier_factor(points, favourable[rows])
                content &= torch.from_numpy(factor <= INLIER).to(content.device)
            return content

        found = led(problem, self.evidence, accepted, expired=expired)
        rows = (~found.proved).nonzero().squeeze(-1)
        return found.merge(rows, self._closest(problem.select(rows), expired)) if len(rows) else found

    def _closest(self, problem: Problem, expired: Callable[[], bool]) -> Found:
        """The closest proved answers, whatever anybody else makes of them."""
        if not is_linear(problem):
            return solve(problem, self._starts(), expired=expired)
        found = exact(problem, expired=expired)
        rows = (~found.proved).nonzero().squeeze(-1)  # exact leaves missing cells alone
        if len(rows) == 0:
            return found
        return found.merge(rows, solve(problem.select(rows), self._starts(), expired=expired))

    def _at_smaller_kappas(self, problem: Problem, found: Found, solver: Callable[[Problem], Found]) -> Found:
        """The same, and where nothing is proved the answer at the largest smaller kappa that has one.

        Only where the point that came closest is proved at a kappa, or at the last one, is everything tried.
        """
        closest = found.x_cf
        for share in FALLBACK_KAPPAS:
            rows = (~found.proved).nonzero().squeeze(-1)
            if len(rows) == 0:
                break
            smaller = replace(problem.select(rows), param_set=self.param_set.at(share * self.param_set.kappa))
            promising = (smaller.best_bound(closest[rows]) < 0) | (share == FALLBACK_KAPPAS[-1])
            some = promising.nonzero().squeeze(-1)
            if len(some) > 0:
                found = found.merge(rows[some], solver(smaller.select(some)))
        return found

    def _starts(self) -> list[Start]:
        first = [self._begin] if self.propose is not None else []
        near = [self._from_neighbours] if len(self.evidence.neighbours) > 0 else []
        return [*first, *near, _mirrored]

    def _begin(self, problem: Problem) -> Tensor:
        if self.propose is not None:
            return self.propose(problem.x)
        return self._from_neighbours(problem) if len(self.evidence.neighbours) > 0 else problem.x

    def _from_neighbours(self, problem: Problem) -> Tensor:
        """Of the nearest training rows that are decided otherwise by proof, made legal, the best one."""
        best = assess(problem, problem.x)
        for sign in (1.0, -1.0):
            rows = (problem.sign == -sign).nonzero().squeeze(-1)
            part = problem.select(rows)
            near = self.evidence.neighbours.decided(problem.param_set, part.x, sign, NEIGHBOURS)
            for k in range(near.shape[1]):
                best = best.merge(rows, assess(part, part.legal(near[:, k])))
        return best.x_cf


def _shares(schema: Schema, limits: Mapping[str, float]) -> dict[str, float]:
    """Return the share of a person's own value by which each limited feature may change."""
    found = dict(limits)
    for feature in schema.features:
        if feature.limit is not None:
            found[feature.name] = min(feature.limit, found.get(feature.name, math.inf))
    return found


def _own_limits(
    encoding: Encoding, table: Any, x: Tensor, shares: Mapping[str, float]
) -> tuple[Tensor, Tensor]:
    """Between which encoded values people may be asked to bring features that are limited, (n, d) each.

    By a share of the value that they have, beyond the encoding's range too; a missing one stays as it is.
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


def _mirrored(problem: Problem) -> Tensor:
    """Every column at the other end of its limits: far away, but the tangent there is not that of x."""
    return problem.lower + problem.upper - problem.x


def _unanswered(x: Tensor, rows: Tensor) -> Answers:
    """Rows that nothing was looked for, as they are."""
    return _single(rows, x[rows], complete=True)


def _single(rows: Tensor, x_cf: Tensor, *, complete: bool) -> Answers:
    """One answer for each of the rows."""
    return Answers(rows, torch.zeros_like(rows), x_cf, torch.full_like(rows, complete, dtype=torch.bool))


def _numbered(frame: pd.DataFrame, number: NDArray[np.int64]) -> pd.DataFrame:
    """The frame with one more level in its index: the number of the alternative."""
    return frame.set_index(pd.Index(number, name="alternative"), append=True)
