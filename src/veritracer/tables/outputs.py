"""Write the results of a run: a folder of parts, one file, or a stream."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from veritracer.errors import DataError, message
from veritracer.files import is_special, rename, writable
from veritracer.tables.jobs import Batch, BatchResult
from veritracer.tables.places import STANDARD, is_url
from veritracer.tables.run_folder import Record, RunFolder, continuable
from veritracer.tables.writing import FORMATS, Format, Sink, format_of, join_parts, open_sink


class Output(Protocol):
    """The destination of the results of a run; use it in a ``with`` block."""

    def done(self, batch: Batch) -> Record | None:
        """Return the record of a batch that is done already."""
        ...

    def write(self, result: BatchResult) -> Record:
        """Write the result of a batch."""
        ...

    def check_exact(self, names: Sequence[str]) -> None:
        """Refuse results of other batches than these."""
        ...

    def finish(self, records: Sequence[Record]) -> None:
        """Put the results of all batches in their place."""
        ...

    @property
    def is_begun(self) -> bool:
        """Return whether some batches are done."""
        ...

    @property
    def is_stream(self) -> bool:
        """Return whether batches must come in order."""
        ...

    def count(self) -> int:
        """Return how many batches are done for good."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FolderOutput(RunFolder):
    """A folder in which each batch is a part."""

    def finish(self, records: Sequence[Record]) -> None:
        """Do nothing: the parts are the result."""


class FileOutput(RunFolder):
    """One file, put together of the parts of a run in ``NAME.run`` beside it, which is removed then."""

    def __init__(
        self, place: str, asked: Mapping[str, Any], kind: Format, *, spreadsheet_safe: bool = False
    ) -> None:
        self.place = Path(place)
        with writable(self.place):
            folder = self.place.with_name(f"{self.place.name}.run")
            super().__init__(folder, asked, kind, spreadsheet_safe=spreadsheet_safe, header=False)
        self.folder = folder

    def finish(self, records: Sequence[Record]) -> None:
        """Write the file, and remove the folder."""
        parts = [record for record in records if record.file]
        names = parts[0].columns
        files = [self.folder / part.file for part in parts]
        with continuable():
            join_parts(self.place, files, names, self.kind, spreadsheet_safe=self.spreadsheet_safe)
        done = self.folder.with_name(f"{self.folder.name}.done")
        shutil.rmtree(done, ignore_errors=True)
        rename(self.folder, done)  # at once: a folder with some of its records would be a run to continue
        shutil.rmtree(done)


class StreamOutput:
    """A stream that is written once, batch by batch in their order; None writes nothing.

    It may be a file, where the input cannot be read again.
    """

    is_begun, is_stream = False, True

    def __init__(self, place: str | None, kind: Format | None, *, spreadsheet_safe: bool = False) -> None:
        self.place, self.kind, self.spreadsheet_safe = place, kind, spreadsheet_safe
        self.stack = ExitStack()
        self.sink: Sink | None = None
        if place is not None and place != STANDARD:
            with writable(Path(place)):
                pass  # refused before anything is read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream; a file gets its name."""
        self.stack.__exit__(kind, error, trace)

    def done(self, batch: Batch) -> Record | None:
        """Return None: every batch is still to be done."""
        return None

    def count(self) -> int:
        """Return 0: nothing can be continued."""
        return 0

    def write(self, result: BatchResult) -> Record:
        """Write the rows of a batch."""
        if self.kind is None or result.rows is None:
            return Record.of(result)
        if self.sink is None:
            opened = open_sink(self.place, kind=self.kind, spreadsheet_safe=self.spreadsheet_safe)
            self.sink = self.stack.enter_context(opened)
        before = self.sink.altered
        self.sink.write(result.rows)
        return Record.of(result, altered=self.sink.altered - before)

    def check_exact(self, names: Sequence[str]) -> None:
        """Do nothing: there are no other results."""

    def finish(self, records: Sequence[Record]) -> None:
        """Do nothing: the rows are written."""


def open_output(
    place: str | None,
    asked: Mapping[str, Any],
    *,
    kind: Format = "parquet",
    spreadsheet_safe: bool = False,
    one_pass: bool = False,
) -> Output:
    """Open the output of a run.

    Parameters
    ----------
    place
        A file whose name ends in ``.csv``, ``.parquet`` or ``.jsonl``; another name or a URL is a folder of
        parts; None and ``-`` are standard output.
    asked
        What has to be the same for an earlier run with this output to continue.
    kind
        The format of the parts of a folder, and of standard output.
    spreadsheet_safe
        As for ``open_sink``.
    one_pass
        Whether the input can be read only once, so that nothing can be continued.
    """
    if place is None or place == STANDARD:
        return StreamOutput(place, kind, spreadsheet_safe=spreadsheet_safe)
    if is_folder(place):
        if one_pass:
            remedy = "save it as a file first, or name one file to write"
            raise DataError(message("tables that can be read again", "standard input", remedy))
        return FolderOutput(place, asked, kind, spreadsheet_safe=spreadsheet_safe)
    chosen = format_of(place)
    if one_pass or "://" in place or is_special(Path(place)):
        return StreamOutput(place, chosen, spreadsheet_safe=spreadsheet_safe)
    return FileOutput(place, asked, chosen, spreadsheet_safe=spreadsheet_safe)


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
