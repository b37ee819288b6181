"""What is about to be promised, checked again: nothing is issued on trust.

``Counterfactuals`` are values that anybody can copy and edit. Before they become promises, the texts that
are going to be kept are encoded anew and have to be the rows that were certified, to the bit; the model
itself has to decide as they say; and everything that they claim of later models is proved again, for the
very set that the ledger is going to name. Without the search for the largest radius that is cheap.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds import Box
from veritracer.certificate import Certificates, certify
from veritracer.decisions import decisions
from veritracer.encoding import Encoding
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.promised import IssuingModel
from veritracer.ledger.records import Texts
from veritracer.ledger.regions import reach_of
from veritracer.ledger.texts import Row, table_of
from veritracer.network import to_module
from veritracer.recourse import Counterfactuals
from veritracer.threads import one_thread

ROUNDING = 1e-9
"""A bound that is computed again, in other company, may differ by this share of its size."""

_ANEW = "explain again, and issue what explain answers as it is"


def check_claims(found: Counterfactuals, texts: Texts, module: nn.Module, issuing: IssuingModel) -> None:
    """Nothing; refuses counterfactuals that say more than is shown, decided and proved."""
    if found.encoding_digest != issuing.encoding.digest:
        received = f"{issuing.encoding.digest[:12]}… where they speak of {found.encoding_digest[:12]}…"
        raise LedgerError(message("the encoding that the certificates speak of", received, _ANEW))
    if len(texts.rows) == 0:
        return
    rows = torch.from_numpy(texts.rows)
    x, x_cf = found.x[rows].cpu(), found.x_cf[rows].cpu()
    _check_encoded("values that encode to the certified rows", issuing.encoding, texts.shown, x_cf)
    _check_encoded("original rows that encode to the explained ones", issuing.encoding, texts.original, x)
    _check_regions(found, rows)
    with one_thread():
        _check_decisions(found, texts.rows, module, x, x_cf)
        _check_proofs(found, texts.rows, issuing, x, x_cf)


def _check_encoded(expected: str, encoding: Encoding, rows: list[Row], certified: Tensor) -> None:
    try:
        again = encoding.encode(table_of(rows, encoding.schema.names), out_of_range="ignore")
    except (DataError, LedgerError) as error:
        raise LedgerError(message(expected, f"others ({error})", _ANEW)) from error
    _refuse(expected, (again != certified).any(-1).numpy())


def _check_regions(found: Counterfactuals, rows: Tensor) -> None:
    """The region is the one that overshoot and drift say, where something is proved of it."""
    region = reach_of(found).region(found.x_cf[rows].cpu(), found.x[rows].cpu())
    box = region if isinstance(region, Box) else Box(region, region)
    pairs = (box.lower, found.lower[rows].cpu()), (box.upper, found.upper[rows].cpu())
    other = torch.stack([(ours != theirs).any(-1) for ours, theirs in pairs]).any(0).numpy()
    _refuse("the regions that overshoot and drift ask for", other & _proved(found)[rows.numpy()])


def _check_decisions(
    found: Counterfactuals, rows: NDArray[np.intp], module: nn.Module, x: Tensor, x_cf: Tensor
) -> None:
    today, there = (decisions(module, points).sign for points in (x, x_cf))
    _refuse("today's decisions on the original rows", found.favourable[rows] != (today > 0).numpy())
    _refuse("counterfactuals that are decided otherwise today", (there == today).numpy())


def _check_proofs(
    found: Counterfactuals, rows: NDArray[np.intp], issuing: IssuingModel, x: Tensor, x_cf: Tensor
) -> None:
    """Everything that is said of later models has a proof, and an unconditional one where no more is said."""
    certified, radius = found.certified[rows], found.radius[rows]
    kappa = np.where(certified, found.kappa, radius)
    worst = found.worst_logit[rows]
    _refuse("certificates whose bound is below 0", certified != (worst < 0))
    _refuse("a radius of at least kappa, and finite numbers", ~(radius >= kappa) | np.isinf(radius))
    region = Box(found.lower[rows].cpu(), found.upper[rows].cpu())
    proofs = _Proofs(issuing, x, x_cf, None if reach_of(found).is_point else region)
    for value in np.unique(kappa[_proved(found)[rows]]):
        some = np.flatnonzero(_proved(found)[rows] & (kappa == value))
        again = proofs.at(float(value), some)
        _refuse("a proof for every certificate", ~again.certified)
        _refuse("the condition that a proof needs", again.conditional & ~found.conditional[rows][some])
        named = certified[some]
        _refuse("the method that proves it", named & (again.method != found.method[rows][some]))
        slack = ROUNDING * (1 + np.abs(again.worst_logit))
        _refuse("the bound that is proved", named & (worst[some] < again.worst_logit - slack))
    for value in np.unique(radius[radius > kappa]):
        some = np.flatnonzero((radius > kappa) & (radius == value))
        _refuse("a proof for every radius", ~proofs.at(float(value), some).certified)


class _Proofs:
    """The same rows, to be proved at one kappa or another."""

    def __init__(self, issuing: IssuingModel, x: Tensor, x_cf: Tensor, region: Box | None) -> None:
        self.issuing, self.x, self.x_cf, self.region = issuing, x, x_cf, region
        self.module = to_module(issuing.network, issuing.theta)

    def at(self, kappa: float, some: NDArray[np.intp]) -> Certificates:
        """Certificates of some of them."""
        part = torch.from_numpy(some)
        target = self.x_cf[part] if self.region is None else self.region.select(part)
        return certify(self.module, self.x[part], target, self.issuing.param_set(kappa), radius=False)


def _proved(found: Counterfactuals) -> NDArray[np.bool_]:
    """Where something is said of later models."""
    said: NDArray[np.bool_] = found.certified | (found.radius > 0)
    return said


def _refuse(expected: str, wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        received = f"{int(wrong.sum()):,} of {len(wrong):,} rows without"
        raise LedgerError(message(expected, received, _ANEW))
