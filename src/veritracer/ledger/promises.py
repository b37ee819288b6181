"""What the ledger knows, as values: promises by the column, and the models that issued them.

An issuing model is kept as two blobs: a JSON document, whose SHA-256 is the model's digest, and its weights
as safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from veritracer.encoding import Block, Encoding
from veritracer.errors import DataError, LedgerError, VeriTracerError, message
from veritracer.files import envelope
from veritracer.models.balls import Norm
from veritracer.models.network import Network, Theta, from_module
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.schema.feature import Feature, is_number
from veritracer.search.problem import CoveredRegion, Drift, certified_region

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

FORMAT, VERSION = "veritracer-issuing-model", 1

OUTWARDS = 1e-12
"""Regions that are carried over to another scale grow by this much, more than rounding takes from them."""

ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""What computing a raw end may have cost, as a share of its size."""

DRIFTS = "Meanwhile "
"""How a sentence of the first layout began that spoke of a drift."""


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

    @classmethod
    def of(
        cls, module: nn.Module, encoding: Encoding, threshold: float, norm: Norm, radius: RadiusRule | float
    ) -> IssuingModel:
        """A model as it is when it issues promises."""
        network, theta = from_module(module)
        theta = tuple(t.detach().to("cpu", torch.float64, copy=True) for t in theta)
        units = tuple(float(unit) for unit in ParamSet.of(network, theta, norm=norm, radius=radius).units)
        found = cls(
            digest="",
            network=network,
            theta=theta,
            threshold=float(threshold),
            encoding=encoding,
            norm=norm,
            units=units,
            model_digest=network.digest(theta),
        )
        return replace(found, digest=hashlib.sha256(found.document()).hexdigest())

    def document(self) -> bytes:
        """The model as canonical JSON, with the digest of its weights."""
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
        """The document, whose SHA-256 is the model's digest, and the weights as safetensors."""
        return self.document(), save_tensors({str(i): t.contiguous() for i, t in enumerate(self.theta)})

    @classmethod
    def from_bytes(cls, document: bytes, tensors: bytes) -> IssuingModel:
        """The model, refused unless it is whole and its weights are those that the document names."""
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
class SetRequirement:
    """Live promises that ask the same of a later model: to stay in one set.

    ``count`` promises of the issuing model ``model`` at ``kappa``, of which ``conditional`` also need that
    the person keeps today's decision.
    """

    model: str
    kappa: float
    count: int
    conditional: int


@dataclass(frozen=True)
class Counts:
    """How many promises there are, by what has become of them, and how many entries are mere advice.

    The sum is all that were made.
    """

    live: int
    expired: int
    released: int
    erased: int
    advice: int = 0


class Told(NamedTuple):
    """The raw values that somebody was shown, and their own; None where these cannot be read."""

    shown: dict[str, Any]
    original: dict[str, Any] | None


def select(piece: Promises, rows: NDArray[np.intp]) -> Promises:
    """Some of the promises."""
    some: Promises = _select(piece, rows, torch.from_numpy(rows))
    return some


def _select(value: Any, rows: NDArray[np.intp], taken: Tensor) -> Any:
    if isinstance(value, Promises | RawRows):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: _select(part, rows, taken) for name, part in parts.items()})
    if isinstance(value, Tensor):
        return value[taken]
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
    """Whether the parts fit each other: a model that can decide about rows of its encoding, and a set."""
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
    """The digest by which ledgers and audits name a model: of its network and its weights."""
    network, theta = from_module(module)
    return network.digest(tuple(t.detach().to("cpu", torch.float64) for t in theta))


def check_threshold(threshold: float) -> None:
    """Refuse what is no probability to decide at."""
    if not 0.0 < threshold < 1.0:
        raise DataError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))


# ---------------------------------------------------------------- promised regions


