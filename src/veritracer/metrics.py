"""What a set of counterfactuals is worth: each number of the paper's tables as one function.

Rows are encoded tensors (n, d) in [0, 1]; ``valid`` is a boolean mask (n,). A mean over no rows is nan,
never 0: a method that found nothing has no proximity. Smaller is better for distances, larger for rates.
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
"""Rows whose models are attacked together: each row has a copy of all parameters."""


class CrossModel(NamedTuple):
    """How the counterfactuals of one model fare on others; each an array with an entry for each of them.

    ``keeps`` is the share with f_m(x′) = f(x′), the paper's words; ``differs`` the share with
    f_m(x′) ≠ f_m(x), the paper's code. ``agreement`` is the share with f_m(x) = f(x), the cap of
    ``differs`` for counterfactuals that hold: if all of them keep their decision, the two are equal.
    """

    keeps: NDArray[np.float64]
    differs: NDArray[np.float64]
    agreement: NDArray[np.float64]


def favourable(module: nn.Module, x: Tensor) -> Tensor:
    """The decisions (n,) of a torch MLP as booleans, computed in its own precision."""
    network, theta = from_module(module)
    with torch.no_grad():
        return network.logit(theta, x.to(theta[0])) > 0


def valid_rows(module: nn.Module, x: Tensor, x_cf: Tensor) -> Tensor:
    """Where the counterfactual is decided otherwise than the row, (n,) bool."""
    return favourable(module, x) != favourable(module, x_cf)


def validity(module: nn.Module, x: Tensor, x_cf: Tensor) -> float:
    """The share of rows whose counterfactual the model decides otherwise."""
    return _mean(valid_rows(module, x, x_cf))


def certified_rate(certified: Tensor | ArrayLike) -> float:
    """The share of all rows with a certificate; a row without a valid counterfactual counts as 0."""
    return _mean(certified)


def certified_rate_of_valid(certified: Tensor | ArrayLike, valid: Tensor | ArrayLike) -> float:
    """The share of valid counterfactuals with a certificate: what the paper calls δ-robustness."""
    return _mean(certified, valid)


def unbroken_rate(param_set: ParamSet, x: Tensor, x_cf: Tensor, *, steps: int = 25) -> float:
    """The share of all rows that are valid and that no attacked model of the set breaks.

    An upper limit of what could be certified: the truth lies between ``certified_rate`` and this.
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
    """How the counterfactuals of ``module`` fare on the ``others``, in both of the paper's definitions.

    With ``valid_only`` a share is one of the counterfactuals that are valid for ``module`` (the paper);
    without, of all rows, and an invalid one has neither kept nor differed.
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
    """The mean over valid rows of the L1 distance divided by the number of encoded columns."""
    return _mean((x_cf - x).abs().mean(-1), valid)


def sparsity(
    encoding: Encoding,
    x: Tensor,
    x_cf: Tensor,
    valid: Tensor | ArrayLike | None = None,
    *,
    tolerance: float = MOVED,
) -> float:
    """The mean share of features that change; a one-hot group is one feature."""
    return _mean(encoding.changed(x_cf, x, tol=tolerance).double().mean(-1), valid)


def manifold_distance(x_cf: Tensor, x_train: Tensor, valid: Tensor | ArrayLike | None = None) -> float:
    """DDM: the mean L1 distance to the nearest training row, divided by the number of encoded columns."""
    chosen = _select(x_cf, valid)
    if not len(chosen):
        return float("nan")
    _, distance = Neighbours(x_train).nearest(torch.from_numpy(chosen))
    return float(distance.mean())


def broken_groups(encoding: Encoding, x_cf: Tensor) -> float:
    """The share of rows with a one-hot group that is not one 1 and otherwise 0: nobody can be that."""
    broken = torch.zeros(len(x_cf), dtype=torch.bool)
    for group in encoding.groups:
        block = x_cf[:, group].cpu()
        broken |= ((block != 0) & (block != 1)).any(-1) | ((block == 1).sum(-1) != 1)
    return _mean(broken)


def accuracy(module: nn.Module, x: Tensor, y: Tensor | ArrayLike) -> float:
    """The share of rows that are decided as their label says; ``y`` is 1 for favourable and 0 for not."""
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
