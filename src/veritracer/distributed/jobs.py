"""Explaining, certifying and issuing block by block: what a worker does, and the whole of it.

A run can end at any moment, by whatever ends it, and goes on when it is asked for again. Every block is a
file of its own; in everything that is declared invariant (docs/explanation/architecture.md) its rows are
those that a single process writes, whatever the size of the blocks, their order and the number of workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from veritracer.distributed.blocks import Block, Record, RunFolder, cut, paired, prepared_name
from veritracer.distributed.storage import LocalFolder, digest_of
from veritracer.engines import Engine
from veritracer.errors import DataError, EmptyTableError, LedgerError, Message, message
from veritracer.ledger import Ledger
from veritracer.ledger.issuing import LEFT_OUT
from veritracer.ledger.requests import Kept, Request
from veritracer.options import BLOCK_ROWS
from veritracer.persistence import load
from veritracer.schema import Schema
from veritracer.streaming import (
    Certified,
    Explained,
    IssueTerms,
    Watch,
    certify_tables,
    explain_table,
    issue_table,
)
from veritracer.tables import (
    CSVFormat,
    Sink,
    check_columns,
    check_ids,
    find_tables,
    is_url,
    open_sink,
    open_table,
)
from veritracer.tables.reading import Columns

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger.issuing import Batch
    from veritracer.recourse import Recourse

MODELS = 4
"""Models that a worker keeps in memory."""

Tell = Callable[[float | None], None]
"""Is told which share of all tables was read."""


@dataclass(frozen=True)
class Inputs:
    """Tables to go through (as for ``open_table``, or a folder or pattern), and the rows of a block."""

    place: str
    query: str | None = None
    csv: CSVFormat = field(default_factory=CSVFormat)
    rows: int = BLOCK_ROWS

    def blocks(self, check: Callable[[Any], None], *, tell: Tell) -> Iterator[Block]:
        """All blocks, one after the other; each table is looked at by ``check`` when it is opened.

        Of several tables some may have no rows.
        """
        found, empty = find_tables(self.place, self.query), 0
        for number, one in enumerate(found):
            try:
                with open_table(one.place, self.query, csv=self.csv) as table:
                    check(table)
                    for block in cut(table, one.name, self.rows):
                        part = table.share()
                        tell(None if part is None else (number + part) / len(found))
                        yield block
            except EmptyTableError:
                empty += 1
                if empty == len(found):
                    raise

    def check_apart(self, folder: RunFolder) -> None:
        """Refuse to write into the folder that is read: the next run would read what this one wrote."""
        if not isinstance(folder.storage, LocalFolder):
            return
        place, read = folder.storage.place, Path(self.place)
        if read.is_dir() and place.resolve().is_relative_to(read.resolve()):
            remedy = "name a folder beside it"
            raise DataError(message(f"a folder outside of {self.place}", str(place), remedy))


@dataclass(frozen=True)
class Question:
    """What is asked of every row, as ``veritracer explain`` asks it."""

    model: str
    options: Mapping[str, Any]
    keep: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    sentences: bool = False
    rules: Schema | None = None
    spreadsheet_safe: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        """Note which model it is: every worker has to find the same one."""
        object.__setattr__(self, "digest", self.digest or model_digest(self.model))

    def recourse(self) -> tuple[VeriTraCER, Recourse]:
        """The model, and what answers for it."""
        model = model_of(self.model, self.digest)
        return model, model.recourse(self.rules)

    def asked(self, verb: str, inputs: Inputs) -> dict[str, Any]:
        """All that has to be the same when the run goes on; the tables by a digest, for passwords in them."""
        rules = None if self.rules is None else self.rules.to_json()
        apart = ("model", "rules", "digest")
        own = {k: v for k, v in asdict(replace(self, rules=None)).items() if k not in apart}
        place = inputs.place if is_url(inputs.place) else str(Path(inputs.place).absolute())
        run = {"verb": verb, "model": self.digest, "rules": rules, "block_rows": inputs.rows}
        return {**run, "table": hashlib.sha256(json.dumps([place, inputs.query]).encode()).hexdigest(), **own}


def model_digest(folder: str) -> str:
    """Return what tells one saved model from another."""
    return hashlib.sha256((Path(folder) / "model.json").read_bytes()).hexdigest()


@lru_cache(MODELS)
def model_of(folder: str, digest: str) -> VeriTraCER:
    """Load the model in a folder; refuse another one than was there when the work began."""
    before = model_digest(folder)
    model = load(folder)
    if not before == digest == model_digest(folder):
        remedy = "put it back, or begin anew with the other one"
        raise DataError(message(f"the model that was in {folder} at the start", "another one", remedy))
    return model


# ---------------------------------------------------------------- what a worker does


@dataclass(frozen=True)
class ExplainJob:
    """Counterfactuals of a block, as a file."""

    question: Question
    folder: RunFolder

    def __call__(self, block: Block) -> Record:
        """Explain a block."""
        _, recourse = self.question.recourse()
        with _told(block), _block_sink(self.folder, block, self.question) as sink:
            found = explain_table(recourse, block.table(), sink, **_how(self.question))
        return _finish(self.folder, block, asdict(_noted(found, sink.notes())))


@dataclass(frozen=True)
class CertifyJob:
    """What can be proved of the pairs of a block, as a file."""

    question: Question
    folder: RunFolder

    def __call__(self, block: Block) -> Record:
        """Certify a block."""
        model, _ = self.question.recourse()
        kappa = self.question.options.get("kappa")
        with _told(block), _block_sink(self.folder, block, self.question) as sink:
            pair = block.table(0), block.table(1)
            found = certify_tables(model, *pair, sink, kappa=kappa, keep=self.question.keep)
        return _finish(self.folder, block, asdict(_noted(found, sink.notes())))


@dataclass(frozen=True)
class IssueJob:
    """Promises to the people of a block, issued together and once; and the block's file.

    The file is whole on the disk, under its digest, before anything is issued; the digest is issued with the
    promises. Whoever tries again finds the file of what was issued, and never another one.
    """

    question: Question
    folder: RunFolder
    ledger: str
    terms: IssueTerms

    def __call__(self, block: Block) -> Record:
        """Issue the promises of a block."""
        _, recourse = self.question.recourse()
        with _told(block), Ledger(self.ledger) as ledger:
            return self._issue(block, recourse, ledger)

    def _issue(self, block: Block, recourse: Recourse, ledger: Ledger) -> Record:
        request = Request(self.folder.key_of(block), block.digest.encode())
        prepared = _Prepared(self.folder, block)
        self._check_openings(prepared, ledger.requested(request))
        with ExitStack() as stack:
            place, safe = str(prepared.new), self.question.spreadsheet_safe
            sink = stack.enter_context(open_sink(place, kind=self.folder.kind, spreadsheet_safe=safe))

            def written(_: Explained, batch: Batch) -> Request:
                stack.close()  # from here on the file is whole
                return request._replace(answer={"file": prepared.named(), "left_out": batch.left_out})

            args = recourse, block.table(), sink, ledger, self.terms
            found, issued = issue_table(*args, request=written, **_how(self.question))
        kept = ledger.requested(request)  # what another worker has issued meanwhile, if it was faster
        assert kept is not None, "it was issued just now"
        self._check_openings(prepared, kept)
        prepared.take(_file_of(kept) if prepared.is_there(_file_of(kept)) else prepared.digest)
        numbers = [int(issued.sequence[0]), int(issued.sequence[-1])] if len(issued) else []
        left_out = (kept.answer or {})["left_out"]
        ended = {**asdict(_noted(found, sink.notes())), "issued": numbers, "left_out": left_out}
        return _finish(self.folder, block, ended)

    def _check_openings(self, prepared: _Prepared, before: Kept | None) -> None:
        """Refuse to go on where what opens commitments that were made is lost."""
        if self.terms.original == "commitment" and before and not prepared.is_there(_file_of(before)):
            received = f"no {prepared.file}, in which they were"
            remedy = "restore the file: what opens the commitments is kept nowhere else"
            raise LedgerError(message("the openings of promises that were issued", received, remedy))


def _file_of(kept: Kept | None) -> str:
    """The digest of the file that was issued with promises."""
    return "" if kept is None or kept.answer is None else str(kept.answer["file"])


class _Prepared:
    """The file of a block before its promises are issued."""

    def __init__(self, folder: RunFolder, block: Block) -> None:
        self.storage, self.file = folder.storage, folder.file_of(block)
        self.name = block.name
        self.new = self.storage.draft(prepared_name(block.name, "new"))
        self.digest = ""

    def is_there(self, digest: str) -> bool:
        """Whether the file with that digest is there, prepared or in its place."""
        names = prepared_name(self.name, digest), self.file
        return bool(digest) and any(self.storage.digest(name) == digest for name in names)

    def named(self) -> str:
        """The digest of the file, under which it is from now on."""
        self.digest = digest_of(self.new)
        self.storage.publish(self.new, prepared_name(self.name, self.digest))
        return self.digest

    def take(self, digest: str) -> None:
        """Put the file with that digest in its place, and drop what others prepared."""
        chosen = prepared_name(self.name, digest)
        if self.storage.exists(chosen):
            self.storage.move(chosen, self.file)
        if self.digest and self.digest != digest:
            self.storage.remove(prepared_name(self.name, self.digest))


@contextmanager
def _block_sink(folder: RunFolder, block: Block, question: Question) -> Iterator[Sink]:
    """Where the rows of a block are written."""
    safe = question.spreadsheet_safe
    with (
        folder.storage.written(folder.file_of(block)) as place,
        open_sink(str(place), shared=True, spreadsheet_safe=safe) as sink,
    ):
        yield sink


@contextmanager
def _told(block: Block) -> Iterator[None]:
    """Say of which table a row is that cannot be read: a run has many."""
    try:
        yield
    except DataError as error:
        name, said = block.sources[0], error.args[0]
        if not isinstance(said, Message) or name in said:
            raise
        raise type(error)(message(said.expected, f"{said.received} of {name}", said.remedy)) from None


def _how(question: Question) -> dict[str, Any]:
    return {
        "options": question.options,
        "keep": question.keep,
        "ignore": question.ignore,
        "sentences": question.sentences,
    }


End = TypeVar("End", Explained, Certified)


def _noted(found: End, more: Sequence[str]) -> End:
    return replace(found, notes=(*found.notes, *more))


def _finish(folder: RunFolder, block: Block, ended: dict[str, Any]) -> Record:
    return folder.finish(Record(block.name, block.rows, block.digest, folder.file_of(block), ended))


# ---------------------------------------------------------------- the whole of it


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its blocks, how many of them were there already, and all their rows together."""

    blocks: int
    skipped: int
    ended: Explained | Certified
    records: tuple[Record, ...]

    @property
    def promises(self) -> int:
        """How many promises are issued under the keys of this run."""
        numbers = [record.ended.get("issued") for record in self.records]
        return sum(int(pair[1] - pair[0] + 1) for pair in numbers if pair)

    @property
    def left_out(self) -> dict[str, int]:
        """How many counterfactuals became no promise in this run, by the reason."""
        counts = [record.ended.get("left_out", {}) for record in self.records]
        return {name: sum(one.get(name, 0) for one in counts) for name in LEFT_OUT}


