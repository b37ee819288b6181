"""What ``certify`` says was proved, against the plain bounds: proved, by that method, under that condition.

The shipped path runs bounds one after the other, hands rows on, shares planes between methods, stops early
and searches radii. The plain bounds in ``veritracer.bounds.BOUNDS`` do none of this. For every row and
several ways of asking (the whole cascade, each method alone, two of them, the deciding search of
``proving.prove``, the certified radius) the verdict is compared with each plain bound, plus the slack that
the certificate itself names:

- certified by a method: that method's own bound is below zero, and no cheaper one's is (or it would be
  named);
- unconditional: a bound that assumes nothing about x is below zero; conditional: only Simul-CROWN can be,
  and no unconditional bound is below zero;
- not certified, though today's decision is clear: no bound is below zero;
- ``worst_logit`` is not below the bound of the method that is named;
- at the radius, some bound is below zero, and an unconditional one where the radius was searched without
  Simul-CROWN.

One comparison is one row, asked in one way, against one plain bound (or its condition, decision or radius).
Sums in float64 may be added in another order here and there: a difference of a millionth of the slack is
allowed, which is what the slack has for float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import veritracer as vt
from benchmarks.adversary.cases import Case, draw
from benchmarks.adversary.running import Line, Part, Result, total
from veritracer.bounds import BOUNDS, Box, Method, simul_crown
from veritracer.proving import ProofBatch, prove

NETWORKS, AT_ONCE, ROWS = 500, 10, 96
"""Networks of a full run, of a job, and pairs of rows of each."""

WAYS: tuple[tuple[Method, ...], ...] = (
    ("ibp", "crown-ibp", "simul-crown"),
    ("ibp",),
    ("crown-ibp",),
    ("simul-crown",),
    ("ibp", "simul-crown"),
    ("simul-crown", "crown-ibp", "ibp"),
)
STEPS = 60
"""Of Simul-CROWN's search, which otherwise stops when its gap is small."""

TOLERANCE = 1e-6
"""Of the slack: float64's share of it."""

NAMED = 5


@dataclass
class Check:
    """Comparisons of one network."""

    case: Case
    comparisons: int = 0
    broken: int = 0
    named: list[dict[str, Any]] = field(default_factory=list)

    def compare(self, wrong: dict[str, NDArray[np.bool_]], **about: NDArray[Any]) -> None:
        """Nothing; each row was compared once, and is noted if it is wrong in one of these ways."""
        every = np.stack(list(wrong.values()))
        self.comparisons += every.shape[1]
        self.broken += int(every.any(0).sum())
        for row in np.flatnonzero(every.any(0))[: max(0, NAMED - len(self.named))].tolist():
            numbers = {name: values[row].item() for name, values in about.items()}
            what = [name for name, rows in wrong.items() if rows[row]]
            self.named.append({"what": what, "row": row, **numbers, **self.case.recipe})


def plain(param_set: vt.ParamSet, x: Tensor, x_cf: Tensor | Box, sign: Tensor) -> dict[Method, NDArray[Any]]:
    """Each plain bound of each row, without slack; Simul-CROWN's search goes on to its end.

    A search that stops by itself leaves a gap, and another one may end further down: only the optimum is
    what no certificate can be below.
    """
    with torch.no_grad():
        found = {name: bound(param_set, x, x_cf, sign).worst_logit.numpy() for name, bound in BOUNDS.items()}
        whole = simul_crown(param_set, x, x_cf, sign, steps=STEPS).worst_logit.numpy()
    return {**found, "simul-crown": np.minimum(found["simul-crown"], whole)}


def check_way(check: Check, way: tuple[Method, ...], bounds: dict[Method, NDArray[Any]]) -> vt.Certificates:
    """Certificates of all rows for this choice of methods, compared with the bounds."""
    case = check.case
    found = vt.certify(case.module, case.x, case.x_cf, case.param_set, methods=way, radius=False)
    tolerance, clear = TOLERANCE * found.slack, np.isfinite(found.worst_logit)
    place = np.array([way.index(name) if name in way else -1 for name in found.method.tolist()])
    for k, name in enumerate(way):
        named, height = place == k, bounds[name] + found.slack
        # The shipped Simul-CROWN widens the constraint by the slack of x: it may be above the plain one.
        proves = (height < -tolerance) & (name != "simul-crown")
        wrong = {
            f"{way}: a method is named that was not asked": place < 0,
            f"{way}: {name} is named, and proves nothing": found.certified & named & (height >= tolerance),
            f"{way}: {name} proves it, and it is not certified": ~found.certified & clear & proves,
            f"{way}: {name} proves it, and a later one is named": found.certified & (place > k) & proves,
            f"{way}: worst_logit is below {name}": named & clear & (found.worst_logit < height - tolerance),
        }
        check.compare(wrong, plain=height, worst_logit=found.worst_logit, slack=found.slack)
    check_condition(check, way, found, bounds)
    return found