class Ends(NamedTuple):
    """The raw ends of what was promised, (n, n_features) each; NaN where the shown value alone was."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    @property
    def wide(self) -> NDArray[np.bool_]:
        """Where more than the shown row was promised, (n,)."""
        return np.asarray(~np.isnan(self.lower).all(1))

    def where(self, rows: NDArray[np.bool_]) -> Ends:
        """The ends of these rows, and none of the others."""
        return Ends(*(np.where(rows[:, None], end, np.nan) for end in self))


def certified_region_of(found: Counterfactuals) -> CoveredRegion:
    """Return how far people may go beyond what they are told."""
    return certified_region(found.encoding, found.overshoot, found.drift)


def promised_ends(found: Counterfactuals) -> Ends:
    """The ends of what these counterfactuals promise where something is proved of them."""
    encoding = found.encoding
    moves = any(any(Drift.of(asked)) for asked in found.drift.values())
    if len(found) == 0 or (found.overshoot == 0 and not moves):
        nothing = np.full((len(found), len(encoding.schema)), np.nan)
        return Ends(nothing, nothing)
    below, above = certified_region_of(found).widths(found.x_cf, found.x)
    shown = encoding.numbers(found.frame)
    for block in encoding.blocks:
        name = block.feature.name
        if (
            encoding.units.width(name) == 0
        ):  # every value is encoded alike, so that no drift of it shows there
            least, most = Drift.of(found.drift.get(name, 0.0))
            below[:, block.start], above[:, block.start] = -least, most
    ends = _around(encoding, shown, below, above)
    return ends.where(found.certified | (found.radius > 0))


def first_layout_ends(encoding: Encoding, shown: Tensor, x_cf: Tensor, lower: Tensor, upper: Tensor) -> Ends:
    """The ends that encoded regions have in raw units, as far as they were kept."""
    return _around(encoding, shown, x_cf - lower, upper - x_cf)


def first_layout_cut(
    encoding: Encoding, x_cf: Tensor, x: Tensor, lower: Tensor, upper: Tensor, said: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Where more may have been promised than an encoded region shows, (n,).

    A region that ends where the range of a number does may have been cut there. So may one that has no
    extent in a column, if it could only have grown beyond the range: of a one-way feature at its end, or of
    one that was changed to it. ``said`` is where people may have been told of a region at all.
    """
    features = [encoding.blocks[i].feature for i in encoding.owner.tolist()]
    number = torch.tensor([f.is_numeric for f in features]) & encoding.numeric
    flat = torch.tensor([encoding.units.width(f.name) == 0 for f in features])
    wide, unknown = lower < upper, torch.isnan(x).any(-1, keepdim=True)
    down = (x_cf < x) | unknown | flat | torch.tensor([f.action == "decrease_only" for f in features])
    up = (x_cf > x) | unknown | flat | torch.tensor([f.action == "increase_only" for f in features])
    cut = ((lower <= 0) & (wide | down)) | ((upper >= 1) & (wide | up))
    found = (cut & number & ~encoding.missing(x_cf)).any(-1).numpy()
    return np.asarray(found & (said | wide.any(-1).numpy()))


def _around(encoding: Encoding, shown: Tensor, below: Tensor, above: Tensor) -> Ends:
    """The ends from raw values (n, n_features) and encoded widths (n, d); NaN where there is no extent."""
    ends = np.full((2, *shown.shape), np.nan)
    for i, block in enumerate(encoding.blocks):
        down, up = below[:, block.start], above[:, block.start]
        if block.group is not None or not bool(((down > 0) | (up > 0)).any()):
            continue
        scale = encoding.units.width(block.feature.name) or 1.0
        wide = (down > 0) | (up > 0)
        for end, moved in zip(ends, (shown[:, i] - down * scale, shown[:, i] + up * scale), strict=True):
            end[:, i] = torch.where(wide, moved, torch.nan).numpy()
    return Ends(ends[0], ends[1])


def carried_over(
    encoding: Encoding, theirs: Encoding, raw: RawRows, x_cf: Tensor
) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
    """The region in another encoding, as lower and upper ends (n, d), and where it cannot be told, (n,)."""
    lower, upper, cut = x_cf.clone(), x_cf.clone(), raw.cut.copy()
    owners = {name: i for i, name in enumerate(theirs.schema.names)}
    for block in encoding.blocks:
        i = owners[block.feature.name]
        rows = np.flatnonzero(~np.isnan(raw.lower[:, i]))
        if len(rows) == 0:
            continue
        ends = Ends(raw.lower[rows][:, [i]], raw.upper[rows][:, [i]])
        missing = encoding.missing(x_cf[rows])[:, block.start].numpy()
        low, high, told = _column(encoding, block, theirs.schema.features[i], ends)
        cut[rows] |= ~told | missing
        at = torch.from_numpy(rows)
        lower[at, block.start] = torch.minimum(lower[at, block.start], (low - OUTWARDS).clamp(min=0.0))
        upper[at, block.start] = torch.maximum(upper[at, block.start], (high + OUTWARDS).clamp(max=1.0))
    return lower, upper, cut


