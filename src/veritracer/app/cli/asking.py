"""What ``explain`` and ``issue`` are asked about the people of a table, whoever does the work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veritracer import streaming, tables
from veritracer.app.cli.options import Bulk, ReadOptions, check_output, open_applicants
from veritracer.app.cli.output import note
from veritracer.app.cli.schema_options import check_rejects

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.model_folder import Columns
    from veritracer.schema import Schema
    from veritracer.streaming import LetterTerms, PendingOutputs
    from veritracer.streaming.letters import LetterWriter
    from veritracer.tables import Rejects, Sink, TableSource


class Asked(NamedTuple):
    """What was typed: the table, what is wanted of each row, and what is written how.

    ``rules`` say what may change, where that is not as the model has it.
    """

    table: str
    out: str | None
    options: dict[str, Any]
    keep: list[str]
    ignore: list[str]
    rules: Schema | None
    sentences: bool
    rejects: Path | None
    spreadsheet_safe: bool
    reading: ReadOptions
    quiet: bool
    as_json: bool

    def check(self, *inputs: str, force: bool) -> None:
        """Refuse outputs that are inputs, or other people's work."""
        read = [self.table, *inputs]
        check_output(self.out, read, force=force)
        check_rejects(self.rejects, read, self.out, force=force)

    def question(self, model: str, bulk: Bulk) -> Question:
        """The same, of every block."""
        return bulk.question(
            model,
            self.options,
            keep=tuple(self.keep),
            ignore=tuple(self.ignore),
            sentences=self.sentences,
            rules=self.rules,
            spreadsheet_safe=self.spreadsheet_safe,
        )

    @contextmanager
    def opened(
        self,
        known: Columns | None,
        letters: LetterTerms | None = None,
        *,
        ids: Sequence[str] = (),
        pending: PendingOutputs | None = None,
    ) -> Iterator[Opened]:
        """The table, when it has what a model knows, and all that is written; files appear at the end.

        With ``pending`` they are that one's, to be closed when it says so.
        """
        with ExitStack() as stack:
            files, pages = (stack, stack) if pending is None else (pending.files, pending.letters)
            into = {} if pending is None else {name: pending.pending(name) for name in pending.places}
            reject = tables.open_rejects(into.get("rejects", self.rejects))
            rejected = files.enter_context(reject)
            source = stack.enter_context(open_applicants(self.table, self.reading, rejected))
            carry = [] if letters is None else list(letters.columns.values())
            if known is not None:
                for name in ids:
                    tables.check_ids(source, name)
                tables.check_columns(source, known, [*ids, *self.keep, *carry], self.ignore)
            writer = None
            if letters is not None and "letters" in into:
                writer = pages.enter_context(streaming.letters_at(into["letters"], letters))
            elif letters is not None:
                writer = pages.enter_context(streaming.letter_folder(letters))
            sink = self._sink(files, into.get("out"), silent=bool(ids))
            yield Opened(source, sink, rejected, writer, carry)

    def _sink(self, stack: ExitStack, place: Path | None, *, silent: bool) -> Sink:
        """Where answers go: a file (``place`` for now), or standard output unless the verb is ``silent``."""
        if self.out is None and silent:
            return streaming.NullSink()
        kind = "jsonl" if self.as_json and self.out is None else tables.format_of(self.out)
        out = self.out if place is None else str(place)
        return stack.enter_context(tables.open_sink(out, kind=kind, spreadsheet_safe=self.spreadsheet_safe))

    def notes(self, notes: Iterable[str], opened: Opened) -> list[str]:
        """What is worth knowing of the rows, the output and the rejected."""
        rejected = opened.rejected.note(str(self.rejects)) if opened.rejected else []
        return [*notes, *opened.sink.notes(), *rejected]

    def tell(self, notes: Iterable[str], opened: Opened) -> None:
        """Print what is worth knowing of the rows, the output and the rejected."""
        note(self.notes(notes, opened), quiet=self.quiet)


class Opened(NamedTuple):
    """Where rows come from and go to; ``carry`` are columns that letters need."""

    source: TableSource
    sink: Sink
    rejected: Rejects | None
    letters: LetterWriter | None
    carry: list[str]
