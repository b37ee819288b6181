"""Issue promises: prove claims again, find duplicates, and append all promises of a batch at once.

Nothing is issued on trust: ``Counterfactuals`` are values that anybody can copy and edit. Before they become
promises, the texts to be kept are encoded again and must be the certified rows bit for bit, the model must
decide as they say, and every claim about later models is proved again for the very set that the ledger
names. Without the search for the largest radius that is cheap.

``prepare`` does all of that and needs no ledger, so that many processes can; a ``Batch`` collects what it
returns, in memory and on disk once there is much of it, and commits it in one transaction.
"""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import EXACT
from veritracer.certificate import Certificates, certify
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import DataError, LedgerError, PromisedMeanwhileError, message
from veritracer.ledger.chain import content_of
from veritracer.ledger.promises import IssuingModel, certified_region_of
from veritracer.ledger.records import (
    RawRows,
    Record,
    Row,
    Terms,
    canonical,
    dated,
    headers,
    private,
    records,
    table_of,
)
from veritracer.ledger.snapshot import Revocations
from veritracer.models.network import to_module
from veritracer.options import Effort
from veritracer.proving import decide
from veritracer.threads import one_thread

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.ledger.database import Database, Reader, Writer
    from veritracer.ledger.requests import Kept, Request

ROUNDING = 1e-9
"""Share of its size by which a bound may differ when it is computed again beside other rows."""

PENDING_BYTES = 64 * 2**20
"""Bytes up to which records are kept in memory; more go to a file without a name."""

LEFT_OUT = ("skipped", "uncertified", "repeated")
"""The counts of ``Issued``: what became no promise, by reason."""

_REMEDY = "explain again, and issue what explain answers as it is"

_LENGTHS = struct.Struct("<8i")


@dataclass(frozen=True, repr=False)
class Issued:
    """Promises that were issued.

    Attributes
    ----------
    sequence
        Their numbers in the ledger.
    ids
        The applicants' ids.
    head
        The newest link of the chain, in hexadecimal: note it elsewhere.
    skipped
        The number of rows without a counterfactual, which got no promise.
    issued, expires
        When they were made and until when they hold, in seconds since 1970; infinite is never.
    uncertified, repeated
        The number of counterfactuals left out because they are not certified (or not accepted by the panel),
        and because the same application has a live promise already.
    openings
        With ``original="commitment"``: for each promise the salt and the content that prove later which row
        was committed to. It is kept nowhere else.
    recourse
        The counterfactuals, if ``VeriTraCER.issue`` found them.
    again
        Whether these were issued before for the same request, and nothing now.
    """

    sequence: NDArray[np.int64]
    ids: list[str]
    head: str
    skipped: int
    openings: list[bytes] = field(default_factory=list)
    recourse: Counterfactuals | None = None
    issued: float = math.nan
    expires: float = math.inf
    uncertified: int = 0
    repeated: int = 0
    again: bool = False

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def left_out(self) -> dict[str, int]:
        """Return how many became no promise, by reason."""
        return {name: getattr(self, name) for name in LEFT_OUT}

    def __str__(self) -> str:
        numbers = f" (entries {self.sequence[0]:,} to {self.sequence[-1]:,})" if len(self) else ""
        return "; ".join(
            [
                f"{len(self):,} {'promise' if len(self) == 1 else 'promises'}{numbers}",
                f"{self.uncertified:,} skipped, not certified",
                f"{self.repeated:,} skipped, promised already",
                f"{self.skipped:,} without a counterfactual",
                f"head {self.head}",
            ]
        )

    __repr__ = __str__  # and not every number and id


def issued_before(kept: Kept, skipped: int) -> Issued:
    """Return what an earlier call issued for the same request; its ids and openings are not kept."""
    numbers = np.arange(kept.first, kept.first + kept.count, dtype=np.int64)
    head = kept.head.hex()
    return Issued(numbers, [], head, skipped, issued=kept.issued, expires=kept.expires, again=True)


