"""Whether what promises hold can be read: whatever ``verify`` accepts, every reader can use.

The chain and its commitments show that a record is the one that was written. Whoever writes one by hand can
link and commit to anything, so what it says is looked at too: numbers in their ranges, blobs of their
lengths, texts of one form with the columns of the issuing schema, and rows that say the same in words as
they do encoded.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import logit_error
from veritracer.encoding import Encoding
from veritracer.errors import LedgerError, VeriTracerError
from veritracer.ledger.layout import (
    ADVICE,
    CERTIFIED,
    ENCRYPTED,
    FAVOURABLE,
    HEADER,
    LAYOUTS,
    METHODS,
    ORIGINALS,
    REGION,
    Row,
    checked_json,
    counterfactuals,
    decrypted,
    numbers_of,
    raw_ends,
    table_of,
)
from veritracer.ledger.promises import IssuingModel
from veritracer.ledger.regions import ROUNDING
from veritracer.proving import PRECISION

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

NARROW = 1e-3
"""How far texts of the first layout may be from what was certified: they rounded narrow numbers."""

BETWEEN = 1e-8
"""How far the raw ends of a region, encoded, may be from its encoded ones: the room for rounding."""

CELLS = {bool, int, float, str, type(None)}


class Stored(NamedTuple):
    """What the ledger holds of one promise with a record; ``early`` is one from before version 2."""

    seq: int
    header: bytes
    who: bytes
    x_cf: bytes
    shown: bytes
    x: bytes | None
    original: bytes | None
    early: bool


class Fault(NamedTuple):
    """What is wrong with a promise; what is not ``grave`` an earlier release could write itself."""

    seq: int
    what: str
    grave: bool = True


def header_is_sound(blob: bytes) -> bool:
    """Whether the header of a promise says something that a promise can say."""
    if len(blob) != HEADER.itemsize:
        return False
    head = np.frombuffer(blob, HEADER)[0].item()
    layout, flags, method, original, issued, expires, kappa, radius, worst_logit = head
    small = layout in LAYOUTS and flags < 2 * ADVICE and method < len(METHODS)
    small &= not (flags & ADVICE and flags & CERTIFIED)
    finite = -np.inf < issued < np.inf and 0 <= kappa < np.inf and 0 <= radius < np.inf
    return bool(
        small and original < len(ORIGINALS) and finite and expires > -np.inf and worst_logit > -np.inf
    )


def faults(issuing: IssuingModel, stored: Sequence[Stored], seal: Fernet | None) -> Iterator[Fault]:
    """What is wrong with promises of one model whose headers are sound."""
    whole = []
    for one in stored:
        wrong = _shape(issuing, one)
        if wrong:
            yield Fault(one.seq, wrong)
        else:
            whole.append(one)
    if whole:
        shown = _Shown.of(issuing, whole)
        yield from shown.faults()
        yield from _decisions(issuing, whole, shown.x_cf)
        yield from _originals(issuing, whole, seal)


def _shape(issuing: IssuingModel, one: Stored) -> str:
    """What is wrong with the form of one record; empty if nothing is."""
    d, features = issuing.encoding.dim, len(issuing.encoding.schema)
    layout, flags, _, original = one.header[:4]
    region = (16 * d + (16 * features if layout > 1 else 0)) if flags & REGION else 0
    reach = float(np.frombuffer(one.header, HEADER)["radius"][0]) * max(issuing.units)
    if not reach < np.inf:
        return "it speaks of a set of models without an end"
    if len(one.x_cf) != 8 * d + region:
        return "'x_cf' has another length than its header says"
    if not _is_text(one.who):
        return "the id is no text"
    if original == ENCRYPTED and not (_is_token(one.x) and _is_token(one.original)):
        return "the original row is not encrypted"
    return ""


class _Shown(NamedTuple):
    """What was promised, encoded and in raw units, of one model's promises."""

    encoding: Encoding
    stored: list[Stored]
    x_cf: Tensor
    lower: Tensor
    upper: Tensor
    raw_lower: Tensor
    raw_upper: Tensor

    @classmethod
    def of(cls, issuing: IssuingModel, stored: list[Stored]) -> _Shown:
        blobs = [one.x_cf for one in stored]
        region = np.array([one.header[1] & REGION > 0 for one in stored])
        second = np.array([one.header[0] > 1 for one in stored])
        encoded = counterfactuals(blobs, region, issuing.encoding.dim)
        ends = (torch.from_numpy(end) for end in raw_ends(blobs, region & second, issuing))
        return cls(issuing.encoding, stored, *encoded, *ends)

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the numbers, then with the texts, then with the regions."""
        yield from _where("'x_cf' is no row of this encoding", ~_are_rows(self.x_cf), self.stored)
        inside = (self.lower >= 0) & (self.lower <= self.x_cf) & (self.x_cf <= self.upper) & (self.upper <= 1)
        yield from _where("the region does not hold the shown row", ~inside.all(-1).numpy(), self.stored)
        names = set(self.encoding.schema.names)
        rows = [_row(checked_json(one.shown), names) for one in self.stored]
        said = np.array([row is not None for row in rows])
        yield from _where("'shown' is no row of the issuing schema", ~said, self.stored)
        sound = yield from _compared("shown", self.encoding, self.stored, rows, self.x_cf)
        wide = sound & ~torch.isnan(self.raw_lower).all(-1).numpy()
        if wide.any():
            yield from self._regions(np.flatnonzero(wide), rows)

    def _regions(self, wide: NDArray[np.intp], rows: list[Row | None]) -> Iterator[Fault]:
        """Where the raw ends of a region are not those that are encoded beside them."""
        numbers = self.encoding.numbers(_table(self.encoding, [rows[k] for k in wide.tolist()]))
        some = torch.from_numpy(wide)
        wrong = torch.zeros(len(wide), dtype=torch.bool)
        for i, block in enumerate(self.encoding.blocks):
            low, high, own = self.raw_lower[some, i], self.raw_upper[some, i], numbers[:, i]
            extends = ~torch.isnan(low) | ~torch.isnan(high)
            wrong |= extends & (~((low <= own) & (own <= high)) | (block.group is not None))
            room = BETWEEN + self.encoding.units.of(block.feature.name, 2 * ROUNDING) * (
                low.abs() + high.abs()
            )
            first, last = self.encoding.units.interval(block.feature.name, low, high)
            wrong |= extends & ~(first >= self.lower[some, block.start] - room)
            wrong |= extends & ~(last <= self.upper[some, block.start] + room)
        stored = [self.stored[k] for k in wide.tolist()]
        yield from _where("the raw ends of the region are not those that were proved", wrong.numpy(), stored)


def _decisions(issuing: IssuingModel, stored: list[Stored], x_cf: Tensor) -> Iterator[Fault]:
    """Where the issuing model decides x′ as, by the header, it decided the original row.

    By more than rounding: a model in float32 may have decided otherwise about what lies within it.
    """
    sign = torch.tensor([1.0 if one.header[1] & FAVOURABLE else -1.0 for one in stored]).to(x_cf)
    alone = issuing.param_set(0.0)
    with torch.no_grad():
        logit = issuing.network.logit(issuing.theta, x_cf)
        error = logit_error(alone, trace(alone, x_cf), PRECISION)
    yield from _where(
        "its model decides the shown row as it did the original one", (sign * logit > error).numpy(), stored
    )


def _originals(issuing: IssuingModel, stored: list[Stored], seal: Fernet | None) -> Iterator[Fault]:
    """What is wrong with people's own rows, of those that can be read."""
    encoding, kept, rows, blobs = issuing.encoding, [], [], []
    names = set(encoding.schema.names)
    for one in stored:
        parts = _readable(one, seal)
        if parts is None:
            continue
        x, text = parts
        content = checked_json(text)
        row = None
        if content is not None and content.keys() == {"row", "sentence"}:
            row = _row(content["row"], names) if isinstance(content["sentence"], str) else None
        if row is None or len(x) != 8 * encoding.dim:
            yield Fault(one.seq, "'original' is no row of the issuing schema with its sentence")
        else:
            kept.append(one)
            rows.append(row)
            blobs.append(x)
    if kept:
        own = numbers_of(blobs, encoding.dim)
        yield from _where("'x' is no row of this encoding", ~_are_rows(own), kept)
        yield from _compared("original", encoding, kept, rows, own)


