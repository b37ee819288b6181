"""Options of the command line: one flag for each field of a group of options.

``with_flags`` gives a command the flags of its parameters that are groups. Those of ``ExplainOptions`` and
``IssueOptions`` come from the fields of these types; ``ReadOptions`` is here, and others are in ``runs`` and
``schema_options``.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from veritracer import tables
from veritracer.errors import DataError, message
from veritracer.options import PYTHON_ONLY, Effort
from veritracer.times import parse_expiry

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

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
Force = Annotated[bool, typer.Option("--force", help="Replace what exists at the place of an output.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 2, help="Seed of all random choices.")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="VERITRACER_DATA", help="Folder with the files of the datasets.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...", help="Columns to leave unread; a model remembers those of its training."
    ),
]
IdColumn = Annotated[str | None, typer.Option(metavar="NAME", help="Column that identifies the applicants.")]
RejectsFile = Annotated[
    Path | None,
    typer.Option(
        "--rejects",
        metavar="FILE",
        help="Collect unreadable rows in this new CSV file, with reasons, and continue without them.",
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
    ),
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
    ),
]
KeyFile = Annotated[Path | None, typer.Option(help="File with the key of encrypted rows.")]
Day = Annotated[str | None, typer.Option(help="Take this day instead of now: 2027-01-31.")]
EngineName = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Run on processes of this machine, or on a Ray cluster."),
]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options for reading tables from files or from a database."""

    separator: Annotated[
        str | None,
        typer.Option(
            help="Separator of CSV: a character, or comma, semicolon, tab or pipe; by default detected."
        ),
    ] = None
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="NAME", help="Encoding of CSV, such as cp1252 or utf-16.")
    ] = "utf-8"
    multiline_cells: Annotated[
        bool, typer.Option("--multiline-cells", help="Allow line breaks inside quoted cells of CSV.")
    ] = False
    query: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Read the answer to this query; TABLE is the URL of a database."),
    ] = None

    def __post_init__(self) -> None:
        """Check the separator and the encoding."""
        assert self.csv

    @functools.cached_property
    def csv(self) -> tables.CSVFormat:
        """Return the format of CSV files."""
        return tables.CSVFormat(self.separator, self.encoding, self.multiline_cells)


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
            given[name] = _group(group, {field: given.pop(field) for field in fields})
        command(**given)

    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    call.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return call


def flags_of(group: Any) -> list[inspect.Parameter]:
    """Return the flag of each field of a group, as a parameter that Typer understands.

    The fields of the group itself come before those that it inherits.
    """
    inherited = {name for base in group.__mro__[1:] for name in inspect.get_annotations(base)}
    fields = sorted(dataclasses.fields(group), key=lambda field: field.name in inherited)
    if hasattr(group, "__pydantic_fields__"):
        hints, known = get_type_hints(group), group.__pydantic_fields__
        shown = [field.name for field in fields if known[field.name].json_schema_extra != PYTHON_ONLY]
        return [_flag(name, hints[name], known[name]) for name in shown]
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
        )
        for field in fields
    ]


def _flag(name: str, hint: Any, field: FieldInfo) -> inspect.Parameter:
    """Derive a flag from the type, the bounds, the description and the default of an option."""
    kinds = set(_kinds(hint))
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
        hint = str
        examples = "52w, 1y, 2027-01-31 or never" if datetime in kinds else "52w, 1y, or 0d for none"
        more["help"] = f"{field.description} For example {examples}."
    elif Any in kinds:
        hint, more["metavar"] = str, "NAME" if name == "ids" else "PLACE"
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


def _group(group: Any, given: dict[str, Any]) -> Any:
    """Create a group from the values of its flags."""
    if not hasattr(group, "__pydantic_fields__"):
        return group(**given)
    hints = get_type_hints(group)
    for name, value in given.items():
        kinds = set(_kinds(hints[name]))
        if Mapping in kinds:
            ranges = tuple in set(_kinds(get_args(hints[name])[1]))
            given[name] = amounts(FLAGS.get(name, f"--{name}"), value, ranges=ranges)
        elif tuple in kinds:
            given[name] = tuple(names(value))
        elif datetime in kinds and value not in kinds:
            given[name] = parse_expiry(value)
    return group(**given)


def _kinds(annotation: Any) -> Iterable[Any]:
    """Yield the types and literals that an annotation allows."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _kinds(part)
    elif origin is Annotated:
        yield from _kinds(get_args(annotation)[0])
    elif origin is Literal:
        yield from get_args(annotation)
    else:
        yield origin or annotation


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
