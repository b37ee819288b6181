"""Models inside of the set that break a certificate: the one thing that must not exist.

A row of ``vt.certify`` is broken by a model of its set that decides x' as today's model decides x, and, if
the certificate is conditional, decides x so as well; computed in float64, or in float32 with the model's
parameters cast to it (in the extreme cases also with numbers too small for float32 flushed to zero).
Certificates are attacked at the kappa that was asked for and, row by row, at the radius up to which a proof
is claimed.

Models tried: uniform draws and extreme points of the balls; the model at which the plane of CROWN is
highest; the iterates of a projected ascent from there, from today's model and from extreme points; the best
models of the library's own ``attack``; and greedy exchanges of single parameters, starting from the best of
all these. Of a region (a box of counterfactuals) ends and inner points are tried, and the ascent moves x'
as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

import veritracer as vt
from benchmarks.adversary.cases import Case, draw
from benchmarks.adversary.judging import Tally, Target
from benchmarks.adversary.models import Models
from benchmarks.adversary.running import Line, Part, Result, total
from veritracer.bounds import UNCONDITIONAL, Box
from veritracer.bounds.attack import attack
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace

NETWORKS, AT_ONCE, ROWS = 3_060, 10, 48
"""Networks of a full run (2,907 of usual weights), networks of a job, and rows of a network."""


CANDIDATES = 160
"""Pairs that the rows of a network are chosen from."""

SHARED = 1_280
"""Models of each kind (uniform, extreme) that are tried on all certified rows of a network."""

BYTES = 24_000_000
"""How much room the parameters of models that run side by side may take."""

EXTREME = 20
"""One network in so many has weights that float32 cannot hold."""

PACES = (2.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.3, 0.3, 0.2, 0.1)
"""Steps of an ascent, in radii."""

HAIRS, HALVINGS = 2, 24
"""Rows of a network that are attacked where their proof ends, and the steps in which that place is found."""

EXCHANGES, ROUNDS = 8, 3


def chosen(case: Case, rng: np.random.Generator) -> Tensor:
    """Rows to attack: conditional certificates, certificates by a hair, any certificates, then the rest."""
    found = vt.certify(case.module, case.x, case.x_cf, case.param_set, radius=False)
    today = np.abs(found.worst_logit) / (1e-300 + np.median(np.abs(found.worst_logit)))
    order = np.where(found.certified, today, np.inf)
    first = [
        np.flatnonzero(found.certified & found.conditional)[: ROWS // 3],
        _conditional_further(case) if case.recipe["signed"] else np.empty(0, dtype=np.int64),
        np.argsort(order)[: min(ROWS // 2, int(found.certified.sum()))],
        rng.permutation(np.flatnonzero(found.certified)),
        rng.permutation(np.flatnonzero(found.valid)),
        np.arange(len(case.x)),
    ]
    every = np.concatenate(first)
    _, at = np.unique(every, return_index=True)
    return torch.from_numpy(every[np.sort(at)][:ROWS])


def _conditional_further(case: Case) -> np.ndarray:
    """Some rows whose proof reaches further if x keeps its decision."""
    x, x_cf = case.select(torch.arange(2 * ROWS))
    every = vt.certified_radius(case.module, x, x_cf, case.param_set)
    return np.flatnonzero(every > 1.01 * _plain_radius(case, x, x_cf))[: ROWS // 2]


def _plain_radius(case: Case, x: Tensor, x_cf: Tensor | Box) -> np.ndarray:
    """The radius up to which there is a proof that needs nothing of x."""
    return vt.certified_radius(case.module, x, x_cf, case.param_set, methods=UNCONDITIONAL)


def targets(case: Case, x: Tensor, x_cf: Tensor | Box) -> tuple[Target, Target, vt.Certificates]:
    """The rows that are certified at kappa, those that are at some radius, and all certificates."""
    found = vt.certify(case.module, x, x_cf, case.param_set)
    assert found.radius is not None
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    every = Target(
        x=x,
        ends=x_cf if isinstance(x_cf, Box) else Box(x_cf, x_cf),
        sign=sign,
        kappa=torch.full_like(sign, case.param_set.kappa),
        conditional=torch.from_numpy(found.conditional),
        rows=torch.arange(len(x)),
    )
    at_kappa = every.select(torch.from_numpy(np.flatnonzero(found.certified)))
    needs_x = torch.from_numpy(found.radius > _plain_radius(case, x, x_cf))
    reach = every._replace(kappa=torch.from_numpy(found.radius), conditional=needs_x)
    return at_kappa, reach.select(torch.from_numpy(np.flatnonzero(found.radius > 0))), found


def by_a_hair(case: Case, reach: Target) -> Target:
    """A few of the rows at the largest kappa at which they are certified, to the last digits.

    There the bound is barely below zero, and what rounding may cost is all that is left of the distance.
    """
    rows, kappas, conditions = [], [], []
    point = not isinstance(case.x_cf, Box)
    for row in range(0, len(reach.sign), max(1, len(reach.sign) // HAIRS)):
        one = reach.select(torch.tensor([row]))
        low, high = float(one.kappa), 1.05 * float(one.kappa)
        found = None
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            where = one.ends.lower if point else one.ends
            there = vt.certify(case.module, one.x, where, case.param_set.at(middle), radius=False)
            if there.certified[0]:
                low, found = middle, bool(there.conditional[0])
            else:
                high = middle
        if found is not None:
            rows, kappas, conditions = [*rows, row], [*kappas, low], [*conditions, found]
    part = reach.select(torch.tensor(rows, dtype=torch.long))
    return part._replace(
        kappa=torch.tensor(kappas, dtype=torch.float64),
        conditional=torch.tensor(conditions, dtype=torch.bool),
    )


def try_shared(tally: Tally, g: torch.Generator, count: int) -> None:
    """Uniform draws and extreme points, each on all rows at once."""
    models, target = tally.models, tally.target
    batch = max(1, BYTES // (8 * models.size))
    for how, make in (("uniform", models.uniform), ("extreme", models.corners)):
        for at in range(0, count, batch):
            n = min(batch, count - at)
            share = torch.rand(target.x.shape, generator=g, dtype=torch.float64)
            x_cf = target.inner(share.round() if at % 2 == 0 else share)
            tally.judge(how, make((n,), target.kappa[0].expand(n), g), x_cf, shared=True)


def try_each(tally: Tally, g: torch.Generator, count: int) -> None:
    """Extreme points and uniform draws for every row, at its own radius."""
    models, target = tally.models, tally.target
    batch = max(1, BYTES // (8 * models.size * len(target.sign)))
    for how, make in (("uniform", models.uniform), ("extreme", models.corners)):
        for at in range(0, count, batch):
            shape = len(target.sign), min(batch, count - at)
            x_cf = target.inner(torch.rand(target.x.shape, generator=g, dtype=torch.float64).round())
            kappa = target.kappa.unsqueeze(-1).expand(shape)
            tally.judge(how, make(shape, kappa, g), x_cf, shared=False)


def plane_start(case: Case, models: Models, target: Target) -> Tensor:
    """For each row the model of its set that is furthest along the slope of CROWN's plane at x'."""
    with torch.no_grad():
        point = bool((target.ends.lower == target.ends.upper).all())
        where = target.ends.lower if point else target.ends
        plane = upper_plane(case.param_set, trace(case.param_set, where), target.sign)
    parts = []
    for row, col in zip(plane.rows, plane.cols, strict=True):
        parts += [(row.unsqueeze(-1) * col.unsqueeze(-2)).flatten(1), row]
    return models.pulled_in(models.furthest(torch.cat(parts, 1), target.kappa), target.kappa)


def climb(tally: Tally, how: str, theta: Tensor, share: Tensor) -> None:
    """Every iterate of a projected ascent of the logit of x', in the model and, in a region, in x' too.

    Where the proof is conditional a multiplier grows while x has lost its decision.
    """
    models, target = tally.models, tally.target
    multiplier, x_cf = torch.zeros_like(target.sign), target.inner(share)
    for pace in PACES:
        tally.judge(how, theta.unsqueeze(1), x_cf, shared=False)
        theta, moving = theta.detach().requires_grad_(), x_cf.detach().requires_grad_()
        logits = models.logits(theta, torch.stack([target.x, moving], 1)) * target.sign.unsqueeze(-1)
        goal = (logits[:, 1] + multiplier * logits[:, 0]).sum()
        slope, slope_x = torch.autograd.grad(goal, (theta, moving))
        lost = target.conditional & (logits[:, 0].detach() < 0)
        multiplier = torch.where(lost, (multiplier * 2).clamp(min=0.25), multiplier * 0.7)
        theta = models.stepped(theta.detach(), slope, target.kappa, pace)
        width = target.ends.upper - target.ends.lower
        x_cf = (x_cf + pace * width * slope_x.sign()).clamp(*target.ends)


def try_library(case: Case, tally: Tally, g: torch.Generator) -> None:
    """The worst models that the library's own attack finds, at the middle of each region."""
    target = tally.target
    x_cf = target.inner(torch.full_like(target.x, 0.5))
    found = attack(case.param_set, target.x, x_cf, target.sign, steps=12, restarts=1, generator=g)
    theta = torch.cat([t.detach().flatten(1) for t in found.theta], 1)
    tally.judge(
        "library's attack", tally.models.pulled_in(theta, target.kappa).unsqueeze(1), x_cf, shared=False
    )


