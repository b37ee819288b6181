"""Describe a table: its features, its target, and the favourable label."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from pydantic import ValidationError as PydanticError

from veritracer.errors import DataWarning, SchemaError, TargetError, listing, message, unknown_name
from veritracer.files import check_keys, envelope, read_json
from veritracer.formatting import format_value, to_python
from veritracer.schema import inference, labels, tables
from veritracer.schema.feature import Action, Feature, Kind, Policy, Value, is_number, schema_error
from veritracer.schema.inference import left_out_message
from veritracer.schema.labels import Convention

__all__ = ["Action", "Feature", "Kind", "Policy", "Schema", "Value"]

_FORMAT = "veritracer-schema"
_VERSION = 1


class Schema(BaseModel):
    """The features of a table in order, its target, and its favourable label.

    Both labels can be None; such a schema cannot be used for training or evaluation. ``ignored`` has the
    columns that a table may have and that are ignored, with the reasons.

    >>> frame = pd.DataFrame({"savings": [100, 250, 80], "ok": ["no", "yes", "no"]})
    >>> schema = Schema.infer(frame, target="ok", favourable="yes")
    >>> print(schema)
    1 feature; target 'ok': 'yes' is favourable, 'no' is not
      savings: integer, learned range — whole numbers, 3 distinct, none missing
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    features: tuple[Feature, ...]
    target: str | None = None
    favourable: Value | None = None
    unfavourable: Value | None = None
    note: str = ""
    ignored: Mapping[str, str] = {}

    def __init__(
        self,
        features: Iterable[Feature],
        target: str | None = None,
        favourable: Value | None = None,
        unfavourable: Value | None = None,
        note: str = "",
        ignored: Mapping[str, str] | None = None,
    ) -> None:
        try:
            super().__init__(
                features=tuple(features),
                target=target,
                favourable=to_python(favourable),
                unfavourable=to_python(unfavourable),
                note=note,
                ignored={} if ignored is None else ignored,
            )
        except PydanticError as error:
            raise schema_error(error) from None
        self._check_names()
        self._check_labels()

    @classmethod
    def infer(
        cls,
        frame: pd.DataFrame | NDArray[Any],
        target: str | None = None,
        favourable: Value | None = None,
        *,
        immutable: Iterable[str] = (),
        increase_only: Iterable[str] = (),
        decrease_only: Iterable[str] = (),
        free: Iterable[str] = (),
        integer: Iterable[str] = (),
        continuous: Iterable[str] = (),
        categorical: Iterable[str] = (),
        binary: Iterable[str] = (),
        ordinal: Mapping[str, Sequence[Value]] | None = None,
        ranges: Mapping[str, tuple[float | None, float | None]] | None = None,
        steps: Mapping[str, float] | None = None,
        missing: Mapping[str, Policy] | Policy | None = None,
        missing_codes: Mapping[str, Sequence[Value]] | None = None,
        number_formats: Mapping[str, str] | None = None,
        ignore: Iterable[str] = (),
        max_categories: int = 1000,
        yearly: Mapping[str, Sequence[float] | None] | None = None,
    ) -> Self:
        """Infer a schema from ``frame``; arguments override the inference for the columns they name.

        The note of each feature states how it was inferred; ``describe()`` shows the result as a table.
        Columns of an array are called ``x0``, ``x1``, …. A column whose name looks like a protected
        characteristic (age, sex, nationality, …) is immutable unless ``free``, ``increase_only`` or
        ``decrease_only`` names it. Numbers in text (``"10,257.01"``, ``"€ 300"``, ``"12%"``) are read as
        numbers; ``number_formats={"income": "1.234,5"}`` states a format by its form of 1234.5. Numbers whose
        names say that they grow by themselves (age, tenure, months since) get a ``yearly`` drift, which
        ``yearly={"tenure": None}`` removes and ``yearly={"tenure": (0, 12)}`` states. Identifiers
        and dates of a DataFrame are left out with a warning unless an argument names them; ``ignore`` leaves
        out others. ``ignored`` has both, because later tables may contain them.

        The favourable label is never guessed: without ``favourable`` both labels stay None, unless they are a
        well-known pair such as approved and denied (``veritracer.schema.labels.WELL_KNOWN``).
        """
        hints = inference.Hints(
            actions={
                "immutable": immutable,
                "increase_only": increase_only,
                "decrease_only": decrease_only,
                "free": free,
            },
            kinds={
                "integer": integer,
                "continuous": continuous,
                "categorical": categorical,
                "binary": binary,
            },
            ordinal=ordinal or {},
            ranges=ranges or {},
            steps=steps or {},
            missing=missing,
            missing_codes=missing_codes or {},
            number_formats=number_formats or {},
            yearly=yearly or {},
            max_categories=max_categories,
        )
        table, ignored = tables.table(frame), dict.fromkeys(ignore, "as requested")
        for name in ignored:
            if name not in table.columns:
                raise SchemaError(unknown_name("a column to ignore", name, map(str, table.columns)))
        names = [name for name in table.columns if name != target and name not in ignored]
        features, left_out = inference.features(
            table[names], hints, leave_out=isinstance(frame, pd.DataFrame)
        )
        if left_out:
            warnings.warn(left_out_message(left_out), DataWarning, stacklevel=2)
        reasons = {name: why.value for name, why in left_out.items()}
        schema = cls(features, target, favourable, ignored=ignored | reasons)
        if target is None or target not in table.columns:
            return schema
        values = labels.two(table[target])
        is_open = favourable is None and labels.well_known(values) is None
        return schema if is_open else schema._with_two(values, favourable)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features in the order of the encoding."""
        return tuple(feature.name for feature in self.features)

    @property
    def ignored_names(self) -> tuple[str, ...]:
        """The names of columns that a table may have and that are ignored."""
        return tuple(self.ignored)

    def ignoring(self, columns: Mapping[str, str]) -> Self:
        """Return the schema with more ignored columns: their names and reasons."""
        return self._replace(ignored={**self.ignored, **columns})

    @property
    def classes(self) -> NDArray[Any]:
        """Both labels in ascending order, as ``classes_`` of an estimator has them."""
        return np.unique(np.array([self.unfavourable, self.favourable]))

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SchemaError(unknown_name("a feature of this schema", name, self.names))

    def __len__(self) -> int:
        return len(self.features)

    def __hash__(self) -> int:
        return hash((self.features, self.target, self.favourable, self.unfavourable))

    def unconstrained(self) -> Self:
        """Return the schema without actions, grids and yearly moves, as in the paper."""
        return self._replace(features=[_unconstrained(feature) for feature in self.features])

    def describe(self) -> pd.DataFrame:
        """Return a row for each feature: kind, range, step, categories, missing, action, note."""
        rows = [
            {
                "kind": feature.kind,
                "range": _range(feature),
                "step": "" if feature.grid_step is None else format_value(feature.grid_step),
                "categories": _shortened(feature.categories),
                "missing": " ".join([feature.missing, *(repr(code) for code in feature.missing_codes)]),
                "action": feature.action,
                "note": feature.note,
            }
            for feature in self.features
        ]
        return pd.DataFrame(rows, index=pd.Index(self.names, name="feature"))

    def __str__(self) -> str:
        count = len(self.features)
        head = f"{count} feature{'' if count == 1 else 's'}; target {self.target!r}"
        if self.favourable is not None:
            head += f": {self.favourable!r} is favourable"
            head += "" if self.unfavourable is None else f", {self.unfavourable!r} is not"
        elif self.target is not None:
            head += ": the favourable label is not stated"
        return "\n".join([head + (f" ({self.note})" if self.note else ""), *map(_line, self.features)])

    def frame(self, X: Any) -> pd.DataFrame:
        """Return the features of ``X`` as a DataFrame in the schema's order.

        A DataFrame may have them in any order, with its target and ignored columns; an array or a list of
        rows must have exactly one column for each feature.
        """
        return tables.select(X, self.names, (self.target, *self.ignored_names))

    def labels(self, y: Any, *, require_both: bool = True) -> NDArray[np.int64]:
        """Return 1 for each favourable label in ``y`` and 0 for each other one, (n,)."""
        if self.favourable is None or self.unfavourable is None:
            remedy = "give both to Schema, or call with_labels(y, favourable=...)"
            raise TargetError(
                message(
                    "a schema with a favourable and an unfavourable label",
                    "one without them",
                    remedy,
                )
            )
        return labels.as_binary(y, self.favourable, self.unfavourable, require_both=require_both)

    def with_labels(self, y: Any, favourable: Value | Convention | None = None) -> Self:
        """Return the schema with the two labels of ``y``.

        ``favourable`` is one of them, or ``vt.POSITIVE``; it can be omitted if the schema names it, or if the
        two form a well-known pair.

        Raises
        ------
        TargetError
            If the favourable label is unknown, or if ``favourable`` contradicts the schema.
        """
        return self._with_two(labels.two(y), favourable)

    def _with_two(self, values: list[Value], favourable: Value | Convention | None) -> Self:
        stated = values[1] if favourable is labels.POSITIVE else to_python(favourable)
        chosen, note = self.favourable if stated is None else stated, self.note
        if chosen is None:
            chosen, note = labels.well_known(values), "a well-known pair of labels"
        if chosen is None:
            statements = [f"favourable={value!r}" for value in values]
            to = "Schema.infer, Schema.with_labels or VeriTraCER"
            raise TargetError(labels.not_stated(values, self.target, statements, to))
        if chosen not in values:
            raise TargetError(
                message(
                    f"the favourable label {chosen!r} among the labels",
                    f"{values[0]!r} and {values[1]!r}",
                    "pass one of these two as favourable",
                )
            )
        if self.favourable not in (None, chosen):
            raise TargetError(labels.stated_twice(chosen, self.favourable))
        other = values[1 - values.index(chosen)]
        if self.unfavourable not in (None, other):
            expected = f"the labels {self.favourable!r} (favourable) and {self.unfavourable!r}"
            remedy = "check the labels' type and spelling, or infer a schema from this table"
            raise TargetError(message(expected, f"{other!r}", remedy))
        return self._replace(favourable=values[values.index(chosen)], unfavourable=other, note=note)

    def to_pandera(self) -> Any:
        """Convert to a ``pandera.pandas.DataFrameSchema``, for pipelines that validate with pandera.

        The target column is optional.
        """
        try:
            import pandera.pandas as pandera
        except ModuleNotFoundError:
            remedy = "pip install 'veritracer[pandera]'"
            raise SchemaError(message("the package pandera", "an install without it", remedy)) from None
        columns = {feature.name: _pandera_column(pandera, feature) for feature in self.features}
        if self.target is not None:
            labels = [label for label in (self.favourable, self.unfavourable) if label is not None]
            checks = [pandera.Check.isin(labels)] if len(labels) == 2 else []
            columns[self.target] = pandera.Column(None, checks, required=False)
        return pandera.DataFrameSchema(columns, strict=True, name="veritracer")

    def to_json(self) -> str:
        """Return the schema as JSON text that :meth:`from_json` reads back exactly, types included."""
        content = {**envelope(_FORMAT, _VERSION), **self.model_dump()}
        for entry in content["features"]:  # unset fields are omitted
            for field in ("limit", "number_format", "yearly"):
                if entry[field] is None:
                    del entry[field]
        if not self.ignored:
            del content["ignored"]
        return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a schema from JSON text, and refuse unknown versions and keys."""
        content = read_json(text, _FORMAT, _VERSION)
        entries = content.pop("features", None)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise SchemaError(message("a list of features", repr(entries)[:80], "write it with to_json()"))
        for entry in entries:
            check_keys(entry, set(Feature.model_fields), {"name", "kind"}, "a feature")
        check_keys(content, set(cls.model_fields), set(), "a schema")
        return cls(features=[Feature(**entry) for entry in entries], **content)

    def _replace(self, **changes: Any) -> Self:
        fields = {field: getattr(self, field) for field in type(self).model_fields}
        return type(self)(**{**fields, **changes})

    def _check_names(self) -> None:
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if not self.features:
            raise SchemaError(message("at least one feature", "none", "list the table's columns as features"))
        if twice:
            raise SchemaError(
                message("each feature once", f"{listing(twice)} twice", "rename or drop one of them")
            )
        if self.target in self.names:
            raise SchemaError(
                message(
                    "a target that is no feature", f"{self.target!r} as both", "remove it from the features"
                )
            )

        both = [name for name in self.ignored_names if name in (*self.names, self.target)]
        if both:
            remedy = "remove it from one of the two"
            raise SchemaError(message("ignored columns that are not used", listing(both), remedy))

    def _check_labels(self) -> None:
        labels = (self.favourable, self.unfavourable)
        if any(isinstance(label, float) and not math.isfinite(label) for label in labels):
            remedy = "an empty cell is no label: drop those rows, or replace it"
            raise SchemaError(message("finite labels", f"{labels[0]!r} and {labels[1]!r}", remedy))
        if self.unfavourable is not None and self.favourable in (None, self.unfavourable):
            raise SchemaError(
                message(
                    "two different labels, the favourable one named",
                    f"favourable={self.favourable!r}, unfavourable={self.unfavourable!r}",
                    "give both, or only the favourable one",
                )
            )


