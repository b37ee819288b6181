"""The set of models that a certificate covers: a ball around every weight matrix and bias vector.

Norms are entrywise over a tensor: ``l2`` of a matrix is its Frobenius norm, not the spectral one.

NOTE[paper]: the text has radius_i = kappa * ‖theta_i‖_p; the code behind its numbers uses an l∞ box with
kappa * mean|theta_i|. The latter is the default here, so that numbers can be compared.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from veritracer.errors import NotSupportedError, ParamSetError, VeriTracerWarning, message, unknown_name
from veritracer.formatting import round_down
from veritracer.models import balls
from veritracer.models.balls import Norm
from veritracer.models.network import Network, Theta, from_module

ABSOLUTE = "absolute"
"""Name of what is no rule: radii that are given as numbers."""

Derived = TypeVar("Derived")

SHRINK = 1e-6
"""Projections end this share of the radius inside the set, so that float32 cannot leave it."""

PULLS = (1.0, 1 - 1e-6, 0.999, 0.99, 0.9, 0.5, 0.0)
"""Shares of the way from an inner point to one that rounding may carry outside, in the order tried."""


OVERLAP_RATIOS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Where the chords of ``Layer.corners`` meet; 100 is the ratio of a LeakyReLU of slope 0.01 around zero."""


@dataclass(frozen=True)
class RadiusRule:
    """The size of a tensor that kappa is a multiple of. How to add one: ``docs/how-to/add-a-radius-rule.md``.

    Attributes
    ----------
    name
        Its name in ``radius=`` and in certificates.
    size
        Function (tensor, norm, dims) that returns the size of each tensor, the radius at ``kappa = 1``: at
        least 0, and with the batch dimensions of the tensor, which come before its last ``dims``.
    in_box, in_ball
        What models may do, in words for applicants, where the norm is ``linf`` and where it is another one.
        Translated messages with the fields ``share``, a number of percent, and ``norm``.
    """

    name: str
    size: Callable[[Tensor, Norm, int], Tensor]
    in_box: str
    in_ball: str


RULES: dict[str, RadiusRule] = {}
"""All rules by name; ``register_rule`` adds to it."""


def register_rule(rule: RadiusRule) -> RadiusRule:
    """Add a rule; its name must be new."""
    if rule.name in (*RULES, ABSOLUTE):
        expected = f"a name other than {[*RULES, ABSOLUTE]}"
        raise ParamSetError(message(expected, repr(rule.name), "choose another one"))
    RULES[rule.name] = rule
    return rule


def rule_named(name: str) -> RadiusRule:
    """Return the rule of that name, or raise ``ParamSetError``."""
    if name not in RULES:
        expected = f"radius {' or '.join(map(repr, RULES))}, or numbers"
        raise ParamSetError(unknown_name(expected, name, RULES))
    return RULES[name]


register_rule(
    RadiusRule(
        "mean-abs",
        lambda tensor, norm, dims: balls.mean_abs(tensor, dims),
        in_box="weights and biases each move by at most %(share)s %% of the average size in the same matrix "
        "or vector",
        in_ball="weight matrices and bias vectors each move by at most %(share)s %% of their average size "
        "(%(norm)s norm)",
    )
)
register_rule(
    RadiusRule(
        "norm",
        balls.norm,
        in_box="weights and biases each move by at most %(share)s %% of the largest one in the same matrix "
        "or vector",
        in_ball="weight matrices and bias vectors each move by at most %(share)s %% of their %(norm)s norm "
        "(%(norm)s norm)",
    )
)