@dataclass(frozen=True)
class Prepared:
    """Promises that were proved again and need only their numbers and dates; can be pickled.

    Attributes
    ----------
    model
        The issuing model.
    rows
        The positions of the promised counterfactuals in the result of ``explain``.
    records, openings
        A record for each, and with ``original="commitment"`` what opens it.
    applications, people
        What recognises each application, and its row in the table: alternatives of one row are one
        application.
    asked
        The number of rows.
    skipped, uncertified
        The number of rows without a counterfactual, and of counterfactuals that are left out.
    """

    model: IssuingModel
    rows: NDArray[np.intp]
    records: list[Record]
    openings: list[bytes]
    applications: list[bytes]
    people: NDArray[np.intp]
    asked: int
    skipped: int
    uncertified: int

    def without(self, some: NDArray[np.bool_]) -> Prepared:
        """Return all promises but some."""
        kept = np.flatnonzero(~some).tolist()
        return replace(
            self,
            rows=self.rows[kept],
            records=[self.records[k] for k in kept],
            openings=[self.openings[k] for k in kept] if self.openings else [],
            applications=[self.applications[k] for k in kept],
            people=self.people[kept],
        )


def prepare(
    found: Counterfactuals, module: nn.Module, threshold: float, terms: Terms, ids: Sequence[Any]
) -> Prepared:
    """Prove the claims of counterfactuals again and turn those to be kept into records."""
    model = IssuingModel.of(module, found.encoding, threshold, found.param_set)
    if model.model_digest != found.model_digest:
        received = f"{model.model_digest[:12]}… where they speak of {found.model_digest[:12]}…"
        remedy = "pass the model that explain was called on, as it was then"
        raise LedgerError(message("the model that the certificates speak of", received, remedy))
    names = identities(ids, found)
    raw = RawRows.of(found, terms.uncertified)
    check_claims(found, raw, module, model)
    made, openings = records(found, raw, names, terms)
    each = zip(raw.rows.tolist(), raw.original, strict=True)
    return Prepared(
        model=model,
        rows=raw.rows,
        records=made,
        openings=openings,
        applications=[_application(names[i], row) for i, row in each],
        people=found.row[raw.rows],
        asked=int(found.row.max()) + 1 if len(found) else 0,
        skipped=int((found.status == "none").sum()),
        uncertified=int((found.status != "none").sum()) - len(raw.rows),
    )


Numbered = Callable[[NDArray[np.int64], float, float], None]
"""Receives the numbers of the promises of a batch, and when they are made and end."""


