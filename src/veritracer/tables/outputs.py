"""Write the results of a run: a folder with a part for each batch, one file, or a stream.

::

    OUT/_run.json               the request: a run that continues must have the same
    OUT/_batches/NAME.json      a batch that is done, and how its rows ended; written after its part
    OUT/NAME.parquet            its rows; NAME is that of the table and the number of the batch in it
    OUT/_prepared/NAME.DIGEST   its results before their promises are issued (``issue`` only)

OUT is exactly the result of its tables: a part of a table that was renamed, removed or shortened since is
refused by name. Files appear only when they are whole, and a batch with a record is never done again. Names
that begin with an underscore are skipped by whatever reads folders of tables (Arrow, Spark, this library).

OUT may be the URL of a folder elsewhere, except for ``issue``. A second process on a local folder is refused;
the lock ends with the process that holds it. One file is put together from the parts of such a folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from veritracer.errors import DataError, message
from veritracer.files import PARTIAL, document_text, envelope, is_special, rename, writable
from veritracer.tables.jobs import Batch, BatchResult
from veritracer.tables.places import STANDARD, is_url
from veritracer.tables.run_files import CONTINUES, RunFiles
from veritracer.tables.writing import FORMATS, Format, Sink, format_of, join_parts, open_sink

RUN, BATCHES, PREPARED = "_run.json", "_batches", "_prepared"

DIGEST = 64
"""Digits of a SHA-256."""

FORMAT = "veritracer-run"


class Output:
    """The destination of the results of a run, to be used in a ``with`` block; this one keeps nothing."""

    is_begun = False
    """True if some batches are done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the destination."""

    def count(self) -> int:
        """Return how many batches are done for good."""
        return 0

    def done(self, batch: Batch) -> BatchResult | None:
        """Return the result of a batch that is done already, without its rows."""
        return None

    def write(self, result: BatchResult) -> BatchResult:
        """Write the rows of a result, and return what is left of it."""
        return replace(result, rows=None)

    def check_exact(self, names: Collection[str]) -> None:
        """Refuse results of other batches than these."""

    def finish(self, results: Sequence[BatchResult]) -> None:
        """Put the results of all batches in their place."""


class StreamOutput(Output):
    """A stream that is written once, batch by batch in their order.

    It may be a file, where the input cannot be read again.
    """

    def __init__(self, place: str | None, kind: Format, *, spreadsheet_safe: bool = False) -> None:
        self.place, self.kind, self.spreadsheet_safe = place, kind, spreadsheet_safe
        self.stack = ExitStack()
        self.sink: Sink | None = None
        if place is not None and place != STANDARD:
            with writable(Path(place)):
                pass  # refused before anything is read

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream; a file gets its name."""
        self.stack.__exit__(kind, error, trace)

    def write(self, result: BatchResult) -> BatchResult:
        """Write the rows of a batch."""
        if result.rows is None:
            return result
        if self.sink is None:
            opened = open_sink(self.place, kind=self.kind, spreadsheet_safe=self.spreadsheet_safe)
            self.sink = self.stack.enter_context(opened)
        before = self.sink.altered
        self.sink.write(result.rows)
        return replace(result, rows=None, altered=self.sink.altered - before)


