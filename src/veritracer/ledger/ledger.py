"""The ledger: issued promises in a database whose past cannot be changed unseen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
from torch import nn

from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DeploymentError, LedgerError, NoRecordError, VeriTracerWarning, listing, message
from veritracer.ledger.chain import Kind, content_of
from veritracer.ledger.issuing import Prepared, append, prepare, utf8, without_duplicates
from veritracer.ledger.promises import Counts, IssuingModel, Promises, SetRequirement
from veritracer.ledger.records import Terms, make_cipher
from veritracer.ledger.requests import Issued, Request
from veritracer.ledger.snapshot import CHUNK, Snapshot
from veritracer.ledger.verdicts import EXPIRED, VERDICTS, Verdict
from veritracer.ledger.verification import Verification
from veritracer.options import Expires, IssueOptions, Original, Uncertified, promise_end
from veritracer.times import Moment

if TYPE_CHECKING:
    from veritracer.ledger.auditing import Audit
    from veritracer.ledger.database import Database, Reader

Deployment = dict[str, Any]
"""The content of a ``deployment`` entry."""


class Ledger:
    """Issued promises, in a SQLite file or a PostgreSQL database, chained by hashes.

    ``place`` is a path or a URL such as ``postgresql://user@host/name``; a ledger that is not there yet is
    created, unless ``create=False``. ``key`` opens original rows that were stored encrypted. A ledger can be
    used in a ``with`` block, by many threads and by many processes.
    """

    def __init__(
        self, place: str | os.PathLike[str], *, key: bytes | str | None = None, create: bool = True
    ) -> None:
        self._database = _open(place, create=create)
        self._key, self._cipher = key, None if key is None else make_cipher(key)
        self._models: dict[int, IssuingModel] = {}
        self._searched: tuple[int, Deployment | None] = (0, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._database.place!r})"

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()

    @property
    def head(self) -> str:
        """Return the newest link of the chain, in hexadecimal.

        Noted elsewhere, it shows in ``verify`` whether the end of the ledger was cut off or rewritten.
        """
        with self._database.reading() as reader:
            return reader.head().hex()

    def issue(
        self,
        found: Counterfactuals,
        module: nn.Module,
        *,
        ids: Sequence[Any],
        threshold: float = 0.5,
        expires: Expires = IssueOptions.expires,
        now: Moment = None,
        original: Original = IssueOptions.original,
        key: bytes | str | None = None,
        uncertified: Uncertified = IssueOptions.uncertified,
        allow_duplicate: bool = IssueOptions.allow_duplicate,
        request: Request | None = None,
    ) -> Issued:
        """Issue each certified counterfactual in ``found`` as a promise: all of them, or none.

        ``module`` is the model they were found for, ``ids`` the applicants' ids. The sign of the module's
        logit is the decision; ``threshold`` is the probability at which that is, and is not applied again.
        ``original`` says how applicants' own rows are stored: ``"plain"``, ``"encrypted"`` with ``key``, or
        only as a ``"commitment"``. Values, decisions and proofs are checked again, and edited ones refused.
        ``now`` cannot lie before the newest entry and is lifted to its time. Promises end with the ``term``
        of ``explain`` unless ``expires`` says otherwise; None is never. A counterfactual is promised only if
        its certificate covers how far features with ``yearly`` move by themselves until then.

        ``uncertified`` is what becomes of a counterfactual that is not certified for more than today's model:
        nothing (``"skip"``, the default), or a ``"promise"`` of what was proved. An application with a live
        promise (the same id and row; the same id if the stored row cannot be read) gets no second one unless
        ``allow_duplicate`` is True. ``Issued`` counts what was left out. A ``request`` is issued once: a
        retry under its key gets what was issued then, whatever happened in between.
        """
        end, cipher_key = promise_end(expires, found.options.term), self._key if key is None else key
        terms = Terms(end, original, cipher_key, uncertified, allow_duplicate, now)
        return self.append(self.without_duplicates(prepare(found, module, threshold, terms, ids)), request)

    def without_duplicates(self, prepared: Prepared) -> Prepared:
        """Leave out applications that have a live promise, unless the terms allow duplicates."""
        with self._database.reading() as reader:
            return without_duplicates(prepared, reader)

    def append(self, prepared: Prepared, request: Request | None = None, *, deployed: bool = False) -> Issued:
        """Write prepared promises into the ledger: all of them, or none.

        Under the key of ``request`` promises are issued once, however often and by however many processes
        that is tried. With ``deployed`` they are issued only if the model is the one that was deployed last,
        and was not deployed although it breaks promises.
        """
        if not prepared.records and request is None:
            return prepared.issued(0, self.head, prepared.terms.dates())
        with self._database.writing() as (writer, reader):
            if request is not None and (before := reader.request(request)) is not None:
                return before
            if deployed:
                check_issuing(self._last_deployment(reader), prepared.model)
            return append(prepared, request, writer, reader)

    def requested(self, request: Request) -> Issued | None:
        """Return what was issued for this request before, or None; refuse another one under its key."""
        with self._database.reading() as reader:
            return reader.request(request)

    def settled(self, request: Request) -> Issued | None:
        """Return what was issued for the request, after all earlier writers have committed or given up."""
        with self._database.writing() as (_, reader):
            return reader.request(request)

    @property
    def identity(self) -> str:
        """Return the random name that the ledger got when it was made: no other ledger has it."""
        with self._database.reading() as reader:
            _, kind, header = reader.events("ledger")[0]
        return str(content_of(kind, header)["ledger"])

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[Snapshot]:
        """Open the ledger as it is now, or on the day ``at``: all that is read in the block belongs together.

        While the block lasts, others can write, but what they erase stays in SQLite's write-ahead log until
        it ends.
        """
        with self._database.reading() as reader:
            reader.begin()
            yield Snapshot(reader, self._models, self._cipher, at, self._database.place)

    def models(self) -> dict[str, IssuingModel]:
        """Return the models that issued promises, by digest."""
        with self.snapshot() as now:
            return now.models()

    def promises(self, at: Moment = None, *, expired: bool = False, chunk: int = CHUNK) -> Iterator[Promises]:
        """Yield the promises that are live ``at`` a moment, with ``expired`` also those past their end.

        They come in chunks of one issuing model each, all from one state of the ledger. Without ``at`` the
        moment is now and all that were made count; with it those that were made by then.
        """
        with self.snapshot(at) as then:
            yield from then.promises(expired=expired, chunk=chunk)

    def counts(self, at: Moment = None) -> Counts:
        """Return how many promises are live at a moment (now), and how many have expired or are gone."""
        with self.snapshot(at) as then:
            return then.counts()

    def requirements(self, at: Moment = None) -> list[SetRequirement]:
        """Return what live promises require of a later model, by issuing model and kappa."""
        with self.snapshot(at) as then:
            return then.requirements()

    def shown(self, sequence: int) -> dict[str, Any]:
        """Return everything about one promise: id, values, sentence, dates, certificate and status.

        ``original`` and what speaks of it (``sentence``, ``reasons``, ``limits``, ``drift``) are None where
        the person's own row is not kept, or not readable.
        """
        with self.snapshot() as now:
            return now.shown(int(sequence))

    def opened(self, sequence: int, opening: bytes) -> dict[str, Any]:
        """Return the original row, as ``row``, and what speaks of it, which a promise only commits to.

        ``opening`` is what ``Issued.openings`` had for the promise; anything else is refused.
        """
        with self.snapshot() as now:
            return now.opened(int(sequence), opening)

    def sequences_of(self, identity: Any) -> list[int]:
        """Return the numbers of all promises to an applicant."""
        who = utf8(identity)
        with self._database.reading() as reader:
            return reader.of(who)[who]

    def release(self, sequence: Iterable[int], reason: str, *, now: Moment = None) -> str:
        """Release promises, which need not be kept from now on, and return the new head.

        The reason cannot be erased: it should name no person. ``now`` cannot lie before the newest entry:
        what was true on an earlier day stays so.
        """
        numbers = sorted({int(one) for one in sequence})
        utf8(reason, "a reason")
        with self._database.writing() as (writer, reader):
            unknown = sorted(set(numbers) - reader.known(numbers))
            if unknown or not numbers or not reason.strip():
                received = f"{listing(unknown)}, which are none" if unknown else "no promise, or no reason"
                remedy = "give the numbers that issue or audit told, and say why"
                raise LedgerError(message("promises to release, and a reason", received, remedy))
            return writer.event("release", {"sequence": numbers, "reason": reason}, now)

    def erase(self, *identities: Any, now: Moment = None) -> list[int]:
        """Delete the records of these applicants, and return the numbers of their promises.

        All of them are erased or, if one has no record, none. The commitments of their promises stay, and an
        entry says that they were erased, so that the chain still verifies. They count as erased on every day.

        Afterwards a SQLite file is written again, which takes a moment for each gigabyte: erase many people
        with one call. A reader can prevent that, which a warning says; the next erasure or the next opening
        of the ledger makes up for it.
        """
        with self._database.writing() as (writer, reader):
            found = reader.of(*dict.fromkeys(map(utf8, identities)))
            unknown = [who.decode() for who, numbers in found.items() if not numbers]
            if unknown or not found:
                received = ", ".join(map(repr, unknown[:5])) or "nobody"
                remedy = "check the id; it may have been erased before"
                raise NoRecordError(message("people with a record", received, remedy))
            gone = sorted(number for numbers in found.values() for number in numbers)
            writer.delete(gone)
            writer.event("erasure", {"sequence": gone}, now)
        if prevented := self._database.forget_traces():
            expected = "files without a trace of what was erased"
            remedy = (
                "the erasure is recorded, but its bytes may remain in the files until the next erasure "
                "or the next opening of the ledger after that"
            )
            warnings.warn(message(expected, prevented, remedy), VeriTracerWarning, stacklevel=2)
        return gone

    def record_audit(self, audit: Audit, *, passed: bool | None = None, now: Moment = None) -> str:
        """Record that this audit was made and how it ended, and return the new head.

        ``passed`` is whether it was good enough; by default, whether every promise is kept.
        """
        counts = {one.name.lower(): int(audit.counts[one]) for one in VERDICTS}
        counts["expired"] = int(audit.counts[EXPIRED])
        about = {"at": audit.at, "model": audit.model_digest, "encoding": audit.encoding_digest}
        ended = {"threshold": float(audit.threshold), "passed": audit.ok if passed is None else passed}
        return self._event("audit", {**about, **ended, **counts}, now)

    def record_update(self, before: str, after: str, counts: Mapping[str, int], *, now: Moment = None) -> str:
        """Record that a model was updated and what became of its promises, and return the new head.

        ``before`` and ``after`` are the models' digests, ``counts`` how many live promises got each verdict.
        """
        live = sum(int(count) for count in counts.values())
        proved, broken = (int(counts.get(one, 0)) for one in (Verdict.PROVED, Verdict.BROKEN))
        about = {"before": before, "after": after, "live": live, "proved": proved, "broken": broken}
        return self._event("update", about, now)

    def record_deployment(
        self, audit: Audit, *, by: str, reason: str = "", replace: bool = False, now: Moment = None
    ) -> str:
        """Record that the audited model is the one that decides from now on, and return the new head.

        Nothing is written if that is what the ledger says already, or if it can only be read. Refused are a
        model that does not keep every promise, unless there is a ``reason``; another model than the one
        deployed last, unless ``replace``; and an audit that new entries of the ledger were not in. Neither
        ``by``, who decided it, nor the reason can be erased: they should name no person.
        """
        new = deployment_of(audit, utf8(by).decode(), utf8(reason.strip(), "a reason").decode())
        if self.read_only and not (replace or new["reason"]):
            with self._database.reading() as reader:
                last = self._last_deployment(reader)
                check_replacing(last, new)
                return reader.head().hex()
        with self._database.writing() as (writer, reader):
            last = self._last_deployment(reader)
            if last is not None and same_model(last, new) and last["reason"] == new["reason"]:
                return writer.link.hex()
            if not replace:
                check_replacing(last, new)
            check_unchanged(audit.head, writer.link.hex())
            return writer.event("deployment", new, now)

    def _last_deployment(self, reader: Reader) -> Deployment | None:
        """Return the newest deployment; only entries that are new since the last call are searched."""
        header, newest = reader.deployment(after=self._searched[0]), reader.last()
        found = self._searched[1] if header is None else content_of("deployment", header)
        self._searched = newest, found
        return found

    def _event(self, kind: Kind, content: dict[str, Any], now: Moment) -> str:
        with self._database.writing() as (writer, _):
            return writer.event(kind, content, now)

    @property
    def read_only(self) -> bool:
        """Return whether nothing can be written because the ledger is on read-only media."""
        return self._database.read_only

    def history(self) -> list[dict[str, Any]]:
        """Return what happened besides promises, in order: number, kind, time, and what each entry says."""
        with self.snapshot() as now:
            return now.history()

    def listing(self, at: Moment = None, *, identity: Any = None) -> pd.DataFrame:
        """Return a table of all promises: number, id, status, issued, expires, kappa, model.

        ``status`` is live, expired, released or erased; an erased one has no id. With ``identity`` the table
        has the promises to one applicant.
        """
        with self.snapshot(at) as then:
            return then.listing(None if identity is None else str(identity))

    def verify(self, head: str | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Check entry by entry that the ledger is what was written.

        With a ``head`` that was noted earlier, also that the chain ends there or goes on from there.
        """
        noted = None if head is None else head_of(head)
        with self.snapshot() as now:
            return now.verify(noted, chunk=chunk)