class Batch:
    """Promises in preparation: ``add`` delays nobody, ``commit`` other writers, and briefly.

    ``known`` are the applications that have a promise already; None lets them have another one. Callables in
    ``numbered`` are called before anything is committed: if one fails, nothing was promised. A ``request`` is
    granted once: what was issued for it before is returned again. ``permit`` may refuse the model, given the
    ledger as it is when the promises are committed.
    """

    def __init__(
        self,
        module: nn.Module,
        threshold: float,
        terms: Terms,
        known: Applications | None = None,
        request: Request | None = None,
        permit: Callable[[Reader, IssuingModel], None] | None = None,
    ) -> None:
        self.module, self.threshold, self.terms = module, threshold, terms
        self.known, self.request, self.permit = known, request, permit
        self.pending = PendingRecords()
        self.model: IssuingModel | None = None
        self.ids: list[str] = []
        self.openings: list[bytes] = []
        self.numbered: list[Numbered] = []
        self.skipped = self.uncertified = self.repeated = 0
        self._issued: Issued | None = None

    @property
    def left_out(self) -> dict[str, int]:
        """Return how many became no promise, by reason: the counts of ``Issued``."""
        return {name: getattr(self, name) for name in LEFT_OUT}

    @property
    def issued(self) -> Issued:
        """Return what was issued, once the batch is committed."""
        assert self._issued is not None, "the batch is not committed"
        return self._issued

    def add(self, found: Counterfactuals, ids: Sequence[Any]) -> Prepared:
        """Add counterfactuals, and return those that will become promises."""
        return self.take(prepare(found, self.module, self.threshold, self.terms, ids))

    def take(self, prepared: Prepared) -> Prepared:
        """Add prepared promises but those of an application that has one, and return what was added."""
        if self.model is not None and prepared.model.digest != self.model.digest:
            remedy = "issue them one model at a time"
            raise LedgerError(message("counterfactuals of one model and set", "several", remedy))
        self.model = prepared.model
        self.skipped += prepared.skipped
        self.uncertified += prepared.uncertified
        if self.known is not None:
            repeated = self.known.repeated(prepared)
            prepared = prepared.without(repeated)
            self.repeated += int(repeated.sum())
        for record in prepared.records:
            self.pending.put(record)
            self.ids.append(record.id.decode())
        self.openings += prepared.openings
        return prepared

    def commit(self, database: Database) -> None:
        """Write all promises into the ledger, or none."""
        if not self.pending.count and self.request is None:
            with database.reading() as reader:
                head = reader.head()
            sequence: NDArray[np.int64] = np.empty(0, np.int64)
            self._finish(sequence, head, *self.terms.after(-math.inf))
            return
        with database.writing() as (writer, reader):
            if self.request is not None and (before := reader.request(self.request)):
                self._issued = issued_before(before, self.skipped)
                return
            if self.permit is not None and self.model is not None:
                self.permit(reader, self.model)
            self._check_meanwhile(reader)
            issued, expires = self.terms.after(writer.newest)
            number = self._model_number(writer, reader, issued) if self.pending.count else 0
            first = writer.seq + 1
            for record in self.pending:
                writer.promise(record._replace(header=dated(record.header, issued, expires)), number)
            if self.request is not None:
                writer.request(self.request, first, issued, expires)
            sequence = np.arange(first, first + len(self.pending), dtype=np.int64)
            self._finish(sequence, writer.link, issued, expires)

    def _finish(self, sequence: NDArray[np.int64], head: bytes, issued: float, expires: float) -> None:
        """Pass the numbers on to whoever waits for them."""
        for receive in self.numbered:
            receive(sequence, issued, expires)
        self._issued = Issued(
            sequence,
            self.ids,
            head.hex(),
            self.skipped,
            self.openings,
            issued=issued,
            expires=expires,
            uncertified=self.uncertified,
            repeated=self.repeated,
        )

    def _check_meanwhile(self, reader: Reader) -> None:
        """Refuse what another writer has promised since the batch was begun."""
        if self.known is not None and self.known.promised_meanwhile(reader):
            remedy = "run it again: what was promised meanwhile is left out then"
            expected = "nobody to promise the same meanwhile"
            raise PromisedMeanwhileError(message(expected, "another writer", remedy))

    def close(self) -> None:
        """Discard what was prepared."""
        self.pending.close()

    def _model_number(self, writer: Writer, reader: Reader, time: float) -> int:
        """Return the number of the issuing model's entry, which is made if there is none."""
        assert self.model is not None
        for seq, kind, header in reader.kept_models():
            if content_of(kind, header)["digest"] == self.model.digest:
                return int(seq)
        header = canonical({"digest": self.model.digest, "time": time})
        return writer.model(header, *self.model.to_bytes())


class Applications:
    """The applications with a live promise: an id and a row, or the id alone where no row can be read."""

    def __init__(self, database: Database, now: float, cipher: Fernet | None) -> None:
        self.database, self.now, self.cipher = database, now, cipher
        self.mine: dict[bytes, int] = {}
        self.names: set[bytes] = set()
        self.count = 0
        with database.reading() as reader:
            self.newest = reader.last()
            gone = Revocations.of(reader.events("release", "erasure"), None)
        self.revoked = {*gone.released.tolist(), *gone.erased.tolist()}

    def repeated(self, prepared: Prepared) -> NDArray[np.bool_]:
        """Return a mask of what is promised already, in the ledger or earlier in this batch."""
        names = [record.id for record in prepared.records]
        self.names.update(names)
        with self.database.reading() as reader:
            known = self._read(reader, set(names))
        again = []
        for name, key, person in zip(names, prepared.applications, prepared.people.tolist(), strict=True):
            there = key in known or _application(name, None) in known
            again.append(there or self.mine.setdefault(key, self.count + person) != self.count + person)
        self.count += prepared.asked
        return np.array(again, dtype=bool)

    def promised_meanwhile(self, reader: Reader) -> bool:
        """Return whether one of this batch has got a promise since the batch was begun."""
        late = self._read(reader, self.names, after=self.newest)
        named = {key[:NAME] for key in self.mine}
        return any(key in self.mine or (key[NAME:] == ANY and key[:NAME] in named) for key in late)

    def _read(self, reader: Reader, whose: Collection[bytes], after: int = 0) -> set[bytes]:
        """Return the applications of these people that have a live promise."""
        found: set[bytes] = set()
        for rows in reader.applications(sorted(whose), after):
            header = headers([row[1] for row in rows])
            live = header["expires"] > self.now
            encrypted = header["encrypted"].tolist()
            for (seq, _, who, own), lives, locked in zip(rows, live.tolist(), encrypted, strict=True):
                if lives and seq not in self.revoked:
                    found.add(_application(who, self._own(own, encrypted=locked)))
        return found

    def _own(self, text: bytes | None, *, encrypted: bool) -> Row | None:
        try:
            kept = private(text, self.cipher, encrypted=encrypted)
        except LedgerError:
            return None  # under another key
        row = None if kept is None else kept.get("row")
        return row if isinstance(row, dict) else None


