"""Encode raw tables as tensors in [0, 1]^d, decode them, and project onto legal rows."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import cells, projection, scales
from veritracer.encoding.cells import Floats, Markers, refused_rows
from veritracer.encoding.projection import Block, OneHotGroup, Rules, blocks_of, rules_of
from veritracer.encoding.scales import FeatureScale, Grid, Units
from veritracer.errors import DataError, DataWarning, SchemaError, listing, message
from veritracer.files import check_keys, envelope, read_json
from veritracer.formatting import format_value
from veritracer.schema import Feature, Schema

__all__ = ["Block", "Encoding", "Outside"]

_FORMAT = "veritracer-encoding"
_VERSION = 1


class Outside(NamedTuple):
    """Numbers of a feature, some of them outside the range of the training rows.

    ``ends`` are those of the range, ``value`` (n,) the raw numbers, and ``beyond`` (n,) how far they lie
    outside: 0 inside, and where a value is missing.
    """

    name: str
    ends: tuple[float, float]
    value: NDArray[np.float64]
    beyond: NDArray[np.float64]

    @property
    def far(self) -> NDArray[np.bool_]:
        """True where a number lies outside by more than the width of the range."""
        return self.beyond > self.ends[1] - self.ends[0]


@dataclass(frozen=True)
class Encoding:
    """Two-way map between a raw table and tensors of the shape (n, dim), learned by :meth:`fit`.

    >>> table = pd.DataFrame({"savings": [100, 300, 200], "job": ["cook", "clerk", "cook"]})
    >>> encoding = Encoding.fit(Schema.infer(table), table)
    >>> encoding.encode(table)[2]
    tensor([0.5000, 1.0000], dtype=torch.float64)
    >>> encoding.decode(encoding.encode(table)).equals(table)
    True
    """

    schema: Schema
    fitted: tuple[FeatureScale, ...]

    @classmethod
    def fit(cls, schema: Schema, frame: Any) -> Self:
        """Fit the scales that the schema does not declare to ``frame``."""
        table = schema.frame(frame)
        if len(table) < 2:
            raise DataError(
                message("at least two rows to learn from", "one row", "pass the whole training table")
            )
        encoding = cls(
            schema, tuple(scales.fit_scale(feature, table[feature.name]) for feature in schema.features)
        )
        constant = [
            name for name, fitted in zip(schema.names, encoding.fitted, strict=True) if fitted.constant
        ]
        if constant:
            text = message(
                "columns that vary",
                f"the same value in every row of {listing(constant)}",
                "nothing can be learned from them: they are kept as they are; leave them out, or add rows",
            )
            warnings.warn(text, DataWarning, stacklevel=2)
        return encoding

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The encoded columns of each feature, in the schema's order."""
        return blocks_of(self.schema.features)

    @property
    def dim(self) -> int:
        """The number of encoded columns."""
        return self.blocks[-1].stop

    @property
    def groups(self) -> list[slice]:
        """The columns of each one-hot group."""
        return [block.group for block in self.blocks if block.group is not None]

    @property
    def category_groups(self) -> tuple[OneHotGroup, ...]:
        """The one-hot groups, with the numbers of their categories; further columns are missing markers."""
        return self._rules_on(torch.device("cpu")).groups

    def group_slots(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the columns of each one-hot group, padded to the widest, and a mask: (groups, k) each."""
        rules = self._rules_on(device)
        return rules.slots, rules.filled

    @property
    def owner(self) -> Tensor:
        """The position of the feature that each column belongs to, (dim,)."""
        return self._rules_on(torch.device("cpu")).owner

    @cached_property
    def numeric(self) -> Tensor:
        """Mask of the columns that are numbers or levels, not part of a group or missing flags, (dim,)."""
        kept = torch.zeros(self.dim, dtype=torch.bool)
        for block in self.blocks:
            if block.group is None:
                kept[block.start] = True
        return kept

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded columns: ``savings``, ``job=cook``, ``savings?missing``, ``x?-7``."""
        return tuple(name for block in self.blocks for name in block.names)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of everything that affects encoded rows: order, scales, categories, missing values.

        Actions, notes and dtypes are not part of it, because they change no encoded number.
        """
        content = []
        for feature, fitted in zip(self.schema.features, self.fitted, strict=True):
            kept = feature.model_dump(include={"name", "kind", "categories", "missing", "missing_codes"})
            numbers = [float(part) for part in fitted.grid(feature)]
            written = {} if feature.number_format is None else {"number_format": feature.number_format}
            content.append({**kept, **written, "grid": numbers, "fill": fitted.fill})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def encode(
        self,
        frame: Any,
        *,
        out_of_range: Literal["clip", "refuse", "ignore"] = "clip",
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Encode the rows of ``frame`` as a tensor of the shape (n, dim) in [0, 1].

        Numbers outside the range that the schema declares are refused. Those outside the fitted range are
        clipped with one warning that counts them (``"clip"``), or refused too (``"refuse"``). ``"ignore"``
        clips all of them silently: for rows that were admitted before.
        """
        if out_of_range not in ("clip", "refuse", "ignore"):
            expected = "out_of_range='clip', 'refuse' or 'ignore'"
            raise DataError(message(expected, repr(out_of_range), "choose one of them"))
        encoded, outside = self._encode(self.schema.frame(frame), admit=out_of_range == "ignore")
        if outside and out_of_range != "ignore":
            counts = ", ".join(f"{n:,} in {name!r} ({ends})" for name, (n, ends) in outside.items())
            expected = "values inside the fitted ranges"
            if out_of_range == "refuse":
                raise DataError(message(expected, counts, "correct them, or pass out_of_range='clip'"))
            remedy = "they were clipped; if such values are legal, set lower and upper in the schema"
            warnings.warn(message(expected, counts, remedy), DataWarning, stacklevel=2)
        return encoded.to(dtype)

    def outside(self, frame: Any) -> dict[str, Outside]:
        """Return the numbers of each feature that lie outside the range of the training rows."""
        numbers, found = self.numbers(frame), {}
        for i, (feature, legal) in enumerate(zip(self.schema.features, self._grids, strict=True)):
            if not feature.is_numeric:
                continue
            value, low, high = numbers[:, i], float(legal.low), float(legal.high)
            beyond = torch.maximum(low - value, value - high).clamp(min=0.0).nan_to_num(0.0)
            beyond = beyond.where(beyond > scales.slack(feature, np.dtype(np.float32), value), 0.0)
            if bool((beyond > 0).any()):
                found[feature.name] = Outside(feature.name, (low, high), value.numpy(), beyond.numpy())
        return found

    def refused(self, frame: Any) -> dict[int, str]:
        """Return the positions of rows that cannot be encoded, each with the first reason."""
        return refused_rows(self.schema, self.schema.frame(frame), self._refusal)

    def decode(self, encoded: Tensor, original: Any = None, *, start: Tensor | None = None) -> pd.DataFrame:
        """Decode ``encoded`` (n, dim) to raw rows with legal values, in the dtypes of the fitted table.

        ``original`` has the raw rows that the encoded rows started from. The result then has its index, and
        every cell that did not change is the original's own, even if it is missing, clipped or out of range.
        ``start`` is the encoded ``original``, if it is known already.
        """
        if encoded.ndim != 2 or encoded.shape[1] != self.dim:
            got = "x".join(str(size) for size in encoded.shape)
            raise DataError(
                message(f"a tensor of the shape n x {self.dim}", got, "was it made by this encoding?")
            )
        encoded = encoded.detach().cpu()
        if not bool(torch.isfinite(encoded).all()):
            rows = int((~torch.isfinite(encoded)).any(1).sum())
            remedy = "check their source; project() replaces NaN by the original"
            raise DataError(message("finite numbers to decode", f"NaN or infinity in {rows:,} rows", remedy))
        if original is not None:
            return self._decode_next_to(encoded, original, start)
        columns = {
            block.feature.name: cells.write(block.feature, *self._cells(encoded, i), self.fitted[i].dtype)
            for i, block in enumerate(self.blocks)
        }
        return pd.DataFrame(columns)

    def project(self, x_cf: Tensor, x: Tensor, *, relax: bool = False) -> Tensor:
        """Project ``x_cf`` onto the legal rows of the person with the encoded row ``x``; shape (..., dim).

        Legal rows are in range and on the grid, have one category of each group, and respect the actions of
        the schema. A missing cell stays missing or gets a value; no cell becomes missing. With ``relax`` the
        projection has no grid and fractional categories, and is differentiable almost everywhere in ``x_cf``.
        """
        rules = self._rules_on(x.device)
        return (projection.project_relaxed if relax else projection.project_hard)(x_cf, x, rules)

    def snap(self, x_cf: Tensor, x: Tensor, up: Tensor) -> Tensor:
        """Project like :meth:`project`, but round numbers up where ``up`` (..., dim) is true, else down.

        Columns equal to ``x`` stay the same, and so do categories, which must be legal already.
        """
        return projection.snap(x_cf, x, up, self._rules_on(x.device))

    def step_back(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """Move every changed number one step of its grid closer to ``x``; keep all other columns."""
        return projection.step_back(x_cf, x, self._rules_on(x.device))

    def limits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest value of each column over the legal rows of the person ``x``."""
        return projection.limits(x, self._rules_on(x.device))

    def changed(self, x_cf: Tensor, x: Tensor, tol: float = 0.0) -> Tensor:
        """Return a mask (..., n_features) of the features that differ by more than ``tol`` in some column."""
        return projection.changed(x_cf, x, self._rules_on(x.device), tol)

    def by_feature(self, values: Tensor) -> Tensor:
        """Sum ``values`` (..., dim) over the columns of each feature, (..., n_features)."""
        return values @ self._rules_on(values.device).members.to(values.dtype)

    @cached_property
    def units(self) -> Units:
        """Conversion of raw values, and differences of them, to the encoded column of a feature."""
        return Units(self.schema, self._grids)

    def display_grid(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the first displayed value and the display step of each column; encoded, (dim,)."""
        rules = self._rules_on(device)
        width = rules.scale.high - rules.scale.low
        step = rules.shown.stride / rules.shown.scale / torch.where(width > 0, width, torch.ones_like(width))
        return rules.scale.to_unit(rules.shown.low), step

    def numbers(self, frame: Any) -> Tensor:
        """Return the cells as numbers (n, n_features): raw values or category positions, NaN if missing."""
        table = self.schema.frame(frame)
        columns = []
        for feature in self.schema.features:
            values, marker = cells.read(feature, table[feature.name])
            columns.append(torch.from_numpy(np.where(marker >= 0, np.nan, values)))
        return torch.stack(columns, -1)

    def missing(self, x: Tensor) -> Tensor:
        """Return a mask (..., dim) of the columns that belong to a cell that is flagged as missing."""
        return projection.missing(x, self._rules_on(x.device))

    def to_json(self) -> str:
        """Return the encoding as JSON text that :meth:`from_json` reads back to the last bit."""
        content = {
            **envelope(_FORMAT, _VERSION),
            "schema": json.loads(self.schema.to_json()),
            "fitted": [fitted.to_plain() for fitted in self.fitted],
        }
        return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read an encoding from JSON text, and refuse unknown versions and keys."""
        content = read_json(text, _FORMAT, _VERSION)
        check_keys(content, {"schema", "fitted"}, {"schema", "fitted"}, "an encoding")
        schema = Schema.from_json(json.dumps(content["schema"]))
        entries = content["fitted"]
        if not isinstance(entries, list) or len(entries) != len(schema):
            got = f"{len(entries)} of them" if isinstance(entries, list) else repr(entries)[:40]
            raise SchemaError(
                message(f"{len(schema)} scales, one for each feature", got, "write it with to_json()")
            )
        fitted = tuple(FeatureScale.from_plain(entry) for entry in entries)
        for feature, scale in zip(schema.features, fitted, strict=True):
            scales.check_scale(feature, scale)
        return cls(schema, fitted)

    @cached_property
    def _grids(self) -> tuple[Grid, ...]:
        return tuple(
            fitted.grid(block.feature) for fitted, block in zip(self.fitted, self.blocks, strict=True)
        )

    @cached_property
    def _rules(self) -> dict[torch.device, Rules]:
        return {torch.device("cpu"): rules_of(self.blocks, self.fitted)}

    def _rules_on(self, device: torch.device) -> Rules:
        # Constants, one copy for each device: moving them every time would dominate a small projection.
        if device not in self._rules:
            self._rules[device] = self._rules[torch.device("cpu")].to(device)
        return self._rules[device]

    def _encode(
        self, table: pd.DataFrame, *, admit: bool = False
    ) -> tuple[Tensor, dict[str, tuple[int, str]]]:
        """Return the encoded rows in float64, and the count and the range of clipped numbers by column."""
        out = torch.zeros(len(table), self.dim, dtype=torch.float64)
        outside: dict[str, tuple[int, str]] = {}
        for i, block in enumerate(self.blocks):
            column = table[block.feature.name]
            clipped = self._encode_feature(i, column, out, admit=admit)
            if clipped:
                legal = self._grids[i]
                ends = " to ".join(format_value(float(end)) for end in (legal.low, legal.high))
                outside[block.feature.name] = (clipped, ends)
        return out, outside

    def _refusal(self, feature: Feature, column: pd.Series[Any]) -> str | None:
        """Return the reason why the cells of a feature cannot be encoded, or None."""
        out = torch.zeros(len(column), self.dim, dtype=torch.float64)
        try:
            self._encode_feature(self.schema.names.index(feature.name), column, out)
        except DataError as error:
            return str(error)
        return None

    def _encode_feature(self, i: int, column: pd.Series[Any], out: Tensor, *, admit: bool = False) -> int:
        """Write the block of feature ``i`` to ``out``, and return the number of clipped cells."""
        block, legal, fitted = self.blocks[i], self._grids[i], self.fitted[i]
        raw, marker = map(torch.from_numpy, cells.read(block.feature, column))
        imputed = block.feature.missing == "impute"
        rows = (marker >= 0).nonzero().squeeze(1)
        raw[rows] = fitted.fill if imputed else float(legal.low)
        out[rows, block.flags.start + marker[rows]] = 1.0
        if block.group is not None:
            rows = torch.arange(len(raw)) if imputed else (marker < 0).nonzero().squeeze(1)
            out[rows, block.values.start + raw[rows].long()] = 1.0
            return 0
        clipped, count = raw, 0
        if block.feature.is_numeric:
            if not admit:
                scales.refuse_undeclared(block.feature, column, raw, marker < 0)
            clipped = raw.clamp(legal.low, legal.high)
            beyond = (raw - clipped).abs() > scales.slack(block.feature, column.dtype, clipped)
            count = int(beyond.sum())
        if block.feature.grid_step is not None:
            point = legal.nearest(clipped)
            scales.refuse_off_grid(block.feature, column, clipped, point)
            clipped = point
        out[:, block.values.start] = legal.to_unit(clipped)
        return count

    def _cells(self, encoded: Tensor, i: int) -> tuple[Floats, Markers]:
        """Return the values and markers of the cells of feature ``i`` that are nearest to these rows."""
        block = self.blocks[i]
        flags = encoded[:, block.flags].numpy()
        marker = np.full(len(encoded), -1)
        if block.group is None:
            values = self._grids[i].to_raw(encoded[:, block.values.start].double()).numpy()
        else:
            values = encoded[:, block.values].numpy().argmax(1).astype(np.float64)
        if flags.shape[1]:
            bar = encoded[:, block.values].numpy().max(1) if block.marker_slots else np.nextafter(0.5, 0.0)
            marker = np.where(flags.max(1) > bar, flags.argmax(1), -1)
        return values, marker

    def _decode_next_to(self, encoded: Tensor, original: Any, start: Tensor | None) -> pd.DataFrame:
        table = self.schema.frame(original)
        if len(table) != len(encoded):
            got = f"{len(table):,} for {len(encoded):,}"
            raise DataError(
                message("one original row for each encoded row", got, "pass the rows it started from")
            )
        start = self._encode(table)[0] if start is None else start.detach().cpu()
        differs = self.changed(encoded, start.to(encoded.dtype)).numpy()
        order = original.columns if isinstance(original, pd.DataFrame) else table.columns
        columns = {}
        for name in [name for name in order if name in self.schema.names]:
            i = self.schema.names.index(name)
            if not differs[:, i].any():
                columns[name] = table[name].reset_index(drop=True)
                continue
            found = self._cells(encoded[torch.from_numpy(differs[:, i])], i)
            new = cells.write(self.blocks[i].feature, *found, table[name].dtype)
            columns[name] = cells.merge(table[name], differs[:, i], new).reset_index(drop=True)
        return pd.DataFrame(columns).set_axis(table.index)
