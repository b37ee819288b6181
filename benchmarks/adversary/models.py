"""Attacking models as flat vectors: made in bulk, held to the set in float64, run in float32 and float64.

Nothing here is the library's own arithmetic but the directions of the planes; a model that breaks something
is handed to ``ParamSet.contains`` and to a plain ``nn.Sequential`` before it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import veritracer as vt
from veritracer.models.network import from_module, to_module

Double = torch.float64


@dataclass(frozen=True)
class Segment:
    """One tensor of the model: where it is in the flat vector, its shape, and its radius at kappa = 1."""

    start: int
    stop: int
    shape: tuple[int, ...]
    unit: float


class Models:
    """The models of a set, as vectors (..., N) of all their parameters."""

    def __init__(self, module: nn.Module, param_set: vt.ParamSet) -> None:
        self.network, theta = from_module(module)
        self.param_set, self.norm = param_set, param_set.norm
        self.segments: list[Segment] = []
        at = 0
        for tensor, unit in zip(theta, param_set.units, strict=True):
            self.segments.append(Segment(at, at + tensor.numel(), tuple(tensor.shape), float(unit)))
            at += tensor.numel()
        self.center = torch.cat([t.detach().double().flatten() for t in theta])
        units = [torch.full((s.stop - s.start,), s.unit, dtype=Double) for s in self.segments]
        self.units = torch.cat(units)
        self.size = at

    def radii(self, kappa: Tensor) -> Tensor:
        """The radius of each parameter's tensor at each kappa, (..., N)."""
        return kappa.unsqueeze(-1) * self.units

    def logits(self, theta: Tensor, rows: Tensor) -> Tensor:
        """The logits (..., n) of models (..., N) on rows (..., n, d), in the precision of ``theta``."""
        h, slopes = rows, self.network.slopes
        for k in range(len(self.segments) // 2):
            weight, bias = (self._tensor(theta, self.segments[2 * k + i]) for i in (0, 1))
            h = h @ weight.mT + bias.unsqueeze(-2)
            if k < len(slopes):
                h = torch.relu(h) if slopes[k] == 0 else nn.functional.leaky_relu(h, slopes[k])
        return h[..., 0] if h.shape[-1] == 1 else h[..., 1] - h[..., 0]

    def module(self, theta: Tensor) -> nn.Sequential:
        """One model (N,) as a plain torch module."""
        return to_module(self.network, [self._tensor(theta, s) for s in self.segments])

    def contains(self, theta: Tensor, kappa: Tensor) -> Tensor:
        """Whether the models (..., N) are in the set at their kappa (...), in float64.

        For sums (l1 and l2) a little stricter than ``ParamSet.contains``, which adds in another order.
        """
        inside = torch.ones(theta.shape[:-1], dtype=torch.bool)
        for s in self.segments:
            distance = self._norm((theta - self.center)[..., s.start : s.stop])
            if self.norm != "linf":
                distance = distance * (1 + 1e-14)
            inside &= distance <= kappa * s.unit
        return inside

    def pulled_in(self, theta: Tensor, kappa: Tensor) -> Tensor:
        """The models, drawn in where rounding carried them out; as near to the border as they can be."""
        radii = self.radii(kappa)
        if self.norm == "linf":
            for _ in range(2):
                out = (theta - self.center).abs() > radii
                theta = torch.where(out, torch.nextafter(theta, self.center.expand_as(theta)), theta)
            return theta
        for share in (1 - 1e-13, 1 - 1e-10, 1 - 1e-7, 1 - 1e-4):
            outside = ~self.contains(theta, kappa).unsqueeze(-1)
            if not bool(outside.any()):
                break
            inner = self.center + share * self._onto(theta - self.center, kappa)
            theta = torch.where(outside, inner, theta)
        return theta

    def _onto(self, step: Tensor, kappa: Tensor) -> Tensor:
        """The step, shortened in each tensor to its ball."""
        parts = []
        for s in self.segments:
            part = step[..., s.start : s.stop]
            length = self._norm(part).unsqueeze(-1)
            limit = (kappa * s.unit).unsqueeze(-1)
            share = torch.where(length > limit, limit / length.clamp(min=1e-300), torch.ones_like(length))
            parts.append(part * share)
        return torch.cat(parts, -1)

    def stepped(self, theta: Tensor, direction: Tensor, kappa: Tensor, pace: float) -> Tensor:
        """The models moved by ``pace`` radii along a direction, and back into the set."""
        radii = self.radii(kappa)
        if self.norm == "linf":
            moved = theta + pace * radii * direction.sign()
            return self.pulled_in(self.center + (moved - self.center).clamp(-radii, radii), kappa)
        goal = self.furthest(direction, kappa)
        if self.norm == "l1":  # towards a vertex
            return self.pulled_in(torch.lerp(theta, goal, min(pace, 1.0)), kappa)
        moved = theta - self.center + pace * (goal - self.center)
        return self.pulled_in(self.center + self._onto(moved, kappa), kappa)

    def furthest(self, direction: Tensor, kappa: Tensor) -> Tensor:
        """The models (..., N) of the set that are furthest along each direction."""
        radii = self.radii(kappa)
        if self.norm == "linf":
            return self.center + radii * direction.sign()
        parts = []
        for s in self.segments:
            part = direction[..., s.start : s.stop]
            if self.norm == "l2":
                size = part.norm(dim=-1, keepdim=True)
                parts.append(part / torch.where(size > 0, size, torch.inf))
            else:
                best = part.abs().argmax(-1, keepdim=True)
                sign = part.gather(-1, best).sign()
                parts.append(torch.zeros_like(part).scatter(-1, best, sign))
        return self.center + radii * torch.cat(parts, -1)

    def uniform(self, shape: tuple[int, ...], kappa: Tensor, g: torch.Generator) -> Tensor:
        """Models drawn from inside of the balls."""
        if self.norm == "linf":
            unit = torch.rand(*shape, self.size, generator=g, dtype=Double) * 2 - 1
            return self.pulled_in(self.center + self.radii(kappa) * unit, kappa)
        unit = self._border(shape, g)
        for s in self.segments:
            depth = torch.rand(*shape, 1, generator=g, dtype=Double) ** (1.0 / (s.stop - s.start))
            unit[..., s.start : s.stop] *= depth
        return self.pulled_in(self.center + self.radii(kappa) * unit, kappa)

    def corners(self, shape: tuple[int, ...], kappa: Tensor, g: torch.Generator) -> Tensor:
        """Extreme points of the balls; in a third of the models some tensors stay as they are."""
        if self.norm == "linf":
            unit = torch.randint(0, 2, (*shape, self.size), generator=g).to(Double) * 2 - 1
        elif self.norm == "l2":
            unit = self._border(shape, g)
        else:
            unit = torch.zeros(*shape, self.size, dtype=Double)
            for s in self.segments:
                where = torch.randint(s.start, s.stop, (*shape, 1), generator=g)
                sign = torch.randint(0, 2, (*shape, 1), generator=g).to(Double) * 2 - 1
                unit.scatter_(-1, where, sign)
        for s in self.segments:
            still = torch.rand(*shape, 1, generator=g) < 0.15
            unit[..., s.start : s.stop] *= ~still
        return self.pulled_in(self.center + self.radii(kappa) * unit, kappa)

    def _border(self, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
        """Directions of length 1 in each tensor, in the norm of the set (l1 or l2)."""
        parts = []
        for s in self.segments:
            raw = torch.randn(*shape, s.stop - s.start, generator=g, dtype=Double)
            if self.norm == "l1":
                raw = raw.sign() * -torch.log1p(-torch.rand(raw.shape, generator=g, dtype=Double))
            parts.append(raw / self._norm(raw).unsqueeze(-1).clamp(min=1e-300))
        return torch.cat(parts, -1)

    def _norm(self, part: Tensor) -> Tensor:
        if self.norm == "linf":
            return part.abs().amax(-1)
        return part.abs().sum(-1) if self.norm == "l1" else part.norm(dim=-1)

    @staticmethod
    def _tensor(theta: Tensor, s: Segment) -> Tensor:
        return theta[..., s.start : s.stop].unflatten(-1, s.shape)
