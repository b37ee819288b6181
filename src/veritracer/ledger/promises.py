"""Promises as arrays, the models that issued them, and promised regions in raw units.

An issuing model is stored as two blobs: a JSON document, whose SHA-256 is the model's digest, and its weights
as safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.encoding import Block, Encoding
from veritracer.errors import DataError, LedgerError, VeriTracerError, message
from veritracer.files import envelope
from veritracer.models.balls import Norm
from veritracer.models.network import Network, Theta, from_module
from veritracer.models.param_sets import ParamSet
from veritracer.schema.feature import Feature, is_number
from veritracer.search.problem import CoveredRegion, Drift, certified_region

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

FORMAT, VERSION = "veritracer-issuing-model", 1

OUTWARDS = 1e-12
"""A region rebuilt from its raw ends is widened outward by this much, more than rounding takes from it."""

ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Rounding error of a raw end, as a share of its size."""


@dataclass(frozen=True)
class IssuingModel:
    """A model as it was when it issued promises, with all that a later proof needs.

    Attributes
    ----------
    digest
        Digest of all other attributes, by which the ledger names the model.
    network, theta
        The classifier in float64; the decision threshold is part of its last bias.
    threshold
        The probability at which it decides, as it was set; a later model must have the same one to be in the
        set.
    encoding
        The map between raw tables and the model's inputs.
    norm, units
        The set of models: tensor i may move by kappa * ``units[i]`` in this norm.
    model_digest
        Digest of network and theta alone, as in certificates.
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
        """Return the set of models that a promise at ``kappa`` covers."""
        units = tuple(t.new_tensor(unit) for t, unit in zip(self.theta, self.units, strict=True))
        return ParamSet(self.network, self.theta, units, self.norm, kappa)

    @classmethod
    def of(cls, module: nn.Module, encoding: Encoding, threshold: float, model_set: ParamSet) -> IssuingModel:
        """Return the issuing model of promises that cover ``model_set``."""
        network, theta = from_module(module)
        theta = tuple(t.detach().to("cpu", torch.float64, copy=True) for t in theta)
        found = cls(
            digest="",
            network=network,
            theta=theta,
            threshold=float(threshold),
            encoding=encoding,
            norm=model_set.norm,
            units=tuple(float(unit) for unit in model_set.units),
            model_digest=network.digest(theta),
        )
        return replace(found, digest=hashlib.sha256(found.document()).hexdigest())

    def document(self) -> bytes:
        """Return the model as canonical JSON, with the digest of its weights."""
        shape = self.network
        content = {
            **envelope(FORMAT, VERSION),
            "network": {"slopes": shape.slopes, "readout": shape.readout, "biased": shape.biased},
            "threshold": self.threshold,
            "encoding": json.loads(self.encoding.to_json()),
            "encoding_digest": self.encoding.digest,
            "norm": self.norm,
            "units": self.units,
            "model_digest": self.model_digest,
        }
        return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Return the document, whose SHA-256 is the digest, and the weights as safetensors."""
        return self.document(), save_tensors({str(i): t.contiguous() for i, t in enumerate(self.theta)})

    @classmethod
    def from_bytes(cls, document: bytes, tensors: bytes) -> IssuingModel:
        """Read a model; refuse it unless it is complete and its weights are those of the document."""
        try:
            content: dict[str, Any] = json.loads(document)
            version = content.get("format"), content.get("version")
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise _altered(str(error)) from error
        if version != (FORMAT, VERSION):
            received = f"{version[0]!r} {version[1]!r}"
            remedy = "read the ledger with the release that wrote it"
            raise LedgerError(message(f"version {VERSION} of {FORMAT}", received, remedy))
        try:
            model = _read(content, load_tensors(tensors), hashlib.sha256(document).hexdigest())
            whole = _is_whole(model) and content["encoding_digest"] == model.encoding.digest
        except (VeriTracerError, safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
            raise _altered(str(error)) from error
        if not whole or model.network.digest(model.theta) != model.model_digest:
            raise _altered("others")
        return model


@dataclass(frozen=True)
class Promises:
    """Promises of one issuing model as arrays, with one entry for each.

    Attributes
    ----------
    model
        The digest of the ``IssuingModel``.
    sequence
        The number of each promise: the number of its entry in the ledger.
    ids
        The applicants' ids, as given by the issuer.
    issued, expires
        Seconds since 1970, in UTC; ``expires`` is infinite where there is no end.
    kappa, conditional
        The promised set, and whether the original row must keep its decision; kappa is 0 for what was valid
        on its day and nothing more.
    radius
        The largest kappa with a proof; between ``kappa`` and it the proof may be conditional.
    worst_logit
        The certificate's bound.
    favourable
        The decision on the original row when the promise was made; the counterfactual has the other one.
    x_cf
        The counterfactual in the issuing model's encoding: (n, d), float64.
    x
        The original row in the same encoding; NaN where it cannot be read.
    region
        The lower and upper ends of the promised region in raw units, (n, 2, n_features): numbers, or
        positions among the categories of the issuing schema; NaN where the shown value alone was promised.
    shown, original
        The counterfactuals and the original rows as raw values, (n, n_features); None unless they were asked
        for. Where the original row cannot be read, ``original`` repeats the shown one.
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
    region: NDArray[np.float64]
    shown: pd.DataFrame | None = None
    original: pd.DataFrame | None = None

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True)
class SetRequirement:
    """Live promises that require the same of a later model: to stay in one set.

    ``count`` promises of the issuing model ``model`` at ``kappa``, of which ``conditional`` also need the
    applicant to keep today's decision.
    """

    model: str
    kappa: float
    count: int
    conditional: int


@dataclass(frozen=True)
class Counts:
    """Numbers of promises by status; the sum is all that were made."""

    live: int
    expired: int
    released: int
    erased: int


def select(piece: Promises, rows: NDArray[np.intp]) -> Promises:
    """Return some of the promises."""
    some: dict[str, Any] = {f.name: _select(getattr(piece, f.name), rows) for f in fields(piece)}
    return Promises(**some)


def _select(value: Any, rows: NDArray[np.intp]) -> Any:
    if isinstance(value, Tensor):
        return value[torch.from_numpy(rows)]
    if isinstance(value, pd.DataFrame):
        return value.iloc[rows].reset_index(drop=True)
    if isinstance(value, list):
        return [value[row] for row in rows.tolist()]
    return value[rows] if isinstance(value, np.ndarray) else value


def _read(content: dict[str, Any], named: dict[str, Tensor], digest: str) -> IssuingModel:
    shape = content["network"]
    return IssuingModel(
        digest=digest,
        network=Network(tuple(shape["slopes"]), tuple(shape["readout"]), tuple(shape["biased"])),
        theta=tuple(named[str(i)] for i in range(len(named))),
        threshold=content["threshold"],
        encoding=Encoding.from_json(json.dumps(content["encoding"])),
        norm=content["norm"],
        units=tuple(content["units"]),
        model_digest=content["model_digest"],
    )


def _is_whole(model: IssuingModel) -> bool:
    """Return whether the parts fit: a model that can decide about rows of its encoding, and a set."""
    network, theta = model.network, model.theta
    layers = len(network.slopes) + 1
    if len(theta) != 2 * layers or len(network.biased) != layers or len(model.units) != len(theta):
        return False
    into = model.encoding.dim
    for weight, bias in network.layers(theta):
        if weight.dim() != 2 or weight.shape[1] != into or tuple(bias.shape) != (len(weight),):
            return False
        into = len(weight)
    finite = all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in theta)
    numbers = all(type(n) is float for n in (*network.slopes, *model.units, model.threshold))
    return (
        finite
        and numbers
        and network.readout == ((1.0,) if into == 1 else (-1.0, 1.0))
        and into in (1, 2)
        and all(type(has) is bool for has in network.biased)
        and all(0.0 <= slope <= 1.0 for slope in network.slopes)
        and all(0.0 <= unit < math.inf for unit in model.units)
        and 0.0 < model.threshold < 1.0
        and model.norm in get_args(Norm)
    )


def _altered(received: str) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify, and take it from a backup"
    return LedgerError(message("the weights that an issuing model's digest names", received, remedy))


def digest_of(module: nn.Module) -> str:
    """Return the digest by which ledgers and audits name a model: of its network and its weights."""
    network, theta = from_module(module)
    return network.digest(tuple(t.detach().to("cpu", torch.float64) for t in theta))


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that is not a probability strictly between 0 and 1."""
    if not 0.0 < threshold < 1.0:
        raise DataError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))


