"""Promises as bytes: canonical JSON, salted commitments and encryption, and the bytes as arrays again.

A promise has a header, which says nothing about a person, and three parts that do: the applicant's id, the
public part (the counterfactual) and the private part (the applicant's own row with its sentence). The chain
commits to each part by ``SHA-256(salt ‖ content)``, so that a part can be erased. The private part may be
encrypted, or only committed to.

The public and the private part hold a row twice: encoded, as little-endian float64, and as JSON. The first
is what was certified and what audits read, the second what the person was told. One commitment covers both.
A JSON row has a value for each column in the caller's order: booleans, integers, numbers, strings, and null
for an empty cell. A number is written as the float64 it is encoded from, even where its column was narrower,
so that the text encodes to the certified numbers exactly.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from operator import itemgetter
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.methods import BOUNDS, EXACT
from veritracer.changes import recorded_facts
from veritracer.errors import DataError, LedgerError, listing, message
from veritracer.formatting import to_python
from veritracer.ledger.promises import IssuingModel, Promises, Region, promised_region
from veritracer.options import TERM, IssueOptions, Original, Uncertified, drift_within
from veritracer.search.outcomes import LEAST_AGREEMENT
from veritracer.search.problem import Drift
from veritracer.times import Moment, entry_timestamp, expiry_timestamp, parse_duration, to_timestamp

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.counterfactuals import Counterfactuals

PROMISE_TERM = parse_duration(TERM)
"""Duration of a promise by default."""

Row = dict[str, Any]

PROMISE: dict[str, type | UnionType] = {
    "certified": bool,
    "conditional": bool,
    "expires": float | None,
    "favourable": bool,
    "kappa": float,
    "method": str,
    "original": str,
    "radius": float,
    "region": bool,
    "time": float,
    "worst_logit": float | None,
}
"""The fields of a promise's header; None stands for infinity."""

HEADER = np.dtype(
    [
        ("time", "f8"),
        ("expires", "f8"),
        ("kappa", "f8"),
        ("radius", "f8"),
        ("worst_logit", "f8"),
        ("certified", "?"),
        ("conditional", "?"),
        ("favourable", "?"),
        ("region", "?"),
        ("encrypted", "?"),
    ]
)
"""Headers of many promises in memory."""

ORIGINALS: tuple[Original, ...] = ("plain", "encrypted", "commitment")

FACTS = {"reasons": list, "limits": dict, "drift": dict}
"""Types of what stands beside an applicant's own row and its sentence: see ``recorded_facts``."""

PARTS = ("id", "public", "private")
"""The parts of a promise that speak of a person, in the order of salts and commitments."""

HASH, SALT = 32, 16
"""Lengths of a hash and of a salt, in bytes."""

CHANGED = "the ledger was changed: run veritracer verify"
"""The remedy where the ledger holds what no writer writes."""


class Record(NamedTuple):
    """One promise: its header, the commitments, and the parts that can be erased.

    Before it is issued, the header has no dates. ``x_cf`` and ``x`` are encoded rows. Where a region is
    promised, ``x_cf`` is followed by the region's lower and upper ends in raw units, one number for each
    feature, NaN where a feature has no extent.
    ``public`` and ``private`` are JSON. ``x`` and ``private`` may be encrypted, or None.
    """

    header: bytes
    commitments: bytes
    salts: bytes
    id: bytes
    x_cf: bytes
    x: bytes | None
    public: bytes
    private: bytes | None

    def faults(self, original: str) -> Iterator[str]:
        """Yield how the parts differ from what was committed to; ``original`` is what the header says."""
        hidden = original == "commitment"
        contents = [self.id, joined(self.x_cf, self.public)]
        contents += [] if hidden else [joined(self.x, self.private)]  # type: ignore[arg-type]
        if len(self.commitments) != HASH * len(PARTS):
            yield "a promise has other commitments"
        elif len(self.salts) != SALT * len(contents) or (hidden and (self.x, self.private) != (None, None)):
            yield "the record has other parts than were committed to"
        else:
            for k, content in enumerate(contents):
                at, to = SALT * k, HASH * k
                if commitment(self.salts[at : at + SALT], content) != self.commitments[to : to + HASH]:
                    yield f"the part {PARTS[k]!r} is not what was committed to"