def _compared(
    part: str, encoding: Encoding, stored: list[Stored], rows: Sequence[Row | None], certified: Tensor
) -> Generator[Fault, None, NDArray[np.bool_]]:
    """Yields where texts are not what was certified; returns where they can be encoded, (n,)."""
    again = _encoded(encoding, rows)
    read = ~torch.isnan(again).any(-1)
    yield from _where(
        f"'{part}' has values that the issuing encoding does not",
        (~read & torch.tensor([row is not None for row in rows])).numpy(),
        stored,
    )
    first = torch.tensor([one.header[0] == 1 for one in stored])
    far = (again - certified).abs().amax(-1) > torch.where(first, NARROW, 0.0)
    for k in (far & read).nonzero().squeeze(-1).tolist():
        one = stored[k]
        yield Fault(one.seq, f"'{part}' is not the row that was certified", grave=not one.early)
    return np.asarray(read.numpy())


def _encoded(encoding: Encoding, rows: Sequence[Row | None]) -> Tensor:
    """The rows encoded, (n, d); NaN where one is None or cannot be."""
    out = torch.full((len(rows), encoding.dim), torch.nan, dtype=torch.float64)
    there = [k for k, row in enumerate(rows) if row is not None]
    parts = [there] if there else []
    while parts:
        part = parts.pop()
        try:
            table = _table(encoding, [rows[k] for k in part])
            out[part] = encoding.encode(table, out_of_range="ignore")
        except (VeriTracerError, ArithmeticError, TypeError, ValueError):
            half = len(part) // 2
            parts += [part[:half], part[half:]] if half else []
    return out