@dataclass(frozen=True, eq=False)
class Layer:
    """An uncertain affine layer: ‖W - weight‖ <= weight_radius and ‖b - bias‖ <= bias_radius.

    The radii have the batch dimensions of the weights and none of their own.
    """

    weight: Tensor
    bias: Tensor
    weight_radius: Tensor
    bias_radius: Tensor
    norm: Norm

    def corners(self, *, nonnegative: bool) -> tuple[Tensor, Tensor]:
        r"""Return the matrix that maps the ends of the inputs to those of the outputs, for a box of weights.

        Write a⁺ = max(a, 0), a⁻ = min(a, 0) and h = h⁺ + h⁻. Over w in [wl, wu] and h in [hl, hu], w h⁺ is at
        most wu⁺ hu⁺ + wu⁻ hl⁺, and w h⁻ at most wl⁺ hu⁻ + wl⁻ hl⁻. Their sum is exact where w or h keeps its
        sign. Where neither does, the maximum of w h is the larger of wu hu and wl hl, not their sum: the
        smaller one, with a = wu, b = -wl, u = hu and v = -hl

            min(a u, b v) = v g(u / v),    g(r) = min(a r, b),

        was counted too much. As g is concave, chords between the ``OVERLAP_RATIOS`` r_m (and r_0 = 0) lie
        below it, and taking off

            Σ_m (min(u, r_m v) - min(u, r_(m-1) v)) (g(r_m) - g(r_(m-1))) / (r_m - r_(m-1))

        still errs outwards. It is one more matrix product, which needs no tensor of rows × weights.

        The weights (..., 2 out, 9 in) map hl⁺, hu⁺, hl⁻, hu⁻ and the five differences to the lower and then
        the upper ends; inputs that are ``nonnegative`` have only the first two. The biases are (..., 2 out).
        """
        if nonnegative in self._corners:
            return self._corners[nonnegative]
        radius, reach = self.weight_radius[..., None, None], self.bias_radius.unsqueeze(-1)
        low, high = self.weight - radius, self.weight + radius
        low_pos, low_neg = low.clamp(min=0), low.clamp(max=0)
        high_pos, high_neg = high.clamp(min=0), high.clamp(max=0)
        down, up = [low_pos, low_neg, high_pos, high_neg], [high_neg, high_pos, low_neg, low_pos]
        if nonnegative:
            down, up = down[:2], up[:2]
        else:
            down += _chords(high_pos, -low_neg, of_upper=False)
            up += _chords(high_pos, -low_neg, of_upper=True)
        weight = torch.cat([torch.cat(end, -1) for end in (down, up)], -2)
        found = weight, torch.cat([self.bias - reach, self.bias + reach], -1)
        if not (self.weight.requires_grad or self.bias.requires_grad):  # a graph must be built anew each time
            self._corners[nonnegative] = found
        return found

    @cached_property
    def _corners(self) -> dict[bool, tuple[Tensor, Tensor]]:
        return {}


def _chords(above: Tensor, below: Tensor, *, of_upper: bool) -> list[Tensor]:
    """Return the slopes of the chords of g, signed as they correct the upper or the lower ends."""
    first, second = (above, below) if of_upper else (below, above)
    slopes, last, last_ratio = [], torch.zeros_like(first), 0.0
    for ratio in OVERLAP_RATIOS:
        value = torch.minimum(ratio * first, second)
        slopes.append((value - last) / (ratio - last_ratio))
        last, last_ratio = value, ratio
    return [-slope for slope in slopes] if of_upper else slopes


