"""The folder of a run: one part for each batch, and a record of each batch that is done.

::

    OUT/_run.json               what was asked: a run that continues has to ask the same
    OUT/_batches/NAME.json      a batch that is done, and how its rows ended; written after its part
    OUT/NAME.parquet            its rows; NAME is that of the table and the number of the batch in it
    OUT/_prepared/NAME.DIGEST   its results before their promises are issued (``issue`` only)

OUT is exactly the result of its tables: a part of a table that was renamed, removed or shortened since is
refused by name. Files appear only when they are whole, and a batch with a record is never done again. Names
that begin with an underscore are skipped by whatever reads folders of tables (Arrow, Spark, this library).

OUT may be the URL of a folder elsewhere, except for ``issue``. A second process on a local folder is refused;
the lock ends with the process that holds it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from veritracer.errors import DataError, message
from veritracer.files import PARTIAL, document_text, envelope, make_folders, write_whole
from veritracer.tables.jobs import Batch, BatchResult
from veritracer.tables.places import file_system, is_url, local_path, without_password
from veritracer.tables.rejects import Reject
from veritracer.tables.writing import Format, Sink, open_sink

RUN, BATCHES, PREPARED = "_run.json", "_batches", "_prepared"

DIGEST = 64
"""Digits of a SHA-256."""

FORMAT = "veritracer-run"


@dataclass(frozen=True)
class Record:
    """A batch that is done.

    Attributes
    ----------
    name, digest
        The batch, and the digest of its rows.
    file
        The part with its results; empty where no row could be read.
    columns
        The columns of the part.
    counts, facts, notes
        How its rows ended, as in ``BatchResult``.
    rejects
        The columns of its table, and the rows that could not be read.
    altered
        Cells that were changed to be safe for spreadsheets.
    promises
        For ``issue``: the number of the first promise, and how many there are.
    """

    name: str
    digest: str
    file: str
    columns: list[str]
    counts: dict[str, int]
    facts: dict[str, Any]
    notes: dict[str, tuple[str, int]]
    rejects: tuple[list[str], list[Reject]]
    altered: int = 0
    promises: tuple[int, int] = (0, 0)

    @classmethod
    def of(
        cls, result: BatchResult, file: str = "", altered: int = 0, promises: tuple[int, int] = (0, 0)
    ) -> Record:
        """Return the record of a result."""
        columns = [] if result.rows is None else list(result.rows.schema.names)
        rejects = result.rejects.columns, list(result.rejects.rows)
        facts, counts = dict(result.facts), dict(result.counts)
        name, digest, notes = result.batch, result.digest, dict(result.notes.seen)
        return cls(name, digest, file, columns, counts, facts, notes, rejects, altered, promises)


class RunFolder:
    """The folder of a run; to be used in a ``with`` block, which leaves nothing of a run that did nothing.

    Parameters
    ----------
    place
        A folder or the URL of one, new or to continue in.
    asked
        What has to be the same for the run to continue.
    kind
        The format of the parts.
    spreadsheet_safe, header
        As for ``open_sink``.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        asked: Mapping[str, Any],
        kind: Format,
        *,
        spreadsheet_safe: bool = False,
        header: bool = True,
    ) -> None:
        self.files = _Files(os.fspath(place))
        self.kind, self.spreadsheet_safe, self.header = kind, spreadsheet_safe, header
        self.made = self.files.names() is None
        self._lock = self.files.lock()
        try:
            self.name = self._open(_as_json({**asked, "kind": kind}))
            for file in self.files.below():  # what a killed process was writing
                if file.endswith(PARTIAL):
                    self.files.remove(file)
        except BaseException:
            self._close()
            raise

    def _open(self, wanted: Mapping[str, Any]) -> str:
        """Return the random name of the run; refuse what holds something else, or another run."""
        held = self.files.names()
        there = self._read(RUN) if held else None
        if there is None:
            if held:
                received = f"{self.files}, which is there and is not one"
                raise DataError(message("the folder of a run", received, "name a new folder"))
            name = os.urandom(8).hex()
            self.files.write(RUN, document_text({**envelope(FORMAT, 1), "run": name, "asked": wanted}))
            return name
        if not isinstance(there.get("asked"), dict) or "run" not in there:
            remedy = "remove it, or name a new folder"
            raise DataError(message(f"a document of a run in {self.files}/{RUN}", "something else", remedy))
        other = [key for key in wanted if there["asked"].get(key) != wanted[key]]
        if other:
            received = f"another {other[0].replace('_', ' ')}"
            remedy = f"ask the same to continue, remove {self.files}, or name another output"
            raise DataError(message(f"what the run in {self.files} was asked", received, remedy))
        return str(there["run"])

    is_stream = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; remove a folder in which nothing was done."""
        if error is not None and not self.is_begun:
            self.files.remove(RUN)
            if self.made:
                self.files.remove("")
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def __str__(self) -> str:
        return str(self.files)

    @property
    def is_begun(self) -> bool:
        """Return whether the run has written anything besides its request."""
        return (self.files.names() or set()) > {RUN}

    def count(self) -> int:
        """Return how many batches are done."""
        return len(self.files.below(BATCHES))

    def done(self, batch: Batch) -> Record | None:
        """Return the record of a batch that is done; refuse other rows than it had."""
        found = self._read(_record_name(batch.name))
        if found is None:
            return None
        record = Record(**{**found, "promises": tuple(found["promises"])})
        if record.digest != batch.digest:
            received = f"others in {batch.rows.table} from row {batch.rows.start + 1:,} on"
            remedy = "give the tables as they were, in a fixed order, or name another output"
            raise DataError(message("the rows that this run began with", received, remedy))
        return record if self.files.exists(record.file) else None

    def write(self, result: BatchResult, promises: tuple[int, int] = (0, 0)) -> Record:
        """Write the part and then the record of a batch; one without rows is not noted."""
        if result.rows is None:
            return Record.of(result)
        name = f"{result.batch}.{self.kind}"
        with continuable(), self.files.written(name) as place, self._sink(place) as sink:
            sink.write(result.rows)
        record = Record.of(result, name, sink.altered, promises)
        self.files.write(_record_name(record.name), document_text(asdict(record)))
        return record

    def _sink(self, place: str) -> AbstractContextManager[Sink]:
        safe = self.spreadsheet_safe
        return open_sink(place, kind=self.kind, spreadsheet_safe=safe, header=self.header)

    def check_exact(self, names: Collection[str]) -> None:
        """Refuse a part that is of none of these batches: the folder would be more than their result."""
        known = {*names, *(flat(name) for name in names)}
        tables = {_table_of(name) for name in names}
        for file in sorted(self.files.below()):
            name = self._batch_of(file)
            if name is None or name in known:
                continue
            table = _table_of(name)
            why = "which has fewer rows now" if table in tables else "which is not among the tables"
            expected = f"the result of these tables alone in {self.files}"
            remedy = "give the tables as they were, or name another output"
            raise DataError(message(expected, f"{file}, a part of {table}, {why}", remedy))

    def _batch_of(self, file: str) -> str | None:
        """Return the batch that a file of the folder belongs to; None for bookkeeping."""
        top, _, rest = file.partition("/")
        if top == BATCHES:
            return rest.removesuffix(".json")
        if top == PREPARED:
            stem, _, digest = rest.rpartition(".")
            return stem if len(digest) == DIGEST else None
        if any(part[:1] in (".", "_") for part in file.split("/")):
            return None
        return file.removesuffix(f".{self.kind}")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            content = self.files.read(name)
            found = None if content is None else json.loads(content)
        except (OSError, ValueError) as error:
            remedy = "remove it, or name a new folder"
            raise DataError(
                message(f"a document of a run in {self.files}/{name}", f"{error}", remedy)
            ) from None
        return found if isinstance(found, dict) else None


@contextmanager
def continuable() -> Iterator[None]:
    """Say how to go on where a file of a run cannot be written: what is done stays done."""
    try:
        yield
    except OSError as error:
        if not error.errno:
            raise
        remedy = "repeat the command when that is mended: it continues"
        expected = f"room for {error.filename or 'the results'}"
        raise DataError(message(expected, os.strerror(error.errno), remedy)) from None
    except DataError as error:
        if not isinstance(error.__context__, OSError):
            raise
        said = error.args[0]
        remedy = "repeat the command when that is mended: it continues"
        raise DataError(message(said.expected, said.received, remedy)) from None


def _as_json(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as it is read back from JSON, which has no infinity."""
    found: dict[str, Any] = json.loads(json.dumps(asked, default=str), parse_constant=str)
    return found


