"""The files of ``veritracer issue``: on the disk before their promises are, in their places afterwards.

1. Write the files under pending names (``NAME.TOKEN.pending``); wait until the disk has them and their names.
2. In the ledger's transaction, write a note beside the
   first file (``NAME.pending.json``) that says which files these are and what was asked. Commit.
3. Rename the files; remove the note.

Whatever ends the process in between, the next command with the same output finds the note and asks the
ledger. If it has the promises, step 3 is done, and nothing else; if it has not, the pending files are removed
and the command begins anew. So nobody is promised anything whose result is lost, and nothing is promised
twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from veritracer.errors import CommitUnknownError, DataError, LedgerError, message
from veritracer.files import document_text, envelope, is_special, remove, rename, writable, write_whole
from veritracer.tables import STANDARD, TableSource, rows_digest

if TYPE_CHECKING:
    from veritracer.ledger import Issued, Ledger
    from veritracer.ledger.issuing import Batch
    from veritracer.ledger.requests import Request
    from veritracer.streaming.explaining import Explained

FORMAT, VERSION = "veritracer-pending", 1


class Finished(NamedTuple):
    """What an earlier command had issued: how its rows ended, the promises, and what was noticed."""

    explained: Explained
    issued: Issued
    notes: tuple[str, ...]


class PendingOutputs:
    """The outputs of one command, under pending names while the context is open.

    ``outputs`` are the places by what they are for, such as ``out``; what is no file that can be renamed
    (standard output, a device) is written as it is. ``asked`` says what has to be the same for the command
    to be a repetition. What is written is opened on ``files``, which is closed before the promises are
    committed.
    """

    def __init__(
        self, outputs: Mapping[str, str | Path | None], asked: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.places = {name: Path(place) for name, place in outputs.items() if _can_be_renamed(place)}
        self.asked = asked
        self.token = os.urandom(16).hex()
        self.files = ExitStack()
        self.rows = hashlib.sha256()
        self.content: dict[str, Any] = {}
        self.state = "open"

    def pending(self, name: str) -> Path:
        """Return where to write an output for now."""
        return _pending(self.places[name], self.token)

    @property
    def note(self) -> Path | None:
        """The note beside the first output; None where there is nothing to rename."""
        first = next(iter(self.places.values()), None)
        return None if first is None else first.with_name(f"{first.name}.pending.json")

    # ------------------------------------------------------------ while a table is issued

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove what is pending, unless its promises are or may be in the ledger."""
        if self.state == "committed":
            return
        unknown = isinstance(error, CommitUnknownError) or not isinstance(error, Exception)
        if self.state == "noted" and error is not None and unknown:
            return
        self.files.__exit__(kind, error, trace)
        self._discard(self.token)
        if self.state == "noted":
            remove(self._note)

    def watched(self, table: TableSource) -> TableSource:
        """Return the same table, of whose rows the digest is noted as they are read."""

        def chunks() -> Any:
            for chunk in table.batches:
                self.rows.update(rows_digest(chunk).encode())
                yield chunk

        return replace(table, batches=chunks())

    def request(
        self, ledger: Ledger, notes: Callable[[Explained], list[str]]
    ) -> Callable[[Explained, Batch], Request | None]:
        """Return what is called when all rows were written: it waits for the disk, and makes the request."""
        from veritracer.ledger.requests import Request  # here: torch comes with it

        def made(explained: Explained, batch: Batch) -> Request | None:
            self.files.close()
            if self.note is None:
                return None
            asked = self._asked()
            self.content = {
                "ledger": ledger.identity,
                "request": self.token,
                "asked": asked,
                "rows": self.rows.hexdigest(),
                "files": {name: _digest(self.pending(name)) for name in self.places},
                "notes": notes(explained),
                "explained": asdict(explained),
                "left_out": batch.left_out,
            }
            return Request(self.token, _digest_of(asked)) if len(batch.pending) else None

        return made

    def numbered(self, sequence: NDArray[np.int64], issued: float, expires: float) -> None:
        """Write the note: the last thing before the commit."""
        if self.note is None or not len(sequence):
            return
        if self.note.exists():
            remedy = "wait until that command is done, or repeat it"
            raise DataError(message(f"nobody else to write {self.note.name}", "another command", remedy))
        dates = {"issued": issued, "expires": None if math.isinf(expires) else expires}
        content = {**envelope(FORMAT, VERSION), **self.content, **dates}
        with writable(self.note):
            write_whole(self.note, document_text(content))
        self.state = "noted"

    def publish(self) -> None:
        """Give the files their names: their promises are in the ledger."""
        self.state = "committed"
        if self.note is not None:
            self._publish(self.token, self.content["files"])

    # ------------------------------------------------------------ where an earlier command was ended

    def check(self, *, allow_duplicate: bool, original: str) -> None:
        """Refuse promises whose results would be written nowhere, where a repetition could not do without."""
        if "out" not in self.places and (allow_duplicate or original == "commitment"):
            why = "--original commitment" if original == "commitment" else "--allow-duplicate"
            remedy = "add --out FILE: it is needed to repeat the command safely"
            if original == "commitment":
                remedy = "add --out FILE: what opens the commitments is written nowhere else"
            raise DataError(message(f"a file to write with {why}", "none", remedy))
        for name in {"out", "rejects"} & set(self.places):
            with writable(self.places[name]):
                pass  # refused by its own name, not by that of the pending file

    @property
    def is_left(self) -> bool:
        """Whether an earlier command with this output left a note."""
        return self.note is not None and self.note.exists()

    def resume(self, ledger: Ledger, table: Callable[[], str]) -> Finished | None:
        """Finish an earlier command whose promises are in the ledger; of any other remove what it left.

        ``table`` is called for the digest of all rows. Refuses to finish a command that asked for something
        else, or about other rows; None where nothing was issued.
        """
        from veritracer.ledger.requests import Request

        note = self._read()
        if note["ledger"] != ledger.identity:
            received = "another one"
            remedy = "name that ledger, or another --out"
            raise LedgerError(message(f"the ledger that {self.note} waits for", received, remedy))
        kept = ledger.settled(Request(note["request"], _digest_of(note["asked"])))
        if kept is None:
            self._discard(note["request"])
            remove(self._note)
            return None
        self._check_same(note, table)
        self._publish(note["request"], note["files"])
        from veritracer.ledger.issuing import issued_before  # here: it brings torch
        from veritracer.streaming.explaining import Explained

        explained = Explained(**{**note["explained"], "notes": tuple(note["explained"]["notes"])})
        issued = replace(issued_before(kept, 0), **note["left_out"])
        return Finished(explained, issued, tuple(note["notes"]))

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._note.read_text(encoding="utf-8"))
            known = found["format"], found["version"]
        except (OSError, ValueError, KeyError, TypeError):
            known = None
        if known != (FORMAT, VERSION):
            remedy = "restore it: it names the files of promises that may be in the ledger"
            raise DataError(message(f"a note of veritracer issue in {self.note}", "something else", remedy))
        return dict(found)

    @property
    def _note(self) -> Path:
        assert self.note is not None, "only what can be renamed has a note"
        return self.note

    def _asked(self) -> dict[str, Any]:
        """What is compared with a later command, as it is read back from JSON."""
        names = {f"place for {name}": place.name for name, place in self.places.items()}
        found: dict[str, Any] = json.loads(json.dumps({**self.asked(), **names}, default=str))
        return found

    def _check_same(self, note: Mapping[str, Any], table: Callable[[], str]) -> None:
        now, before = self._asked(), note["asked"]
        other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if other or note["rows"] != table():
            received = f"another {other[0].replace('_', ' ')}" if other else "other rows"
            remedy = "repeat that command with the table as it was, or name another --out"
            expected = f"the command whose promises are in the ledger and whose files {self.note} names"
            raise DataError(message(expected, received, remedy))

    def _publish(self, token: str, digests: Mapping[str, str]) -> None:
        """Rename what is still pending; what is in its place already is checked."""
        with _unfinished(self._note):
            self._rename(token, digests)
            remove(self._note)

    def _rename(self, token: str, digests: Mapping[str, str]) -> None:
        for name, place in self.places.items():
            waiting = _pending(place, token)
            if waiting.exists():
                rename(waiting, place)
            elif _digest(place) != digests[name]:
                remedy = "restore it: its promises are in the ledger, and nothing else has what it says"
                raise DataError(message(f"{place}, or {waiting.name} beside it", "neither", remedy))

    def _discard(self, token: str) -> None:
        for place in self.places.values():
            remove(_pending(place, token))


@contextmanager
def _unfinished(note: Path) -> Iterator[None]:
    """Say what to do where a file whose promises are in the ledger cannot get its name."""
    try:
        yield
    except OSError as error:
        remedy = "the promises are in the ledger: repeat the command when that is mended"
        received = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(
            message(f"the files that {note} names to get their names", received, remedy)
        ) from error


def table_digest(table: TableSource) -> str:
    """Return the digest of all rows of a table, as ``PendingOutputs`` notes it."""
    rows = hashlib.sha256()
    for chunk in table.batches:
        rows.update(rows_digest(chunk).encode())
    return rows.hexdigest()


def _can_be_renamed(place: str | Path | None) -> TypeGuard[str | Path]:
    """Whether this is the name of a file or folder, and not a device, a pipe, a URL or standard output."""
    named = place is not None and str(place) != STANDARD and "://" not in str(place)
    return named and not is_special(Path(str(place)))


def _pending(place: Path, token: str) -> Path:
    return place.with_name(f"{place.name}.{token[:8]}.pending")


def _digest(place: Path) -> str:
    """SHA-256 of a file; empty where there is none."""
    if not place.is_file():
        return ""
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(asked: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