@contextmanager
def open_ledger(place: Ledger | str | os.PathLike[str], *, create: bool = True) -> Iterator[Ledger]:
    """Open the ledger at that path or URL for the block; a ledger is passed through."""
    if not isinstance(place, str | os.PathLike):
        yield place
        return
    with Ledger(place, create=create) as opened:
        yield opened


def _open(place: str | os.PathLike[str], *, create: bool) -> Database:
    try:
        from veritracer.ledger.database import Database
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sqlalchemy":
            raise
        remedy = "pip install 'veritracer[ledger]'"
        raise LedgerError(message("the package sqlalchemy", "an install without it", remedy)) from None
    return Database(place, create=create)


def head_of(text: str) -> bytes:
    """Return the link that a noted head names."""
    try:
        found = bytes.fromhex(text.strip())
    except ValueError:
        found = b""
    if len(found) != 32:
        remedy = "give the head that issue printed"
        raise LedgerError(message("a head of 64 hexadecimal digits", repr(text), remedy))
    return found


# ---------------------------------------------------------------- deployments


def deployment_of(audit: Audit, by: str, reason: str) -> Deployment:
    """Return the content of the entry; refuse a model that breaks promises without a reason."""
    broken, unknown = audit.counts[Verdict.BROKEN], audit.counts[Verdict.NOT_CHECKABLE]
    if not audit.ok and not reason:
        parts = [f"breaks {broken:,}"] if broken else []
        parts += [f"leaves {unknown:,} unchecked"] if unknown else []
        received = f"one that {' and '.join(parts)} of {audit.live:,}"
        remedy = "update it with veritracer update --keep, or say why with --serve-broken REASON"
        raise DeploymentError(message("a model that keeps every live promise", received, remedy))
    about = {"model": audit.model_digest, "encoding": audit.encoding_digest, "threshold": audit.threshold}
    counts = {"live": audit.live, "broken": broken, "not_checkable": unknown}
    return {**about, **counts, "by": by, "reason": "" if audit.ok else reason}