NAME, ANY = 16, bytes(16)


def _application(who: bytes, row: Row | None) -> bytes:
    """Return hashes of the id and of the values, which recognise an application; 1 and 1.0 are equal."""
    name = sha256(who).digest()[:NAME]
    if row is None:
        return name + ANY
    numbers = {k: float(v) if type(v) is int else v for k, v in row.items()}
    return name + sha256(repr(sorted(numbers.items())).encode("utf-8", "surrogatepass")).digest()[:NAME]


class PendingRecords:
    """Records in the order in which they were put, read once all are there."""

    def __init__(self) -> None:
        # Closed by close(); a file without a name is gone with the process, whatever ends it.
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(PENDING_BYTES)  # noqa: SIM115
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def put(self, record: Record) -> None:
        """Keep the record."""
        self.file.write(_LENGTHS.pack(*(-1 if part is None else len(part) for part in record)))
        self.file.write(b"".join(part for part in record if part is not None))
        self.count += 1

    def __iter__(self) -> Iterator[Record]:
        self.file.seek(0)
        for _ in range(self.count):
            lengths = _LENGTHS.unpack(self.file.read(_LENGTHS.size))
            yield Record(*(None if n < 0 else self.file.read(n) for n in lengths))  # type: ignore[arg-type]

    def close(self) -> None:
        """Discard what was kept."""
        self.file.close()


def identities(ids: Sequence[Any], found: Counterfactuals) -> list[bytes]:
    """Return the id of each counterfactual; refuse a list of another length, and empty ids."""
    people = int(found.row.max()) + 1 if len(found) else 0
    if isinstance(ids, str) or len(ids) != people:
        received = repr(ids) if isinstance(ids, str) else f"{len(ids):,} for {people:,} rows"
        raise DataError(message("an id for each row", received, "pass ids= with one for each row of X"))
    names = names_of(ids)
    return [names[person] for person in found.row.tolist()]


def names_of(ids: Sequence[Any]) -> list[bytes]:
    """Return ids as they are kept; refuse people without a name."""
    texts = ["" if _is_missing(one) else str(one) for one in ids]
    empty = sum(not text.strip() for text in texts)
    if empty:
        remedy = "a promise is made to somebody: give everybody an id"
        raise DataError(message("an id for each row", f"{empty:,} that are empty or missing", remedy))
    return [utf8(text) for text in texts]


def utf8(identity: Any, what: str = "an id") -> bytes:
    """Return the text as it is kept; refuse half of a character, which no file or notice can hold."""
    try:
        return str(identity).encode()
    except UnicodeEncodeError:
        remedy = "repair it, or read it anew with the encoding that it was written in"
        raise DataError(message(f"{what} of whole characters", ascii(str(identity)), remedy)) from None


def _is_missing(one: Any) -> bool:
    return one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and one != one)


def check_claims(found: Counterfactuals, raw: RawRows, module: nn.Module, issuing: IssuingModel) -> None:
    """Refuse counterfactuals that claim more than is shown, decided and proved."""
    if found.encoding_digest != issuing.encoding.digest:
        received = f"{issuing.encoding.digest[:12]}… where they speak of {found.encoding_digest[:12]}…"
        raise LedgerError(message("the encoding that the certificates speak of", received, _REMEDY))
    if len(raw.rows) == 0:
        return
    rows = torch.from_numpy(raw.rows)
    x, x_cf = found.x[rows].cpu(), found.x_cf[rows].cpu()
    _check_encoded("values that encode to the certified rows", issuing.encoding, raw.shown, x_cf)
    _check_encoded("original rows that encode to the explained ones", issuing.encoding, raw.original, x)
    _check_regions(found, rows)
    with one_thread():
        _check_decisions(found, raw.rows, module, x, x_cf)
        _check_proofs(found, raw.rows, issuing, x, x_cf)