def explain_blocks(
    question: Question, inputs: Inputs, folder: RunFolder, engine: Engine, watch: Watch | None = None
) -> Outcome:
    """How the rows of all tables ended, after each block was written."""
    inputs.check_apart(folder)
    schema = _columns(question)
    progress = _Progress(watch)

    def check(table: Any) -> None:
        check_columns(table, schema, question.keep, question.ignore)

    def blocks(tell: Tell) -> Iterator[Block]:
        return inputs.blocks(check, tell=tell)

    return _run(ExplainJob(question, folder), folder, blocks, engine, progress, Explained)


def certify_blocks(
    question: Question,
    originals: Inputs,
    counterfactuals: Inputs,
    folder: RunFolder,
    engine: Engine,
    watch: Watch | None = None,
) -> Outcome:
    """How the pairs of all tables ended: those of the first tables, and of as many others in their order."""
    originals.check_apart(folder)
    counterfactuals.check_apart(folder)
    schema = _columns(question)
    progress = _Progress(watch)

    def check(table: Any) -> None:
        check_columns(table, schema, [n for n in question.keep if n in table.columns], question.ignore)

    def blocks(tell: Tell) -> Iterator[Block]:
        left = originals.blocks(
            lambda table: check_columns(table, schema, question.keep, question.ignore), tell=tell
        )
        return paired(left, counterfactuals.blocks(check, tell=_silent))

    return _run(CertifyJob(question, folder), folder, blocks, engine, progress, Certified)