def flat(name: str) -> str:
    """Return the name of a batch as a file name."""
    return name.replace("/", ".")


def _table_of(name: str) -> str:
    return name.rpartition(".")[0]


def _record_name(name: str) -> str:
    return f"{BATCHES}/{name}.json"


# ---------------------------------------------------------------- here or elsewhere


class _Files:
    """The files of a run by their names from its folder on, on this machine or behind a URL.

    A local file appears under its name when it is whole. Behind a URL that is so where the service puts
    objects as a whole (S3, GCS, Azure); elsewhere a part counts from its record on, written after it.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or place
        self.system, path = file_system(self.place)
        self.path = path.rstrip("/")
        self.local = None if is_url(place) else Path(local_path(self.place))

    def __str__(self) -> str:
        return without_password(self.place)

    def names(self) -> set[str] | None:
        """Return what is at the top of the folder; None where there is no folder."""
        self.system.invalidate_cache()
        with self._told():
            if self.local is not None and self.local.is_file():
                received = f"the file {self.local}"
                raise DataError(message("a folder to write to", received, "name a new folder"))
            found = self.system.ls(self.path, detail=False) if self.system.exists(self.path) else None
        return None if found is None else {str(one).rstrip("/").rpartition("/")[2] for one in found}

    def below(self, folder: str = "") -> set[str]:
        """Return the names of all files in the folder, or in a folder of it, and below."""
        path = self._at(folder)
        self.system.invalidate_cache()
        with self._told():
            found = self.system.find(path) if self.system.exists(path) else []
        return {str(one).removeprefix(self.path).lstrip("/") for one in found}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None where there is none."""
        with self._told():
            try:
                found: bytes = self.system.cat_file(self._at(name))
            except FileNotFoundError:
                return None
        return found

    def write(self, name: str, content: str) -> None:
        """Write a whole file."""
        if self.local is not None:
            write_whole(self.local / name, content)
            return
        with self._told():
            self.system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(self._at(name), content.encode())

    @contextmanager
    def written(self, name: str) -> Iterator[str]:
        """Give a path of this machine to write a file to, which gets its name when the block ends well."""
        if self.local is not None:  # whoever writes it makes it appear as a whole
            path = self.local / name
            make_folders(path.parent)
            yield str(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            draft = f"{folder}/{name.rpartition('/')[2]}"
            yield draft
            with self._told():
                self.system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self.system.put_file(draft, self._at(name))

    def exists(self, name: str) -> bool:
        """Return whether there is such a file now, whatever was listed before."""
        self.system.invalidate_cache()
        with self._told():
            return bool(self.system.exists(self._at(name)))

    def remove(self, name: str) -> None:
        """Remove a file if it is there; with an empty name the folder if it is empty."""
        with suppress(OSError, NotImplementedError):
            self.system.rm_file(self._at(name)) if name else self.system.rmdir(self.path)

    def lock(self) -> int | None:
        """Make a local folder, and return what keeps other processes out of it until it is closed."""
        if self.local is None or sys.platform == "win32":
            return None
        import fcntl

        make_folders(self.local)
        handle = os.open(self.local, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            remedy = "wait until it has ended, or name another output"
            raise DataError(message(f"{self} for this process alone", "another process", remedy)) from None
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        return handle

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what a file system elsewhere refuses into one sentence."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            if self.local is not None or isinstance(error, DataError):
                raise
            received = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            remedy = "check the URL, your permissions and the connection; the same command continues"
            raise DataError(message(f"to read and write in {self}", received, remedy)) from error