def _check_encoded(expected: str, encoding: Encoding, rows: list[Row], certified: Tensor) -> None:
    try:
        again = encoding.encode(table_of(rows, encoding.schema.names), out_of_range="ignore")
    except (DataError, LedgerError) as error:
        raise LedgerError(message(expected, f"others ({error})", _REMEDY)) from error
    _refuse(expected, (again != certified).any(-1).numpy())


def _check_regions(found: Counterfactuals, rows: Tensor) -> None:
    """Refuse regions other than overshoot and drift give, where something is proved of them."""
    region = certified_region_of(found).around(found.x_cf[rows].cpu(), found.x[rows].cpu())
    box = region if isinstance(region, Box) else Box(region, region)
    pairs = (box.lower, found.region.lower[rows].cpu()), (box.upper, found.region.upper[rows].cpu())
    other = torch.stack([(ours != theirs).any(-1) for ours, theirs in pairs]).any(0).numpy()
    _refuse("the regions that overshoot and drift ask for", other & _proved(found)[rows.numpy()])


def _check_decisions(
    found: Counterfactuals, rows: NDArray[np.intp], module: nn.Module, x: Tensor, x_cf: Tensor
) -> None:
    today, there = (decide(module, points).sign for points in (x, x_cf))
    _refuse("today's decisions on the original rows", found.favourable[rows] != (today > 0).numpy())
    _refuse("counterfactuals that are decided otherwise today", (there == today).numpy())


def _check_proofs(
    found: Counterfactuals, rows: NDArray[np.intp], issuing: IssuingModel, x: Tensor, x_cf: Tensor
) -> None:
    """Refuse claims about later models without a proof, or with a condition that is not stated."""
    certified, radius = found.certified[rows], found.radius[rows]
    kappa = np.where(certified, found.kappa, radius)
    worst = found.worst_logit[rows]
    _refuse("certificates whose bound is below 0", certified != (worst < 0))
    _refuse("a radius of at least kappa, and finite numbers", ~(radius >= kappa) | np.isinf(radius))
    region = Box(found.region.lower[rows].cpu(), found.region.upper[rows].cpu())
    proofs = _Proofs(issuing, x, x_cf, None if certified_region_of(found).is_point else region)
    proved = _proved(found)[rows]
    exact = certified & (found.method[rows] == EXACT)  # what the exact stage proved, the bounds cannot
    for value, stage in sorted(set(zip(kappa[proved].tolist(), exact[proved].tolist(), strict=True))):
        some = np.flatnonzero(proved & (kappa == value) & (exact == stage))
        again = proofs.at(value, some, "exact" if stage else "fast")
        _refuse("a proof for every certificate", ~again.certified)
        _refuse("the condition that a proof needs", again.conditional & ~found.conditional[rows][some])
        named = certified[some]
        _refuse("the method that proves it", named & (again.method != found.method[rows][some]))
        slack = ROUNDING * (1 + np.abs(again.worst_logit))
        _refuse("the bound that is proved", named & (worst[some] < again.worst_logit - slack))
    for value in np.unique(radius[radius > kappa]):
        some = np.flatnonzero((radius > kappa) & (radius == value))
        _refuse("a proof for every radius", ~proofs.at(float(value), some).certified)


class _Proofs:
    """Some rows, to be proved at one kappa or another."""

    def __init__(self, issuing: IssuingModel, x: Tensor, x_cf: Tensor, region: Box | None) -> None:
        self.issuing, self.x, self.x_cf, self.region = issuing, x, x_cf, region
        self.module = to_module(issuing.network, issuing.theta)

    def at(self, kappa: float, some: NDArray[np.intp], effort: Effort = "fast") -> Certificates:
        """Return certificates of some of them."""
        part = torch.from_numpy(some)
        target = self.x_cf[part] if self.region is None else self.region.select(part)
        models = self.issuing.param_set(kappa)
        return certify(self.module, self.x[part], target, models, radius=False, effort=effort)


def _proved(found: Counterfactuals) -> NDArray[np.bool_]:
    """Return a mask of the rows with a claim about later models."""
    said: NDArray[np.bool_] = found.certified | (found.radius > 0)
    return said


def _refuse(expected: str, wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        received = f"{int(wrong.sum()):,} of {len(wrong):,} rows without"
        raise LedgerError(message(expected, received, _REMEDY))
