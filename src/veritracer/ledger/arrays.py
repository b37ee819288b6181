"""Rows of the database as arrays: a chunk of promises at once, without a look at any single one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.errors import LedgerError, message
from veritracer.ledger.promised import IssuingModel, Promises
from veritracer.ledger.records import CONDITIONAL, FAVOURABLE, HEADER, LAYOUT, ORIGINALS, REGION
from veritracer.ledger.sealing import opened

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
            content = json.loads(header)
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
        header = np.frombuffer(b"".join([row[1] for row in rows]), HEADER)
        if len(header) != len(rows) or (len(rows) and (header["layout"] != LAYOUT).any()):
            remedy = "run veritracer verify; if it finds nothing, use a newer release"
            raise LedgerError(message(f"headers of layout {LAYOUT}", "others", remedy))
        made = np.ones(len(rows), bool) if at is None else header["issued"] <= at
        erased = np.isin(sequence, gone.erased)
        released = np.isin(sequence, gone.released) & ~erased
        expired = (header["expires"] <= now) & ~released & ~erased
        return cls(sequence, header, made, erased, released, expired)

    @property
    def live(self) -> NDArray[np.bool_]:
        """What still has to be kept."""
        return self.made & ~(self.erased | self.released | self.expired)


def to_promises(
    model: IssuingModel, rows: Sequence[Any], terms: Terms, kept: NDArray[np.bool_], seal: Fernet | None
) -> Promises:
    """The promises in those rows (number, header, id, x_cf, x) that are ``kept``."""
    header, sequence = terms.header[kept], terms.sequence[kept]
    if not kept.all():
        rows = [rows[i] for i in np.flatnonzero(kept).tolist()]
    flags, d = header["flags"], model.encoding.dim
    region = (flags & REGION) > 0
    x_cf, lower, upper = _counterfactuals([row[3] for row in rows], region, d)
    return Promises(
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


def _counterfactuals(blobs: list[bytes], region: NDArray[np.bool_], d: int) -> tuple[Tensor, Tensor, Tensor]:
    """The shown rows, and the ends of what is promised around them."""
    if not region.any():
        x_cf = _rows(blobs, d)
        return x_cf, x_cf, x_cf
    x_cf = _rows([blob[: 8 * d] for blob in blobs], d)
    where = torch.from_numpy(np.flatnonzero(region))
    ends = _rows([blobs[i][8 * d :] for i in where.tolist()], 2 * d)
    lower, upper = x_cf.clone(), x_cf.clone()
    lower[where], upper[where] = ends[:, :d], ends[:, d:]
    return x_cf, lower, upper


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
    return _rows([unknown if blob is None else blob for blob in blobs], d)


def _rows(blobs: list[bytes], width: int) -> Tensor:
    """The numbers as (n, width), in memory of their own."""
    joined = bytearray().join(blobs)
    if len(joined) != 8 * width * len(blobs):
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"{width} numbers in each row", f"{len(joined):,} bytes in all", remedy))
    if not blobs:
        return torch.empty(0, width, dtype=torch.float64)
    return torch.from_numpy(np.frombuffer(joined, "<f8")).reshape(len(blobs), width)
