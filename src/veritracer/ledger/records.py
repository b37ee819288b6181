"""A promise as bytes: a header of fixed layout, and the parts that speak of a person."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds import names_by_code
from veritracer.encoding.exact import widened
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.chain import SALT, commitment
from veritracer.ledger.regions import promised_ends
from veritracer.ledger.texts import Row, rows_of, to_json
from veritracer.ledger.times import dated, expiry
from veritracer.recourse import Counterfactuals

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

Original = Literal["plain", "encrypted", "commitment"]
"""How a person's own row is kept: readable, under a key, or not at all but for its commitment."""

LAYOUT = 2
"""The layout that is written; both are read. They differ in how a region is kept: see ``Record``."""

LAYOUTS = (1, 2)
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
METHODS = names_by_code()
ORIGINALS: tuple[Original, ...] = get_args(Original)

PARTS = ("who", "x_cf", "shown", "x", "original")
"""What speaks of a person, in the order of salts and commitments."""


class Record(NamedTuple):
    """One promise: what is hashed, and what can be erased.

    ``x_cf`` and ``x`` are encoded rows as float64, little-endian. Where a region is promised ``x_cf`` is
    followed by its lower and upper ends: encoded, as they were certified, and from layout 2 on also in raw
    units, one number for each feature, NaN where it has no extent. ``shown`` is the counterfactual as raw
    values, ``original`` the person's own row with the sentence that names its values; both JSON. ``x`` and
    ``original`` may be encrypted or absent.
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
    """What is the same for all promises of one call: when, until when, and how original rows are kept.

    ``lasting`` is where ``expires`` was given as a duration, ``stated`` where ``issued`` is not the clock's.
    """

    issued: float
    expires: float
    original: Original = "plain"
    seal: Fernet | None = None
    lasting: bool = False
    stated: bool = False

    def __post_init__(self) -> None:
        if self.original not in ORIGINALS:
            expected = "original='plain', 'encrypted' or 'commitment'"
            raise DataError(message(expected, repr(self.original), "choose one of them"))
        if self.original == "encrypted" and self.seal is None:
            remedy = "make one with veritracer.ledger.new_key(), and keep it safe"
            raise LedgerError(message("a key to encrypt original rows with", "none", remedy))

    def after(self, newest: float) -> tuple[float, float]:
        """When promises are issued that follow an entry of that time, and when they end."""
        issued = dated(self.issued, newest, stated=self.stated)
        expires = self.expires + (issued - self.issued) if self.lasting else self.expires
        return issued, expiry(None if math.isinf(expires) else expires, issued)


class Texts(NamedTuple):
    """The rows of some counterfactuals that become promises, as they are going to be kept."""

    rows: NDArray[np.intp]
    shown: list[Row]
    original: list[Row]

    @classmethod
    def of(cls, found: Counterfactuals) -> Texts:
        """Of every counterfactual that there is; narrow numbers as the decimals that they count as."""
        rows = np.flatnonzero(found.status != "none")
        tables = (widened(found.encoding, table.iloc[rows]) for table in (found.frame, found.original))
        return cls(rows, *map(rows_of, tables))


def records(
    found: Counterfactuals, texts: Texts, ids: Sequence[Any], terms: Terms
) -> tuple[list[Record], list[bytes]]:
    """A record for each counterfactual that there is, and the openings of what is only committed to."""
    names, ends = identities(ids, found), promised_ends(found)
    wide = ends.wide
    headers = _headers(found, texts.rows, wide[texts.rows], terms)
    x_cf, x = _numbers(found.x_cf), _numbers(found.x)
    regions = [_numbers(end) for end in (found.lower, found.upper, *ends)]
    salts = os.urandom(len(texts.rows) * len(PARTS) * SALT)
    made, openings = [], []
    for k, i in enumerate(texts.rows.tolist()):
        region = b"".join(end[i].tobytes() for end in regions) if wide[i] else b""
        original = to_json({"row": texts.original[k], "sentence": found.sentence(i)})
        shown = to_json(texts.shown[k])
        contents = [names[i], x_cf[i].tobytes() + region, shown, x[i].tobytes(), original]
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
    names = [utf8(text) for text in texts]
    return [names[person] for person in found.person.tolist()]


def utf8(identity: Any, what: str = "an id") -> bytes:
    """The text as it is kept; refuses half of a character, which no file and no letter can hold."""
    try:
        return str(identity).encode()
    except UnicodeEncodeError:
        remedy = "repair it, or read it anew with the encoding that it was written in"
        raise DataError(message(f"{what} of whole characters", ascii(str(identity)), remedy)) from None


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


def _numbers(rows: Tensor | NDArray[np.float64]) -> NDArray[np.float64]:
    plain = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else rows
    return np.ascontiguousarray(plain, dtype="<f8")


def _is_missing(one: Any) -> bool:
    return one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and one != one)
