"""From counterfactuals to promises: checked again, prepared piece by piece, issued all at once.

Nothing is issued on trust: ``Counterfactuals`` are values that anybody can copy and edit. Before they become
promises, the texts that are going to be kept are encoded anew and have to be the rows that were certified, to
the bit; the model itself has to decide as they say; and everything that they claim of later models is proved
again, for the very set that the ledger is going to name. Without the search for the largest radius that is
cheap. Records then wait for their place in the chain: in memory, on disk once they are many.
"""

from __future__ import annotations

import math
import struct
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box
from veritracer.certificate import Certificates, certify
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import DataError, LedgerError, PromisedMeanwhileError, message
from veritracer.ledger.chain import EVENTFUL, content_of, to_bytes
from veritracer.ledger.promises import IssuingModel, certified_region_of
from veritracer.ledger.records import (
    ADVICE,
    ENCRYPTED,
    Record,
    Row,
    Terms,
    Texts,
    dated_header,
    headers,
    is_promised,
    private,
    records,
    table_of,
)
from veritracer.ledger.snapshot import Revocations
from veritracer.models.network import to_module
from veritracer.proving import decide
from veritracer.threads import one_thread

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.ledger.requests import Kept, Request
    from veritracer.ledger.store import Reader, Store, Writer

ROUNDING = 1e-9
"""A bound that is computed again, in other company, may differ by this share of its size."""

PENDING_BYTES = 64 * 2**20
"""Bytes up to which records are kept in memory; more go to a file without a name."""

LEFT_OUT = ("skipped", "advice", "uncertified", "repeated")
"""The counts of ``Issued``: what became no promise, by the reason."""

_REMEDY = "explain again, and issue what explain answers as it is"

_LENGTHS = struct.Struct("<8i")


@dataclass(frozen=True, repr=False)
class Issued:
    """Promises that were made.

    Attributes
    ----------
    sequence
        Their numbers in the ledger.
    ids
        Whose they are.
    head
        The newest link of the chain, in hexadecimal: note it elsewhere.
    skipped
        How many rows have no counterfactual, and so no promise.
    issued, expires
        When they were made and until when they hold, in seconds since 1970; infinite is never.
    advice
        How many of them are advice: kept, and no promise.
    uncertified, repeated
        How many counterfactuals were left out because they are not certified (or not believed by the panel),
        and how many because the same application has a live promise already.
    openings
        With ``original="commitment"``: for each promise what proves later which row was committed to (salts,
        encoded row, raw row). It is kept nowhere else.
    recourse
        The counterfactuals, where ``VeriTraCER.issue`` found them.
    again
        Whether these were issued before, for the same request: then nothing new was.
    """

    sequence: NDArray[np.int64]
    ids: list[str]
    head: str
    skipped: int
    openings: list[bytes] = field(default_factory=list)
    recourse: Counterfactuals | None = None
    issued: float = math.nan
    expires: float = math.inf
    advice: int = 0
    uncertified: int = 0
    repeated: int = 0
    again: bool = False

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def left_out(self) -> dict[str, int]:
        """How many became no promise, by the reason."""
        return {name: getattr(self, name) for name in LEFT_OUT}

    def __str__(self) -> str:
        made = len(self) - self.advice
        numbers = f" (entries {self.sequence[0]:,} to {self.sequence[-1]:,})" if len(self) else ""
        parts = [f"{made:,} {'promise' if made == 1 else 'promises'}{numbers}"]
        parts += [f"{self.advice:,} kept as advice"] if self.advice else []
        parts += [
            f"{self.uncertified:,} skipped, not certified",
            f"{self.repeated:,} skipped, promised already",
            f"{self.skipped:,} without a counterfactual",
            f"head {self.head}",
        ]
        return "; ".join(parts)

    __repr__ = __str__  # and not every number and id


