"""Measure counterfactuals: one function for each number of the paper's tables.

Rows are encoded tensors (n, d) in [0, 1]; ``valid`` is a boolean mask (n,). A mean over no rows is NaN, never
0: a method that found nothing has no proximity. Smaller is better for distances, larger for rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from veritracer.bounds.attack import attack
from veritracer.encoding import Encoding
from veritracer.models.network import from_module, sign_of
from veritracer.models.param_sets import ParamSet
from veritracer.search.reference import Neighbours

MOVED = 0.01
"""A feature counts as changed when it moves by more than this in scaled units, as in the paper's code."""

ATTACKED_AT_ONCE = 500
"""Rows that are attacked together: each has its own copy of all parameters."""


class CrossModel(NamedTuple):
    """Validity of one model's counterfactuals on other models, as arrays with an entry for each of those.

    ``keeps`` is the share with f_m(x′) = f(x′), as in the paper's text; ``differs`` the share with
    f_m(x′) ≠ f_m(x), as in its code. ``agreement`` is the share with f_m(x) = f(x): if every x′ keeps its
    decision, ``differs`` equals it.
    """

    keeps: NDArray[np.float64]
    differs: NDArray[np.float64]
    agreement: NDArray[np.float64]


def favourable(module: nn.Module, x: Tensor) -> Tensor:
    """Return a mask (n,) of the rows that a torch MLP decides favourably, in its own precision."""
    network, theta = from_module(module)
    with torch.no_grad():
        return network.logit(theta, x.to(theta[0])) > 0


def valid_rows(module: nn.Module, x: Tensor, x_cf: Tensor) -> Tensor:
    """Return a mask (n,) of the counterfactuals that are decided differently from their rows."""
    return favourable(module, x) != favourable(module, x_cf)


def validity(module: nn.Module, x: Tensor, x_cf: Tensor) -> float:
    """Return the share of counterfactuals that the model decides differently from their rows."""
    return _mean(valid_rows(module, x, x_cf))


def certified_rate(certified: Tensor | ArrayLike) -> float:
    """Return the share of all rows with a certificate; a row without a counterfactual counts as 0."""
    return _mean(certified)


def certified_rate_of_valid(certified: Tensor | ArrayLike, valid: Tensor | ArrayLike) -> float:
    """Return the share of valid counterfactuals with a certificate, the paper's δ-robustness."""
    return _mean(certified, valid)


def unbroken_rate(param_set: ParamSet, x: Tensor, x_cf: Tensor, *, steps: int = 25) -> float:
    """Return the share of all rows that are valid and that the attack breaks with no model of the set.

    The true rate lies between ``certified_rate`` and this one.
    """
    center = param_set.center[0]
    unbroken = []
    for rows in torch.split(torch.arange(len(x)), ATTACKED_AT_ONCE):
        here, there = x[rows].to(center), x_cf[rows].to(center)
        sign = sign_of(param_set.network.logit(param_set.center, here))
        unbroken.append(attack(param_set, here, there, sign, steps=steps).worst_logit < 0)
    return _mean(torch.cat(unbroken)) if unbroken else float("nan")


def cross_model_validity(
    module: nn.Module, others: Sequence[nn.Module], x: Tensor, x_cf: Tensor, *, valid_only: bool = True
) -> CrossModel:
    """Measure the validity of the counterfactuals of ``module`` on the ``others``, by both definitions.

    With ``valid_only``, as in the paper, shares are of the counterfactuals that are valid for ``module``;
    otherwise of all rows, where an invalid counterfactual counts as 0.
    """
    own, own_cf = favourable(module, x), favourable(module, x_cf)
    valid = own != own_cf
    of = valid if valid_only else torch.ones_like(valid)
    found = []
    for other in others:
        theirs, theirs_cf = favourable(other, x), favourable(other, x_cf)
        kept, differs = (theirs_cf == own_cf) & valid, (theirs_cf != theirs) & valid
        found.append([_mean(kept, of), _mean(differs, of), _mean(theirs == own, of)])
    return CrossModel(*np.array(found, dtype=np.float64).reshape(-1, 3).T)


def proximity(x: Tensor, x_cf: Tensor, valid: Tensor | ArrayLike | None = None) -> float:
    """Return the mean L1 distance of valid rows, divided by the number of encoded columns."""
    return _mean((x_cf - x).abs().mean(-1), valid)


def sparsity(
    encoding: Encoding,
    x: Tensor,
    x_cf: Tensor,
    valid: Tensor | ArrayLike | None = None,
    *,
    tolerance: float = MOVED,
) -> float:
    """Return the mean share of changed features; a one-hot group is one feature."""
    return _mean(encoding.changed(x_cf, x, tol=tolerance).double().mean(-1), valid)


def manifold_distance(x_cf: Tensor, x_train: Tensor, valid: Tensor | ArrayLike | None = None) -> float:
    """Return the mean L1 distance to the nearest training row, divided by the number of columns (DDM)."""
    chosen = _select(x_cf, valid)
    if not len(chosen):
        return float("nan")
    _, distance = Neighbours(x_train).nearest(torch.from_numpy(chosen))
    return float(distance.mean())


def broken_groups(encoding: Encoding, x_cf: Tensor) -> float:
    """Return the share of rows with an illegal one-hot group: not a single 1 and otherwise 0."""
    broken = torch.zeros(len(x_cf), dtype=torch.bool)
    for group in encoding.groups:
        block = x_cf[:, group].cpu()
        broken |= ((block != 0) & (block != 1)).any(-1) | ((block == 1).sum(-1) != 1)
    return _mean(broken)


def accuracy(module: nn.Module, x: Tensor, y: Tensor | ArrayLike) -> float:
    """Return the share of rows whose decision equals their label, 1 for favourable and 0 otherwise."""
    return _mean(_array(favourable(module, x)) == (_array(y) > 0.5))


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    plain = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.asarray(plain, dtype=np.float64)


def _select(values: Tensor | ArrayLike, valid: Tensor | ArrayLike | None) -> NDArray[np.float64]:
    array = _array(values)
    return array if valid is None else array[_array(valid) > 0]


def _mean(values: Tensor | ArrayLike, valid: Tensor | ArrayLike | None = None) -> float:
    chosen = _select(values, valid)
    return float(chosen.mean()) if len(chosen) else float("nan")
