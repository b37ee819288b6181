"""Compare the columns of a table with those of a model, before either is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veritracer.errors import DataError, as_typed, closest, listing, message, unknown_name
from veritracer.tables.jobs import ADDED

if TYPE_CHECKING:
    from veritracer.model_folder import ModelColumns
    from veritracer.schema import Schema


def check_columns(
    table: str,
    columns: Sequence[str],
    known: ModelColumns | Schema,
    keep: Sequence[str],
    ignore: Sequence[str] = (),
) -> None:
    """Refuse a table without all features of a model, and columns that were not mentioned."""
    _check_ignored(table, columns, known, ignore)
    absent = [name for name in known.names if name not in columns]
    named = {*known.names, known.target, *known.ignored_names, *keep, *ignore}
    extra = [name for name in columns if name not in named and not name.startswith(ADDED)]
    unknown = [name for name in keep if name not in columns]
    if unknown:
        received = f"no {listing(unknown)} in {table}"
        raise DataError(message("columns to keep that exist", received, "check their spelling"))
    features = [name for name in keep if name in known.names]
    if features:
        remedy = "leave them out of --keep: their values are in the output"
        raise DataError(message("columns to keep that are no features", listing(features), remedy))
    expected = f"the {len(known.names)} columns of the model in {table}"
    if absent:
        close = closest(absent[0], extra)
        remedy = f"was {close!r} meant?" if close else f"add {listing(absent)}"
        raise DataError(message(expected, f"no {listing(absent)}", remedy))
    if extra:
        typed = as_typed(extra[:3])
        remedy = f"carry it along with --keep {typed}, or leave it out with --ignore {typed}"
        raise DataError(message(expected, f"{listing(extra)} too", remedy))


def _check_ignored(
    table: str, columns: Sequence[str], known: ModelColumns | Schema, ignore: Sequence[str]
) -> None:
    """Refuse to ignore columns that do not exist, and features of the model."""
    for name in ignore:
        if name not in columns:
            raise DataError(unknown_name(f"a column of {table} to ignore", name, columns))
    features = [name for name in ignore if name in known.names]
    if features:
        remedy = "fit a model without it, or leave it out of --ignore"
        raise DataError(message("columns to ignore that the model does not read", listing(features), remedy))


def check_ids(table: str, columns: Sequence[str], name: str) -> None:
    """Refuse a table without the column that identifies people."""
    if name not in columns:
        received = f"no {name!r} in {table}"
        close = closest(name, columns)
        advice = "name the column with the number or key of each application"
        remedy = f"was {close!r} meant?" if close else advice
        raise DataError(message("a column that identifies the rows", received, remedy))
