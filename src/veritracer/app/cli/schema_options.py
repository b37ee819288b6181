"""Options that describe a table, and the table that is read with them.

Identifiers and columns to leave out are named the same way in every verb: ``--id-column`` and ``--ignore``. A
model remembers what it ignored when it was trained.
"""

from __future__ import annotations

import functools
import shlex
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer import tables
from veritracer.app.cli.options import IdColumn, Ignore, ReadOptions, amounts, names
from veritracer.app.cli.places import check_table, read_schema
from veritracer.errors import (
    DataError,
    DataWarning,
    SchemaError,
    TargetError,
    as_typed,
    message,
    unknown_name,
)

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.schema import Schema
    from veritracer.schema.inspection import Inspection
    from veritracer.tables import Reject


@dataclass(frozen=True, kw_only=True)
class SchemaOverrides(ReadOptions):
    """Statements about the columns of a table that override inference."""

    target: Annotated[str | None, typer.Option(help="Column with the decision.")] = None
    favourable: Annotated[
        str | None,
        typer.Option(
            help="Label that people want. Never guessed, except for pairs such as approved and denied.",
        ),
    ] = None
    immutable: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that nobody can change."),
    ] = None
    increase_only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that can only grow."),
    ] = None
    decrease_only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that can only fall."),
    ] = None
    free: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Columns that may change, although they look protected or would be left out.",
        ),
    ] = None
    yearly: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOW:HIGH,...",
            help="How columns move by themselves within a year: age=0:1, or tenure=none for not at all.",
        ),
    ] = None
    ignore: Ignore = None
    id_column: IdColumn = None
    number_format: Annotated[
        list[str] | None,
        typer.Option(
            "--number-format",
            metavar="NAME=EXAMPLE",
            help="How a column writes 1234.5, such as 'income=1.234,5'; once for each column.",
        ),
    ] = None

    @functools.cached_property
    def actions(self) -> dict[str, list[str]]:
        """Return the columns that each action was stated for."""
        given = {"immutable": self.immutable, "increase_only": self.increase_only}
        given |= {"decrease_only": self.decrease_only, "free": self.free}
        return {action: names(columns) for action, columns in given.items()}

    @functools.cached_property
    def ignored(self) -> dict[str, str]:
        """Return the columns that are no features, and why."""
        return ignored(self.ignore, self.id_column)

    @functools.cached_property
    def formats(self) -> dict[str, str]:
        """Return how columns write 1234.5."""
        found: dict[str, str] = {}
        for part in self.number_format or ():
            name, equals, example = part.rpartition("=")
            if not equals or not name.strip():
                remedy = "write --number-format 'income=1.234,5'"
                raise DataError(message("a column and how it writes 1234.5", repr(part), remedy))
            found[name.strip()] = example
        return found

    @functools.cached_property
    def moves(self) -> dict[str, tuple[float, float] | None]:
        """Return how columns move within a year; None where they do not."""
        parts = names(self.yearly)
        still = [part for part in parts if part.lower().replace(" ", "").endswith("=none")]
        moving = amounts("--yearly", [f'"{part}"' for part in parts if part not in still], ranges=True)
        pairs = {name: ends if isinstance(ends, tuple) else (0.0, ends) for name, ends in moving.items()}
        return {**pairs, **{part.rpartition("=")[0].strip(): None for part in still}}

    @property
    def named(self) -> set[str]:
        """Return the columns whose action was stated."""
        return {name for columns in self.actions.values() for name in columns}


def ignored(ignore: Sequence[str] | None, id_column: str | None) -> dict[str, str]:
    """Return the columns that are no features, and why."""
    found = dict.fromkeys(names(ignore), "named by --ignore")
    return found if id_column is None else {**found, id_column: "identifies the applicants (--id-column)"}


