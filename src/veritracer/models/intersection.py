"""Models that are in several sets at once: the set left by the promises of successive models.

Boxes intersect in a box, so projecting onto it is a clamp. If l1 or l2 balls take part, Dykstra's alternating
projections find the nearest common point; a point that rounding or an unfinished limit leaves outside is
moved towards a point that is known to be inside.
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
"""Maximum rounds of Dykstra's projections in the search for a first common point."""

CYCLES_IN_TRAINING = 50
"""Maximum rounds after a training step, which starts from a point that is nearly inside."""

DEPTHS = (0.5, 0.1, 1e-2, 1e-4, 2 * SHRINK)
"""Depths, as shares of the radii, at which a first common point is searched, in the order tried."""


@dataclass(frozen=True)
class Ball:
    """A ball around one tensor, in float64."""

    center: Tensor
    radius: float
    norm: Norm

    def distance(self, tensor: Tensor) -> float:
        """Return the distance of the tensor from the centre, as ``ParamSet.contains`` compares it."""
        return float(balls.norm(tensor.double() - self.center, self.norm, self.center.dim()))

    def smaller(self, depth: float) -> Ball:
        """Return the ball that is smaller by this share of the radius and by the rounding to float32."""
        rounding = 2.0**-23 * balls.norm(self.center.abs() + self.radius, self.norm, self.center.dim())
        return Ball(self.center, max(self.radius * (1 - depth) - float(rounding), 0.0), self.norm)

    def project(self, tensor: Tensor) -> Tensor:
        """Return the nearest point of the ball."""
        radius = self.center.new_tensor(self.radius)
        return self.center + balls.project(tensor - self.center, radius, self.norm)


@dataclass(frozen=True)
class Piece:
    """The balls of all sets around one tensor, with boxes merged into one."""

    balls: tuple[Ball, ...]

    def holds(self, tensor: Tensor, slack: float = 0.0) -> bool:
        """Return whether the tensor is in every ball, or outside by at most this share of its radius."""
        return all(ball.distance(tensor) <= ball.radius * (1 + slack) for ball in self.balls)

    def shrunk(self, depth: float) -> Piece:
        """Return the piece with each ball a little smaller."""
        return Piece(tuple(ball.smaller(depth) for ball in self.balls))

    @cached_property
    def projections(self) -> list[Callable[[Tensor], Tensor]]:
        """Return the projections to alternate: one clamp for all boxes, one for each other ball."""
        boxes = [ball for ball in self.balls if ball.norm == "linf"]
        rest = [ball.project for ball in self.balls if ball.norm != "linf"]
        if not boxes:
            return [*rest]
        low = torch.stack([ball.center - ball.radius for ball in boxes]).amax(0)
        high = torch.stack([ball.center + ball.radius for ball in boxes]).amin(0)
        middle = (low + high) / 2  # where the boxes just miss each other, the value that is least outside
        low, high = torch.where(low > high, middle, low), torch.where(low > high, middle, high)
        return [lambda tensor: torch.clamp(tensor, low, high), *rest]

    def nearest(self, tensor: Tensor, cycles: int) -> Tensor:
        """Return the point of all balls that is nearest to ``tensor``, by Dykstra's projections.

        It stops once the point is outside no ball by more than ``SHRINK`` of its radius.
        """
        if len(self.projections) == 1:
            return self.projections[0](tensor)
        point, corrections = tensor, [torch.zeros_like(tensor) for _ in self.projections]
        for _ in range(cycles):
            for k, project in enumerate(self.projections):
                moved = point + corrections[k]
                point = project(moved)
                corrections[k] = moved - point
            if self.holds(point, SHRINK):
                break
        return point


@dataclass(frozen=True)
class Intersection:
    """The models that are in every one of several sets of one architecture.

    ``anchor`` is a model that is in all of them, in float64.
    """

    sets: tuple[ParamSet, ...]
    anchor: Theta

    @classmethod
    def of(cls, sets: Sequence[ParamSet], start: Sequence[Tensor] | None = None) -> Intersection:
        """Build the intersection; ``start`` is a model that may be in it, such as today's.

        Raises
        ------
        EmptyIntersectionError
            If no common model is found. It names the pairs of sets that are provably too far apart; without
            such a pair the search failed.
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
            received = f"{len(pairs)} pairs without one"
            remedy = "release the promises of one of each pair"
            raise EmptyIntersectionError(message("sets with a common model", received, remedy), pairs)
        given = None if start is None else tuple(t.detach().double() for t in start)
        if given is not None and all(s.contains(given) for s in sets):
            return cls(tuple(sets), given)
        starts = given or (None,) * len(sets[0].center)
        layers = enumerate(zip(_pieces(sets), starts, strict=True))
        return cls(tuple(sets), tuple(_common_point(piece, start, i) for i, (piece, start) in layers))

    def contains(self, model: torch.nn.Module | Sequence[Tensor]) -> bool:
        """Return whether ``model`` is in every set, decided in float64."""
        return all(each.contains(model) for each in self.sets)

    def project(self, theta: Sequence[Tensor]) -> Theta:
        """Return a model in every set near ``theta``, in its precision; ``contains`` is true of it.

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
        """Return the targets of projections: ending ``SHRINK`` outside of these balls is still inside."""
        return tuple(piece.shrunk(2 * SHRINK) for piece in self._pieces)


def _land(tensor: Tensor, piece: Piece, aim: Piece, anchor: Tensor) -> Tensor:
    """Convert the tensor to its own precision, moved towards the anchor until it is in every ball."""
    point = aim.nearest(tensor.detach().double(), CYCLES_IN_TRAINING)
    return rounded_inside(point, anchor, tensor.dtype, piece.holds)


def _pieces(sets: Sequence[ParamSet]) -> tuple[Piece, ...]:
    """Return the balls of all sets, for each tensor."""
    return tuple(
        Piece(tuple(Ball(s.center[i].detach().double(), float(s.radii[i]), s.norm) for s in sets))
        for i in range(len(sets[0].center))
    )


def _apart(one: ParamSet, other: ParamSet) -> bool:
    """Return whether two sets provably have no common model; exact if both have the same norm.

    Balls of different norms are compared through the boxes or spheres around them, which errs towards False.
    """
    norm: Norm = one.norm if one.norm == other.norm else "linf" if "linf" in (one.norm, other.norm) else "l2"
    far = [
        float(balls.norm(a.detach().double() - b.detach().double(), norm, a.dim()))
        for a, b in zip(one.center, other.center, strict=True)
    ]
    reach = [float(a) + float(b) for a, b in zip(one.radii, other.radii, strict=True)]
    return any(distance > both for distance, both in zip(far, reach, strict=True))


def _common_point(piece: Piece, start: Tensor | None, index: int) -> Tensor:
    """Return a point in every ball of one tensor, as deep inside as is found easily."""
    # One centre may be in all balls: balls of one model are nested, and a ball of radius 0 has one point.
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
