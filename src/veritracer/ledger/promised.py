"""What the ledger knows, as values: promises by the column, and the models that issued them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from veritracer.balls import Norm
from veritracer.encoding import Encoding
from veritracer.network import Network, Theta
from veritracer.param_sets import ParamSet


@dataclass(frozen=True)
class IssuingModel:
    """A model as it was when it issued promises: all that a later proof needs.

    Attributes
    ----------
    digest
        Of everything below: the name under which the ledger keeps the model.
    network, theta
        The classifier in float64; the decision threshold is part of its last bias.
    threshold
        The probability at which it decides, as it was set; it must be the same for a later model to be in
        the set.
    encoding
        The map between raw tables and its inputs.
    norm, units
        The set of models: tensor i may move by kappa * ``units[i]`` in this norm.
    model_digest
        Of network and theta alone, as certificates name it.
    """

    digest: str
    network: Network
    theta: Theta
    threshold: float
    encoding: Encoding
    norm: Norm
    units: tuple[float, ...]
    model_digest: str

    def param_set(self, kappa: float) -> ParamSet:
        """The models that a promise at ``kappa`` speaks of."""
        units = tuple(t.new_tensor(unit) for t, unit in zip(self.theta, self.units, strict=True))
        return ParamSet(self.network, self.theta, units, self.norm, kappa)


@dataclass(frozen=True)
class RawRows:
    """Promised rows in raw values, as people know them: what a model with another encoding has to read.

    Attributes
    ----------
    shown
        The counterfactuals, (n, n_features).
    original, known
        People's own rows, and where they can be read; elsewhere ``original`` repeats the shown row.
    lower, upper
        The ends of what was promised, (n, n_features): raw numbers, or positions among the categories of the
        issuing schema. NaN where the shown value alone was promised.
    cut
        Where the ledger does not say how far a promise went, (n,): an early one kept its region only as far
        as the range of its encoding.
    """

    shown: pd.DataFrame
    original: pd.DataFrame
    known: NDArray[np.bool_]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cut: NDArray[np.bool_]


@dataclass(frozen=True)
class Promises:
    """Some promises of one issuing model, as arrays with one entry for each.

    Attributes
    ----------
    model
        The digest of the ``IssuingModel``.
    sequence
        The position in the ledger, which names a promise for good.
    ids
        Whose promise it is, as given by who issued it.
    issued, expires
        Seconds since 1970, in UTC; ``expires`` is infinite where there is no end.
    kappa, conditional
        The set that was promised, and whether the original row must keep its decision; kappa is 0 for what
        was valid on its day and nothing more.
    radius
        The largest kappa at which a proof was found; between ``kappa`` and it the proof may be conditional.
    worst_logit
        The certificate's bound.
    favourable
        The decision on the original row when the promise was made: the counterfactual's is the other one.
    x_cf
        The counterfactual, encoded by the issuing model's encoding: (n, d), float64.
    x
        The original row in the same way; NaN where only its commitment is kept.
    lower, upper
        The ends of the certified region, encoded and so cut at the range of the encoding; both are ``x_cf``
        where only a point was promised.
    raw
        The same rows in raw values; None where nobody asked for them.
    """

    model: str
    sequence: NDArray[np.int64]
    ids: list[str]
    issued: NDArray[np.float64]
    expires: NDArray[np.float64]
    kappa: NDArray[np.float64]
    conditional: NDArray[np.bool_]
    radius: NDArray[np.float64]
    worst_logit: NDArray[np.float64]
    favourable: NDArray[np.bool_]
    x_cf: Tensor
    x: Tensor
    lower: Tensor
    upper: Tensor
    raw: RawRows | None = None

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True)
class Limit:
    """Live promises that ask the same of a later model: to stay in one set.

    ``count`` promises of the issuing model ``model`` at ``kappa``, of which ``conditional`` also need that
    the person keeps today's decision.
    """

    model: str
    kappa: float
    count: int
    conditional: int
