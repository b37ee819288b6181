"""What people were told, as the ledger keeps it: rows of raw values as JSON, and back as tables.

A row is one object with a value for each column, in the caller's order: true or false, whole numbers,
numbers, texts, and null for an empty cell. A number is written as the float64 that it counts as, also where
its column was narrower, so that the text encodes to the very numbers that were certified.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.sealing import opened
from veritracer.schema.feature import plain

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

Row = dict[str, Any]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character, escaped: what ``to_json`` writes has none, and whole ones it does not escape."""

_CHANGED = "the ledger was changed: run veritracer verify"


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows with Python's own values; missing ones are None."""
    names = [str(name) for name in frame.columns]
    columns = [_cells(frame.iloc[:, k]) for k in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def table_of(rows: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    """The rows as a table with these columns."""
    try:
        columns = zip(*map(itemgetter(*names, names[0]), rows), strict=True)  # of one name it gives no tuple
        return pd.DataFrame(dict(zip(names, map(list, columns), strict=False)), columns=list(names))
    except (KeyError, TypeError):
        received = "rows without some of them"
        raise LedgerError(message(f"values of {', '.join(names)}", received, _CHANGED)) from None


def to_json(content: Row) -> bytes:
    """The text; refuses values that JSON has no word for, and texts that can not be written down."""
    try:
        return _ENCODER.encode(content).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is one of the latter
        remedy = "give numbers, truth values and texts of whole characters"
        raise DataError(message("rows that can be written as JSON", str(error), remedy)) from None


def from_json(text: bytes) -> Row:
    """What ``to_json`` wrote."""
    try:
        content = json.loads(text.decode())
    except (TypeError, ValueError, RecursionError, AttributeError):
        content = None
    if not isinstance(content, dict):
        raise LedgerError(message("a row as JSON", repr(text)[:80], _CHANGED))
    return content


def checked_json(text: bytes) -> Row | None:
    """The same where it can be read in one way only: no key twice, no NaN, no half of a character."""
    try:
        content = _STRICT.decode(text.decode())
    except (TypeError, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return content if isinstance(content, dict) and not _HALF.search(text) else None


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def private(text: bytes | None, seal: Fernet | None, *, encrypted: bool) -> Row | None:
    """The person's own ``row`` with their ``sentence``; None where it is not kept, or not readable."""
    if text is None or (encrypted and seal is None):
        return None
    return from_json(opened(text, seal) if encrypted and seal is not None else text)


def _cells(column: pd.Series[Any]) -> list[Any]:
    plain_numpy = isinstance(column.dtype, np.dtype)  # others turn whole numbers beside a gap into floats
    values = column.to_numpy().tolist() if plain_numpy else list(column.array)
    return [
        None if gone else plain(value) for value, gone in zip(values, column.isna().tolist(), strict=True)
    ]


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
