"""What a bound is asked: the problem over the set of models, and the parts that several bounds share."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from veritracer.bounds.affine import Affine
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import Box, Trace, ibp_upper, trace
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.models.param_sets import ParamSet


class BoundProblem:
    """max sign * logit(x_cf) over the models of the set with sign * logit(x) >= 0, for each row.

    Ranges and planes are computed when a bound first asks for them, and once: CROWN-IBP builds on IBP's
    ranges, Simul-CROWN on CROWN-IBP's plane. A bound made of ``interval``, ``plane`` and ``constraint`` has
    the slack in it that ``precision`` asks for; one made of ``ranges`` adds ``slack`` itself.

    Parameters
    ----------
    x, x_cf, sign
        Rows (..., n, d), their counterfactuals or boxes of them, and today's decisions, +1 or -1 (..., n).
    precision
        In which arithmetic models may run; None is exact arithmetic, without slack.
    steps, decide
        How Simul-CROWN searches: see ``dual.maximum``.
    """

    def __init__(
        self,
        param_set: ParamSet,
        x: Tensor,
        x_cf: Tensor | Box,
        sign: Tensor,
        *,
        precision: Precision | None = None,
        steps: int | None = None,
        decide: bool = False,
    ) -> None:
        self.param_set, self.x, self.x_cf, self.sign = param_set, x, x_cf, sign
        self.precision, self.steps, self.decide = precision, steps, decide
        self._whole: tuple[BoundProblem, Tensor] | None = None

    def select(self, rows: Tensor) -> BoundProblem:
        """The problem of the given rows of a flat batch, on top of what was computed for all of them."""
        x_cf = self.x_cf.select(rows) if isinstance(self.x_cf, Box) else self.x_cf[rows]
        part = BoundProblem(
            self.param_set,
            self.x[rows],
            x_cf,
            self.sign[rows],
            precision=self.precision,
            steps=self.steps,
            decide=self.decide,
        )
        part._whole = self, rows
        return part

    @cached_property
    def ranges(self) -> Trace:
        """Ranges of every hidden layer at ``x_cf``, over the set."""
        if self._whole is None:
            return trace(self.param_set, self.x_cf)
        whole, rows = self._whole
        return whole.ranges.select(rows)

    @cached_property
    def slack(self) -> Tensor:
        """What floating point can cost at ``x_cf`` over the whole set, (..., n); 0 in exact arithmetic."""
        if self._whole is not None:
            whole, rows = self._whole
            return whole.slack[rows]
        if self.precision is None:
            return self.sign.new_zeros(self.sign.shape)
        return logit_error(self.param_set, self.ranges, self.precision)

    @cached_property
    def interval(self) -> Tensor:
        """IBP's upper bound (..., n), slack included."""
        if self._whole is not None:
            whole, rows = self._whole
            return whole.interval[rows]
        upper = ibp_upper(self.param_set, self.ranges, self.sign)
        return upper if self.precision is None else upper + self.slack

    @cached_property
    def plane(self) -> Affine:
        """CROWN-IBP's upper plane, slack included."""
        if self._whole is not None and "plane" in vars(self._whole[0]):
            whole, rows = self._whole
            return whole.plane.select(rows)
        plane = upper_plane(self.param_set, self.ranges, self.sign)
        return plane if self.precision is None else plane.shift(self.slack)

    def constraint(self) -> Affine:
        """An upper plane of sign * logit(x), slack included: at least 0 for models that keep x's decision."""
        own = trace(self.param_set, self.x)
        plane = upper_plane(self.param_set, own, self.sign)
        if self.precision is None:
            return plane
        return plane.shift(logit_error(self.param_set, own, self.precision))