def issued_before(kept: Kept, skipped: int) -> Issued:
    """Return what an earlier call issued for the same request; its ids and openings are not kept."""
    numbers = np.arange(kept.first, kept.first + kept.count, dtype=np.int64)
    head = kept.head.hex()
    return Issued(numbers, [], head, skipped, issued=kept.issued, expires=kept.expires, again=True)


Numbered = Callable[[NDArray[np.int64], float, float], None]
"""Is told the numbers of the promises of a batch, when they are made and when they end."""


class Batch:
    """Promises in preparation: ``add`` holds up nobody, ``commit`` other writers, and shortly.

    ``known`` are the applications that have a promise already; None lets them have another one. What is put
    into ``numbered`` is called before anything is committed: if it fails, nothing was promised. A ``request``
    is granted once: what was issued for it before is told again. ``permit`` may refuse the model, given the
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
        self.skipped = self.advice = self.uncertified = self.repeated = 0
        self._issued: Issued | None = None

    @property
    def left_out(self) -> dict[str, int]:
        """How many became no promise, by the reason: the counts of ``Issued``."""
        return {name: getattr(self, name) for name in LEFT_OUT}

    @property
    def issued(self) -> Issued:
        """What was issued, once the batch is done."""
        assert self._issued is not None, "the batch is not committed"
        return self._issued

    def add(self, found: Counterfactuals, ids: Sequence[Any]) -> Added:
        """Check counterfactuals and prepare their promises; ``ids`` says whose each row is."""
        return self.take(prepare(found, self.module, self.threshold, self.terms, ids))

    def take(self, prepared: Prepared) -> Added:
        """Add promises that were prepared, here or elsewhere, but for those that people have already."""
        if self.model is not None and prepared.model.digest != self.model.digest:
            remedy = "issue them one model at a time"
            raise LedgerError(message("counterfactuals of one model and set", "several", remedy))
        self.model = prepared.model
        if self.known is not None:
            repeated = self.known.repeated(prepared)
            self.repeated += int(repeated.sum())
            prepared = prepared.without(repeated)
        self.skipped += prepared.skipped
        self.uncertified += prepared.uncertified
        for record in prepared.records:
            self.pending.put(record)
            self.ids.append(record.who.decode())
            self.advice += bool(record.header[1] & ADVICE)
        self.openings += prepared.openings
        return Added(prepared.rows, prepared.openings)

    def commit(self, store: Store) -> None:
        """Write the promises into the ledger, all of them."""
        if not self.pending.count and self.request is None:
            with store.reading() as reader:
                head = reader.head()
            sequence: NDArray[np.int64] = np.empty(0, np.int64)
            self._finish(sequence, head, *self.terms.after(-math.inf))
            return
        with store.writing() as (writer, reader):
            if self.request is not None and (before := reader.request(self.request)):
                self._issued = issued_before(before, self.skipped)
                return
            if self.permit is not None and self.model is not None:
                self.permit(reader, self.model)
            self._check_meanwhile(reader)
            issued, expires = self.terms.after(writer.newest)
            if self.advice:
                writer.require(EVENTFUL, issued)
            number = self._model_number(writer, reader, issued) if self.pending.count else 0
            first = writer.seq + 1
            for record in self.pending:
                writer.promise(record._replace(header=dated_header(record.header, issued, expires)), number)
            if self.known is not None:
                writer.index_people()
            if self.request is not None:
                writer.request(self.request, first, issued, expires)
            sequence = np.arange(first, first + len(self.pending), dtype=np.int64)
            self._finish(sequence, writer.link, issued, expires)

    def _finish(self, sequence: NDArray[np.int64], head: bytes, issued: float, expires: float) -> None:
        """Tell whoever waits for it what the promises are called."""
        for told in self.numbered:
            told(sequence, issued, expires)
        self._issued = Issued(
            sequence,
            self.ids,
            head.hex(),
            self.skipped,
            self.openings,
            issued=issued,
            expires=expires,
            advice=self.advice,
            uncertified=self.uncertified,
            repeated=self.repeated,
        )

    def _check_meanwhile(self, reader: Reader) -> None:
        """Refuse what somebody else has promised since the batch was begun."""
        if self.known is not None and self.known.promised_meanwhile(reader):
            remedy = "run it again: what was promised meanwhile is left out then"
            expected = "nobody to promise the same meanwhile"
            raise PromisedMeanwhileError(message(expected, "another writer", remedy))

    def close(self) -> None:
        """Discard what was prepared."""
        self.pending.close()

    def _model_number(self, writer: Writer, reader: Reader, time: float) -> int:
        """The number of the issuing model's entry, which is made if there is none."""
        assert self.model is not None
        for seq, kind, header in reader.kept_models():
            if content_of(kind, header)["digest"] == self.model.digest:
                return int(seq)
        header = to_bytes({"digest": self.model.digest, "time": time})
        return writer.model(header, *self.model.to_bytes())


