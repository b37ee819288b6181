"""The models that are in several sets at once: what is left when promises of successive models add up.

Boxes intersect to a box, so the projection onto it is a clamp. Where l1 or l2 balls take part, Dykstra's
alternating projections find the nearest common point; what rounding or an unfinished limit leaves outside
is drawn along a segment towards a point that is known to be inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import torch
from torch import Tensor

from veritracer.errors import EmptyIntersectionError, ParamSetError, message
from veritracer.models import balls
from veritracer.models.balls import Norm
from veritracer.models.network import Theta
from veritracer.models.param_sets import SHRINK, ParamSet, rounded_inside

CYCLES = 2000
"""Rounds of Dykstra's projections, at most, in the search for a first common point."""

CYCLES_IN_TRAINING = 50
"""Rounds after a step of training: it starts from a point that is nearly inside."""

DEPTHS = (0.5, 0.1, 1e-2, 1e-4, 2 * SHRINK)
"""How deep inside of all sets a first common point is looked for, as shares of their radii."""


@dataclass(frozen=True)
class Ball:
    """A ball around one tensor, in float64."""

    center: Tensor
    radius: float
    norm: Norm

    def distance(self, tensor: Tensor) -> float:
        """How far the tensor is from the centre: the number that ``ParamSet.contains`` compares."""
        return float(balls.norm(tensor.double() - self.center, self.norm, self.center.dim()))

    def smaller(self, depth: float) -> Ball:
        """The ball that lies this share of the radius inside, and what rounding to float32 can move."""
        rounding = 2.0**-23 * balls.norm(self.center.abs() + self.radius, self.norm, self.center.dim())
        return Ball(self.center, max(self.radius * (1 - depth) - float(rounding), 0.0), self.norm)

    def project(self, tensor: Tensor) -> Tensor:
        """The nearest point of the ball."""
        radius = self.center.new_tensor(self.radius)
        return self.center + balls.project(tensor - self.center, radius, self.norm)


@dataclass(frozen=True)
class Piece:
    """What all sets allow one tensor: boxes merged into one, and the other balls."""

    balls: tuple[Ball, ...]

    def holds(self, tensor: Tensor, slack: float = 0.0) -> bool:
        """Whether the tensor is in every ball, or outside by at most this share of the radius."""
        return all(ball.distance(tensor) <= ball.radius * (1 + slack) for ball in self.balls)

    def shrunk(self, depth: float) -> Piece:
        """The same, each ball a little smaller."""
        return Piece(tuple(ball.smaller(depth) for ball in self.balls))

    @cached_property
    def parts(self) -> list[Callable[[Tensor], Tensor]]:
        """The projections to alternate: one clamp for all boxes, one for each other ball."""
        boxes = [ball for ball in self.balls if ball.norm == "linf"]
        rest = [ball.project for ball in self.balls if ball.norm != "linf"]
        if not boxes:
            return [*rest]
        low = torch.stack([ball.center - ball.radius for ball in boxes]).amax(0)
        high = torch.stack([ball.center + ball.radius for ball in boxes]).amin(0)
        middle = (low + high) / 2  # where the boxes just miss each other: the entry that is least outside
        low, high = torch.where(low > high, middle, low), torch.where(low > high, middle, high)
        return [lambda tensor: torch.clamp(tensor, low, high), *rest]

    def nearest(self, tensor: Tensor, cycles: int) -> Tensor:
        """The point of all balls that is nearest to ``tensor``, by Dykstra's projections.

        It stops as soon as the point is outside of none by more than ``SHRINK`` of its radius.
        """
        if len(self.parts) == 1:
            return self.parts[0](tensor)
        point, corrections = tensor, [torch.zeros_like(tensor) for _ in self.parts]
        for _ in range(cycles):
            for k, project in enumerate(self.parts):
                moved = point + corrections[k]
                point = project(moved)
                corrections[k] = moved - point
            if self.holds(point, SHRINK):
                break
        return point


