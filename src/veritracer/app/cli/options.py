"""Options that several verbs have, and what follows from them: texts that are read, files, work in blocks.

A verb never writes over what it reads, and of what is there only over our own. A folder, a pattern or several
cores make it work in blocks (``Bulk``).
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

import typer

import veritracer as vt
from veritracer import distributed, engines, model_folder, streaming, tables
from veritracer.app.cli.output import note, print_json, progress, say
from veritracer.errors import DataError, LedgerError, SchemaError, message
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.distributed import Outcome, RunFolder
    from veritracer.estimator import VeriTraCER
    from veritracer.schema import Schema
    from veritracer.streaming import LetterTerms
    from veritracer.tables import CSVFormat, Rejects, TableSource

DataDir = Annotated[
    Path | None,
    typer.Option(envvar="VERITRACER_DATA", help="The folder of the datasets' files.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes, no summary.")]
Query = Annotated[
    str | None,
    typer.Option(
        metavar="SQL", help="TABLE is a database (its URL): read the answer to this.", show_default=False
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="The separator of CSV: a character, or comma, semicolon, tab, pipe; else from the header.",
        show_default=False,
    ),
]
TextEncoding = Annotated[
    str, typer.Option("--encoding", metavar="NAME", help="The encoding of CSV, such as cp1252 or utf-16.")
]
MultilineCells = Annotated[
    bool, typer.Option("--multiline-cells", help="Allow line breaks inside the quoted cells of CSV.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Seed of everything random.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Columns to carry along, such as an identity.", show_default=False),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...",
        help="Columns that nobody looks at; a model remembers those of its fit.",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The column that says whose each row is.", show_default=False),
]
RejectsFile = Annotated[
    Path | None,
    typer.Option(
        "--rejects",
        metavar="FILE",
        help="Collect rows that cannot be read here (CSV), with reasons, and go on without them.",
        show_default=False,
    ),
]
ModelFolder = Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a saved model.")]
Applicants = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="CSV or Parquet, a folder or pattern of them, or a URL; - is standard input.",
        show_default=False,
    ),
]
OneTable = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="CSV or Parquet, a file or a URL; - is standard input.",
        show_default=False,
    ),
]
Kappa = Annotated[
    float | None,
    typer.Option(min=0.0, help="Certify at this radius instead of the model's own.", show_default=False),
]
MaxChanges = Annotated[
    int | None, typer.Option(min=1, help="Change at most so many features.", show_default=False)
]
Cost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=PRICE,...", help="What moving along a feature costs.", show_default=False),
]
Overshoot = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Cover going further by this share of the range.")
]
Drift = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=AMOUNT,...",
        help="Cover features that move unasked, both ways; one way: age=0:2.",
        show_default=False,
    ),
]
Agreement = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, help="Require so much of the panel's held-out members.", show_default=False
    ),
]
Plausible = Annotated[
    bool, typer.Option("--plausible", help="Require answers that are no outliers among accepted people.")
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=SHARE,...",
        help="Change by at most this share of the person's own value.",
        show_default=False,
    ),
]
Extremes = Annotated[
    bool, typer.Option("--extremes", help="Let proposals go to the ends of what the data show.")
]
Alternatives = Annotated[int, typer.Option("--n", min=1, help="Up to so many alternatives for each row.")]
Rules = Annotated[
    Path | None,
    typer.Option(help="Other rules of what may change: schema.json, edited.", show_default=False),
]
Sentences = Annotated[bool, typer.Option("--sentences", help="Add each recourse as a person should read it.")]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option("--spreadsheet-safe", help="In CSV: an apostrophe before text that begins like a formula."),
]
LedgerPlace = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="PLACE",
        help="A SQLite file, or a URL: postgresql://user@host/name.",
        show_default=False,
    ),
]

Letters = Annotated[
    Path | None,
    typer.Option(help="Write a letter for each declined row into this new folder.", show_default=False),
]
Codes = Annotated[Path | None, typer.Option(help="The letters' reason codes (JSON).", show_default=False)]
LetterTemplate = Annotated[
    Path | None,
    typer.Option("--template", help="Another template for letters (Jinja2).", show_default=False),
]
LetterFormat = Annotated[
    Literal["text", "html"] | None,
    typer.Option(help="text or html; else what the template is, or text.", show_default=False),
]
LetterFields = Annotated[
    list[str] | None,
    typer.Option(
        "--field", metavar="NAME=TEXT", help="What letters say: institution, contact, ...", show_default=False
    ),
]
LetterColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--field-column",
        metavar="NAME=COLUMN",
        help="What each letter says from a column: recipient, address, reference, date, ...",
        show_default=False,
    ),
]
LetterLanguage = Annotated[
    str, typer.Option("--language", help="The letters' language: en, de, or a catalogue (JSON).")
]
Pdf = Annotated[bool, typer.Option("--pdf", help="Also write each letter as PDF.")]

EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Where blocks are done: processes of this machine, or a Ray cluster."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Work in blocks on so many cores; --out is a folder.", show_default=False),
]
BlockRows = Annotated[int, typer.Option(min=1, help="Rows of a block, which is a file of its own.")]
BlockFormat = Annotated[
    Literal["parquet", "csv", "jsonl"], typer.Option(help="What the files of blocks are.")
]
KeyFile = Annotated[
    Path | None, typer.Option(help="The key for encrypted rows, in a file.", show_default=False)
]

Force = Annotated[
    bool,
    typer.Option("--force", help="Write over a file that is there, whoever made it.", show_default=False),
]

MARKS = (b"recourse.", b'name="generator" content="veritracer')
"""One of these is near an end of every file that a verb writes: a column's name, or a page's maker."""

OPENING = b"recourse.opening"
"""The column of what opens the commitments to people's own rows."""