def exchange(tally: Tally, g: torch.Generator) -> None:
    """Greedy changes of the best models so far: one parameter to its other end, and the top few at once."""
    models, target = tally.models, tally.target
    x_cf = target.inner(torch.rand(target.x.shape, generator=g, dtype=torch.float64).round())
    most = max(1, min(EXCHANGES, BYTES // (8 * models.size * len(target.sign))))
    for _ in range(ROUNDS):
        theta = tally.best.detach().requires_grad_()
        logits = models.logits(theta, x_cf.unsqueeze(1)).squeeze(-1) * target.sign
        (slope,) = torch.autograd.grad(logits.sum(), theta)
        tally.judge(
            "exchange", _exchanged(models, target, theta.detach(), slope, most, g), x_cf, shared=False
        )


def _exchanged(
    models: Models, target: Target, theta: Tensor, slope: Tensor, count: int, g: torch.Generator
) -> Tensor:
    """(n, count, N): the models with one, two, four, ... parameters changed, the most promising first."""
    goal = models.furthest(slope, target.kappa)
    gain = slope * (goal - theta)
    made = []
    for k in range(count):
        if models.norm == "linf":
            top = gain if k % 2 == 0 else gain * torch.rand(gain.shape, generator=g, dtype=torch.float64)
            which = torch.zeros_like(gain).scatter(-1, top.topk(min(2 ** (k // 2), models.size)).indices, 1.0)
            made.append(torch.where(which > 0, goal, theta))
        else:  # budget moved to other parameters of the same tensor
            noise = torch.randn(gain.shape, generator=g, dtype=torch.float64) * 10.0 ** (-k / 2)
            other = models.furthest(slope * (1 + noise), target.kappa)
            made.append(torch.lerp(theta, other, 1.0 if k % 2 else 0.3))
    stacked = torch.stack(made, 1)
    return models.pulled_in(stacked, target.kappa.unsqueeze(-1).expand(stacked.shape[:-1]))


def attack_network(seed: int, *, extreme: bool) -> Result:
    """All attacks on one network."""
    case = draw(seed, CANDIDATES, extreme=extreme)
    g = torch.Generator().manual_seed(seed + 1)
    x, x_cf = case.select(chosen(case, np.random.default_rng(seed)))
    at_kappa, at_radius, found = targets(case, x, x_cf)
    models = Models(case.module, case.param_set)
    tallies = []
    hair = by_a_hair(case, at_radius)
    for what, target in (("kappa", at_kappa), ("radius", at_radius), ("hair", hair)):
        if len(target.sign) == 0:
            continue
        tally = Tally(models, target, what, flush=extreme)
        tallies.append(tally)
        half = torch.full_like(target.x, 0.5)
        random = torch.rand(target.x.shape, generator=g, dtype=torch.float64)
        climb(tally, "plane and ascent", plane_start(case, models, target), half)
        if what == "kappa":
            try_shared(tally, g, SHARED)
            try_library(case, tally, g)
            start = models.corners((len(target.sign),), target.kappa, g)
            climb(tally, "extreme point and ascent", start, random.round())
        else:
            try_each(tally, g, 12 if what == "radius" else 64)
            climb(
                tally, "today's model and ascent", models.center.expand(len(target.sign), -1), random.round()
            )
        exchange(tally, g)
    return _result(case, found, tallies)


def _result(case: Case, found: vt.Certificates, tallies: Sequence[Tally]) -> Result:
    named = [{**case.recipe, **one} for tally in tallies for one in tally.named]
    pushed = []
    for tally in tallies:
        if tally.what == "radius":
            rows = tally.target.inner(torch.full_like(tally.target.x, 0.5))
            today = tally.models.logits(tally.models.center, rows) * tally.target.sign
            pushed = (1 - tally.worst / today)[tally.worst > -torch.inf].tolist()
    return {
        "networks": 1,
        "rows": len(found),
        "certified": int(found.certified.sum()),
        "conditional": int((found.certified & found.conditional).sum()),
        "reach": sum(len(t.target.sign) for t in tallies if t.what == "radius"),
        "reach_conditional": sum(int(t.target.conditional.sum()) for t in tallies if t.what == "radius"),
        "hairs": sum(len(t.target.sign) for t in tallies if t.what == "hair"),
        "models": sum(t.tried for t in tallies),
        "outside": sum(t.outside for t in tallies),
        "broken": sum(len(t.broken) for t in tallies),
        "pushed": [share for share in pushed if math.isfinite(share)],
        "violations": named,
    }


def run(job: int) -> Result:
    """Ten networks; of every twenty networks one has extreme weights, and is counted apart."""
    sums: Result = {"violations": [], "percent": [0] * 101}
    for seed in range(job * AT_ONCE, (job + 1) * AT_ONCE):
        extreme = seed % EXTREME == EXTREME - 1
        found = attack_network(seed, extreme=extreme)
        prefix = "extreme_" if extreme else ""
        for share in found.pop("pushed"):
            sums["percent"][min(max(int(100 * share), 0), 100)] += not extreme
        sums["violations"] += found.pop("violations")
        for name, value in found.items():
            sums[prefix + name] = sums.get(prefix + name, 0) + value
    return sums


def lines(results: Sequence[Result]) -> list[Line]:
    """Two lines: usual weights, and weights that float32 cannot hold."""
    said = []
    names = (
        "networks",
        "rows",
        "certified",
        "conditional",
        "reach",
        "reach_conditional",
        "hairs",
        "models",
        "broken",
    )
    for prefix, what in (("", "1e-6 to 1e3"), ("extreme_", "1e-50 to 1e36")):
        n = {name: total(results, prefix + name) for name in names}
        tried = f"models against {n['networks']:,} networks × {ROWS} rows, weights of {what}"
        seen = (
            f"{n['certified']:,} of {n['rows']:,} rows certified ({n['conditional']:,} conditionally); "
            f"{n['reach']:,} attacked at their radius ({n['reach_conditional']:,} conditional), "
            f"{n['hairs']:,} at its last digit"
        )
        push = f"; the median attack at the radius goes {_median(results)} % of the way to the other decision"
        said.append(Line(tried, n["models"], n["broken"], seen + ("" if prefix else push)))
    return said


def _median(results: Sequence[Result]) -> int:
    counts = np.sum([result["percent"] for result in results if "percent" in result], axis=0)
    return int(np.searchsorted(np.cumsum(counts), np.sum(counts) / 2))


PART = Part("attack", NETWORKS // AT_ONCE, 3, run, lines)
