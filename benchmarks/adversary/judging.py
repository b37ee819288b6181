"""Whether a model breaks a certificate: run in float64 and float32, held to the set, and confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.adversary.models import Models
from veritracer.bounds import Box

NAMED = 5
"""Broken rows of a network that are described one by one."""


class Target(NamedTuple):
    """Certified rows: ends of x', decision, kappa, and whether the proof needs that x keeps its decision."""

    x: Tensor
    ends: Box
    sign: Tensor
    kappa: Tensor
    conditional: Tensor
    rows: Tensor

    def select(self, rows: Tensor) -> Target:
        """The given ones of them."""
        return Target(self.x[rows], self.ends.select(rows), *(part[rows] for part in self[2:]))

    def inner(self, share: Tensor) -> Tensor:
        """The counterfactuals at those shares of the way from one end of their box to the other."""
        return torch.lerp(self.ends.lower, self.ends.upper, share).clamp(*self.ends)


@dataclass
class Tally:
    """What was tried on the targets, the highest logit seen for each, and what broke."""

    models: Models
    target: Target
    what: str
    flush: bool
    tried: int = 0
    outside: int = 0
    broken: set[tuple[int, str]] = field(default_factory=set)
    named: list[dict[str, Any]] = field(default_factory=list)
    worst: Tensor = field(init=False)
    best: Tensor = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.target.sign)
        self.worst = torch.full((n,), -torch.inf, dtype=torch.float64)
        self.best = self.models.center.expand(n, -1).clone()

    def judge(self, how: str, theta: Tensor, x_cf: Tensor, *, shared: bool) -> None:
        """Nothing; the models were run on x and x' and what they broke is noted.

        ``theta`` is (m, N) where the models are ``shared`` by all rows, else (n, m, N) with m for each row.
        """
        target = self.target
        kappa = target.kappa[0] if shared else target.kappa.unsqueeze(-1)
        inside = self.models.contains(theta, kappa.expand(theta.shape[:-1]))
        self.tried, self.outside = self.tried + int(inside.sum()), self.outside + int((~inside).sum())
        for precision in ("float64", "float32", "float32 flushed")[: 3 if self.flush else 2]:
            here, there = self._run(theta, x_cf, precision, shared=shared)  # (m, n) or (n, m)
            sign, free, within = target.sign, ~target.conditional, inside
            if shared:
                within = inside.unsqueeze(-1)
            else:
                sign, free = sign.unsqueeze(-1), free.unsqueeze(-1)
            counts = within & (free | (_decision(here) == sign))
            broken = counts & (_decision(there) == sign)
            if precision == "float64":
                self._keep(theta, torch.where(counts, there * sign, -torch.inf), shared=shared)
            if bool(broken.any()):
                self._note(how, precision, theta, x_cf, broken, shared=shared)

    def _run(self, theta: Tensor, x_cf: Tensor, precision: str, *, shared: bool) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if precision == "float64" else torch.float32
        x, theta = self.target.x.to(dtype), theta.to(dtype)
        with flushed(precision.endswith("flushed")), torch.no_grad():
            if shared:
                both = self.models.logits(theta, torch.cat([x, x_cf.to(dtype)]))
                return both[:, : len(x)].double(), both[:, len(x) :].double()
            rows = torch.stack([x, x_cf.to(dtype)], 1).unsqueeze(1)  # (n, 1, 2, d)
            both = self.models.logits(theta, rows)
            return both[..., 0].double(), both[..., 1].double()

    def _keep(self, theta: Tensor, height: Tensor, *, shared: bool) -> None:
        """Remember the highest logit of each row, and the model that gave it."""
        top, at = height.max(0 if shared else 1)
        better = top > self.worst
        self.worst = torch.where(better, top, self.worst)
        rows = better.nonzero().squeeze(-1)
        self.best[rows] = theta[at[rows]] if shared else theta[rows, at[rows]]

    def _note(
        self, how: str, precision: str, theta: Tensor, x_cf: Tensor, broken: Tensor, *, shared: bool
    ) -> None:
        for first, second in broken.nonzero().tolist():
            row, m = (second, first) if shared else (first, second)
            key = int(self.target.rows[row]), precision
            if key in self.broken:
                continue
            model = theta[m] if shared else theta[row, m]
            confirmed = self.confirmed(row, model, x_cf[row], precision)
            if not confirmed["contained"]:
                continue  # the library adds up in another order, and says that it is outside
            self.broken.add(key)
            if len(self.named) < NAMED:
                about = {"row": key[0], "at": self.what, "kappa": float(self.target.kappa[row]), "by": how}
                self.named.append({**about, "precision": precision, **confirmed})

    def confirmed(self, row: int, theta: Tensor, x_cf: Tensor, precision: str) -> dict[str, Any]:
        """What the library and a plain module say of one model that breaks a row."""
        module = self.models.module(theta)
        contained = self.models.param_set.at(float(self.target.kappa[row])).contains(module)
        dtype = torch.float64 if precision == "float64" else torch.float32
        rows = torch.stack([self.target.x[row], x_cf]).to(dtype)
        with flushed(precision.endswith("flushed")), torch.no_grad():
            out = module.to(dtype)(rows).double()
        logits = out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]
        return {"contained": contained, "logit_x": float(logits[0]), "logit_x_cf": float(logits[1])}


def _decision(logits: Tensor) -> Tensor:
    """+1 where the logit says favourable; -1 where not, or where it is not a number."""
    return torch.where(logits > 0, 1.0, -1.0).to(torch.float64)


@contextmanager
def flushed(wanted: bool) -> Iterator[None]:
    """Numbers too small for their precision are zero inside of the block, where the processor can do that."""
    done = wanted and torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if done:
            torch.set_flush_denormal(False)