# -------------------------------------------------------------------------------- promised regions


def certified_region_of(found: Counterfactuals) -> CoveredRegion:
    """Return how far people may go beyond the counterfactual."""
    return certified_region(found.encoding, found.overshoot, found.drift)


def is_wide(region: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the rows of which more than the shown row was promised, (n,)."""
    return np.asarray(~np.isnan(region[:, 0]).all(1))


def promised_region(found: Counterfactuals) -> NDArray[np.float64]:
    """Return the raw ends of the regions of these counterfactuals; a point where nothing is proved.

    See ``Promises.region``.
    """
    encoding = found.encoding
    moves = any(any(Drift.of(asked)) for asked in found.drift.values())
    ends = np.full((len(found), 2, len(encoding.schema)), np.nan)
    if len(found) == 0 or (found.overshoot == 0 and not moves):
        return ends
    below, above = certified_region_of(found).widths(found.x_cf, found.x)
    shown = encoding.numbers(found.frame)
    for i, block in enumerate(encoding.blocks):
        name = block.feature.name
        down, up, width = below[:, block.start], above[:, block.start], encoding.units.width(name)
        if width == 0:  # every value is encoded alike, so that the encoded widths do not show a drift
            least, most = Drift.of(found.drift.get(name, 0.0))
            down, up, width = torch.full_like(down, -least), torch.full_like(up, most), 1.0
        wide = (down > 0) | (up > 0)
        if block.group is not None or not bool(wide.any()):
            continue
        for k, moved in enumerate((shown[:, i] - down * width, shown[:, i] + up * width)):
            ends[:, k, i] = torch.where(wide, moved, torch.nan).numpy()
    ends[~(found.certified | (found.radius > 0))] = np.nan
    return ends


def rebuilt(
    encoding: Encoding, theirs: Encoding, region: NDArray[np.float64], x_cf: Tensor
) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
    """Return a region in an encoding, as lower and upper ends (n, d), and where it is not known, (n,).

    ``theirs`` is the issuing encoding, ``x_cf`` the shown rows in ``encoding``. The ends are rounded outward:
    every row between the raw ends is encoded between them.
    """
    lower, upper, unknown = x_cf.clone(), x_cf.clone(), np.zeros(len(x_cf), dtype=bool)
    owners = {name: i for i, name in enumerate(theirs.schema.names)}
    for block in encoding.blocks:
        i = owners[block.feature.name]
        rows = np.flatnonzero(~np.isnan(region[:, 0, i]))
        if len(rows) == 0:
            continue
        missing = encoding.missing(x_cf[rows])[:, block.start].numpy()
        low, high, known = _column(encoding, block, theirs.schema.features[i], region[rows, :, i])
        unknown[rows] |= ~known | missing
        at = torch.from_numpy(rows)
        lower[at, block.start] = torch.minimum(lower[at, block.start], (low - OUTWARDS).clamp(min=0.0))
        upper[at, block.start] = torch.maximum(upper[at, block.start], (high + OUTWARDS).clamp(max=1.0))
    return lower, upper, unknown


def _column(
    encoding: Encoding, block: Block, theirs: Feature, ends: NDArray[np.float64]
) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
    """Return the encoded ends of one feature's region, (k,) each, and a mask of where they are known.

    ``ends`` are the raw ones, (k, 2).
    """
    mine = block.feature
    lower, upper = ends[:, 0], ends[:, 1]
    known_here = np.full(len(lower), block.group is None and mine.is_numeric == theirs.is_numeric)
    if not known_here.any():  # a number became a category, or the other way round
        return torch.ones(len(lower)).double(), torch.zeros(len(lower)).double(), known_here
    if mine.is_numeric:
        codes = [float(c) for c in mine.missing_codes if is_number(c) and c not in theirs.missing_codes]
        for code in codes:  # a value of theirs that means "missing" here is encoded elsewhere
            known_here &= (code < lower) | (code > upper)
    elif mine.categories != theirs.categories:
        lower, upper, known_here = _levels(mine, theirs, lower, upper)
    first, last = torch.from_numpy(lower), torch.from_numpy(upper)
    size = torch.maximum(first.abs(), last.abs())
    room = ROUNDING * size + encoding.units.tolerance(mine.name, size)
    low, high = encoding.units.interval(mine.name, first - room, last + room)
    return low, high, known_here


def _levels(
    mine: Feature, theirs: Feature, lower: NDArray[np.float64], upper: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the first and last position here of the categories between two positions of theirs."""
    position = np.array([_position(mine, value) for value in theirs.categories])
    there, levels = position >= 0, np.arange(len(position))
    inside = (levels >= np.ceil(lower - 1e-9)[:, None]) & (levels <= np.floor(upper + 1e-9)[:, None])
    known_here = np.asarray(~(inside & ~there).any(1) & inside.any(1))
    first = np.where(inside & there, position, len(mine.categories)).min(1)
    last = np.where(inside & there, position, -1).max(1)
    return first.astype(np.float64), last.astype(np.float64), known_here


def _position(feature: Feature, value: object) -> int:
    return feature.categories.index(value) if value in feature.categories else -1


def encoded_rows(
    encoding: Encoding, promises: Promises, issuing: IssuingModel
) -> tuple[Tensor, Tensor, Box, NDArray[np.bool_]]:
    """Return counterfactuals and originals (n, d) as a model with that encoding sees them.

    Beside them are the boxes of the promised regions, and a mask (n,) of the rows whose region is not known
    in that encoding. An original row that cannot be read is NaN.

    With the issuing encoding they are the numbers that were certified. With another one the raw values are
    encoded again, clipped to its ranges as any later application would be. A region is rebuilt from its raw
    ends in either case.
    """
    theirs = issuing.encoding
    anew = theirs.digest != encoding.digest
    x_cf, x = _encoded_again(encoding, promises, issuing) if anew else (promises.x_cf, promises.x)
    if not is_wide(promises.region).any():
        return x_cf, x, Box(x_cf, x_cf), np.zeros(len(x_cf), dtype=bool)
    lower, upper, unknown = rebuilt(encoding, theirs, promises.region, x_cf)
    return x_cf, x, Box(lower, upper), unknown


def _encoded_again(encoding: Encoding, promises: Promises, issuing: IssuingModel) -> tuple[Tensor, Tensor]:
    """Return the shown rows and the original ones, (n, d) each, encoded from their raw values."""
    if promises.shown is None or promises.original is None:
        remedy = "read them with raw_for= the issuing models of another encoding"
        raise LedgerError(message("promises with their raw values", "encoded ones alone", remedy))
    try:
        x_cf = encoding.encode(promises.shown, out_of_range="ignore")
        x = encoding.encode(promises.original, out_of_range="ignore")
    except DataError as error:
        expected = f"a model that can read what {issuing.digest[:12]} promised"
        remedy = "audit a model of the same table"
        raise DataError(message(expected, f"one that cannot ({error})", remedy)) from error
    return x_cf, torch.where(torch.isnan(promises.x).any(-1, keepdim=True), torch.nan, x)