def _table(encoding: Encoding, rows: Sequence[Row | None]) -> Any:
    return table_of([row or {} for row in rows], encoding.schema.names)


def _row(content: Any, names: set[str]) -> Row | None:
    """The content if it has a plain value for each column of the schema, and nothing else."""
    if not isinstance(content, dict) or content.keys() != names:
        return None
    return content if set(map(type, content.values())) <= CELLS else None


def _readable(one: Stored, seal: Fernet | None) -> tuple[bytes, bytes] | None:
    """The person's own row, encoded and as a text; None where it is not kept, or under another key."""
    if one.x is None or one.original is None:
        return None
    if one.header[3] != ENCRYPTED:
        return one.x, one.original
    try:
        return None if seal is None else (decrypted(one.x, seal), decrypted(one.original, seal))
    except LedgerError:
        return None


def _are_rows(numbers: Tensor) -> NDArray[np.bool_]:
    return np.asarray(((numbers >= 0) & (numbers <= 1)).all(-1).numpy())  # NaN is neither


def _is_text(blob: bytes) -> bool:
    try:
        return bool(blob.decode().strip())
    except UnicodeDecodeError:
        return False


def _is_token(blob: bytes | None) -> bool:
    """Whether the bytes could be a Fernet token: version, time, IV, whole blocks, and a MAC."""
    try:
        token = urlsafe_b64decode(blob or b"")
    except ValueError:
        return False
    return len(token) >= 73 and token[0] == 0x80 and (len(token) - 57) % 16 == 0


def _where(what: str, wrong: NDArray[np.bool_], stored: Sequence[Stored]) -> Iterator[Fault]:
    for k in np.flatnonzero(wrong).tolist():
        yield Fault(stored[k].seq, what)