def same_model(one: Deployment, other: Deployment) -> bool:
    """Return whether two deployments are of the same weights, encoding and threshold."""
    return all(one[name] == other[name] for name in ("model", "encoding", "threshold"))


def check_replacing(last: Deployment | None, new: Deployment) -> None:
    """Refuse another model than the one deployed last."""
    if last is not None and not same_model(last, new):
        remedy = "serve that one, or deploy this one with --replace"
        raise DeploymentError(message(f"the model deployed last, {_named(last)}", _named(new), remedy))


def check_unchanged(audited: str, head: str) -> None:
    """Refuse a deployment where the ledger has changed since the audit: a new promise was not in it."""
    if audited != head:
        received = "one that was written to in the meantime"
        remedy = "start the service again once nobody else writes into the ledger"
        raise DeploymentError(message("the ledger as it was audited", received, remedy))


def check_issuing(last: Deployment | None, model: IssuingModel) -> None:
    """Refuse promises of a model that is not the one deployed last, or that breaks earlier promises."""
    if last is None:
        return
    mine = {"model": model.model_digest, "encoding": model.encoding.digest, "threshold": model.threshold}
    if not same_model(last, mine):
        remedy = "restart this service with that one"
        raise DeploymentError(message(f"the model deployed last, {_named(last)}", _named(mine), remedy))
    if last["reason"]:
        received = f"one that is served although it breaks {last['broken']:,}"
        remedy = "deploy a model that keeps them"
        raise DeploymentError(message("a model that keeps every live promise", received, remedy))


def _named(one: Deployment) -> str:
    return f"{one['model'][:12]}… (encoding {one['encoding'][:8]}…, threshold {one['threshold']:g})"