class Added(NamedTuple):
    """Which counterfactuals of a piece became entries, and what opens the commitments to their rows."""

    rows: NDArray[np.intp]
    openings: list[bytes]


@dataclass(frozen=True)
class Prepared:
    """Promises that were proved again, as records without numbers and dates; it can be pickled.

    Attributes
    ----------
    model
        The model that makes the promises.
    rows, people
        For each record its counterfactual, and the row that this is for.
    proved
        Which of them are certified for more than today's model.
    records
        The records.
    applications
        What each application is recognised by.
    openings
        What opens the commitments to people's own rows, where only these are kept.
    asked
        The number of rows.
    skipped, uncertified
        How many counterfactuals there are not, and how many are left out because they are not certified.
    """

    model: IssuingModel
    rows: NDArray[np.intp]
    people: NDArray[np.int64]
    proved: NDArray[np.bool_]
    records: list[Record]
    applications: list[bytes]
    openings: list[bytes]
    asked: int
    skipped: int
    uncertified: int

    def without(self, some: NDArray[np.bool_]) -> Prepared:
        """Return all promises but some."""
        kept = np.flatnonzero(~some).tolist()
        return replace(
            self,
            rows=self.rows[kept],
            people=self.people[kept],
            proved=self.proved[kept],
            records=[self.records[k] for k in kept],
            applications=[self.applications[k] for k in kept],
            openings=[self.openings[k] for k in kept] if self.openings else [],
        )


def prepare(
    found: Counterfactuals, module: nn.Module, threshold: float, terms: Terms, ids: Sequence[Any]
) -> Prepared:
    """Check counterfactuals and everything that they claim, and return what is to be issued of them.

    No ledger is asked: this can be done in another process than the one that issues.
    """
    model = IssuingModel.of(module, found.encoding, threshold, found.param_set)
    if model.model_digest != found.model_digest:
        received = f"{model.model_digest[:12]}… where they speak of {found.model_digest[:12]}…"
        remedy = "pass the model that explain was called on, as it was then"
        raise LedgerError(message("the model that the certificates speak of", received, remedy))
    names = identities(ids, found)
    texts = Texts.of(found, terms.uncertified)
    check_claims(found, texts, module, model)
    made, openings = records(found, texts, names, terms)
    there = found.status != "none"
    return Prepared(
        model=model,
        rows=texts.rows,
        people=np.asarray(found.row)[texts.rows],
        proved=is_promised(found)[texts.rows],
        records=made,
        applications=[
            _application(record.who, row) for record, row in zip(made, texts.original, strict=True)
        ],
        openings=openings,
        asked=int(found.row.max()) + 1 if len(found) else 0,
        skipped=int((~there).sum()),
        uncertified=int(there.sum()) - len(texts.rows),
    )