@dataclass(frozen=True)
class ParamSet:
    """All models with the centre's architecture whose every tensor is within its radius of the centre's.

    Attributes
    ----------
    network, center
        Today's model. ``center`` may carry gradients and leading batch dimensions.
    units
        Radius of each tensor at ``kappa = 1``; zero for a bias that a layer does not have.
    norm
        Entrywise norm of the balls: ``l1``, ``l2`` or ``linf``.
    kappa
        The radius of tensor i is ``kappa * units[i]``.
    rule
        Source of the units: the name of a rule, or ``absolute``.
    """

    network: Network
    center: Theta
    units: Theta
    norm: Norm
    kappa: float
    rule: str = ABSOLUTE

    @classmethod
    def around(
        cls,
        module: nn.Module,
        kappa: float = 0.2,
        norm: Norm = "linf",
        radius: str | float | Sequence[float] = "mean-abs",
    ) -> ParamSet:
        """Build the set around a torch MLP, in float64 and detached from it.

        ``radius="mean-abs"`` gives tensor i the radius kappa * mean|theta_i|, ``"norm"`` gives it
        kappa * ‖theta_i‖. A number, or one number for each tensor in the order W1, b1, W2, b2, ..., is the
        absolute radius: ``kappa`` is then ignored, and later counts multiples of it, starting at 1.

        >>> ParamSet.around(nn.Linear(2, 1), radius=1.9).radii[0]
        tensor(1.9000, dtype=torch.float64)
        """
        network, theta = from_module(module)
        # Copies: further training of the module must not move the set.
        center = tuple(t.detach().to(torch.float64, copy=True) for t in theta)
        return cls.of(network, center, kappa, norm, radius, warn=True)

    @classmethod
    def of(
        cls,
        network: Network,
        center: Theta,
        kappa: float = 0.2,
        norm: Norm = "linf",
        radius: str | float | Sequence[float] = "mean-abs",
        *,
        warn: bool = False,
    ) -> ParamSet:
        """Build the set around ``center``, which keeps its gradients; the radii are detached from it."""
        _check_request(norm, kappa, radius)
        if isinstance(radius, str):
            units = tuple(_ratio_unit(t, norm, radius, dims=2 - i % 2) for i, t in enumerate(center))
            if warn and kappa > 0:
                _warn_of_zeros(network, units)
        else:
            units, kappa = _absolute_units(center, radius), 1.0
        units = tuple(
            u if i % 2 == 0 or network.biased[i // 2] else torch.zeros_like(u) for i, u in enumerate(units)
        )
        rule = radius if isinstance(radius, str) else ABSOLUTE
        return cls(network, center, units, norm, float(kappa), rule)

    def __str__(self) -> str:
        """Describe the set in the words of its constructor.

        >>> print(ParamSet.around(nn.Linear(2, 1)), ParamSet.around(nn.Linear(2, 1), radius=0.01), sep="; ")
        kappa = 0.2 (linf, mean-abs); radius 0.01 (linf, absolute)
        """
        return describe_set(self.kappa, self.norm, self.rule, self.named_radii.values())

    @cached_property
    def center_digest(self) -> str:
        """Return the SHA-256 of the model at the centre."""
        return self.network.digest(self.center)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each tensor: W1, b1, W2, b2, ..."""
        return tuple(f"{'W' if i % 2 == 0 else 'b'}{i // 2 + 1}" for i in range(len(self.center)))

    @property
    def named_radii(self) -> dict[str, float]:
        """Return the absolute radius of each tensor that a layer has, by name."""
        biased = self.network.biased
        return {
            name: float(radius)
            for i, (name, radius) in enumerate(zip(self.names, self.radii, strict=True))
            if i % 2 == 0 or biased[i // 2]
        }

    @cached_property
    def radii(self) -> Theta:
        """Return the absolute radius of each tensor, with the batch dimensions of ``center``."""
        return tuple(self.kappa * unit for unit in self.units)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of the network, each with its balls."""
        balls_ = zip(self.network.layers(self.center), self.network.layers(self.radii), strict=True)
        return tuple(Layer(*center, *radii, self.norm) for center, radii in balls_)

    @cached_property
    def row_radii(self) -> Theta:
        """Return the radii with a last dimension for rows, to be combined with tensors (..., n)."""
        return tuple(radius.unsqueeze(-1) for radius in self.radii)

    @cached_property
    def magnitudes(self) -> list[tuple[Tensor, Tensor]]:
        """Return the largest absolute value of each entry of each layer's weight and bias over the set.

        No entry of a tensor moves further than the radius of its ball, whatever the norm.
        """
        sizes = [
            t.detach().abs() + r[(..., *(None,) * (2 - i % 2))]
            for i, (t, r) in enumerate(zip(self.center, self.radii, strict=True))
        ]
        return list(self.network.layers(sizes))

    @cached_property
    def largest_weight(self) -> float:
        """Return the largest absolute value of any weight of any model."""
        return max(float(weight.max()) for weight, _ in self.magnitudes)

    def once(self, key: Hashable, compute: Callable[[], Derived]) -> Derived:
        """Return the result of ``compute``, which is called only the first time for each key."""
        if key not in self._derived:
            self._derived[key] = compute()
        found: Derived = self._derived[key]
        return found

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    def at(self, kappa: float) -> ParamSet:
        """Return the same set at another ``kappa``; the sets are nested."""
        return replace(self, kappa=float(kappa))

    def distances(self, model: nn.Module | Sequence[Tensor]) -> tuple[float, ...]:
        """Return the distance of each tensor of ``model`` from the centre, in the set's norm, in float64."""
        theta = self._theta_of(model)
        return tuple(
            float(balls.norm(_double(t).to(c.device) - _double(c), self.norm, c.dim()))
            for t, c in zip(theta, self.center, strict=True)
        )

    def displacements(self, model: nn.Module | Sequence[Tensor]) -> tuple[float, ...]:
        """Return the distance of each tensor of ``model`` from the centre divided by its radius.

        At most 1 is inside. Infinite for NaN and for a tensor that moved although its radius is 0.
        """
        pairs = zip(self.distances(model), self.radii, strict=True)
        return tuple(_in_radii(distance, float(radius)) for distance, radius in pairs)

    def contains(self, model: nn.Module | Sequence[Tensor]) -> bool:
        """Return whether ``model`` has the same architecture and every tensor within its radius."""
        pairs = zip(self.distances(model), self.radii, strict=True)
        return all(distance <= float(radius) for distance, radius in pairs)

    def project(self, theta: Sequence[Tensor]) -> Theta:
        """Return the nearest parameters slightly inside the set, in the precision of ``theta``.

        The margin is ``SHRINK`` of the radius plus the largest change by rounding to float32. A point that
        rounding still carries outside is moved towards the centre until it is inside.
        """
        balls_ = zip(theta, self.center, self.radii, strict=True)
        return tuple(self._project_one(t, _double(c), _double(r)) for t, c, r in balls_)

    def _project_one(self, tensor: Tensor, center: Tensor, radius: Tensor) -> Tensor:
        rounding = 2.0**-23 * balls.norm(center.abs() + radius, self.norm, center.dim())
        inner = (radius * (1 - SHRINK) - rounding).clamp(min=0)
        point = center + balls.project(_double(tensor) - center, inner, self.norm)
        return rounded_inside(
            point,
            center,
            tensor.dtype,
            lambda landed: bool(balls.norm(_double(landed) - center, self.norm, center.dim()) <= radius),
        )

    def sample(self, n: int, generator: torch.Generator, *, corners: bool = False) -> Theta:
        """Draw ``n`` models from the set, stacked on a new first dimension.

        Uniform over each ball or, with ``corners``, over its extreme points.
        """
        draw = balls.sample_corner if corners else balls.sample
        return tuple(
            center.detach() + radius * draw(n, center, self.norm, generator)
            for center, radius in zip(self.center, self.radii, strict=True)
        )

    def _theta_of(self, model: nn.Module | Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the parameters of ``model``; refuse another architecture."""
        if isinstance(model, nn.Module):
            network, theta = from_module(model)
            if network != self.network:
                raise ParamSetError(
                    message(f"the architecture {self.network}", str(network), "a set fixes the architecture")
                )
        else:
            theta = tuple(model)
        mine, theirs = ([tuple(t.shape) for t in ts] for ts in (self.center, theta))
        if mine != theirs:
            raise ParamSetError(
                message(f"tensors of shapes {mine}", f"{theirs}", "a set fixes the architecture")
            )
        return theta


def rounded_inside(
    point: Tensor, anchor: Tensor, dtype: torch.dtype, inside: Callable[[Tensor], bool]
) -> Tensor:
    """Convert the point to another precision, moving it towards the anchor until it is inside."""
    for share in PULLS:
        landed = (point if share == 1.0 else anchor + share * (point - anchor)).to(dtype)
        if inside(landed):
            return landed
    received = f"a set around numbers that {dtype} cannot hold"
    raise ParamSetError(message("a set with room for rounding", received, "project in float64"))


def _in_radii(distance: float, radius: float) -> float:
    """Return the quotient, on the side of 1 that the comparison of the two gives."""
    if not distance < math.inf:
        return math.inf
    if distance <= radius:
        return distance / radius if radius > 0 else 0.0
    return max(distance / radius, math.nextafter(1.0, 2.0)) if radius > 0 else math.inf


def describe_set(kappa: float, norm: Norm, rule: str, radii: Iterable[float]) -> str:
    """Describe a set by kappa and its rule, or by its absolute radii."""
    if rule != ABSOLUTE:
        return f"kappa = {round_down(kappa, 12)} ({norm}, {rule})"
    ends = sorted({round_down(radius, 12) for radius in radii}, key=float) or ["0"]
    said = f"radius {ends[0]}" if len(ends) == 1 else f"radii {ends[0]} to {ends[-1]}"
    return f"{said} ({norm}, absolute)"


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64)


def _ratio_unit(tensor: Tensor, norm: Norm, rule: str, dims: int) -> Tensor:
    """Return the radius at kappa = 1, one for each model if ``tensor`` has leading batch dimensions."""
    with torch.no_grad():
        return rule_named(rule).size(tensor, norm, dims)


def _absolute_units(center: Theta, radius: float | Sequence[float]) -> Theta:
    values = [float(radius)] * len(center) if isinstance(radius, int | float) else [float(r) for r in radius]
    if len(values) != len(center):
        raise ParamSetError(
            message(
                f"one radius, or {len(center)} (one for each tensor)",
                f"{len(values)}",
                "the order is W1, b1, W2, b2, ...",
            )
        )
    if any(not 0.0 <= v < float("inf") for v in values):
        raise ParamSetError(message("finite radii of at least 0", f"{values}", "give a distance"))
    return tuple(t.new_tensor(v) for t, v in zip(center, values, strict=True))


def _check_request(norm: str, kappa: float, radius: object) -> None:
    if norm not in get_args(Norm):
        raise NotSupportedError(message("norm 'l1', 'l2' or 'linf'", repr(norm), "choose one of these"))
    if isinstance(radius, str):
        rule_named(radius)  # refuses unknown ones
    if not 0.0 <= kappa < float("inf"):
        raise ParamSetError(message("a finite kappa of at least 0", repr(kappa), "the paper uses 0.2"))


def _warn_of_zeros(network: Network, units: Theta) -> None:
    zero = [i for i, u in enumerate(units) if float(u) == 0.0 and (i % 2 == 0 or network.biased[i // 2])]
    if zero:
        names = ", ".join(f"{'W' if i % 2 == 0 else 'b'}{i // 2 + 1}" for i in zero)
        warnings.warn(
            message(
                "parameters that are not all zero",
                f"zeros in {names}",
                "their radius is 0: give absolute radii instead",
            ),
            VeriTracerWarning,
            stacklevel=4,
        )
