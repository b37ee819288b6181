"""Every legal row of small schemas, against the answer that ``explain`` gives.

For random schemas, networks and requests the whole grid of each person is enumerated from raw values. An
answer must be one of these rows, decided and certified as it says, at the cost that it says; regions are
attacked as a whole. "None exists" must be true, and so must "one would be found if …". Whether a cheaper
certifiable row exists, or one where ``explain`` found none, is counted and reported: the search does not
promise to be optimal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import veritracer as vt
from benchmarks.adversary.attack import climb, try_each
from benchmarks.adversary.judging import Tally, Target
from benchmarks.adversary.models import Models
from benchmarks.adversary.running import Line, Part, Result, total
from benchmarks.adversary.schemas import Column, changed, costs, draw_schema, every_row, people
from benchmarks.legality import ranges_of
from benchmarks.legality import violations as illegal
from veritracer.bounds import Box
from veritracer.search.problem import COST_OF_A_CHANGE

PROBLEMS, AT_ONCE, PEOPLE = 420, 5, 24
"""Schemas of a full run, of a job, and people of each (about half of them are turned down)."""

TOLERANCE = 1e-9
BY_A_HAIR = 1e-6
"""Of the slack: rows that are proved by less may not be when they are proved in other company."""

NAMED = 5
FREELY = re.compile(r"one would be found if (.+) could change freely")


@dataclass
class Problem:
    """A schema with a model, and what is asked of ``explain``."""

    columns: list[Column]
    schema: vt.Schema
    encoding: vt.Encoding
    module: nn.Sequential
    recourse: vt.Recourse
    options: dict[str, Any]
    training: pd.DataFrame
    recipe: dict[str, Any]

    @property
    def param_set(self) -> vt.ParamSet:
        """The set that answers are certified for."""
        return self.recourse.param_set()

    @property
    def prices(self) -> dict[str, float]:
        """What a feature costs, where it is not 1."""
        return dict(self.options.get("cost", {}))

    def decided(self, rows: Tensor) -> np.ndarray:
        """Today's decisions: whether favourable."""
        with torch.no_grad():
            return (self.module(rows.to(self.module[0].weight.dtype))[:, 0] > 0).numpy()

    def possible(self, own: dict[str, Any], free: str | None = None) -> tuple[pd.DataFrame, np.ndarray]:
        """All rows that this person could be shown under what was asked, and which features each changes."""
        rows = every_row(self.columns, own, free)
        differs = changed(self.columns, own, rows)
        allowed = np.ones(len(rows), dtype=bool)
        if (most := self.options.get("max_changes")) is not None:
            allowed &= differs.sum(1) <= most
        for k, column in enumerate(self.columns):
            if column.feature.name != free and np.isinf(self.prices.get(column.feature.name, 1.0)):
                allowed &= ~differs[:, k]
        return rows[allowed].reset_index(drop=True), differs[allowed]


def draw(seed: int) -> Problem:
    """A random schema, a random network that turns half of its people down, and a request."""
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    schema, columns = draw_schema(rng)
    training = people(rng, columns, 200)
    encoding = vt.Encoding.fit(schema, training)
    module, recipe = _module(rng, g, encoding.encode(training))
    kappa, norm = float(10 ** rng.uniform(-2.5, -0.7)), str(rng.choice(["linf", "linf", "l2", "l1"]))
    options: dict[str, Any] = {}
    names = [column.feature.name for column in columns]
    if rng.random() < 0.25:
        options["max_changes"] = int(rng.integers(1, 3))
    if rng.random() < 0.25:
        options["cost"] = {str(rng.choice(names)): float(rng.choice([0.2, 3.0, np.inf]))}
    if rng.random() < 0.15:
        options["overshoot"] = float(rng.choice([0.05, 0.2]))
    if rng.random() < 0.15:
        options["only_unfavourable"] = False
    if rng.random() < 0.1:
        options["n"] = 2
    rows = training if rng.random() < 0.5 else None
    recourse = vt.Recourse(module, schema, encoding, rows=rows, kappa=kappa, norm=norm)  # type: ignore[arg-type]
    kinds = [f"{c.feature.kind} {c.feature.action}" for c in columns]
    recipe |= {"seed": seed, "kappa": kappa, "norm": norm, "options": str(options), "features": kinds}
    return Problem(columns, schema, encoding, module, recourse, options, training, recipe)