def check_condition(
    check: Check, way: tuple[Method, ...], found: vt.Certificates, bounds: dict[Method, NDArray[Any]]
) -> None:
    """Whether the flag says what the proof needs."""
    free = np.minimum(bounds["ibp"], bounds["crown-ibp"]) + found.slack
    tolerance = TOLERANCE * found.slack
    conditional = found.certified & found.conditional
    wrong = {
        f"{way}: unconditional without such a proof": found.certified
        & ~found.conditional
        & (free >= tolerance),
        f"{way}: conditional by another method": conditional & (found.method != "simul-crown"),
    }
    if way == WAYS[0]:  # there the unconditional ones were asked first
        wrong["conditional without need"] = conditional & (free < -tolerance)
    check.compare(wrong, unconditional=free, worst_logit=found.worst_logit, slack=found.slack)


def check_deciding(check: Check, found: vt.Certificates) -> None:
    """The search that only wants a sign, against the one that wants the bound."""
    case = check.case
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    with torch.no_grad():
        proofs = prove(case.param_set, ProofBatch(case.x, case.x_cf, sign), WAYS[0], sign_only=True)
    clear = np.isfinite(found.worst_logit) & (np.abs(found.worst_logit) > TOLERANCE * found.slack)
    other = (proofs.worst_logit.numpy() < 0) != found.certified
    check.compare(
        {"deciding says otherwise": other & clear}, worst_logit=found.worst_logit, slack=found.slack
    )


def check_radius(check: Check, way: tuple[Method, ...], rows: Tensor) -> None:
    """The radius of some rows against the bounds there."""
    case = check.case
    x, x_cf = case.select(rows)
    found = vt.certify(case.module, x, x_cf, case.param_set, methods=way)
    assert found.radius is not None
    reached = found.radius
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    lowest = np.full(len(reached), -np.inf)
    for value in np.unique(reached[reached > 0]):
        some = torch.from_numpy(np.flatnonzero(reached == value))
        part = Box(*(end[some] for end in x_cf)) if isinstance(x_cf, Box) else x_cf[some]
        there = plain(case.param_set.at(float(value)), x[some], part, sign[some])
        lowest[some.numpy()] = np.min([there[name] for name in way], axis=0)
    wrong = {
        # Without the slack, which is that of another kappa: a proof leaves more room than that.
        f"{way}: no bound at the radius": lowest >= 0,
        f"{way}: the radius is not what is certified": (reached >= case.param_set.kappa * (1 - 1e-12))
        != found.certified,
    }
    check.compare(wrong, radius=reached, bound=lowest)


def sharpened(case: Case, seed: int) -> Case:
    """The case at a kappa where its rows differ: the radius of one, or between those with and without x."""
    rng = np.random.default_rng(seed)
    x, x_cf = case.select(torch.arange(24))
    far = vt.certified_radius(case.module, x, x_cf, case.param_set)
    near = vt.certified_radius(case.module, x, x_cf, case.param_set, methods=("ibp", "crown-ibp"))
    between = np.sqrt(far * near)[(far > 1.01 * near) & (near > 0)]
    choices = between if len(between) else far[far > 0]
    if len(choices) == 0 or rng.random() < 0.25:
        return case
    kappa = float(rng.choice(choices))
    return replace(case, param_set=case.param_set.at(kappa), recipe={**case.recipe, "at": kappa})


def check_network(seed: int) -> Result:
    """All comparisons of one network."""
    case = sharpened(draw(seed, ROWS), seed)
    check = Check(case)
    sign = torch.where(_favourable(case), 1.0, -1.0).double()
    bounds = plain(case.param_set, case.x, case.x_cf, sign)
    every = [check_way(check, way, bounds) for way in WAYS]
    check_deciding(check, every[0])
    g = np.random.default_rng(seed)
    for way in (WAYS[0], ("ibp", "crown-ibp")):
        check_radius(check, way, torch.from_numpy(g.permutation(ROWS)[:12]))
    whole = every[0]
    counts = {name: int((whole.certified & (whole.method == name)).sum()) for name in BOUNDS}
    return {
        "networks": 1,
        "rows": ROWS,
        "comparisons": check.comparisons,
        "broken": check.broken,
        "certified": int(whole.certified.sum()),
        "conditional": int((whole.certified & whole.conditional).sum()),
        **counts,
        "violations": check.named,
    }


def _favourable(case: Case) -> Tensor:
    with torch.no_grad():
        out = case.module(case.x.to(case.module[0].weight.dtype)).double()
    return (out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]) > 0


def run(job: int) -> Result:
    """Some networks; seeds apart from those of ``attack``."""
    sums: Result = {"violations": []}
    for seed in range(job * AT_ONCE, (job + 1) * AT_ONCE):
        for name, value in check_network(1_000_000 + seed).items():
            sums[name] = sums.get(name, [] if name == "violations" else 0) + value
    return sums


def lines(results: Sequence[Result]) -> list[Line]:
    """One line."""
    n = {name: total(results, name) for name in ("networks", "rows", "certified", "conditional", *BOUNDS)}
    tried = (
        f"comparisons of verdicts with plain bounds: {n['networks']:,} networks × {ROWS} rows, asked in "
        f"{len(WAYS)} ways, with decisions and radii"
    )
    named = ", ".join(f"{n[name]:,} by {name}" for name in BOUNDS)
    seen = f"{n['certified']:,} of {n['rows']:,} certified: {named} ({n['conditional']:,} conditionally)"
    return [Line(tried, total(results, "comparisons"), total(results, "broken"), seen)]


PART = Part("cascade", NETWORKS // AT_ONCE, 2, run, lines)
