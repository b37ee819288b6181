"""Whose columns these are: a table against the model that is to read it, before either is read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from veritracer.errors import DataError, listing, message

if TYPE_CHECKING:
    from veritracer.tablefiles import Table

ADDED = "recourse."
"""How the names of columns begin that ``explain`` adds; ``certify`` does not take them for features."""


class Columns(Protocol):
    """What a model says of its table: a ``Schema``, or less."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features."""
        ...

    @property
    def target(self) -> str | None:
        """The column of the decision, which may be in the table."""
        ...


def check_columns(table: Table, known: Columns, keep: Sequence[str]) -> None:
    """Nothing; refuses a table without all features, and columns that nobody has spoken of."""
    absent = [name for name in known.names if name not in table.names]
    named = {*known.names, known.target, *keep}
    extra = [name for name in table.names if name not in named and not name.startswith(ADDED)]
    unknown = [name for name in keep if name not in table.names]
    if unknown:
        received = f"no {listing(unknown)} in {table.name}"
        raise DataError(message("columns to keep that exist", received, "check their spelling"))
    features = [name for name in keep if name in known.names]
    if features:
        remedy = "leave them out of --keep: their values are in the output"
        raise DataError(message("columns to keep that are no features", listing(features), remedy))
    expected = f"the {len(known.names)} columns of the model in {table.name}"
    if absent:
        close = difflib.get_close_matches(absent[0], extra, n=1)
        remedy = f"was {close[0]!r} meant?" if close else "give the table that the model was trained on"
        raise DataError(message(expected, f"no {listing(absent)}", remedy))
    if extra:
        remedy = f"carry it along with --keep {','.join(extra[:3])}, or remove it"
        raise DataError(message(expected, f"{listing(extra)} too", remedy))


def check_ids(table: Table, name: str) -> None:
    """Nothing; refuses a table without the column that says whose each row is."""
    if name not in table.names:
        received = f"no {name!r} in {table.name}"
        raise DataError(message("a column that says whose each row is", received, "check its spelling"))
