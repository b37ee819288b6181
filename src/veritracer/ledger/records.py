"""A promise as bytes: its header, the parts that speak of a person, and both back as arrays.

The header has a fixed layout, so that a million are read as one array; it says nothing of a person. The parts
do: the id, x′ encoded (with the ends of a promised region), x′ as it was shown, x encoded, and the person's
own row with the sentence that names its values and what else a notice says. The chain commits to each part by
``SHA-256(salt ‖ content)``, and it can be erased; ``x`` and the original row may be encrypted, or kept
nowhere.

A row of raw values is one JSON object with a value for each column, in the caller's order: true or false,
whole numbers, numbers, texts, and null for an empty cell. A number is written as the float64 that it counts
as, also where its column was narrower, so that the text encodes to the very numbers that were certified.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.methods import names_by_code
from veritracer.changes import recorded_facts
from veritracer.encoding.exact import widened
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.promises import (
    DRIFTS,
    Ends,
    IssuingModel,
    Promises,
    RawRows,
    first_layout_cut,
    first_layout_ends,
    promised_ends,
)
from veritracer.options import IssueOptions, Original, Uncertified
from veritracer.schema.feature import plain
from veritracer.search.outcomes import LEAST_AGREEMENT
from veritracer.times import Moment, entry_timestamp, expiry_timestamp, to_timestamp

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.counterfactuals import Counterfactuals

Row = dict[str, Any]

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

_DATES = struct.Struct("<4xdd")  # behind four small numbers: issued and expires

CONDITIONAL, FAVOURABLE, REGION, CERTIFIED, ADVICE = 1, 2, 4, 8, 16

METHODS = names_by_code()

ORIGINALS: tuple[Original, ...] = ("plain", "encrypted", "commitment")

ENCRYPTED = ORIGINALS.index("encrypted")

FACTS = {"reasons": list, "limits": dict, "drift": dict}
"""What stands beside a person's own row and its sentence, by type: see ``recorded_facts``."""

PARTS = ("who", "x_cf", "shown", "x", "original")
"""What speaks of a person, in the order of salts and commitments."""

HASH, SALT = 32, 16
"""The lengths of a hash and of a salt, in bytes."""

_CHANGED = "the ledger was changed: run veritracer verify"


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

    ``lasting`` is where ``expires`` was given as a duration, ``stated`` where ``issued`` is not the clock's;
    ``allow_duplicate`` is whether an application that has a live promise may get another one.
    """

    issued: float
    expires: float
    original: Original = IssueOptions.original
    cipher: Fernet | None = None
    lasting: bool = False
    stated: bool = False
    uncertified: Uncertified = IssueOptions.uncertified
    allow_duplicate: bool = IssueOptions.allow_duplicate

    def __post_init__(self) -> None:
        if self.uncertified not in get_args(Uncertified):
            expected = "uncertified='promise', 'advice' or 'skip'"
            raise DataError(message(expected, repr(self.uncertified), "choose one of them"))
        if self.original not in ORIGINALS:
            expected = "original='plain', 'encrypted' or 'commitment'"
            raise DataError(message(expected, repr(self.original), "choose one of them"))
        if self.original == "encrypted" and self.cipher is None:
            remedy = "make one with veritracer.ledger.new_key(), and keep it safe"
            raise LedgerError(message("a key to encrypt original rows with", "none", remedy))

    @classmethod
    def of(
        cls,
        expires: timedelta | datetime | None = IssueOptions.expires,
        now: Moment = None,
        original: Original = IssueOptions.original,
        cipher: Fernet | None = None,
        uncertified: Uncertified = IssueOptions.uncertified,
        allow_duplicate: bool = IssueOptions.allow_duplicate,
    ) -> Terms:
        """Return the terms of promises that are made now, or at a stated time."""
        issued = to_timestamp(now)
        return cls(
            issued,
            expiry_timestamp(expires, issued),
            original,
            cipher,
            lasting=isinstance(expires, timedelta),
            stated=now is not None,
            uncertified=uncertified,
            allow_duplicate=allow_duplicate,
        )

    def after(self, newest: float) -> tuple[float, float]:
        """When promises are issued that follow an entry of that time, and when they end."""
        issued = entry_timestamp(self.issued, newest, stated=self.stated)
        expires = self.expires + (issued - self.issued) if self.lasting else self.expires
        return issued, expiry_timestamp(None if math.isinf(expires) else expires, issued)


class Texts(NamedTuple):
    """The rows of some counterfactuals that become promises, as they are going to be kept."""

    rows: NDArray[np.intp]
    shown: list[Row]
    original: list[Row]

    @classmethod
    def of(cls, found: Counterfactuals, uncertified: Uncertified) -> Texts:
        """Of every counterfactual that is to be kept; narrow numbers as the decimals that they count as."""
        rows = np.flatnonzero(kept_rows(found, uncertified))
        tables = (widened(found.encoding, table.iloc[rows]) for table in (found.frame, found.original))
        return cls(rows, *map(raw_rows, tables))


def kept_rows(found: Counterfactuals, uncertified: Uncertified) -> NDArray[np.bool_]:
    """Which counterfactuals become an entry, (n,).

    Where promises need a certificate, what a panel does not believe becomes none either: no letter would
    recommend it.
    """
    there: NDArray[np.bool_] = found.status != "none"
    if uncertified == "promise":
        return there
    there = there & ~(found.agreement < LEAST_AGREEMENT)
    return there if uncertified == "advice" else there & is_promised(found)


def is_promised(found: Counterfactuals) -> NDArray[np.bool_]:
    """Which counterfactuals are certified for more than today's model, (n,)."""
    proved: NDArray[np.bool_] = found.certified & (found.kappa > 0)
    return proved