def issue_blocks(
    question: Question,
    inputs: Inputs,
    folder: RunFolder,
    engine: Engine,
    ledger: str,
    terms: IssueTerms,
    watch: Watch | None = None,
) -> Outcome:
    """How the rows of all tables ended, after the promises of each block were issued, together and once.

    Of blocks that are done already the ledger has to know the promises: another one is refused.
    """
    inputs.check_apart(folder)
    schema = _columns(question)
    progress = _Progress(watch)

    def check(table: Any) -> None:
        check_ids(table, terms.id_column)
        check_columns(table, schema, list(dict.fromkeys([terms.id_column, *question.keep])), question.ignore)

    @cache
    def there() -> Ledger:
        return stack.enter_context(Ledger(ledger, create=False))

    def begun(block: Block, record: Record) -> None:
        if not record.ended.get("issued"):
            return
        if there().requested(Request(folder.key_of(block), block.digest.encode())) is None:
            expected = f"the ledger that the run in {folder.storage} issued to"
            received = f"one without the promises to {block.name}"
            raise LedgerError(message(expected, received, "name that ledger, or a new folder"))

    def begin() -> None:
        Ledger(ledger).close()  # made, and of this version, before many open it

    def blocks(tell: Tell) -> Iterator[Block]:
        return inputs.blocks(check, tell=tell)

    job = IssueJob(question, folder, ledger, terms)
    with ExitStack() as stack:
        return _run(job, folder, blocks, engine, progress, Explained, begin=begin, begun=begun)