def _column(
    encoding: Encoding, block: Block, theirs: Feature, ends: Ends
) -> tuple[Tensor, Tensor, NDArray[np.bool_]]:
    """Between which encoded numbers one feature was promised to lie, (k,) each, and where that is known."""
    mine = block.feature
    lower, upper = (end[:, 0] for end in ends)
    told = np.full(len(lower), block.group is None and mine.is_numeric == theirs.is_numeric)
    if not told.any():  # a number became a category, or the other way round
        return torch.ones(len(lower)).double(), torch.zeros(len(lower)).double(), told
    if mine.is_numeric:
        codes = [float(c) for c in mine.missing_codes if is_number(c) and c not in theirs.missing_codes]
        for code in codes:  # a value of theirs that means "missing" here is encoded elsewhere
            told &= (code < lower) | (code > upper)
    else:
        lower, upper, told = _levels(mine, theirs, lower, upper)
    first, last = torch.from_numpy(lower), torch.from_numpy(upper)
    size = torch.maximum(first.abs(), last.abs())
    room = ROUNDING * size + encoding.units.tolerance(mine.name, size)
    low, high = encoding.units.interval(mine.name, first - room, last + room)
    return low, high, told


def _levels(
    mine: Feature, theirs: Feature, lower: NDArray[np.float64], upper: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """The first and the last position here of the categories between two positions there."""
    position = np.array([_position(mine, value) for value in theirs.categories])
    known, levels = position >= 0, np.arange(len(position))
    inside = (levels >= np.ceil(lower - 1e-9)[:, None]) & (levels <= np.floor(upper + 1e-9)[:, None])
    told = np.asarray(~(inside & ~known).any(1) & inside.any(1))
    first = np.where(inside & known, position, len(mine.categories)).min(1)
    last = np.where(inside & known, position, -1).max(1)
    return first.astype(np.float64), last.astype(np.float64), told


def _position(feature: Feature, value: object) -> int:
    return feature.categories.index(value) if value in feature.categories else -1


class Rows(NamedTuple):
    """Counterfactuals, originals (NaN where they are not known) and regions as inputs of one model, (n, d).

    ``cut`` is where the region that was promised may be larger than the one here, (n,); None is nowhere.
    """

    x_cf: Tensor
    x: Tensor
    lower: Tensor
    upper: Tensor
    cut: Tensor | None = None

    @property
    def region(self) -> Tensor:
        """Where more than a point was promised, (n,)."""
        if self.lower is self.upper:
            return torch.zeros(len(self.x_cf), dtype=torch.bool)
        return (self.lower != self.upper).any(-1)

    @property
    def known(self) -> Tensor:
        """Where the original row is known, (n,)."""
        return ~torch.isnan(self.x).any(-1)


def rows_for(encoding: Encoding, promises: Promises, issuing: IssuingModel) -> Rows:
    """The rows as a model with that encoding sees them.

    With the issuing encoding they are the numbers that were certified. With another one the raw values that
    people were shown, and that they have, are encoded anew, clipped to its ranges as any later application
    would be; so is a region, whose ends are kept in raw units.
    """
    theirs = issuing.encoding
    if theirs.digest == encoding.digest:
        return Rows(promises.x_cf, promises.x, promises.lower, promises.upper)
    raw = promises.raw
    if raw is None:
        remedy = "read them with raw_for= the issuing models of another encoding"
        raise LedgerError(message("promises with their raw values", "encoded ones alone", remedy))
    try:
        x_cf, x = _encoded(encoding, raw)
    except DataError as error:
        expected = f"a model that can read what {issuing.digest[:12]} promised"
        remedy = "audit a model of the same table"
        raise DataError(message(expected, f"one that cannot ({error})", remedy)) from error
    lower, upper, cut = carried_over(encoding, theirs, raw, x_cf)
    return Rows(x_cf, x, lower, upper, torch.from_numpy(cut))


def _encoded(encoding: Encoding, raw: RawRows) -> tuple[Tensor, Tensor]:
    """The shown rows and the people's own, (n, d) each."""
    x_cf, x = (encoding.encode(table, out_of_range="ignore") for table in (raw.shown, raw.original))
    return x_cf, torch.where(torch.from_numpy(raw.known).unsqueeze(-1), x, torch.nan)