def _unconstrained(feature: Feature) -> Feature:
    if feature.is_numeric:
        return feature.replace(kind="continuous", step=None, display_step="exact", action="free", yearly=None)
    if feature.kind == "ordinal" and all(is_number(value) for value in feature.categories):
        numbers = [float(value) for value in feature.categories]
        ends = {"lower": min(numbers), "upper": max(numbers), "display_step": "exact"}
        return feature.replace(kind="continuous", categories=(), action="free", yearly=None, **ends)
    return feature.replace(action="free", yearly=None)


def _range(feature: Feature) -> str:
    if not feature.is_numeric:
        return ""
    if feature.lower is None and feature.upper is None:
        return "learned"
    ends = ["learned" if end is None else format_value(end) for end in (feature.lower, feature.upper)]
    return " to ".join(ends)


def _shortened(categories: Sequence[Value], limit: int = 6) -> str:
    shown = ", ".join(repr(value) for value in categories[:limit])
    return shown if len(categories) <= limit else f"{shown}, … ({len(categories)})"


def _line(feature: Feature) -> str:
    parts: list[str] = [feature.kind]
    if feature.is_numeric:
        parts.append(f"{_range(feature)} range" if _range(feature) == "learned" else _range(feature))
        parts += [f"step {format_value(feature.step)}"] if feature.step is not None else []
    else:
        parts.append(_shortened(feature.categories))
    parts += [f"missing: {feature.missing}"] if feature.missing != "refuse" else []
    parts += [feature.action.replace("_", " ")] if feature.action != "free" else []
    return f"  {feature.name}: {', '.join(parts)}" + (f" — {feature.note}" if feature.note else "")


def _pandera_column(pandera: Any, feature: Feature) -> Any:
    """Return the column of a pandera schema; empty cells are legal unless the feature refuses them."""
    legal = [*feature.categories, *feature.missing_codes]
    if not feature.is_numeric:
        check = pandera.Check.isin(legal, name=f"one of {listing(legal)}")
        return pandera.Column(None, check, nullable=feature.missing != "refuse")
    lower = -math.inf if feature.lower is None else feature.lower
    upper = math.inf if feature.upper is None else feature.upper
    whole = feature.kind == "integer"

    def is_legal(column: Any) -> Any:
        numbers = pd.to_numeric(column, errors="coerce").astype("float64")
        inside = (numbers >= lower) & (numbers <= upper)
        return (inside & ((numbers % 1 == 0) | (not whole))) | column.isin(legal)

    kind = "a whole number" if whole else "a number"
    check = pandera.Check(is_legal, name=f"{kind} from {lower:g} to {upper:g}")
    return pandera.Column(None, check, nullable=feature.missing != "refuse")