@dataclass(frozen=True)
class Terms:
    """Terms that all promises of one call share; ``Ledger.issue`` says what each means."""

    expires: timedelta | datetime | None = PROMISE_TERM
    original: Original = IssueOptions.original
    key: bytes | str | None = field(default=None, repr=False)
    uncertified: Uncertified = IssueOptions.uncertified
    allow_duplicate: bool = IssueOptions.allow_duplicate
    now: Moment = None

    def __post_init__(self) -> None:
        if self.uncertified not in get_args(Uncertified):
            expected = "uncertified='promise' or 'skip'"
            raise DataError(message(expected, repr(self.uncertified), "choose one of them"))
        if self.original not in ORIGINALS:
            expected = "original='plain', 'encrypted' or 'commitment'"
            raise DataError(message(expected, repr(self.original), "choose one of them"))
        if self.cipher is None and self.original == "encrypted":
            remedy = "make one with veritracer.ledger.new_key(), and keep it safe"
            raise LedgerError(message("a key to encrypt original rows with", "none", remedy))
        self.dates()

    @property
    def cipher(self) -> Fernet | None:
        """Return the cipher of original rows; None without a key."""
        return None if self.key is None else make_cipher(self.key)

    def dates(self, newest: float = -math.inf) -> tuple[float, float]:
        """Return when promises that follow an entry of time ``newest`` are issued, and when they expire."""
        issued = entry_timestamp(to_timestamp(self.now), newest, stated=self.now is not None)
        return issued, expiry_timestamp(self.expires, issued)


