"""A promise as bytes: a header of fixed layout, and the parts that speak of a person."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.bounds import Method
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.chain import SALT, commitment
from veritracer.recourse import Counterfactuals

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

Original = Literal["plain", "encrypted", "commitment"]
"""How a person's own row is kept: readable, under a key, or not at all but for its commitment."""

LAYOUT = 1
HEADER = np.dtype(
    [
        ("layout", "u1"),
        ("flags", "u1"),
        ("method", "u1"),
        ("original", "u1"),
        ("issued", "<f8"),
        ("expires", "<f8"),
        ("kappa", "<f8"),
        ("radius", "<f8"),
        ("worst_logit", "<f8"),
    ]
)
"""What is known of every promise and of no person; fixed, so that a million are read as one array."""

CONDITIONAL, FAVOURABLE, REGION, CERTIFIED = 1, 2, 4, 8
METHODS = ("", *get_args(Method))
ORIGINALS: tuple[Original, ...] = get_args(Original)

PARTS = ("who", "x_cf", "shown", "x", "original")
"""What speaks of a person, in the order of salts and commitments."""


class Record(NamedTuple):
    """One promise: what is hashed, and what can be erased.

    ``x_cf`` and ``x`` are encoded rows as float64, little-endian; ``x_cf`` is followed by the lower and upper
    ends where a region is promised. ``shown`` is the counterfactual as raw values, ``original`` the person's
    own row with the sentence that names its values; both JSON. ``x`` and ``original`` may be encrypted or
    absent.
    """

    header: bytes
    commitments: bytes
    salts: bytes
    who: bytes
    x_cf: bytes
    shown: bytes
    x: bytes | None
    original: bytes | None


@dataclass(frozen=True)
class Terms:
    """What is the same for all promises of one call: when, until when, and how original rows are kept."""

    issued: float
    expires: float
    original: Original = "plain"
    seal: Fernet | None = None

    def __post_init__(self) -> None:
        if self.original not in ORIGINALS:
            expected = "original='plain', 'encrypted' or 'commitment'"
            raise DataError(message(expected, repr(self.original), "choose one of them"))
        if self.original == "encrypted" and self.seal is None:
            remedy = "make one with veritracer.ledger.new_key(), and keep it safe"
            raise LedgerError(message("a key to encrypt original rows with", "none", remedy))


def records(found: Counterfactuals, ids: Sequence[Any], terms: Terms) -> tuple[list[Record], list[bytes]]:
    """A record for each counterfactual that there is, and the openings of what is only committed to."""
    rows = np.flatnonzero(found.status != "none")
    names = identities(ids, found)
    region = _regions(found)
    headers = _headers(found, rows, region[rows], terms)
    x_cf, x = _numbers(found.x_cf), _numbers(found.x)
    lower, upper = _numbers(found.lower), _numbers(found.upper)
    shown, own = _cells(found.frame), _cells(found.original)
    salts = os.urandom(len(rows) * len(PARTS) * SALT)
    made, openings = [], []
    for k, i in enumerate(rows.tolist()):
        ends = lower[i].tobytes() + upper[i].tobytes() if region[i] else b""
        original = _json({"row": own[i], "sentence": found.sentence(i)})
        contents = [names[i], x_cf[i].tobytes() + ends, _json(shown[i]), x[i].tobytes(), original]
        salt = salts[k * len(PARTS) * SALT : (k + 1) * len(PARTS) * SALT]
        record, opening = sealed_record(headers[k].tobytes(), contents, salt, terms)
        made.append(record)
        openings.append(opening)
    return made, openings if terms.original == "commitment" else []


def identities(ids: Sequence[Any], found: Counterfactuals) -> list[bytes]:
    """Whose each counterfactual is; refuses a list of another length, and people without a name."""
    people = int(found.person.max()) + 1 if len(found) else 0
    if isinstance(ids, str) or len(ids) != people:
        received = repr(ids) if isinstance(ids, str) else f"{len(ids):,} for {people:,} rows"
        raise DataError(message("an id for each row", received, "pass ids= with one for each row of X"))
    texts = ["" if _is_missing(one) else str(one) for one in ids]
    empty = sum(not text.strip() for text in texts)
    if empty:
        remedy = "a promise is made to somebody: give everybody an id"
        raise DataError(message("an id for each row", f"{empty:,} that are empty or missing", remedy))
    return [texts[person].encode() for person in found.person.tolist()]


def sealed_record(header: bytes, contents: list[bytes], salt: bytes, terms: Terms) -> tuple[Record, bytes]:
    """The record, with its last two parts encrypted or left out; and what opens the commitments to them."""
    if terms.original == "encrypted":
        assert terms.seal is not None
        contents[3:] = [terms.seal.encrypt(content) for content in contents[3:]]
    cut = [salt[at : at + SALT] for at in range(0, len(salt), SALT)]
    commitments = b"".join(map(commitment, cut, contents))
    if terms.original != "commitment":
        return Record(header, commitments, salt, *contents), b""
    who, x_cf, shown, x, original = contents
    kept = Record(header, commitments, salt[: 3 * SALT], who, x_cf, shown, None, None)
    return kept, salt[3 * SALT :] + x + original


def _headers(
    found: Counterfactuals, rows: NDArray[np.intp], region: NDArray[np.bool_], terms: Terms
) -> NDArray[Any]:
    header = np.zeros(len(rows), dtype=HEADER)
    certified = found.certified[rows]
    header["layout"] = LAYOUT
    header["flags"] = (
        CONDITIONAL * found.conditional[rows]
        + FAVOURABLE * found.favourable[rows]
        + REGION * region
        + CERTIFIED * certified
    )
    header["method"] = [METHODS.index(method) for method in found.method[rows].tolist()]
    header["original"] = ORIGINALS.index(terms.original)
    header["issued"], header["expires"] = terms.issued, terms.expires
    # As found.promise(i).kappa: what was asked for where it is certified, else what was proved.
    header["kappa"] = np.where(certified, found.kappa, found.radius[rows])
    header["radius"], header["worst_logit"] = found.radius[rows], found.worst_logit[rows]
    return header


def _regions(found: Counterfactuals) -> NDArray[np.bool_]:
    """Where more than a point was proved."""
    wider = ((found.lower != found.x_cf) | (found.upper != found.x_cf)).any(-1).numpy()
    regions: NDArray[np.bool_] = wider & (found.certified | (found.radius > 0))
    return regions


def _numbers(rows: Any) -> NDArray[np.float64]:
    return np.ascontiguousarray(rows.detach().cpu().numpy(), dtype="<f8")


def _cells(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows with Python's own values; missing ones are None."""
    names = [str(name) for name in frame.columns]
    columns = [_plain(frame.iloc[:, k]) for k in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(column: pd.Series[Any]) -> list[Any]:
    values = column.to_numpy()
    # A narrow float by its shortest digits, which read back as the same cell.
    narrow = values.dtype.kind == "f" and values.dtype.itemsize < 8
    plain = [float(str(value)) for value in values] if narrow else values.tolist()
    return [None if gone else value for value, gone in zip(plain, column.isna().tolist(), strict=True)]


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, default=str, allow_nan=False).encode()


def _is_missing(one: Any) -> bool:
    return one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and one != one)