class RunFolder(Output):
    """A folder in which each batch is a part; a run that did nothing leaves nothing of it.

    Parameters
    ----------
    place
        A folder or the URL of one, new or to continue in.
    request
        What has to be the same for the run to continue.
    kind
        The format of the parts.
    spreadsheet_safe
        As for ``open_sink``.
    file
        The file to put together from the parts, if there is to be one.
    force
        Whether to begin anew where the run is finished and its records were kept.
    """

    def __init__(
        self,
        place: str | os.PathLike[str],
        request: Mapping[str, Any],
        kind: Format,
        *,
        spreadsheet_safe: bool = False,
        file: Path | None = None,
        force: bool = False,
    ) -> None:
        self.files = RunFiles(os.fspath(place))
        self.kind, self.spreadsheet_safe, self.file = kind, spreadsheet_safe, file
        self.is_new = self.files.names() is None
        self._lock = self.files.lock()
        try:
            self._document = self._open(_as_json({**request, "kind": kind}), force=force)
            for name in self.files.below():  # what a killed process was writing
                if name.endswith(PARTIAL):
                    self.files.remove(name)
        except BaseException:
            self._close()
            raise

    def _open(self, request: Mapping[str, Any], *, force: bool) -> dict[str, Any]:
        """Return the document of the run; refuse a folder of something else, or of another run."""
        present = self.files.names()
        document = self._read(RUN) if present else None
        if document is None:
            if present:
                received = f"{self.files}, which is there and is not one"
                raise DataError(message("the folder of a run", received, "name a new folder"))
            return self._begin(request)
        if not isinstance(document.get("request"), dict) or "run" not in document:
            remedy = "remove it, or name a new folder"
            raise DataError(message(f"a document of a run in {self.files}/{RUN}", "something else", remedy))
        if force and document.get("is_finished"):
            for name in self.files.below() - {RUN}:
                self.files.remove(name)
            return self._begin(request)
        other = [key for key in request if document["request"].get(key) != request[key]]
        if other:
            received = f"another {other[0].replace('_', ' ')}"
            remedy = f"ask the same to continue, remove {self.files}, or name another output"
            raise DataError(message(f"what the run in {self.files} was asked", received, remedy))
        if document.get("is_finished") and self.file is not None and not self.file.exists():
            remedy = "restore it, or name another output"
            raise DataError(message(f"{self.file}, which this run finished", "no such file", remedy))
        return document

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        document = {**envelope(FORMAT, 1), "run": os.urandom(8).hex(), "request": request}
        self.files.write(RUN, document_text(document))
        return document

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; remove a folder in which nothing was done."""
        if error is not None and not self.is_begun:
            self.files.remove(RUN)
            if self.is_new:
                self.files.remove("")
        self._close()

    def _close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def __str__(self) -> str:
        return str(self.files)

    @property
    def run(self) -> str:
        """Return the random name of the run."""
        return str(self._document["run"])

    @property
    def is_finished(self) -> bool:
        """Return whether the file is complete, and only the records of its batches are kept."""
        return bool(self._document.get("is_finished"))

    @property
    def is_begun(self) -> bool:  # type: ignore[override]
        """Return whether the run has written anything besides its request."""
        return (self.files.names() or set()) > {RUN}

    def count(self) -> int:
        """Return how many batches are done."""
        return len(self.files.below(BATCHES))

    def done(self, batch: Batch) -> BatchResult | None:
        """Return the record of a batch that is done; refuse other rows than it had."""
        document = self._read(_record_name(batch.name))
        if document is None:
            return None
        record = BatchResult.from_document(document)
        if record.digest != batch.digest:
            received = f"others in {batch.table} from row {batch.row_numbers[0]:,} on"
            remedy = "give the tables as they were, in a fixed order, or name another output"
            raise DataError(message("the rows that this run began with", received, remedy))
        return record if self.is_finished or self.files.exists(self._part_name(record)) else None

    def write(self, result: BatchResult) -> BatchResult:
        """Write the part and then the record of a batch; one without rows is not noted."""
        if result.rows is None:
            return result
        with self.files.written(self._part_name(result)) as place, self._sink(place) as sink:
            sink.write(result.rows)
        columns = tuple(result.rows.schema.names)
        record = replace(result, rows=None, prepared=None, columns=columns, altered=sink.altered)
        self.files.write(_record_name(record.name), document_text(record.to_document()))
        return record

    def _sink(self, place: str) -> AbstractContextManager[Sink]:
        safe, header = self.spreadsheet_safe, self.file is None
        return open_sink(place, kind=self.kind, spreadsheet_safe=safe, header=header, remedy=CONTINUES)

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

    def finish(self, results: Sequence[BatchResult], *, keep_records: bool = False) -> None:
        """Put the file together, and remove the folder, or else its parts."""
        if self.file is None:
            return
        assert self.files.local is not None, "one file is on this machine"
        parts = [result for result in results if result.columns]
        places = [self.files.local / self._part_name(part) for part in parts]
        if not self.is_finished:
            names, safe = parts[0].columns, self.spreadsheet_safe
            with writable(self.file, CONTINUES):
                join_parts(self.file, places, names, self.kind, spreadsheet_safe=safe)
        if keep_records:
            self._document["is_finished"] = True
            self.files.write(RUN, document_text(self._document))
            for place in places:
                place.unlink(missing_ok=True)
            return
        done = self.file.with_name(f"{self.file.name}.run.done")
        shutil.rmtree(done, ignore_errors=True)
        rename(self.files.local, done)  # at once: a folder with some records would be a run to continue
        shutil.rmtree(done)

    def _part_name(self, result: BatchResult) -> str:
        return f"{result.name}.{self.kind}"

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


def _as_json(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as it is read back from JSON, which has no infinity."""
    found: dict[str, Any] = json.loads(json.dumps(request, default=str), parse_constant=str)
    return found


def flat(name: str) -> str:
    """Return the name of a batch as a file name."""
    return name.replace("/", ".")


def _table_of(name: str) -> str:
    return name.rpartition(".")[0]


def _record_name(name: str) -> str:
    return f"{BATCHES}/{name}.json"


# ---------------------------------------------------------------- which of them


def open_output(
    place: str | None,
    request: Mapping[str, Any],
    *,
    kind: Format = "parquet",
    spreadsheet_safe: bool = False,
    one_pass: bool = False,
    force: bool = False,
) -> Output:
    """Open the output of a run.

    Parameters
    ----------
    place
        A file whose name ends in ``.csv``, ``.parquet`` or ``.jsonl``; another name or a URL is a folder of
        parts; None and ``-`` are standard output.
    request
        What has to be the same for an earlier run with this output to continue.
    kind
        The format of the parts of a folder, and of standard output.
    spreadsheet_safe
        As for ``open_sink``.
    one_pass
        Whether the input can be read only once, so that nothing can be continued.
    force
        As for ``RunFolder``.
    """
    if place is None or place == STANDARD:
        return StreamOutput(place, kind, spreadsheet_safe=spreadsheet_safe)
    if is_folder(place):
        if one_pass:
            remedy = "save it as a file first, or name one file to write"
            raise DataError(message("tables that can be read again", "standard input", remedy))
        return RunFolder(place, request, kind, spreadsheet_safe=spreadsheet_safe, force=force)
    kind, file = format_of(place), Path(place)
    if one_pass or "://" in place or is_special(file):
        return StreamOutput(place, kind, spreadsheet_safe=spreadsheet_safe)
    with writable(file):
        folder = file.with_name(f"{file.name}.run")
        return RunFolder(folder, request, kind, spreadsheet_safe=spreadsheet_safe, file=file, force=force)


def is_folder(place: str) -> bool:
    """Return whether an output is a folder of parts: it has no suffix, or is a folder already, or a URL.

    >>> [is_folder(name) for name in ("r.csv", "r.txt", "results", "2027.06/", "s3://bucket/results")]
    [False, False, True, True, True]
    """
    if place.casefold().endswith(tuple(FORMATS)):
        return False
    if place.endswith("/") or is_url(place) or Path(place).is_dir():
        return True
    return not Path(place).suffix and not is_special(Path(place))