LOOKED_AT = 1 << 16
"""Bytes at either end of a file in which its mark is looked for."""


def names(given: Sequence[str] | None) -> list[str]:
    """The names in an option that takes a list: repeated, or separated by commas.

    A name with a comma inside is written in double quotes.

    >>> names(["age,sex", "region", '"income, net",savings'])
    ['age', 'sex', 'region', 'income, net', 'savings']
    """
    cells = [
        cell for text in given or () for line in csv.reader([text], skipinitialspace=True) for cell in line
    ]
    return [cell.strip() for cell in cells if cell.strip()]


def amounts(option: str, given: Sequence[str] | None) -> dict[str, float]:
    """The numbers of an option such as ``--cost income=2,savings=0.5``.

    >>> amounts("--cost", ["income=2", "age=inf"])
    {'income': 2.0, 'age': inf}
    """
    found: dict[str, float] = {}
    for part in names(given):
        name, equals, text = part.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not equals or not name.strip() or math.isnan(value):
            remedy = f"write {option} NAME=NUMBER,NAME=NUMBER"
            raise DataError(message(f"a name and a number for {option}", repr(part), remedy))
        found[name.strip()] = value
    return found


def drifts(option: str, given: Sequence[str] | None) -> dict[str, float | tuple[float, float]]:
    """The amounts of ``--drift savings=200,age=0:2``: one number goes both ways, two are its ends.

    >>> drifts("--drift", ["savings=200,age=0:2"])
    {'savings': 200.0, 'age': (0.0, 2.0)}
    """
    found: dict[str, float | tuple[float, float]] = {}
    for part in names(given):
        name, _, text = part.rpartition("=")
        least, colon, most = text.partition(":")
        if not colon:
            found |= amounts(option, [part])
            continue
        low, high = (amounts(option, [f"{name}={end}"])[name.strip()] for end in (least, most))
        found[name.strip()] = low, high
    return found