def records(
    found: Counterfactuals, texts: Texts, names: Sequence[bytes], terms: Terms
) -> tuple[list[Record], list[bytes]]:
    """A record for each counterfactual that there is, and the openings of what is only committed to.

    ``names`` says whose each counterfactual is.
    """
    ends = promised_ends(found)
    wide = ends.wide
    headers = _headers(found, texts.rows, wide[texts.rows], terms)
    x_cf, x = _numbers(found.x_cf), _numbers(found.x)
    regions = [_numbers(end) for end in (found.region.lower, found.region.upper, *ends)]
    salts = os.urandom(len(texts.rows) * len(PARTS) * SALT)
    made, openings = [], []
    for k, i in enumerate(texts.rows.tolist()):
        region = b"".join(end[i].tobytes() for end in regions) if wide[i] else b""
        original = to_json({"row": texts.original[k], **recorded_facts(found, i)})
        shown = to_json(texts.shown[k])
        contents = [names[i], x_cf[i].tobytes() + region, shown, x[i].tobytes(), original]
        salt = salts[k * len(PARTS) * SALT : (k + 1) * len(PARTS) * SALT]
        record, opening = encrypted_record(headers[k].tobytes(), contents, salt, terms)
        made.append(record)
        openings.append(opening)
    return made, openings if terms.original == "commitment" else []


