"""The ledger: promises that were made, in a database whose past can not be changed unseen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from torch import nn

from veritracer.errors import LedgerError, NoRecordError, VeriTracerWarning, listing, message
from veritracer.ledger.chain import EVENTFUL, Kind, Verification, to_bytes
from veritracer.ledger.issuing import Applications, Batch, Issued, utf8
from veritracer.ledger.layout import Original, Terms, Uncertified, sealer
from veritracer.ledger.promises import Counts, IssuingModel, Limit, Promises, check_threshold
from veritracer.ledger.reading import CHUNK, Snapshot, Source, render, render_opened
from veritracer.ledger.store import Kept, Request, Store
from veritracer.ledger.verdicts import EXPIRED, VERDICTS, Verdict
from veritracer.recourse import Counterfactuals
from veritracer.times import Moment, entry_timestamp, expiry_timestamp, to_timestamp

if TYPE_CHECKING:
    from veritracer.ledger.auditing import Audit


class Ledger:
    """Issued promises, in a SQLite file or a PostgreSQL database, chained by hashes.

    ``place`` is a path or a URL such as ``postgresql://user@host/name``; a ledger that is not there yet is
    created, unless ``create=False``. ``key`` opens original rows that were stored encrypted. A ledger can be
    used in a ``with`` block, by many threads and by many processes.
    """

    def __init__(
        self, place: str | os.PathLike[str], *, key: bytes | str | None = None, create: bool = True
    ) -> None:
        self._store = _open(place, create=create)
        self._seal = None if key is None else sealer(key)
        self._models: dict[int, IssuingModel] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._store.place!r})"

    def close(self) -> None:
        """Close the connections to the database."""
        self._store.close()

    @property
    def head(self) -> str:
        """The newest link of the chain, in hexadecimal.

        Noted elsewhere, it shows in ``verify`` whether the end of the ledger was cut off or rewritten.
        """
        with self._store.reading() as reader:
            return reader.head().hex()

    def issue(
        self,
        found: Counterfactuals,
        module: nn.Module,
        *,
        ids: Sequence[Any],
        threshold: float = 0.5,
        expires: timedelta | datetime | None = None,
        now: Moment = None,
        original: Original = "plain",
        key: bytes | str | None = None,
        uncertified: Uncertified = "promise",
        again: bool = True,
        request: Request | None = None,
    ) -> Issued:
        """What was issued: each counterfactual in ``found`` is a promise now, all of them or none.

        ``module`` is the model that they were found for, ``ids`` says whose each row is. The sign of the
        module's logit is the decision; ``threshold`` says at which probability that is, and is not applied
        again. ``original`` says how people's own rows are kept: ``"plain"``, ``"encrypted"`` with ``key``, or
        only their ``"commitment"``. Values, decisions and proofs are checked again: what was edited is
        refused. ``now`` can not lie before the newest entry, and is lifted to its time.

        ``uncertified`` says what becomes of a counterfactual that is not certified for more than today's
        model: a ``"promise"`` of what was proved of it, ``"advice"`` that is kept and no promise, or nothing
        (``"skip"``). With ``again=False`` an application that has a live promise (the same id and the same
        row; the same id where the row that is kept can not be read) gets no second one. A ``request`` is
        issued once: a retry under its key gets what was issued then, whatever happened in between.
        """
        with self.issuing(
            module,
            threshold=threshold,
            expires=expires,
            now=now,
            original=original,
            key=key,
            uncertified=uncertified,
            again=again,
            request=request,
        ) as batch:
            batch.add(found, ids)
        return batch.issued

    @contextmanager
    def issuing(
        self,
        module: nn.Module,
        *,
        threshold: float = 0.5,
        expires: timedelta | datetime | None = None,
        now: Moment = None,
        original: Original = "plain",
        key: bytes | str | None = None,
        uncertified: Uncertified = "promise",
        again: bool = True,
        request: Request | None = None,
    ) -> Iterator[Batch]:
        """A batch to ``add`` counterfactuals to, piece by piece; they are issued together at the end.

        ``once`` is a key of the caller's own, without anybody's name: under one key promises are issued once,
        however often that is tried, and by however many processes.
        """
        check_threshold(threshold)
        issued = to_timestamp(now)
        seal = self._seal if key is None else sealer(key)
        terms = Terms(
            issued,
            expiry_timestamp(expires, issued),
            original,
            seal,
            lasting=isinstance(expires, timedelta),
            stated=now is not None,
            uncertified=uncertified,
            again=again,
        )
        known = None if again else Applications(self._store, issued, seal)
        batch = Batch(module, threshold, terms, known, request)
        try:
            yield batch
            batch.commit(self._store)
        finally:
            batch.close()

    def requested(self, request: Request) -> Kept | None:
        """What was issued for this request before; None where nothing was, refused where it was another."""
        with self._store.reading() as reader:
            return reader.request(request)

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[Snapshot]:
        """The ledger as it is now, for the block: everything that is read from it belongs together.

        With ``at`` it is asked about that day. While the block lasts, others can write, but what they erase
        stays in SQLite's write-ahead log until it ends.
        """
        with self._store.reading() as reader:
            reader.begin()
            yield Snapshot(reader, self._models, self._seal, at, self._store.place)

    def models(self) -> dict[str, IssuingModel]:
        """The models that issued promises, by digest."""
        with self.snapshot() as now:
            return now.models()

    def promises(self, at: Moment = None, *, expired: bool = False, chunk: int = CHUNK) -> Iterator[Promises]:
        """The promises that are live ``at`` a moment, with ``expired`` also those past their end.

        They come in chunks of one issuing model each, all from one state of the ledger. Without ``at`` it is
        now, and all that were made count; with it those that were made by then.
        """
        with self.snapshot(at) as then:
            yield from then.promises(expired=expired, chunk=chunk)

    def counts(self, at: Moment = None) -> Counts:
        """How many promises are live at a moment (now), and how many have expired or are gone."""
        with self.snapshot(at) as then:
            return then.counts()

    def limits(self, at: Moment = None) -> list[Limit]:
        """What live promises ask of a later model: one entry for each issuing model and kappa."""
        with self.snapshot(at) as then:
            return then.limits()

    def shown(self, sequence: int) -> dict[str, Any]:
        """Everything about one promise as it was told: id, values, sentence, dates, certificate.

        ``original`` and ``sentence`` are None where the person's own row is not kept, or not readable.
        """
        with self.snapshot() as now:
            return render(int(sequence), *now.kept(int(sequence)), self._seal)

    def opened(self, sequence: int, opening: bytes) -> dict[str, Any]:
        """The original row and the sentence that a promise only commits to.

        ``opening`` is what ``Issued.openings`` had for the promise; anything else is refused.
        """
        with self.snapshot() as now:
            return render_opened(int(sequence), *now.kept(int(sequence)), opening)

    def sequences_of(self, identity: Any) -> list[int]:
        """The numbers of all promises to a person."""
        with self._store.reading() as reader:
            return reader.of(utf8(identity))

    def release(self, sequence: Iterable[int], reason: str, *, now: Moment = None) -> str:
        """The new head: from now on these promises need not be kept, and the ledger says why.

        The reason can not be erased: it should name no person. ``now`` can not lie before the newest entry:
        what was true on an earlier day stays so.
        """
        numbers = sorted({int(one) for one in sequence})
        utf8(reason, "a reason")
        with self._store.writing() as (writer, reader):
            unknown = sorted(set(numbers) - reader.known(numbers))
            if unknown or not numbers or not reason.strip():
                received = f"{listing(unknown)}, which are none" if unknown else "no promise, or no reason"
                remedy = "give the numbers that issue or audit told, and say why"
                raise LedgerError(message("promises to release, and a reason", received, remedy))
            time = entry_timestamp(to_timestamp(now), writer.newest, stated=now is not None)
            writer.append("release", to_bytes({"time": time, "sequence": numbers, "reason": reason}))
            return writer.link.hex()

    def erase(self, identity: Any, *, now: Moment = None) -> list[int]:
        """The numbers of the promises to this person, whose records are gone now.

        Their commitments stay, and an entry says that they were erased, so that the chain still verifies.
        They count as erased on every day: nobody can tell any more what they were.
        """
        with self._store.writing() as (writer, reader):
            numbers = reader.of(utf8(identity))
            if not numbers:
                remedy = "check the id; it may have been erased before"
                raise NoRecordError(message("a person with a record", repr(str(identity)), remedy))
            writer.delete(numbers)
            time = entry_timestamp(to_timestamp(now), writer.newest, stated=now is not None)
            writer.append("erasure", to_bytes({"time": time, "sequence": numbers}))
        if not self._store.forget_traces():
            received = "a reader that needs the ledger as it was"
            remedy = "the record is erased, but not yet from the write-ahead log: erase or issue again later"
            warnings.warn(message("nobody else to read", received, remedy), VeriTracerWarning, stacklevel=2)
        return numbers

    def record_audit(self, audit: Audit, *, passed: bool | None = None, now: Moment = None) -> str:
        """The new head: the ledger says that this audit was made, of which model, and how it ended.

        ``passed`` is whether it was good enough; left out, whether every promise is kept.
        """
        counts = {one.name.lower(): int(audit.counts[one]) for one in VERDICTS}
        counts["expired"] = int(audit.counts[EXPIRED])
        about = {"at": audit.at, "model": audit.model_digest, "encoding": audit.encoding_digest}
        ended = {"threshold": float(audit.threshold), "passed": audit.ok if passed is None else passed}
        return self._event("audit", {**about, **ended, **counts}, now)

    def record_update(self, before: str, after: str, counts: Mapping[str, int], *, now: Moment = None) -> str:
        """The new head: the ledger says that a model was updated, and what that one makes of its promises.

        ``before`` and ``after`` are the models' digests, ``counts`` how many live promises got each verdict.
        """
        live = sum(int(count) for count in counts.values())
        proved, broken = (int(counts.get(one, 0)) for one in (Verdict.PROVED, Verdict.BROKEN))
        about = {"before": before, "after": after, "live": live, "proved": proved, "broken": broken}
        return self._event("update", about, now)

    def _event(self, kind: Kind, content: dict[str, Any], now: Moment) -> str:
        with self._store.writing() as (writer, _):
            time = entry_timestamp(to_timestamp(now), writer.newest, stated=now is not None)
            writer.require(EVENTFUL, time)
            writer.append(kind, to_bytes({**content, "time": time}))
            return writer.link.hex()

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written: the ledger is on read-only media."""
        return self._store.read_only

    def history(self) -> list[dict[str, Any]]:
        """What happened to the ledger besides promises, in order: number, kind, time, and what each says."""
        with self.snapshot() as now:
            return now.history()

    def listing(self, at: Moment = None, *, identity: Any = None) -> pd.DataFrame:
        """Every promise, of whichever standing: number, id, standing, issued, expires, kappa, model.

        ``standing`` is live, expired, released, advice or erased; an erased one has no id. With ``identity``
        those of one person.
        """
        with self.snapshot(at) as then:
            return then.listing(None if identity is None else str(identity))

    def verify(self, head: str | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Whether the ledger is what was written, entry by entry.

        With a ``head`` that was noted earlier, also whether it still ends there, or goes on from there.
        """
        noted = None if head is None else head_of(head)
        with self.snapshot() as now:
            return now.verify(noted, chunk=chunk)


@contextmanager
def open_ledger(place: Ledger | str | os.PathLike[str]) -> Iterator[Ledger]:
    """The ledger itself, or the one at that path or URL, open for the block."""
    if isinstance(place, Ledger):
        yield place
        return
    with Ledger(place) as opened_here:
        yield opened_here


@contextmanager
def open_source(place: Source | str | os.PathLike[str] | None) -> Iterator[Source | None]:
    """The source itself, or the ledger at that path or URL, which must exist, open for the block."""
    if isinstance(place, str | os.PathLike):
        with Ledger(place, create=False) as opened_here:
            yield opened_here
    else:
        yield place


def _open(place: str | os.PathLike[str], *, create: bool) -> Store:
    try:
        from veritracer.ledger.sql_store import SqlStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        remedy = "pip install 'veritracer[ledger]'"
        raise LedgerError(message("the package sqlalchemy", "an install without it", remedy)) from None
    return SqlStore(place, create=create)


def head_of(text: str) -> bytes:
    """The link that a noted head names."""
    try:
        found = bytes.fromhex(text.strip())
    except ValueError:
        found = b""
    if len(found) != 32:
        remedy = "give the head that issue printed"
        raise LedgerError(message("a head of 64 hexadecimal digits", repr(text), remedy))
    return found
