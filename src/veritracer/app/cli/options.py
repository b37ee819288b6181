"""Options of the command line: one flag for each field of a group of options.

``with_flags`` gives a command the flags of its parameters that are groups. Those of ``ExplainOptions`` and
``IssueOptions`` come from the fields of these types; the other groups are here and in ``schema_options``.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

import veritracer as vt
from veritracer import engines, model_folder, tables
from veritracer.app.cli.checks import check_apart, check_output, check_rejects
from veritracer.app.cli.output import note, print_json, progress, say
from veritracer.errors import DataError, SchemaError, message
from veritracer.options import BATCH_ROWS, PYTHON_ONLY, Effort, allowed_kinds
from veritracer.threads import only_compute
from veritracer.times import parse_expiry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from veritracer.estimator import VeriTraCER
    from veritracer.model_folder import ModelColumns
    from veritracer.schema import Schema
    from veritracer.tables import Output, Progress, RunSummary

FLAGS = {
    "limits": "--limit",
    "only_unfavourable": "--only-unfavourable/--all",
    "search_radius": "--radius/--no-radius",
    "ids": "--id-column",
}
"""Flags that are not called after their field. On the command line ``ids`` is the name of a column."""

# ---------------------------------------------------------------- options of several commands

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress, no notes and no summary.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an existing file, whoever wrote it.", show_default=False),
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Seed of all random choices.")]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="VERITRACER_DATA", help="Folder with the files of the datasets.", show_default=False),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...", help="Columns to copy to the output, such as an identifier.", show_default=False
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...",
        help="Columns to leave unread; a model remembers those of its training.",
        show_default=False,
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column that identifies the applicants.", show_default=False),
]
RejectsFile = Annotated[
    Path | None,
    typer.Option(
        "--rejects",
        metavar="FILE",
        help="Collect unreadable rows in this CSV file, with reasons, and continue without them.",
        show_default=False,
    ),
]
SpreadsheetSafe = Annotated[
    bool,
    typer.Option(
        "--spreadsheet-safe", help="In CSV, put an apostrophe before text that begins like a formula."
    ),
]
ModelFolder = Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a saved model.")]
Applicants = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="CSV or Parquet file, a folder or pattern of files, or a URL; - reads standard input.",
        show_default=False,
    ),
]
OneTable = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="CSV or Parquet file, or a URL; - reads standard input.",
        show_default=False,
    ),
]
Kappa = Annotated[
    float | None,
    typer.Option(min=0.0, help="Certify at this radius instead of the model's own.", show_default=False),
]
EffortFlag = Annotated[
    Effort,
    typer.Option("--effort", help="With exact, decide by branch and bound what the bounds leave open."),
]
LedgerPlace = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="PLACE",
        help="SQLite file, or the URL of a database: postgresql://user@host/name.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None, typer.Option(help="File with the key of encrypted rows.", show_default=False)
]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Run on processes of this machine, or on a Ray cluster."),
]


# ---------------------------------------------------------------- flags from types


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each field of its parameters that are groups of options.

    A group is a dataclass. Typer sees the flags; the command receives the groups.
    """
    groups: dict[str, Any] = {}
    flags: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            flags += flags_of(parameter.annotation)
        else:
            flags.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group) if field.name in given]
            given[name] = _made(group, {field: given.pop(field) for field in fields})
        command(**given)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    call.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return call


def flags_of(group: Any) -> list[inspect.Parameter]:
    """Return the flag of each field of a group, as a parameter that Typer understands."""
    if hasattr(group, "__pydantic_fields__"):
        hints = get_type_hints(group)
        fields: Mapping[str, FieldInfo] = group.__pydantic_fields__
        return [
            _flag(name, hints[name], field)
            for name, field in fields.items()
            if field.json_schema_extra != PYTHON_ONLY
        ]
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(group)
    ]