# ---------------------------------------------------------------------------------------------- JSON

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped surrogate: ``to_json`` writes none, and refuses half of a character."""


def to_json(content: Row) -> bytes:
    """Return the text of a row; refuse values that JSON cannot hold and texts that cannot be encoded."""
    try:
        return _ENCODER.encode(content).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError is one of the latter
        remedy = "give numbers, truth values and texts of whole characters"
        raise DataError(message("rows that can be written as JSON", str(error), remedy)) from None


def from_json(text: bytes) -> Row:
    """Read what ``to_json`` wrote."""
    try:
        content = json.loads(text.decode())
    except (TypeError, ValueError, RecursionError, AttributeError):
        content = None
    if not isinstance(content, dict):
        raise LedgerError(message("a row as JSON", repr(text)[:80], CHANGED))
    return content


def checked_json(text: bytes) -> Row | None:
    """Return the object if it can be read in one way only: no duplicate key, NaN or half character."""
    try:
        content = _STRICT.decode(text.decode())
    except (TypeError, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return content if isinstance(content, dict) and not _HALF.search(text) else None


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate key")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


def canonical(content: Mapping[str, Any]) -> bytes:
    """Return the header with this content: JSON with sorted keys, in ASCII."""
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()


# ------------------------------------------------------------------------------------------- headers


def dated(header: bytes, issued: float, expires: float) -> bytes:
    """Return the header of a promise that is made at ``issued`` and ends at ``expires``."""
    return canonical({**json.loads(header), "time": issued, "expires": _finite(expires)})


def is_promise(content: Mapping[str, Any]) -> bool:
    """Return whether a header of the right fields and types says something that a promise can say."""
    return (
        (content["method"] in BOUNDS or content["method"] in ("", EXACT))
        and content["original"] in ORIGINALS
        and content["kappa"] >= 0
        and content["radius"] >= 0
    )


def headers(blobs: Sequence[bytes]) -> NDArray[Any]:
    """Return headers of promises as one array of ``HEADER``."""
    try:
        found = json.loads(b"[" + b",".join(blobs) + b"]")
        if len(found) != len(blobs):
            raise ValueError("another number of headers")
        array = np.empty(len(found), HEADER)
        for name in HEADER.names or ():
            array[name] = _column(found, name)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise LedgerError(message("headers of promises", "others", CHANGED)) from None
    return array


def _column(found: Sequence[Row], name: str) -> list[Any]:
    if name == "encrypted":
        return [one["original"] == "encrypted" for one in found]
    if name in ("expires", "worst_logit"):
        return [math.inf if one[name] is None else one[name] for one in found]
    return [one[name] for one in found]


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else float(number)


# ----------------------------------------------------------------------------- counterfactuals to bytes


class LeftOut(StrEnum):
    """Why a counterfactual becomes no promise."""

    NO = ""
    SKIPPED = "skipped"
    UNCERTIFIED = "uncertified"
    OUTGROWN = "outgrown"
    OUT_OF_RANGE = "out_of_range"


def left_out(found: Counterfactuals, terms: Terms) -> NDArray[np.object_]:
    """Return the text of a ``LeftOut`` for each counterfactual, (n,); ``NO`` where it becomes a promise.

    Where promises need a certificate, a counterfactual that the panel does not accept becomes none either: no
    notice would recommend it. No promise outlasts its proof: what people become by themselves until the
    promise ends has to be covered. Rows far outside the training rows are decided and explained only.
    """
    why = np.full(len(found), LeftOut.NO, dtype=object)
    ageing = _until_the_end(found, terms)
    ages, lasts = bool(ageing), _covers(found, ageing)
    if terms.uncertified == "promise":
        outgrown = (found.proved & (not lasts)) | (~found.proved & ages)
    else:
        proved = found.certified & (found.kappa > 0)
        why[~proved | (found.agreement < LEAST_AGREEMENT)] = LeftOut.UNCERTIFIED
        outgrown = (found.certified & (not lasts)) | (~found.certified & (found.months > 0) & ages)
    why[outgrown] = LeftOut.OUTGROWN
    why[found.far_outside] = LeftOut.OUT_OF_RANGE
    why[found.status == "none"] = LeftOut.SKIPPED
    return why


def _until_the_end(found: Counterfactuals, terms: Terms) -> dict[str, tuple[float, float]]:
    """Return how far features move by themselves until promises end; refuse endless ones if any moves."""
    schema = found.encoding.schema
    issued, expires = terms.dates()
    if math.isfinite(expires):
        return drift_within(schema, timedelta(seconds=expires - issued))
    moving = drift_within(schema, timedelta(days=1))
    if moving:
        expected = "promises that end"
        remedy = "give them an end: no certificate covers for ever what moves by itself"
        received = f"endless ones, although the schema has yearly moves of {listing(list(moving))}"
        raise LedgerError(message(expected, received, remedy))
    return {}


def _covers(found: Counterfactuals, ageing: Mapping[str, tuple[float, float]]) -> bool:
    """Return whether the certified regions cover these moves."""
    covered = {name: Drift.of(found.drift.get(name, 0.0)) for name in ageing}
    pairs = [(covered[name], Drift.of(moves)) for name, moves in ageing.items()]
    return all(mine.least <= least and most <= mine.most for mine, (least, most) in pairs)


def records(
    found: Counterfactuals,
    shown: Sequence[Row],
    original: Sequence[Row],
    names: Sequence[bytes],
    terms: Terms,
) -> tuple[list[Record], list[bytes]]:
    """Return a record for each counterfactual, and what opens private parts that are only committed to.

    ``shown`` and ``original`` are the raw rows, ``names`` the applicants' ids.
    """
    region, cipher = promised_region(found), terms.cipher
    wide = region.wide
    x_cf, x = _numbers(found.x_cf), _numbers(found.x)
    made, openings = [], []
    for i, name in enumerate(names):
        ends = region.lower[i].tobytes() + region.upper[i].tobytes() if wide[i] else b""
        public, private = to_json(shown[i]), to_json({"row": original[i], **recorded_facts(found, i)})
        parts = name, x_cf[i].tobytes() + ends, x[i].tobytes(), public, private
        record, opening = to_record(_header(found, i, terms, region=bool(wide[i])), parts, terms, cipher)
        made.append(record)
        openings.append(opening)
    return made, openings if terms.original == "commitment" else []


def _header(found: Counterfactuals, i: int, terms: Terms, *, region: bool) -> bytes:
    certified, radius = bool(found.certified[i]), float(found.radius[i])
    content = {
        "certified": certified,
        "conditional": bool(found.conditional[i]),
        "favourable": bool(found.favourable[i]),
        # As found.promise(i).kappa: what was requested where it is certified, else what was proved.
        "kappa": float(found.kappa) if certified else radius,
        "method": str(found.method[i]),
        "original": terms.original,
        "radius": radius,
        "region": region,
        "worst_logit": _finite(found.worst_logit[i]),
    }
    return canonical(content)


def _numbers(rows: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(rows.detach().cpu().numpy(), dtype="<f8")


def to_record(
    header: bytes, parts: tuple[bytes, bytes, bytes, bytes, bytes], terms: Terms, cipher: Fernet | None = None
) -> tuple[Record, bytes]:
    """Return the record, and what opens its private part if only a commitment is kept.

    ``parts`` are the id, x' encoded, x encoded, and the JSON of both. What is private is encrypted or left
    out, as the terms say.
    """
    who, x_cf, x, public, private = parts
    if terms.original == "encrypted":
        assert cipher is not None
        x, private = cipher.encrypt(x), cipher.encrypt(private)
    salts = os.urandom(SALT * len(PARTS))
    contents = who, joined(x_cf, public), joined(x, private)
    each = [salts[at : at + SALT] for at in range(0, len(salts), SALT)]
    commitments = b"".join(map(commitment, each, contents))
    if terms.original == "commitment":
        record = Record(header, commitments, salts[: 2 * SALT], who, x_cf, None, public, None)
        return record, each[2] + contents[2]
    return Record(header, commitments, salts, who, x_cf, x, public, private), b""


def joined(numbers: bytes, text: bytes) -> bytes:
    """Return a part as it is hashed: the length of the numbers in decimal, a line feed, numbers, text."""
    return b"%d\n" % len(numbers) + numbers + text


def separated(part: bytes) -> tuple[bytes, bytes]:
    """Return the numbers and the text of what ``joined`` gave; ``ValueError`` for anything else."""
    length, _, rest = part.partition(b"\n")
    return rest[: int(length)], rest[int(length) :]


def commitment(salt: bytes, content: bytes) -> bytes:
    """Return the hash that stands for ``content`` in the chain."""
    return sha256(salt + content).digest()


def raw_rows(frame: pd.DataFrame) -> list[Row]:
    """Return the rows with plain Python values; missing ones are None."""
    names = [str(name) for name in frame.columns]
    columns = [_cells(frame.iloc[:, k]) for k in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _cells(column: pd.Series[Any]) -> list[Any]:
    plain_numpy = isinstance(column.dtype, np.dtype)  # others turn integers beside a gap into floats
    values = column.to_numpy().tolist() if plain_numpy else list(column.array)
    return [
        None if gone else to_python(value) for value, gone in zip(values, column.isna().tolist(), strict=True)
    ]


# ------------------------------------------------------------------------------------ bytes to promises


def to_promises(
    model: IssuingModel, rows: Sequence[Any], header: NDArray[Any], cipher: Fernet | None
) -> Promises:
    """Return promises from rows of number, header, id, x_cf, x and, if asked for, public and private JSON."""
    x_cf, region = counterfactuals([row[3] for row in rows], header["region"], model)
    encrypted = header["encrypted"].tolist()
    shown, original = None, None
    if rows and len(rows[0]) > 5:
        names = model.encoding.schema.names
        told = [from_json(row[5]) for row in rows]
        own = [private(row[6], cipher, encrypted=one) for row, one in zip(rows, encrypted, strict=True)]
        shown = table_of(told, names)
        rows_kept = [a if b is None else b.get("row", {}) for a, b in zip(told, own, strict=True)]
        original = table_of(rows_kept, names)
    return Promises(
        model=model.digest,
        sequence=np.fromiter((row[0] for row in rows), np.int64, len(rows)),
        ids=[row[2].decode() for row in rows],
        issued=header["time"].copy(),
        expires=header["expires"].copy(),
        kappa=header["kappa"].copy(),
        conditional=header["conditional"].copy(),
        radius=header["radius"].copy(),
        worst_logit=header["worst_logit"].copy(),
        favourable=header["favourable"].copy(),
        x_cf=x_cf,
        x=_originals([row[4] for row in rows], encrypted, model.encoding.dim, cipher),
        region=region,
        shown=shown,
        original=original,
    )


def counterfactuals(
    blobs: Sequence[bytes], region: NDArray[np.bool_], model: IssuingModel
) -> tuple[Tensor, Region]:
    """Return the encoded counterfactuals (n, d), and the raw ends of what is promised around them."""
    d, features = model.encoding.dim, len(model.encoding.schema)
    ends = np.full((2, len(blobs), features), np.nan)
    where = np.flatnonzero(region)
    if len(where) == 0:
        return numbers_of(blobs, d), Region(ends[0], ends[1])
    kept = numbers_of([blobs[i][8 * d :] for i in where.tolist()], 2 * features).numpy()
    ends[0, where], ends[1, where] = kept[:, :features], kept[:, features:]
    cut = [blob[: 8 * d] if wide else blob for blob, wide in zip(blobs, region.tolist(), strict=True)]
    return numbers_of(cut, d), Region(ends[0], ends[1])


def _originals(blobs: list[bytes | None], encrypted: list[bool], d: int, cipher: Fernet | None) -> Tensor:
    """Return the encoded original rows, NaN where they are not kept or no key is at hand."""
    unknown = np.full(d, np.nan).tobytes()
    if any(encrypted):
        blobs = [
            (None if cipher is None else decrypted(blob, cipher)) if locked and blob is not None else blob
            for blob, locked in zip(blobs, encrypted, strict=True)
        ]
    return numbers_of([unknown if blob is None else blob for blob in blobs], d)


def numbers_of(blobs: Sequence[bytes], width: int) -> Tensor:
    """Return the numbers as (n, width), in memory of their own."""
    joined_blobs = bytearray().join(blobs)
    if len(joined_blobs) != 8 * width * len(blobs):
        received = f"{len(joined_blobs):,} bytes in all"
        raise LedgerError(message(f"{width} numbers in each row", received, CHANGED))
    if not blobs:
        return torch.empty(0, width, dtype=torch.float64)
    return torch.from_numpy(np.frombuffer(joined_blobs, "<f8")).reshape(len(blobs), width)


def table_of(rows: Sequence[Row], names: Sequence[str]) -> pd.DataFrame:
    """Return the rows as a table with these columns."""
    try:
        columns = zip(*map(itemgetter(*names, names[0]), rows), strict=True)  # of one name it gives no tuple
        return pd.DataFrame(dict(zip(names, map(list, columns), strict=False)), columns=list(names))
    except (KeyError, TypeError):
        received = "rows without some of them"
        raise LedgerError(message(f"values of {', '.join(names)}", received, CHANGED)) from None


# ---------------------------------------------------------------------------------------- encryption


def private(text: bytes | None, cipher: Fernet | None, *, encrypted: bool) -> Row | None:
    """Return the applicant's own ``row`` with what speaks of it; None where it cannot be read."""
    if text is None or (encrypted and cipher is None):
        return None
    return from_json(decrypted(text, cipher) if encrypted and cipher is not None else text)


def new_key() -> bytes:
    """Return a fresh random key; whoever loses it has lost the rows."""
    from cryptography.fernet import Fernet

    return Fernet.generate_key()


def make_cipher(key: bytes | str) -> Fernet:
    """Return the cipher that uses ``key`` (Fernet: AES-128 in CBC mode with HMAC-SHA256)."""
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


def decrypted(token: bytes, cipher: Fernet) -> bytes:
    """Return the content; refuse a token of another key."""
    from cryptography.fernet import InvalidToken

    try:
        return cipher.decrypt(token)
    except InvalidToken:
        remedy = "give the key that the promises were issued with"
        raise LedgerError(message("the key of the encrypted rows", "another one", remedy)) from None