class Applications:
    """The applications with a live promise: an id and a row, or the id alone where the row cannot be read.

    What is only advice counts against further advice, and not against a promise.
    """

    def __init__(self, store: Store, now: float, cipher: Fernet | None) -> None:
        self.store, self.now, self.cipher = store, now, cipher
        self.mine: dict[bytes, int] = {}
        self.names: set[bytes] = set()
        self.count = 0
        with store.reading() as reader:
            self.newest = reader.last()
            gone = Revocations.of(reader.events("release", "erasure"), None)
        self.revoked = {*gone.released.tolist(), *gone.erased.tolist()}

    def repeated(self, prepared: Prepared) -> NDArray[np.bool_]:
        """Return a mask of what is promised already, in the ledger or earlier in this batch.

        Alternatives of one row are one application.
        """
        whose = {record.who for record in prepared.records}
        self.names |= whose
        with self.store.reading() as reader:
            known = self._read(reader, whose)
        again = []
        columns = prepared.applications, prepared.people.tolist(), prepared.proved.tolist()
        for about, row, proved in zip(*columns, strict=True):
            alone, person = about[:NAME] + ANY, self.count + row
            there = any(known.get(key, False) or (key in known and not proved) for key in (about, alone))
            again.append(there or self.mine.setdefault(about, person) != person)
        self.count += prepared.asked
        return np.array(again, dtype=bool)

    def promised_meanwhile(self, reader: Reader) -> bool:
        """Whether one of this batch has got a promise since the batch was begun."""
        late = self._read(reader, self.names, after=self.newest)
        named = {key[:NAME] for key in self.mine}
        return any(key in self.mine or (key[NAME:] == ANY and key[:NAME] in named) for key in late)

    def _read(self, reader: Reader, whose: Collection[bytes], after: int = 0) -> dict[bytes, bool]:
        """What these people have live: applications, and whether it is more than advice."""
        found: dict[bytes, bool] = {}
        for rows in reader.applications(sorted(whose), after):
            header = headers([row[1] for row in rows])
            live = header["expires"] > self.now
            for (seq, _, who, original), head, lives in zip(rows, header, live.tolist(), strict=True):
                if not lives or seq in self.revoked:
                    continue
                own = self._own(original, encrypted=int(head["original"]) == ENCRYPTED)
                key = _application(who, own)
                found[key] = found.get(key, False) or not head["flags"] & ADVICE
        return found

    def _own(self, original: bytes | None, *, encrypted: bool) -> Row | None:
        try:
            kept = private(original, self.cipher, encrypted=encrypted)
        except LedgerError:
            return None  # under another key
        row = None if kept is None else kept.get("row")
        return row if isinstance(row, dict) else None


NAME, ANY = 16, bytes(16)


def _application(who: bytes, row: Row | None) -> bytes:
    """What an application is recognised by: hashes of the id and of its values; 1 and 1.0 are one value."""
    name = sha256(who).digest()[:NAME]
    if row is None:
        return name + ANY
    numbers = {k: float(v) if type(v) is int else v for k, v in row.items()}
    return name + sha256(repr(sorted(numbers.items())).encode("utf-8", "surrogatepass")).digest()[:NAME]


class PendingRecords:
    """Records in the order in which they were put, to be read once they are all there."""

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
    """Whose each counterfactual is; refuses a list of another length, and people without a name."""
    people = int(found.row.max()) + 1 if len(found) else 0
    if isinstance(ids, str) or len(ids) != people:
        received = repr(ids) if isinstance(ids, str) else f"{len(ids):,} for {people:,} rows"
        raise DataError(message("an id for each row", received, "pass ids= with one for each row of X"))
    texts = ["" if _is_missing(one) else str(one) for one in ids]
    empty = sum(not text.strip() for text in texts)
    if empty:
        remedy = "a promise is made to somebody: give everybody an id"
        raise DataError(message("an id for each row", f"{empty:,} that are empty or missing", remedy))
    names = [utf8(text) for text in texts]
    return [names[person] for person in found.row.tolist()]