def _module(rng: np.random.Generator, g: torch.Generator, x: Tensor) -> tuple[nn.Sequential, dict[str, Any]]:
    sizes = [x.shape[1], *rng.integers(2, 13, int(rng.integers(0, 3))).tolist(), 1]
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layer = nn.Linear(into, out, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(out, into, generator=g, dtype=torch.float64) * 1.5 / into**0.5)
            layer.bias.copy_(0.3 * torch.randn(out, generator=g, dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    module = nn.Sequential(*layers[:-1]).eval()
    with torch.no_grad():
        layers[-2].bias -= module(x).median()  # type: ignore[operator]
    narrow = rng.random() < 0.3
    return module.float() if narrow else module, {"sizes": sizes, "dtype": "float32" if narrow else "float64"}


@dataclass
class Check:
    """What was seen of the answers to one problem."""

    problem: Problem
    numbers: dict[str, int] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    named: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **counts: int) -> None:
        """Nothing; the numbers are added up."""
        for name, count in counts.items():
            self.numbers[name] = self.numbers.get(name, 0) + int(count)

    def wrong(self, row: int, what: str, **about: Any) -> None:
        """Nothing; something is not as ``explain`` says."""
        self.add(broken=1)
        if len(self.named) < NAMED:
            self.named.append({"row": row, "what": what, **about, **self.problem.recipe})


def check_problem(seed: int) -> Result:
    """All answers to one problem."""
    problem = draw(seed)
    check = Check(problem)
    asked = people(np.random.default_rng(seed + 1), problem.columns, PEOPLE)
    found = problem.recourse.explain(asked, **problem.options)
    check.add(problems=1, asked=len(found))
    ranges = ranges_of(problem.schema, problem.training)
    for complaint in illegal(problem.schema, ranges, found.original, found.frame):
        check.wrong(-1, f"illegal: {complaint}")
    for row in range(len(found)):
        if not found.favourable[row] or not problem.options.get("only_unfavourable", True):
            check_row(check, found, row)
    check_certified(check, found)
    return {**check.numbers, "ratios": check.ratios, "violations": check.named}


def check_row(check: Check, found: vt.Counterfactuals, row: int) -> None:
    """One person: what is said, against all that could be."""
    problem = check.problem
    own = {str(k): v for k, v in found.original.iloc[row].items()}
    rows, differs = problem.possible(own)
    encoded = problem.encoding.encode(rows)
    x = problem.encoding.encode(found.original.iloc[[row]])
    turned = problem.decided(encoded) != found.favourable[row]
    first = found.alternative[row] == 0
    check.add(rows=first, grid=len(rows) if first else 0)
    shown = found.frame.iloc[[row]]
    if found.status[row] == "none":
        check_none(check, found, row, bool(turned.any()))
    elif not _is_among(problem, rows, shown):
        check.wrong(row, "not a row that the person could have", shown=shown.iloc[0].to_dict())
    elif problem.decided(problem.encoding.encode(shown))[0] == found.favourable[row]:
        check.wrong(row, "said to be valid, and today's model decides it as before")
    else:
        check_cost(check, found, row, own, shown)
    if "overshoot" in problem.options:
        return  # what may be certified is a region then: see check_certified
    check_freely(check, found, row, own)
    proved, height, slack = _proved(problem, x, encoded, turned)
    if first or found.certified[row]:
        check_best(
            check, found, row, (x, encoded, differs), (proved, height, slack), _place(problem, rows, shown)
        )


def check_best(
    check: Check,
    found: vt.Counterfactuals,
    row: int,
    candidates: tuple[Tensor, Tensor, np.ndarray],
    proofs: tuple[np.ndarray, np.ndarray, np.ndarray],
    at: int,
) -> None:
    """Whether the row that is shown is certified, and how it compares with the best that is."""
    problem, (proved, height, slack) = check.problem, proofs
    first = found.alternative[row] == 0
    objective = _objective(problem, *candidates)
    best = float(objective[proved].min()) if proved.any() else np.inf
    check.add(possible=bool(proved.any()) and first)
    if found.certified[row] and at >= 0:
        if not proved[at] and height[at] >= BY_A_HAIR * slack[at]:
            check.wrong(row, "said to be certified, and is not", worst_logit=float(height[at]))
        if proved.any() and first:
            ratio = float(objective[at]) / best if best > 0 else 1.0
            check.ratios.append(ratio)
            check.add(answered=1, optimal=ratio <= 1 + 1e-9)
    elif proved.any() and first:
        check.add(missed=1)


def check_none(check: Check, found: vt.Counterfactuals, row: int, possible: bool) -> None:
    """A row without an answer: whether what the reason claims is so."""
    reason = str(found.reason[row])
    if reason.startswith("none exists"):
        check.add(none_exists=1)
        if possible:
            check.wrong(row, "said that none exists, and one does", reason=reason)


def check_freely(check: Check, found: vt.Counterfactuals, row: int, own: dict[str, Any]) -> None:
    """Whether the features that are named would indeed help, each alone."""
    problem = check.problem
    said = FREELY.search(str(found.reason[row]))
    for name in re.findall(r"'([^']+)'", said.group(1)) if said else []:
        rows, _ = problem.possible(own, free=name)
        encoded = problem.encoding.encode(rows)
        x = problem.encoding.encode(found.original.iloc[[row]])
        proved, _, _ = _proved(problem, x, encoded, problem.decided(encoded) != found.favourable[row])
        check.add(freely=1)
        if not proved.any():
            check.wrong(row, f"said that one would be found if {name!r} could change, and there is none")


def check_cost(
    check: Check, found: vt.Counterfactuals, row: int, own: dict[str, Any], shown: pd.DataFrame
) -> None:
    """Cost and number of changes, from raw values."""
    problem = check.problem
    cost = float(costs(problem.columns, problem.prices, own, shown)[0])
    if np.isnan(cost):  # a missing value was filled: what stood in for it is the encoding's affair
        x, x_cf = (problem.encoding.encode(frame) for frame in (found.original.iloc[[row]], shown))
        cost = float(_objective(problem, x, x_cf, np.zeros((1, 1), dtype=bool))[0])
    count = int(changed(problem.columns, own, shown).sum())
    if abs(cost - float(found.cost[row])) > TOLERANCE * max(1.0, cost) or count != int(found.n_changes[row]):
        check.wrong(row, "another cost", cost=cost, said=float(found.cost[row]), changes=count)
    check.add(priced=1)


def check_certified(check: Check, found: vt.Counterfactuals) -> None:
    """Certified rows, certified again from the values that are shown, and attacked, regions as a whole."""
    problem = check.problem
    rows = np.flatnonzero((found.radius > 0) | found.certified)
    if len(rows) == 0:
        return
    x, x_cf = (problem.encoding.encode(f.iloc[rows]) for f in (found.original, found.frame))
    lower, upper = found.region.lower[rows], found.region.upper[rows]
    if "overshoot" not in problem.options:
        lower = upper = x_cf
    sign = torch.where(torch.from_numpy(found.favourable[rows]), 1.0, -1.0).double()
    for i, row in enumerate(rows.tolist()):
        if not bool(((x_cf[i] >= lower[i]) & (x_cf[i] <= upper[i])).all()):
            check.wrong(row, "the shown row is outside of its own region")
    kappa = np.where(found.certified[rows], found.kappa, found.radius[rows])
    for value in np.unique(kappa):
        some = np.flatnonzero(kappa == value)
        where = Box(lower[some], upper[some]) if "overshoot" in problem.options else x_cf[some]
        again = vt.certify(problem.module, x[some], where, problem.param_set.at(float(value)), radius=False)
        for i in np.flatnonzero(~again.certified & (again.worst_logit >= BY_A_HAIR * again.slack)).tolist():
            check.wrong(int(rows[some[i]]), "said to be certified, and is not", kappa=float(value))
    target = Target(
        x=x,
        ends=Box(lower, upper),
        sign=sign,
        kappa=torch.from_numpy(kappa),
        conditional=torch.from_numpy(found.conditional[rows]),
        rows=torch.from_numpy(rows),
    )
    tally = Tally(Models(problem.module, problem.param_set), target, "explain", flush=False)
    g = torch.Generator().manual_seed(0)
    try_each(tally, g, 16)
    climb(tally, "ascent", tally.models.center.expand(len(rows), -1), torch.full_like(x, 0.5))
    for one in tally.named:
        check.wrong(one["row"], "a certified answer is broken by a model of the set", how=str(one))
    check.add(certified=int(found.certified.sum()), models=tally.tried)


def _proved(
    problem: Problem, x: Tensor, encoded: Tensor, turned: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which of a person's rows ``vt.certify`` certifies; and, of those decided otherwise, bound and slack."""
    proved = np.zeros(len(encoded), dtype=bool)
    height, slack = np.full(len(encoded), np.inf), np.zeros(len(encoded))
    some = np.flatnonzero(turned)
    if len(some):
        found = vt.certify(
            problem.module, x.expand(len(some), -1), encoded[some], problem.param_set, radius=False
        )
        proved[some], height[some], slack[some] = found.certified, found.worst_logit, found.slack
    return proved, height, slack


def _objective(problem: Problem, x: Tensor, encoded: Tensor, differs: np.ndarray) -> np.ndarray:
    """What ``explain`` minimises: the cost, and a little for each change."""
    owner = problem.encoding.owner.tolist()
    names = [problem.schema.names[k] for k in owner]
    price = torch.tensor([problem.prices.get(name, 1.0) for name in names], dtype=torch.float64)
    moved = (encoded - x).abs()
    cost = torch.where(moved > 0, moved * price, 0.0).sum(-1).numpy()
    return np.asarray(cost + COST_OF_A_CHANGE * differs.sum(1))


def _is_among(problem: Problem, rows: pd.DataFrame, shown: pd.DataFrame) -> bool:
    return _place(problem, rows, shown) >= 0


def _place(problem: Problem, rows: pd.DataFrame, shown: pd.DataFrame) -> int:
    """Which of the rows is the one that is shown; -1 where none is."""
    own = {str(k): v for k, v in shown.iloc[0].items()}
    same = ~changed(problem.columns, own, rows).any(1)
    return int(same.argmax()) if same.any() else -1


def run(job: int) -> Result:
    """Some problems."""
    sums: Result = {"violations": [], "ratios": []}
    for seed in range(job * AT_ONCE, (job + 1) * AT_ONCE):
        for name, value in check_problem(seed).items():
            sums[name] = sums.get(name, [] if isinstance(value, list) else 0) + value
    return sums


def lines(results: Sequence[Result]) -> list[Line]:
    """One line; that an answer is not the best one is told, not counted as a violation."""
    names = ("problems", "rows", "grid", "possible", "answered", "optimal", "missed", "none_exists", "freely")
    n = {name: total(results, name) for name in names}
    ratios = np.array([r for result in results for r in result.get("ratios", [])] or [1.0])
    tried = f"people under {n['problems']:,} schemas, with all their {n['grid']:,} legal rows"
    optimal = n["optimal"] / max(n["answered"], 1)
    seen = (
        f"{optimal:.1%} of {n['answered']:,} certified answers are the best of all; ratio to the best: "
        f"95 % within {np.quantile(ratios, 0.95):.3f}, worst {ratios.max():.2f}; "
        f"{n['missed']:,} of {n['possible']:,} who could have one got no certified answer; "
        f"{n['none_exists'] + n['freely']:,} claims about what is possible were checked"
    )
    return [Line(tried, n["rows"], total(results, "broken"), seen)]


PART = Part("grids", PROBLEMS // AT_ONCE, 2, run, lines)