def _headers(
    found: Counterfactuals, rows: NDArray[np.intp], region: NDArray[np.bool_], terms: Terms
) -> NDArray[Any]:
    header = np.zeros(len(rows), dtype=HEADER)
    certified = found.certified[rows]
    advice = ~is_promised(found)[rows] & (terms.uncertified != "promise")
    header["layout"] = LAYOUT
    header["flags"] = (
        CONDITIONAL * found.conditional[rows]
        + FAVOURABLE * found.favourable[rows]
        + REGION * region
        + CERTIFIED * (certified & ~advice)
        + ADVICE * advice
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


def encrypted_record(header: bytes, contents: list[bytes], salt: bytes, terms: Terms) -> tuple[Record, bytes]:
    """The record, with its last two parts encrypted or left out; and what opens the commitments to them."""
    if terms.original == "encrypted":
        assert terms.cipher is not None
        contents[3:] = [terms.cipher.encrypt(content) for content in contents[3:]]
    cut = [salt[at : at + SALT] for at in range(0, len(salt), SALT)]
    commitments = b"".join(map(commitment, cut, contents))
    if terms.original != "commitment":
        return Record(header, commitments, salt, *contents), b""
    who, x_cf, shown, x, original = contents
    kept = Record(header, commitments, salt[: 3 * SALT], who, x_cf, shown, None, None)
    return kept, salt[3 * SALT :] + x + original


def commitment(salt: bytes, content: bytes) -> bytes:
    """The hash that stands for ``content`` in the chain."""
    return sha256(salt + content).digest()


def dated_header(header: bytes, issued: float, expires: float) -> bytes:
    """The header of a promise that is made at ``issued`` and ends at ``expires``."""
    return header[:4] + _DATES.pack(issued, expires)[4:] + header[_DATES.size :]


def promised_dates(header: bytes) -> tuple[float, float]:
    """When the promise with this header was made and when it ends; ``header`` is a sound one."""
    issued, expires = _DATES.unpack_from(header)
    return issued, expires


def issued_at(header: bytes) -> float:
    """When the promise with this header was made; ``struct.error`` or ``TypeError`` for what is no header."""
    return float(_DATES.unpack_from(header)[0])


def headers(blobs: Sequence[bytes]) -> NDArray[Any]:
    """The headers of promises as one array."""
    joined = b"".join(blobs)
    found = np.frombuffer(joined if len(joined) == HEADER.itemsize * len(blobs) else b"", HEADER)
    if len(found) != len(blobs) or not np.isin(found["layout"], LAYOUTS).all():
        remedy = "run veritracer verify; if it finds nothing, use a newer release"
        raise LedgerError(message(f"headers of layout {' or '.join(map(str, LAYOUTS))}", "others", remedy))
    return found


def to_promises(
    model: IssuingModel, rows: Sequence[Any], header: NDArray[Any], cipher: Fernet | None
) -> Promises:
    """The promises in rows of number, header, id, x_cf, x and perhaps texts; ``header`` has all headers."""
    flags, d = header["flags"], model.encoding.dim
    x_cf, lower, upper = counterfactuals([row[3] for row in rows], (flags & REGION) > 0, d)
    made = Promises(
        model=model.digest,
        sequence=np.fromiter((row[0] for row in rows), np.int64, len(rows)),
        ids=[row[2].decode() for row in rows],
        issued=header["issued"].copy(),
        expires=header["expires"].copy(),
        kappa=header["kappa"].copy(),
        conditional=(flags & CONDITIONAL) > 0,
        radius=header["radius"].copy(),
        worst_logit=header["worst_logit"].copy(),
        favourable=(flags & FAVOURABLE) > 0,
        x_cf=x_cf,
        x=_originals([row[4] for row in rows], header["original"] == ENCRYPTED, d, cipher),
        lower=lower,
        upper=upper,
    )
    with_texts = len(rows) > 0 and len(rows[0]) > 5
    return replace(made, raw=_raw(model, made, header, rows, cipher)) if with_texts else made


def counterfactuals(
    blobs: Sequence[bytes], region: NDArray[np.bool_], d: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The shown rows, and the ends of what is promised around them, all encoded."""
    if not region.any():
        x_cf = numbers_of(blobs, d)
        return x_cf, x_cf, x_cf
    x_cf = numbers_of([blob[: 8 * d] for blob in blobs], d)
    where = torch.from_numpy(np.flatnonzero(region))
    ends = numbers_of([blobs[i][8 * d : 24 * d] for i in where.tolist()], 2 * d)
    lower, upper = x_cf.clone(), x_cf.clone()
    lower[where], upper[where] = ends[:, :d], ends[:, d:]
    return x_cf, lower, upper


def raw_ends(blobs: Sequence[bytes], wide: NDArray[np.bool_], model: IssuingModel) -> Ends:
    """The ends that promises of the second layout keep in raw units, where they are ``wide``."""
    d, features = model.encoding.dim, len(model.encoding.schema)
    ends = np.full((2, len(blobs), features), np.nan)
    where = np.flatnonzero(wide)
    kept = numbers_of([blobs[i][24 * d :] for i in where.tolist()], 2 * features).numpy()
    ends[0, where], ends[1, where] = kept[:, :features], kept[:, features:]
    return Ends(ends[0], ends[1])


def _raw(
    model: IssuingModel, made: Promises, header: NDArray[Any], rows: Sequence[Any], cipher: Fernet | None
) -> RawRows:
    """The texts of the promises as tables, and the ends of what was promised in raw units."""
    names = model.encoding.schema.names
    shown = [from_json(row[5]) for row in rows]
    locked = (header["original"] == ENCRYPTED).tolist()
    own = [private(row[6], cipher, encrypted=one) for row, one in zip(rows, locked, strict=True)]
    known = np.array([one is not None for one in own], dtype=bool)
    originals = [row if one is None else one.get("row", {}) for row, one in zip(shown, own, strict=True)]
    table = table_of(shown, names)
    wide, first = (header["flags"] & REGION) > 0, header["layout"] == 1
    ends, cut = raw_ends([row[3] for row in rows], wide & ~first, model), np.zeros(len(rows), dtype=bool)
    if first.any():
        told = np.array([one is None or DRIFTS in str(one.get("sentence")) for one in own], dtype=bool)
        numbers, place = model.encoding.numbers(table), (made.x_cf, made.x, made.lower, made.upper)
        early = first_layout_ends(model.encoding, numbers, made.x_cf, made.lower, made.upper)
        ends = Ends(*(np.where(first[:, None], a, b) for a, b in zip(early, ends, strict=True)))
        cut = first & first_layout_cut(model.encoding, *place, told)
    return RawRows(table, table_of(originals, names), known, *ends, cut)


def _originals(
    blobs: list[bytes | None], encrypted: NDArray[np.bool_], d: int, cipher: Fernet | None
) -> Tensor:
    """The people's own rows; NaN where they are not kept, or kept under a key that is not at hand."""
    unknown = np.full(d, np.nan).tobytes()
    if encrypted.any():
        blobs = [
            (None if cipher is None else decrypted(blob, cipher)) if locked and blob is not None else blob
            for blob, locked in zip(blobs, encrypted.tolist(), strict=True)
        ]
    return numbers_of([unknown if blob is None else blob for blob in blobs], d)


def numbers_of(blobs: Sequence[bytes], width: int) -> Tensor:
    """The numbers as (n, width), in memory of their own."""
    joined = bytearray().join(blobs)
    if len(joined) != 8 * width * len(blobs):
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"{width} numbers in each row", f"{len(joined):,} bytes in all", remedy))
    if not blobs:
        return torch.empty(0, width, dtype=torch.float64)
    return torch.from_numpy(np.frombuffer(joined, "<f8")).reshape(len(blobs), width)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character, escaped: what ``to_json`` writes has none, and whole ones it does not escape."""


def raw_rows(frame: pd.DataFrame) -> list[Row]:
    """The rows with Python's own values; missing ones are None."""
    names = [str(name) for name in frame.columns]
    columns = [_cells(frame.iloc[:, k]) for k in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _cells(column: pd.Series[Any]) -> list[Any]:
    plain_numpy = isinstance(column.dtype, np.dtype)  # others turn whole numbers beside a gap into floats
    values = column.to_numpy().tolist() if plain_numpy else list(column.array)
    return [
        None if gone else plain(value) for value, gone in zip(values, column.isna().tolist(), strict=True)
    ]


def table_of(rows: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    """The rows as a table with these columns."""
    try:
        columns = zip(*map(itemgetter(*names, names[0]), rows), strict=True)  # of one name it gives no tuple
        return pd.DataFrame(dict(zip(names, map(list, columns), strict=False)), columns=list(names))
    except (KeyError, TypeError):
        received = "rows without some of them"
        raise LedgerError(message(f"values of {', '.join(names)}", received, _CHANGED)) from None


def to_json(content: Row) -> bytes:
    """The text; refuses values that JSON has no word for, and texts that cannot be written down."""
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


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


def private(text: bytes | None, cipher: Fernet | None, *, encrypted: bool) -> Row | None:
    """The person's own ``row`` with their ``sentence``; None where it is not kept, or not readable."""
    if text is None or (encrypted and cipher is None):
        return None
    return from_json(decrypted(text, cipher) if encrypted and cipher is not None else text)


def new_key() -> bytes:
    """A fresh random key; whoever loses it has lost the rows."""
    from cryptography.fernet import Fernet

    return Fernet.generate_key()


def make_cipher(key: bytes | str) -> Fernet:
    """What encrypts and decrypts with ``key`` (Fernet: AES-128 in CBC mode with HMAC-SHA256)."""
    try:
        from cryptography.fernet import Fernet
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[encryption]'"
        raise LedgerError(message("the package cryptography", "an install without it", remedy)) from None
    try:
        return Fernet(key)
    except ValueError:
        remedy = "make one with veritracer.ledger.new_key()"
        raise LedgerError(
            message("a key of 32 bytes in URL-safe base64", f"{len(key)} characters", remedy)
        ) from None


def decrypted(sealed: bytes, cipher: Fernet) -> bytes:
    """The content, refused where the key is another one."""
    from cryptography.fernet import InvalidToken

    try:
        return cipher.decrypt(sealed)
    except InvalidToken:
        remedy = "give the key that the promises were issued with"
        raise LedgerError(message("the key of the encrypted rows", "another one", remedy)) from None