def texts(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The texts of an option such as ``--field "contact=Call us."``, one each time that it is given.

    >>> texts("--field", ["contact=Call us, or write."])
    {'contact': 'Call us, or write.'}
    """
    found: dict[str, str] = {}
    for part in given or ():
        name, equals, text = part.partition("=")
        if not equals or not name.strip().isidentifier():
            remedy = f'write {option} "NAME=TEXT"'
            raise DataError(message(f"a name and a text for {option}", repr(part), remedy))
        found[name.strip()] = text
    return found


def letter_terms(
    folder: Path | None,
    codes: Path | None,
    template: Path | None,
    kind: Literal["text", "html"] | None,
    fields: Sequence[str] | None,
    columns: Sequence[str] | None,
    language: str,
    pdf: bool,
) -> LetterTerms | None:
    """What letters are to be written; None if none are asked for."""
    if folder is None:
        given = {"--codes": codes, "--template": template, "--field": fields, "--field-column": columns}
        used = [name for name, value in {**given, "--pdf": pdf}.items() if value]
        if used:
            received = f"{used[0]} without --letters"
            raise DataError(message("options of letters with a folder for them", received, "add --letters"))
        return None
    own = {k: v.strip() for k, v in texts("--field-column", columns).items()}
    said = texts("--field", fields)
    return streaming.LetterTerms(folder, codes, template, kind, said, own, language, pdf)


def schema_file(path: Path) -> Schema:
    """The schema in a JSON or a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        received = f"{path}, which cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        remedy = "name the schema.json that fit wrote, or a TOML file"
        raise SchemaError(message("a schema file", received, remedy)) from None
    if path.suffix.casefold() == ".toml":
        try:
            text = json.dumps(tomllib.loads(text), default=str)
        except tomllib.TOMLDecodeError as error:
            received = f"{path} that is not ({error})"
            raise SchemaError(message("a schema as TOML", received, "correct that line")) from None
    return vt.Schema.from_json(text)


def read_key(path: Path) -> str:
    """The key in a file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        received = f"{path} ({getattr(error, 'strerror', None) or 'not a text'})"
        remedy = "write one that veritracer.ledger.new_key() made"
        raise DataError(message("a file with a key", received, remedy)) from None


def saved_model(folder: str) -> VeriTraCER:
    """The model in a folder, ready to compute; a folder that is none is refused before torch is imported."""
    model_folder.verified(folder)
    only_compute()
    return vt.load(folder)


class ReadOptions(NamedTuple):
    """How tables are read: the query of a database, and how CSV is written."""

    query: str | None
    csv: CSVFormat

    @classmethod
    def of(cls, separator: str | None, encoding: str, multiline_cells: bool, query: str | None) -> Self:
        """Return the options of a command, after they were checked."""
        return cls(query, tables.CSVFormat(separator, encoding, multiline_cells))

    def as_options(self) -> list[str]:
        """Return the options as they are typed; none where all are the defaults."""
        given = {
            "--separator": self.csv.separator,
            "--encoding": None if self.csv.encoding == "utf-8" else self.csv.encoding,
            "--query": self.query,
        }
        typed = [word for name, value in given.items() if value is not None for word in (name, value)]
        return [*typed, *(["--multiline-cells"] if self.csv.multiline_cells else [])]

    def for_results(self) -> Self:
        """Return the options for counterfactuals, which are written in UTF-8 with a separator to detect."""
        return self._replace(query=None, csv=replace(self.csv, separator=None, encoding="utf-8"))


def check_table(path: str, reading: ReadOptions, *, lenient: bool = False) -> tuple[str, ...] | None:
    """The columns of a table; one that cannot be opened is refused before anything is imported for it.

    None of standard input, which can be read only once. ``lenient`` does not mind rows of too few cells.
    """
    if path == tables.STANDARD:
        return None
    ragged = (lambda *_: None) if lenient else None
    with tables.open_table(path, reading.query, csv=reading.csv, ragged=ragged) as table:
        return table.columns


def carried(keep: Sequence[str] | None, id_column: str | None) -> list[str]:
    """The columns that go along into the output: the one that says whose each row is first."""
    return list(dict.fromkeys([*([] if id_column is None else [id_column]), *names(keep)]))


@contextmanager
def open_applicants(path: str, reading: ReadOptions, rejects: Rejects | None) -> Iterator[TableSource]:
    """The table to go through, whose rows with too few or too many cells go to ``rejects``."""
    ragged = None if rejects is None else rejects.add
    with tables.open_table(path, reading.query, csv=reading.csv, ragged=ragged) as table:
        if rejects is not None:
            rejects.begin(table.columns)
        yield table


def check_ledger(place: str) -> None:
    """Refuse the file of a ledger that is not there before anything is imported for it."""
    if "://" not in place and not Path(place).exists():
        remedy = "check the path, or issue a promise first"
        raise LedgerError(message("a ledger that exists", f"no file {place}", remedy))


def check_output(out: str | Path | None, inputs: Iterable[str | Path], *, force: bool) -> None:
    """Refuse to write to ``out`` where it is a file that is read, or one that is not ours.

    Links are followed: another name of an input is still the input. Standard input is its file, where it
    was redirected from one. ``force`` allows all but folders and what is no file.
    """
    if out is None or str(out) == tables.STANDARD or not os.path.lexists(out):
        return
    path = Path(out)
    if not path.is_file() or force:
        return  # folders and devices are the opener's to refuse
    for name in inputs:
        if _same(path, name):
            read = "standard input" if str(name) == tables.STANDARD else str(name)
            got = f"{path}, which is {read}" if str(path) != read else f"{path} for both"
            raise DataError(message("an output apart from what is read", got, "name another file"))
    if not _ours(path):
        got = f"{path}, which is there and was not written by veritracer"
        raise DataError(message("a new file", got, "name another one, or write over it with --force"))


def check_openings(out: str | None, *, force: bool) -> None:
    """Refuse to write over the openings of commitments, which are kept nowhere else."""
    path = Path(out or tables.STANDARD)
    if path.is_file() and not force and OPENING in _ends(path):
        remedy = "name another file, or write over it with --force"
        received = f"{path}, which has openings of commitments"
        raise DataError(message("a new file", received, remedy))


def _same(path: Path, name: str | Path) -> bool:
    """Whether both are one file, by whatever names."""
    try:
        local = tables.local_path(str(name))
        there = os.fstat(0) if local == tables.STANDARD else Path(local).stat()
    except OSError:
        return False
    return stat.S_ISREG(there.st_mode) and os.path.samestat(path.stat(), there)


def _ours(path: Path) -> bool:
    """Whether a file is empty or bears one of our marks."""
    try:
        ends = _ends(path)
    except OSError:
        return False
    return not ends or any(mark in ends for mark in MARKS)


def _ends(path: Path) -> bytes:
    """The first and the last bytes of a file, unpacked where it is compressed (then only the first)."""
    if path.suffix.casefold() == ".gz":
        with gzip.open(path) as packed:
            return packed.read(LOOKED_AT)
    with path.open("rb") as file:
        first = file.read(LOOKED_AT)
        file.seek(max(0, path.stat().st_size - LOOKED_AT))
        return first + file.read(LOOKED_AT)


class Bulk(NamedTuple):
    """How a verb was asked to work in blocks."""

    engine: Literal["local", "ray"]
    workers: int | None
    rows: int
    kind: Literal["parquet", "csv", "jsonl"]

    def wanted(self, table: str, query: str | None) -> bool:
        """Whether it was: by a folder or a pattern, by several cores, or by a cluster."""
        return self.engine == "ray" or self.workers is not None or tables.is_many(table, query)

    def refuse(self, given: dict[str, Any]) -> None:
        """Refuse what is made of one table as a whole."""
        for name, value in given.items():
            if value is not None:
                remedy = f"leave {name} out, or work on one table without --workers"
                raise DataError(message("what can be done block by block", name, remedy))

    def question(self, model: str, options: dict[str, Any], **more: Any) -> distributed.Question:
        """What is asked, of a model that is there and whole."""
        model_folder.verified(model)
        return distributed.Question(model=model, options=options, **more)

    def inputs(self, table: str, reading: ReadOptions) -> distributed.Inputs:
        """The tables; refuses a pipe, which cannot be read again."""
        if table == tables.STANDARD:
            remedy = "save it as a file first"
            raise DataError(message("tables that can be read again", "standard input", remedy))
        return distributed.Inputs(table, reading.query, reading.csv, self.rows)

    def folder(self, out: str | None, asked: dict[str, Any]) -> RunFolder:
        """The folder of the run, new or to go on in."""
        if out is None:
            remedy = "add --out FOLDER, in which each block is a file"
            raise DataError(message("a folder for the blocks", "no --out", remedy))
        if out.startswith("memory:"):
            remedy = "name a folder, or the URL of one: s3://bucket/folder"
            raise DataError(message("an --out that outlasts the command", out, remedy))
        return distributed.RunFolder.open(out, asked, self.kind)

    def run(self, text: str, call: Any, *args: Any, folder: RunFolder, quiet: bool) -> Outcome:
        """What became of all blocks."""
        try:
            with folder.unless_begun(), progress(text, quiet=quiet) as watch:
                outcome: Outcome = call(*args, watch=watch)
        except BaseException:
            if done := folder.count():
                said = f"{done:,} blocks are done in {folder.storage}; the same command goes on"
                note([said], quiet=quiet)
            raise
        note(outcome.ended.notes, quiet=quiet)
        return outcome

    def engine_for(self) -> engines.Engine:
        """Where the blocks are done: by this process, if by one worker of this machine."""
        if self.engine == "local" and self.workers == 1:
            only_compute()
        return engines.make_engine(self.engine, self.workers)


def print_outcome(outcome: Outcome, out: str | None, lines: list[str], *, quiet: bool, as_json: bool) -> None:
    """Print how the rows ended, and how many blocks that took."""
    if as_json:
        counts = {"out": out, "blocks": outcome.blocks, "skipped": outcome.skipped}
        promised = {"promises": outcome.promises, **outcome.left_out}
        print_json({**promised, **counts, **asdict(outcome.ended)})  # what is skipped here are blocks
    elif not quiet:
        before = f", {outcome.skipped:,} of which were there already" if outcome.skipped else ""
        say(*lines, f"{outcome.blocks:,} blocks{before}: {out}")