@dataclass(frozen=True)
class LabelledTable:
    """A table to learn from: its schema, its features and its labels."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]
    notes: tuple[str, ...] = ()


def read_labelled(
    table: str, given: SchemaOverrides, schema: Path | None, rejects: list[Reject] | None = None
) -> LabelledTable:
    """Read a table to learn from; refuse an ambiguous column or a missing label."""
    known = None if schema is None else read_schema(schema)
    chosen = _target(given, known, schema)
    _check_target(chosen, check_table(table, given, lenient=rejects is not None))
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", DataWarning)
        frame = _read(table, given, known, rejects)
        _check_target(chosen, tuple(map(str, frame.columns)))
        frame = labelled(frame, chosen, given.ignored, rejects)
        y = frame[chosen]
        wanted = None if given.favourable is None else _label(given.favourable, y)
        if known is None:
            hints: dict[str, Any] = {**given.actions, "number_formats": given.formats, "yearly": given.moves}
            known = vt.Schema.infer(frame, chosen, wanted, **hints)
        found = _with_labels(known, chosen, y, wanted)
    notes = tuple(str(warning.message) for warning in noticed)
    return LabelledTable(found.ignoring(given.ignored), frame.drop(columns=chosen), y, notes)


def _with_labels(schema: Schema, target: str, y: pd.Series[Any], wanted: Any) -> Schema:
    """Return the schema with both labels; refused with the options to choose from where nobody stated it."""
    if wanted is None and schema.unfavourable is not None:
        return schema
    from veritracer.schema.labels import not_stated, two, well_known  # here: the table is refused first

    values = two(y)
    if wanted is None and schema.favourable is None and well_known(values) is None:
        statements = [shlex.join(["--favourable", str(value)]) for value in values]
        raise TargetError(not_stated(values, target, statements, "fit"))
    return schema.with_labels(y, wanted)


def read_inspected(table: str, given: SchemaOverrides) -> Inspection:
    """Describe a table as ``fit`` would read it, with findings to check; labels may be missing."""
    _check_target(given.target, check_table(table, given))
    frame = _read(table, given, None, None)
    from veritracer.schema.inspection import inspect_table  # here: the table is refused first

    _check_target(given.target, tuple(map(str, frame.columns)))
    wanted = None
    if given.target is not None and given.favourable is not None:
        wanted = _label(given.favourable, frame[given.target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # what is left out is among the findings
        found = inspect_table(
            frame,
            given.target,
            favourable=wanted,
            number_formats=given.formats,
            yearly=given.moves,
            **given.actions,
        )
    return replace(found, schema=found.schema.ignoring(given.ignored))


def _read(
    table: str, given: SchemaOverrides, known: Schema | None, rejects: list[Reject] | None
) -> pd.DataFrame:
    from veritracer.tables.cells import read_table  # here: it imports pandas

    ignore = list(given.ignored)
    return read_table(table, given.query, schema=known, ignore=ignore, csv=given.csv, rejects=rejects)


def labelled(
    frame: pd.DataFrame, target: str, ignored: Iterable[str], rejects: list[Reject] | None
) -> pd.DataFrame:
    """Return the rows that have a label; the others go to ``rejects``, if there is one.

    Ignored columns were not read; in the file they are empty, so that it can be read with the same options.
    """
    missing = frame[target].isna()
    if rejects is None or not missing.any():
        return frame
    rows = frame[missing].astype(object).where(frame[missing].notna(), "")
    for number, cells in zip(rows.index, rows.to_dict("records"), strict=True):
        named = {**dict.fromkeys(ignored, ""), **{str(name): str(cell) for name, cell in cells.items()}}
        rejects.append(tables.Reject(int(number), "no label", named))
    return frame[~missing]


def _target(given: SchemaOverrides, known: Schema | None, schema: Path | None) -> str:
    """Return the target; refuse options that contradict the schema or each other."""
    overriding = [option for option, columns in given.actions.items() if columns]
    overriding += ["number_format"] if given.formats else []
    overriding += ["yearly"] if given.moves else []
    if known is not None and overriding:
        received = f"--schema and --{overriding[0].replace('_', '-')}"
        remedy = "edit the feature in the schema"
        raise SchemaError(message("one description of the columns", received, remedy))
    if known is not None and known.target is not None and given.target not in (None, known.target):
        received = f"{given.target!r}, and {known.target!r} in {schema}"
        raise SchemaError(message("one target", received, "leave --target out, or edit the schema"))
    chosen = given.target or (known.target if known else None)
    if chosen is None:
        remedy = "pass --target with the column of the decision; veritracer inspect TABLE proposes some"
        raise TargetError(message("a target", "neither --target nor one in a schema", remedy))
    if chosen in given.ignored:
        raise TargetError(message("a target that is read", f"{chosen!r}, ignored too", "name another one"))
    return chosen


def _check_target(name: str | None, columns: tuple[str, ...] | None) -> None:
    """Refuse a target that is none of the columns, where both are known."""
    if name is not None and columns is not None and name not in columns:
        raise TargetError(unknown_name("the column of the target", name, columns))


def _label(text: str, y: pd.Series[Any]) -> Any:
    """Return the label that is written like this; the text itself where there is none, to be refused.

    Capitals and the way that a number is written count where there are labels that differ in nothing else.
    """
    values = y.dropna().unique().tolist()
    alike = [value for value in values if str(value) == text] or [v for v in values if _is_written(v, text)]
    return alike[0] if len(alike) == 1 else text


def _is_written(value: Any, text: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value).casefold() == text.casefold() or (is_number and f"{value:g}" == text)


def in_one_line(schema: Schema) -> str:
    """Return how many features a schema has, its target, and which label is favourable."""
    return str(schema).partition("\n")[0]


def label_note(schema: Schema) -> list[str]:
    """Return a note if the favourable label seems to be the wrong one."""
    from veritracer.schema.labels import label_doubt

    doubt = label_doubt(schema.target, schema.favourable)
    return [] if doubt is None else [doubt]


def protected_note(schema: Schema, named: set[str]) -> list[str]:
    """Return a note on columns that are immutable because of their names, and how to change that."""
    from veritracer.schema.inference import characteristic

    found = [(f.name, characteristic(f.name)) for f in schema.features if f.name not in named]
    looks = [(name, kind) for name, kind in found if kind is not None]
    if not looks:
        return []
    columns = ", ".join(f"{name} ({kind})" for name, kind in looks)
    remedy = as_typed([name for name, _ in looks])
    return [f"immutable because of their names: {columns}; --free {remedy} allows changes"]