def _flag(name: str, hint: Any, field: FieldInfo) -> inspect.Parameter:
    """Derive a flag from the type, the bounds, the description and the default of an option."""
    kinds = set(allowed_kinds(hint))
    default: Any = inspect.Parameter.empty if field.is_required() else field.default
    more: dict[str, Any] = {"help": field.description}
    declared = FLAGS.get(name, f"--{name.replace('_', '-')}")
    if bool in kinds and default is True and name not in FLAGS:
        declared += f"/--no-{name.replace('_', '-')}"
    elif Mapping in kinds:
        example = next(iter(field.examples or ({},)))
        typed = ",".join(f"{key}={_written(value)}" for key, value in example.items())
        more |= {"metavar": "NAME=VALUE,...", "help": f"{field.description} For example {typed}."}
        hint, default = list[str] | None, None
    elif tuple in kinds:
        more["metavar"] = "NAME,..."
        hint, default = list[str] | None, None
    elif timedelta in kinds:
        hint, default = str, f"{default.days}d"
        more["help"] = f"{field.description} For example 52w, 1y, 2027-01-31 or never."
    elif Any in kinds:
        hint = str
    elif kinds & {int, float}:
        more |= _bounds(field.metadata)
    option = typer.Option(declared, show_default=default is not None, **more)
    annotation = Annotated[hint, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _written(value: Any) -> str:
    """Write the value of an example as it is typed."""
    return ":".join(f"{end:g}" for end in value) if isinstance(value, tuple) else f"{value:g}"


def _bounds(metadata: Iterable[Any]) -> dict[str, Any]:
    """Return the inclusive bounds of a field."""
    found = {"min": "ge", "max": "le"}
    return {name: getattr(one, end) for one in metadata for name, end in found.items() if hasattr(one, end)}


def _made(group: Any, given: dict[str, Any]) -> Any:
    """Create a group from the values of its flags."""
    if not hasattr(group, "__pydantic_fields__"):
        return group(**given)
    hints = get_type_hints(group)
    for name, value in given.items():
        kinds = set(allowed_kinds(hints[name]))
        if Mapping in kinds:
            ranges = tuple in set(allowed_kinds(get_args(hints[name])[1]))
            given[name] = amounts(FLAGS.get(name, f"--{name}"), value, ranges=ranges)
        elif tuple in kinds:
            given[name] = tuple(names(value))
        elif timedelta in kinds:
            given[name] = parse_expiry(value)
    return group(**given)


def names(given: Sequence[str] | None) -> list[str]:
    """Split an option that takes a list of names: repeated, or separated by commas.

    A name with a comma inside is written in double quotes.

    >>> names(["age,sex", "region", '"income, net",savings'])
    ['age', 'sex', 'region', 'income, net', 'savings']
    """
    cells = [
        cell for text in given or () for line in csv.reader([text], skipinitialspace=True) for cell in line
    ]
    return [cell.strip() for cell in cells if cell.strip()]


def amounts(option: str, given: Sequence[str] | None, *, ranges: bool = False) -> dict[str, Any]:
    """Parse the numbers of an option such as ``--cost income=2,savings=0.5``; ``ranges`` allows LOW:HIGH.

    >>> amounts("--cost", ["income=2", "age=inf"])
    {'income': 2.0, 'age': inf}
    >>> amounts("--drift", ["savings=200,age=0:2"], ranges=True)
    {'savings': 200.0, 'age': (0.0, 2.0)}
    """
    found: dict[str, Any] = {}
    for part in names(given):
        name, _, text = part.rpartition("=")
        try:
            ends = tuple(map(float, text.split(":")))
        except ValueError:
            ends = ()
        if not name.strip() or len(ends) not in ((1, 2) if ranges else (1,)) or any(map(math.isnan, ends)):
            remedy = f"write {option} NAME=NUMBER,NAME=NUMBER"
            raise DataError(message(f"a name and a number for {option}", repr(part), remedy))
        found[name.strip()] = ends if len(ends) == 2 else ends[0]
    return found


def texts(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """Parse an option such as ``--field "contact=Call us."``, with one text each time that it is given.

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


# ---------------------------------------------------------------- groups of options


@dataclass(frozen=True, kw_only=True)
class CSVOptions:
    """The format of CSV files."""

    separator: Annotated[
        str | None,
        typer.Option(
            help="Separator of CSV: a character, or comma, semicolon, tab or pipe; by default detected.",
            show_default=False,
        ),
    ] = None
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="NAME", help="Encoding of CSV, such as cp1252 or utf-16.")
    ] = "utf-8"
    multiline_cells: Annotated[
        bool, typer.Option("--multiline-cells", help="Allow line breaks inside quoted cells of CSV.")
    ] = False

    def __post_init__(self) -> None:
        """Check the separator and the encoding."""
        assert self.csv

    @functools.cached_property
    def csv(self) -> tables.CSVFormat:
        """Return the format for readers of tables."""
        return tables.CSVFormat(self.separator, self.encoding, self.multiline_cells)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(CSVOptions):
    """Options for reading tables from files or from a database."""

    query: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="Read the answer to this query; TABLE is the URL of a database.",
            show_default=False,
        ),
    ] = None

    def as_flags(self) -> list[str]:
        """Return the flags that differ from their defaults, as they are typed."""
        given = {
            "--separator": self.separator,
            "--encoding": None if self.encoding == "utf-8" else self.encoding,
            "--query": self.query,
        }
        typed = [word for name, value in given.items() if value is not None for word in (name, value)]
        return [*typed, *(["--multiline-cells"] if self.multiline_cells else [])]

    def for_results(self) -> ReadOptions:
        """Return the options for files that ``explain`` wrote: UTF-8, and a separator to detect."""
        return ReadOptions(multiline_cells=self.multiline_cells)


@dataclass(frozen=True, kw_only=True)
class TableOptions(ReadOptions):
    """Options for running a command over a table, and for its results."""

    out: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File for the results (.csv, .parquet, .jsonl), or a folder with a part for each batch.",
            show_default=False,
        ),
    ] = None
    keep: Keep = None
    ignore: Ignore = None
    rejects: RejectsFile = None
    spreadsheet_safe: SpreadsheetSafe = False
    force: Force = False
    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def ignored(self) -> list[str]:
        """Return the names of the columns to leave unread."""
        return names(self.ignore)

    def kept(self, id_column: str | None = None) -> list[str]:
        """Return the names of the columns to copy, the identifier first."""
        return list(dict.fromkeys([*([] if id_column is None else [id_column]), *names(self.keep)]))

    engine: EngineName = "local"
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of workers; by default 1 for one table, and all cores for several.",
            show_default=False,
        ),
    ] = None
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = BATCH_ROWS
    part_format: Annotated[
        Literal["parquet", "csv", "jsonl"], typer.Option(help="Format of the parts of a folder.")
    ] = "parquet"

    def check(self, *inputs: str) -> None:
        """Refuse outputs that are inputs, or files that somebody else wrote."""
        check_output(self.out, inputs, force=self.force)
        check_rejects(self.rejects, inputs, self.out, force=self.force)

    def job(self, verb: tables.Verb, model: str, options: Mapping[str, Any], **more: Any) -> tables.Job:
        """Return what to do with every row."""
        return tables.Job(verb, model, options, collect_rejects=self.rejects is not None, **more)

    def inputs(
        self, table: str, check: Callable[[str, Sequence[str]], None], reading: ReadOptions | None = None
    ) -> tables.TableSource:
        """Return the tables to read; ``check`` is called with each of them."""
        how = reading or self
        collect = self.rejects is not None
        return tables.TableSource(table, how.query, how.csv, check, self.batch_rows, collect)

    def open_output(self, asked: Mapping[str, Any], *inputs: tables.TableSource) -> Output:
        """Open the output, to continue where an earlier run with the same request was stopped."""
        kind = self.part_format
        if self.out in (None, tables.STANDARD):
            kind = "jsonl" if self.as_json and self.out is None else "csv"
        if self.out is not None and self.out.startswith("memory:"):
            remedy = "name a folder, or the URL of one: s3://bucket/folder"
            raise DataError(message("an --out that outlasts the command", self.out, remedy))
        for one in inputs:
            check_apart(self.out, one.place)
        return tables.open_output(
            self.out,
            {
                **asked,
                **inputs[0].document(),
                "ignore": self.ignored,
                "spreadsheet_safe": self.spreadsheet_safe,
            },
            kind=kind,
            spreadsheet_safe=self.spreadsheet_safe,
            one_pass=any(one.place == tables.STANDARD for one in inputs),
            force=self.force,
        )

    def engine_for(self, inputs: tables.TableSource, out: Output | None = None) -> engines.Engine:
        """Return the engine; a stream is written in order, which one worker does."""
        if isinstance(out, tables.StreamOutput):
            if self.engine == "ray" or (self.workers or 1) > 1:
                remedy = "leave --workers and --engine out, or name a file that is read and one to write"
                raise DataError(message("one worker for a stream", "several", remedy))
            return engines.make_engine("local", 1)
        many = self.engine == "ray" or tables.is_many(inputs.place, inputs.query)
        return engines.make_engine(self.engine, self.workers or (None if many else 1))

    @contextmanager
    def running(self, text: str, out: Output) -> Iterator[Progress | None]:
        """Show progress, and say what is left where a run is stopped."""
        try:
            with out, progress(text, quiet=self.quiet) as watch:
                yield watch
        except BaseException:
            if done := out.count():
                note(
                    [f"{done:,} batches are complete in {out}; the same command continues"], quiet=self.quiet
                )
            raise

    def print_notes(self, found: RunSummary) -> None:
        """Print what was noticed in the data, and what was rejected or changed."""
        rejected = tables.rejects_note(found.rejects, str(self.rejects))
        note([*found.notes, *tables.altered_note(found.altered), *rejected], quiet=self.quiet)

    def print_summary(self, found: RunSummary, lines: Sequence[str], **more: Any) -> None:
        """Print how the rows ended."""
        if self.as_json:
            run = {"out": self.out, "batches": len(found.results), "done_before": found.done_before}
            ends = {**found.counts, "rejected": len(found.rejects), **found.facts}
            print_json({**more, **run, **ends, "notes": found.notes})
        elif not self.quiet:
            done = f"{found.done_before:,} of {len(found.results):,} batches were done before."
            say(*([done] if found.done_before else []), *lines)


@dataclass(frozen=True, kw_only=True)
class RecourseTableOptions(TableOptions):
    """Options for running ``explain`` and ``issue`` over a table."""

    schema: Annotated[
        Path | None,
        typer.Option(
            help="Schema with other actions than the model's: schema.json, edited.", show_default=False
        ),
    ] = None
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Add a sentence for each counterfactual.")
    ] = False

    @functools.cached_property
    def rules(self) -> Schema | None:
        """Return the schema that replaces the model's, if one was given."""
        return None if self.schema is None else schema_file(self.schema)


# ---------------------------------------------------------------- reading what the options name


def schema_file(path: Path) -> Schema:
    """Read a schema from a JSON or TOML file."""
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
    """Read a key from a file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        received = f"{path} ({getattr(error, 'strerror', None) or 'not a text'})"
        remedy = "write one that veritracer.ledger.new_key() made"
        raise DataError(message("a file with a key", received, remedy)) from None


def saved_model(folder: str) -> VeriTraCER:
    """Load a model; what is no model folder is refused before torch is imported."""
    model_folder.verified(folder)
    only_compute()
    return vt.load(folder)


def model_columns(folder: str) -> ModelColumns | Schema:
    """Return the columns of a model; torch is imported only for one that ``load`` is going to refuse."""
    return model_folder.columns(folder) or saved_model(folder).schema_