@dataclass(frozen=True)
class Intersection:
    """The models that are in every one of some sets of one architecture.

    ``anchor`` is a model that is in all of them, in float64.
    """

    sets: tuple[ParamSet, ...]
    anchor: Theta

    @classmethod
    def of(cls, sets: Sequence[ParamSet], start: Sequence[Tensor] | None = None) -> Intersection:
        """The intersection; ``start`` is a model that may be in it, such as today's.

        Raises ``EmptyIntersectionError`` where no common model is found: pairs of sets that are too far
        apart are named, and a failure without such a pair is the search's.
        """
        if not sets:
            raise ParamSetError(message("at least one set of models", "none", "update without keeping any"))
        for other in sets[1:]:
            if other.network != sets[0].network:
                expected = f"sets of one architecture, {sets[0].network}"
                raise ParamSetError(message(expected, str(other.network), "a set fixes the architecture"))
            other.distances(sets[0].center)  # refuses tensors of other shapes
        pairs = [(i, j) for i, j in combinations(range(len(sets)), 2) if _apart(sets[i], sets[j])]
        if pairs:
            received = f"{len(pairs)} of their pairs that have none"
            remedy = "release the promises of one of each pair"
            raise EmptyIntersectionError(message("sets with a common model", received, remedy), pairs)
        given = None if start is None else tuple(t.detach().double() for t in start)
        if given is not None and all(s.contains(given) for s in sets):
            return cls(tuple(sets), given)
        starts = given or (None,) * len(sets[0].center)
        layers = enumerate(zip(_pieces(sets), starts, strict=True))
        return cls(tuple(sets), tuple(_common_point(piece, start, i) for i, (piece, start) in layers))

    def contains(self, model: torch.nn.Module | Sequence[Tensor]) -> bool:
        """Whether ``model`` is in every set, decided in float64."""
        return all(each.contains(model) for each in self.sets)

    def project(self, theta: Sequence[Tensor]) -> Theta:
        """A model in every set next to ``theta``, in its precision; ``contains`` is true of it.

        For boxes it is the nearest one, up to the margin for rounding. It can be passed to ``fine_tune``.
        """
        return tuple(
            _land(tensor, piece, aim, anchor)
            for tensor, piece, aim, anchor in zip(theta, self._pieces, self._aims, self.anchor, strict=True)
        )

    @cached_property
    def _pieces(self) -> tuple[Piece, ...]:
        return _pieces(self.sets)

    @cached_property
    def _aims(self) -> tuple[Piece, ...]:
        """What projections aim at: balls so much smaller that ending ``SHRINK`` outside of them is inside."""
        return tuple(piece.shrunk(2 * SHRINK) for piece in self._pieces)


def _land(tensor: Tensor, piece: Piece, aim: Piece, anchor: Tensor) -> Tensor:
    """The tensor in its own precision, drawn towards the anchor until it is in every ball."""
    point = aim.nearest(tensor.detach().double(), CYCLES_IN_TRAINING)
    return rounded_inside(point, anchor, tensor.dtype, piece.holds)


def _pieces(sets: Sequence[ParamSet]) -> tuple[Piece, ...]:
    """For each tensor the balls of all sets."""
    return tuple(
        Piece(tuple(Ball(s.center[i].detach().double(), float(s.radii[i]), s.norm) for s in sets))
        for i in range(len(sets[0].center))
    )


def _apart(one: ParamSet, other: ParamSet) -> bool:
    """Whether two sets provably have no common model: exact where both have the same norm.

    Balls of different norms are compared as the boxes or spheres around them, which errs towards False.
    """
    norm: Norm = one.norm if one.norm == other.norm else "linf" if "linf" in (one.norm, other.norm) else "l2"
    far = [
        float(balls.norm(a.detach().double() - b.detach().double(), norm, a.dim()))
        for a, b in zip(one.center, other.center, strict=True)
    ]
    reach = [float(a) + float(b) for a, b in zip(one.radii, other.radii, strict=True)]
    return any(distance > both for distance, both in zip(far, reach, strict=True))


def _common_point(piece: Piece, start: Tensor | None, index: int) -> Tensor:
    """A point in every ball of one tensor, as deep inside as is easily found."""
    # One centre may be in all balls: those of one model are nested, and a point (radius 0) has no other.
    for known in (start, *(ball.center for ball in piece.balls)):
        if known is not None and piece.holds(known):
            return known
    weights = torch.tensor([1.0 / (ball.radius + 1e-12) for ball in piece.balls], dtype=torch.float64)
    centers = torch.stack([ball.center for ball in piece.balls], -1)
    mean = centers @ (weights / weights.sum())
    for depth in DEPTHS:
        found = piece.shrunk(depth).nearest(mean, CYCLES)
        if piece.holds(found):
            return found
    layer = f"{'W' if index % 2 == 0 else 'b'}{index // 2 + 1}"
    received = f"none for {layer} after {CYCLES:,} rounds of projections"
    remedy = "release promises of one of the issuing models"
    raise EmptyIntersectionError(message("sets with a common model", received, remedy), [])