def utf8(identity: Any, what: str = "an id") -> bytes:
    """The text as it is kept; refuses half of a character, which no file and no letter can hold."""
    try:
        return str(identity).encode()
    except UnicodeEncodeError:
        remedy = "repair it, or read it anew with the encoding that it was written in"
        raise DataError(message(f"{what} of whole characters", ascii(str(identity)), remedy)) from None


def _is_missing(one: Any) -> bool:
    return one is None or one is pd.NA or one is pd.NaT or (isinstance(one, float) and one != one)


def check_claims(found: Counterfactuals, texts: Texts, module: nn.Module, issuing: IssuingModel) -> None:
    """Refuse counterfactuals that say more than is shown, decided and proved."""
    if found.encoding_digest != issuing.encoding.digest:
        received = f"{issuing.encoding.digest[:12]}… where they speak of {found.encoding_digest[:12]}…"
        raise LedgerError(message("the encoding that the certificates speak of", received, _REMEDY))
    if len(texts.rows) == 0:
        return
    rows = torch.from_numpy(texts.rows)
    x, x_cf = found.x[rows].cpu(), found.x_cf[rows].cpu()
    _check_encoded("values that encode to the certified rows", issuing.encoding, texts.shown, x_cf)
    _check_encoded("original rows that encode to the explained ones", issuing.encoding, texts.original, x)
    _check_regions(found, rows)
    with one_thread():
        _check_decisions(found, texts.rows, module, x, x_cf)
        _check_proofs(found, texts.rows, issuing, x, x_cf)


def _check_encoded(expected: str, encoding: Encoding, rows: list[Row], certified: Tensor) -> None:
    try:
        again = encoding.encode(table_of(rows, encoding.schema.names), out_of_range="ignore")
    except (DataError, LedgerError) as error:
        raise LedgerError(message(expected, f"others ({error})", _REMEDY)) from error
    _refuse(expected, (again != certified).any(-1).numpy())


def _check_regions(found: Counterfactuals, rows: Tensor) -> None:
    """The region is the one that overshoot and drift say, where something is proved of it."""
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
    """Everything that is said of later models has a proof, and an unconditional one where no more is said."""
    certified, radius = found.certified[rows], found.radius[rows]
    kappa = np.where(certified, found.kappa, radius)
    worst = found.worst_logit[rows]
    _refuse("certificates whose bound is below 0", certified != (worst < 0))
    _refuse("a radius of at least kappa, and finite numbers", ~(radius >= kappa) | np.isinf(radius))
    region = Box(found.region.lower[rows].cpu(), found.region.upper[rows].cpu())
    proofs = _Proofs(issuing, x, x_cf, None if certified_region_of(found).is_point else region)
    for value in np.unique(kappa[_proved(found)[rows]]):
        some = np.flatnonzero(_proved(found)[rows] & (kappa == value))
        again = proofs.at(float(value), some)
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
    """The same rows, to be proved at one kappa or another."""

    def __init__(self, issuing: IssuingModel, x: Tensor, x_cf: Tensor, region: Box | None) -> None:
        self.issuing, self.x, self.x_cf, self.region = issuing, x, x_cf, region
        self.module = to_module(issuing.network, issuing.theta)

    def at(self, kappa: float, some: NDArray[np.intp]) -> Certificates:
        """Certificates of some of them."""
        part = torch.from_numpy(some)
        target = self.x_cf[part] if self.region is None else self.region.select(part)
        return certify(self.module, self.x[part], target, self.issuing.param_set(kappa), radius=False)


def _proved(found: Counterfactuals) -> NDArray[np.bool_]:
    """Where something is said of later models."""
    said: NDArray[np.bool_] = found.certified | (found.radius > 0)
    return said


def _refuse(expected: str, wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        received = f"{int(wrong.sum()):,} of {len(wrong):,} rows without"
        raise LedgerError(message(expected, received, _REMEDY))