def _columns(question: Question) -> Columns:
    from veritracer import model_folder

    found = model_folder.columns(question.model)
    return load(question.model).encoding_.schema if found is None else found


def _silent(_: float | None) -> None:
    """Nobody is told."""


class _Progress:
    """How far a run is: rows that are done, and the share of the tables that was read."""

    def __init__(self, watch: Watch | None) -> None:
        self.watch, self.done = watch, 0
        self.read: float | None = None

    def share(self, read: float | None) -> None:
        """Hear how much was read."""
        self.read = read

    def add(self, rows: int) -> None:
        """Hear of rows that are done."""
        self.done += rows
        if self.watch is not None:
            self.watch(self.done, self.read)


def _run(
    job: Any,
    folder: RunFolder,
    blocks: Callable[[Tell], Iterable[Block]],
    engine: Engine,
    progress: _Progress,
    kind: type[Explained] | type[Certified],
    *,
    begin: Callable[[], None] = lambda: None,
    begun: Callable[[Block, Record], None] = lambda block, record: None,
) -> Outcome:
    """Do what is not done yet, and put all of it together.

    ``begin`` is called before the first block is done, ``begun`` looks at each that was done before. A folder
    with parts of other tables, or of more rows, is refused: where the run goes on before anything is done,
    for which all tables are read once more, and again at the end.
    """
    records: list[Record] = []
    remedy = "give the tables as they were, or name a new folder"
    if folder.is_begun:
        there = []
        for block in blocks(_silent):
            folder.done(block)  # refuses other rows
            there.append(block.name)
        folder.check_exact(there, remedy)

    def todo() -> Iterator[Block]:
        first = True
        for block in blocks(progress.share):
            record = folder.done(block)
            if record is None:
                if first:
                    begin()
                first = False
                yield block
            else:
                begun(block, record)
                records.append(record)
                progress.add(record.rows)

    fresh = 0
    for record in engine.map(job, todo()):
        records.append(record)
        fresh += 1
        progress.add(record.rows)
    records.sort(key=lambda record: record.name)
    folder.check_exact([record.name for record in records], remedy)
    ended = _together(kind, [record.ended for record in records])
    return Outcome(len(records), len(records) - fresh, ended, tuple(records))


def _together(kind: Any, parts: Sequence[Mapping[str, Any]]) -> Any:
    """The ends of many blocks as one: numbers of rows added up, each kind of note once."""
    known = kind.__dataclass_fields__
    whole = {name: value for name, value in parts[0].items() if name in known}
    counted = [name for name, value in whole.items() if type(value) is int]
    whole |= {name: sum(part[name] for part in parts) for name in counted}
    return kind(**{**whole, "notes": _notes([str(note) for part in parts for note in part["notes"]])})


def _notes(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first sentence of each kind, and in how many more blocks there was one."""
    kinds: dict[str, list[str]] = {}
    for sentence in sentences:
        kinds.setdefault(sentence.partition(", got ")[0], []).append(sentence)
    return tuple(
        said[0] + (f" (and so in {len(said) - 1:,} more blocks)" if len(said) > 1 else "")
        for said in kinds.values()
    )
