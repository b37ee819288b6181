"""Rows of the database as arrays: a chunk of promises at once, without a look at any single one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.errors import LedgerError, message
from veritracer.ledger.entries import content_of
from veritracer.ledger.promised import IssuingModel, Promises, RawRows
from veritracer.ledger.records import CONDITIONAL, FAVOURABLE, HEADER, LAYOUTS, ORIGINALS, REGION
from veritracer.ledger.regions import DRIFTS, Ends, first_layout_cut, first_layout_ends
from veritracer.ledger.sealing import opened
from veritracer.ledger.texts import from_json, private, table_of

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

ENCRYPTED = ORIGINALS.index("encrypted")


@dataclass(frozen=True)
class Gone:
    """The numbers of promises that were given back, and of those whose record was erased; sorted."""

    released: NDArray[np.int64]
    erased: NDArray[np.int64]

    @classmethod
    def of(cls, events: Iterable[Any], at: float | None) -> Gone:
        """From the entries that say so; releases count from their day on."""
        found: dict[str, list[int]] = {"release": [], "erasure": []}
        for _, kind, header in events:
            content = content_of(kind, header)
            if kind == "erasure" or at is None or content["time"] <= at:
                found[kind] += content["sequence"]
        return cls(*(np.unique(np.array(found[kind], dtype=np.int64)) for kind in found))


@dataclass(frozen=True)
class Terms:
    """Number and header of some promises, and what has become of each by a moment."""

    sequence: NDArray[np.int64]
    header: NDArray[Any]
    made: NDArray[np.bool_]
    erased: NDArray[np.bool_]
    released: NDArray[np.bool_]
    expired: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Any], gone: Gone, at: float | None, now: float) -> Terms:
        """From rows that begin with number and header; without ``at`` all that were made count."""
        sequence = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        header = headers([row[1] for row in rows])
        made = np.ones(len(rows), bool) if at is None else header["issued"] <= at
        erased = np.isin(sequence, gone.erased)
        released = np.isin(sequence, gone.released) & ~erased
        expired = (header["expires"] <= now) & ~released & ~erased
        return cls(sequence, header, made, erased, released, expired)

    @property
    def live(self) -> NDArray[np.bool_]:
        """What still has to be kept."""
        return self.made & ~(self.erased | self.released | self.expired)


def headers(blobs: Sequence[bytes]) -> NDArray[Any]:
    """The headers of promises as one array."""
    joined = b"".join(blobs)
    found = np.frombuffer(joined if len(joined) == HEADER.itemsize * len(blobs) else b"", HEADER)
    if len(found) != len(blobs) or not np.isin(found["layout"], LAYOUTS).all():
        remedy = "run veritracer verify; if it finds nothing, use a newer release"
        raise LedgerError(message(f"headers of layout {' or '.join(map(str, LAYOUTS))}", "others", remedy))
    return found


def to_promises(
    model: IssuingModel, rows: Sequence[Any], terms: Terms, kept: NDArray[np.bool_], seal: Fernet | None
) -> Promises:
    """The promises in those rows (number, header, id, x_cf, x, and perhaps texts) that are ``kept``."""
    header, sequence = terms.header[kept], terms.sequence[kept]
    if not kept.all():
        rows = [rows[i] for i in np.flatnonzero(kept).tolist()]
    flags, d = header["flags"], model.encoding.dim
    x_cf, lower, upper = counterfactuals([row[3] for row in rows], (flags & REGION) > 0, d)
    made = Promises(
        model=model.digest,
        sequence=sequence,
        ids=[row[2].decode() for row in rows],
        issued=header["issued"].copy(),
        expires=header["expires"].copy(),
        kappa=header["kappa"].copy(),
        conditional=(flags & CONDITIONAL) > 0,
        radius=header["radius"].copy(),
        worst_logit=header["worst_logit"].copy(),
        favourable=(flags & FAVOURABLE) > 0,
        x_cf=x_cf,
        x=_originals([row[4] for row in rows], header["original"] == ENCRYPTED, d, seal),
        lower=lower,
        upper=upper,
    )
    with_texts = len(rows) > 0 and len(rows[0]) > 5
    return replace(made, raw=_raw(model, made, header, rows, seal)) if with_texts else made


def counterfactuals(
    blobs: Sequence[bytes], region: NDArray[np.bool_], d: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The shown rows, and the ends of what is promised around them, all encoded."""
    if not region.any():
        x_cf = rows_of(blobs, d)
        return x_cf, x_cf, x_cf
    x_cf = rows_of([blob[: 8 * d] for blob in blobs], d)
    where = torch.from_numpy(np.flatnonzero(region))
    ends = rows_of([blobs[i][8 * d : 24 * d] for i in where.tolist()], 2 * d)
    lower, upper = x_cf.clone(), x_cf.clone()
    lower[where], upper[where] = ends[:, :d], ends[:, d:]
    return x_cf, lower, upper


def raw_ends(blobs: Sequence[bytes], wide: NDArray[np.bool_], model: IssuingModel) -> Ends:
    """The ends that promises of the second layout keep in raw units, where they are ``wide``."""
    d, features = model.encoding.dim, len(model.encoding.schema)
    ends = np.full((2, len(blobs), features), np.nan)
    where = np.flatnonzero(wide)
    kept = rows_of([blobs[i][24 * d :] for i in where.tolist()], 2 * features).numpy()
    ends[0, where], ends[1, where] = kept[:, :features], kept[:, features:]
    return Ends(ends[0], ends[1])


def _raw(
    model: IssuingModel, made: Promises, header: NDArray[Any], rows: Sequence[Any], seal: Fernet | None
) -> RawRows:
    """The texts of the promises as tables, and the ends of what was promised in raw units."""
    names = model.encoding.schema.names
    shown = [from_json(row[5]) for row in rows]
    locked = (header["original"] == ENCRYPTED).tolist()
    own = [private(row[6], seal, encrypted=one) for row, one in zip(rows, locked, strict=True)]
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
    blobs: list[bytes | None], encrypted: NDArray[np.bool_], d: int, seal: Fernet | None
) -> Tensor:
    """The people's own rows; NaN where they are not kept, or kept under a key that is not at hand."""
    unknown = np.full(d, np.nan).tobytes()
    if encrypted.any():
        blobs = [
            (None if seal is None else opened(blob, seal)) if locked and blob is not None else blob
            for blob, locked in zip(blobs, encrypted.tolist(), strict=True)
        ]
    return rows_of([unknown if blob is None else blob for blob in blobs], d)


def rows_of(blobs: Sequence[bytes], width: int) -> Tensor:
    """The numbers as (n, width), in memory of their own."""
    joined = bytearray().join(blobs)
    if len(joined) != 8 * width * len(blobs):
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"{width} numbers in each row", f"{len(joined):,} bytes in all", remedy))
    if not blobs:
        return torch.empty(0, width, dtype=torch.float64)
    return torch.from_numpy(np.frombuffer(joined, "<f8")).reshape(len(blobs), width)
