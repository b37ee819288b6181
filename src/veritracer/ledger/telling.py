"""One promise as people were told it, read from its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from veritracer.errors import LedgerError, message
from veritracer.ledger.arrays import ENCRYPTED, headers
from veritracer.ledger.chain import HASH, SALT, commitment
from veritracer.ledger.promised import IssuingModel
from veritracer.ledger.records import METHODS
from veritracer.ledger.texts import from_json, private
from veritracer.ledger.times import in_words

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class Kept(NamedTuple):
    """What the ledger keeps of one promise."""

    model: int
    header: bytes
    commitments: bytes
    who: bytes
    shown: bytes
    x: bytes | None
    original: bytes | None


def told(sequence: int, kept: Kept, model: IssuingModel, seal: Fernet | None) -> dict[str, Any]:
    """Everything about a promise; the original row and the sentence are None where they can not be read."""
    header = headers([kept.header])[0]
    own = private(kept.original, seal, encrypted=int(header["original"]) == ENCRYPTED) or {}
    return {
        "sequence": sequence,
        "id": kept.who.decode(),
        "issued": in_words(float(header["issued"])),
        "expires": in_words(float(header["expires"])),
        "kappa": float(header["kappa"]),
        "norm": model.norm,
        "radii": model.param_set(float(header["kappa"])).named_radii,
        "center_digest": model.model_digest,
        "radius": float(header["radius"]),
        "method": METHODS[header["method"]],
        "worst_logit": float(header["worst_logit"]),
        "values": from_json(kept.shown),
        "original": own.get("row"),
        "sentence": own.get("sentence"),
        "model": model.digest,
        "encoding": model.encoding.digest,
    }


def committed(sequence: int, kept: Kept, model: IssuingModel, opening: bytes) -> dict[str, Any]:
    """The original row and the sentence, given what opens the commitments to them; another is refused."""
    width = 8 * model.encoding.dim
    x, original = opening[2 * SALT : 2 * SALT + width], opening[2 * SALT + width :]
    seen = commitment(opening[:SALT], x) + commitment(opening[SALT : 2 * SALT], original)
    if seen != kept.commitments[-2 * HASH :]:
        remedy = "give the promise's own opening, as issue gave it"
        raise LedgerError(message(f"what opens promise {sequence}", "something else", remedy))
    return from_json(original)
