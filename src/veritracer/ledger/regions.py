"""What was promised beyond the shown row, in raw units, and as another model reads it.

An encoding clips every number to its range, and so does a region that is kept encoded: a drift of 2 around
an age of 85 is nothing at all where the range ends at 60. A later model with a wider range sees the
difference. The ends of a promise are therefore kept as raw numbers (positions, where a feature is a ladder
of categories), however far out, and carried over to the encoding of whoever reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import Block, Encoding
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.promises import IssuingModel, Promises, RawRows
from veritracer.schema.feature import Feature, is_number
from veritracer.search.problem import CoveredRegion, Drift, certified_region

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

OUTWARDS = 1e-12
"""Regions that are carried over to another scale grow by this much, more than rounding takes from them."""

ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""What computing a raw end may have cost, as a share of its size."""

DRIFTS = "Meanwhile "
"""How a sentence of the first layout began that spoke of a drift."""


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
