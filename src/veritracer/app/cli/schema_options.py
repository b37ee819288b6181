"""What a person says about a table on the command line, and the table as it is read then.

Identifiers and columns to leave out are named the same way in every verb: ``--id-column`` and ``--ignore``. A
model remembers what it ignored when it was trained.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer import tables
from veritracer.app.cli.options import ReadOptions, check_output, check_table, names, schema_file
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
    from veritracer.tables import Rejects

Target = Annotated[str | None, typer.Option(help="The column with the decision.", show_default=False)]
Favourable = Annotated[
    str | None,
    typer.Option(
        help="The label that people want. Never guessed, but for pairs such as approved and denied.",
        show_default=False,
    ),
]
Immutable = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Columns that nobody can change.", show_default=False),
]
IncreaseOnly = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Columns that can only grow.", show_default=False),
]
DecreaseOnly = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME,...", help="Columns that can only fall.", show_default=False),
]
Free = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME,...",
        help="Columns that may change although they look protected, or are left out by themselves.",
        show_default=False,
    ),
]
NumberFormats = Annotated[
    list[str] | None,
    typer.Option(
        "--number-format",
        metavar="NAME=EXAMPLE",
        help="How a column writes 1234.5, such as 'income=1.234,5'; once for each column.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Said:
    """What was said about the columns of a table."""

    target: str | None = None
    favourable: str | None = None
    actions: dict[str, list[str]] = field(default_factory=dict)
    ignore: dict[str, str] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    reading: ReadOptions = field(default_factory=lambda: ReadOptions.of(None, "utf-8", False, None))

    @property
    def named(self) -> set[str]:
        """The columns of which something was said."""
        return {name for columns in self.actions.values() for name in columns}


def said(
    target: str | None,
    favourable: str | None,
    actions: dict[str, list[str] | None],
    ignore: list[str] | None,
    id_column: str | None,
    formats: list[str] | None,
    reading: ReadOptions,
) -> Said:
    """The options of ``fit`` and ``inspect`` as one value."""
    return Said(
        target,
        favourable,
        {action: names(columns) for action, columns in actions.items()},
        ignored(ignore, id_column),
        _formats(formats),
        reading,
    )


def ignored(ignore: Sequence[str] | None, id_column: str | None) -> dict[str, str]:
    """The columns that are no features, and why."""
    found = dict.fromkeys(names(ignore), "as was said (--ignore)")
    return found if id_column is None else {**found, id_column: "says whose each row is (--id-column)"}


def _formats(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in given or ():
        name, equals, example = part.rpartition("=")
        if not equals or not name.strip():
            remedy = "write --number-format 'income=1.234,5'"
            raise DataError(message("a column and how it writes 1234.5", repr(part), remedy))
        found[name.strip()] = example
    return found


@dataclass(frozen=True)
class Described:
    """A table that can be learned from: its schema, its features and its labels."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]
    notes: tuple[str, ...] = ()


def described(table: str, told: Said, schema: Path | None, rejects: Rejects | None = None) -> Described:
    """The table as a model learns from it; refused where a column cannot be told, or a label is missing."""
    known = None if schema is None else schema_file(schema)
    chosen = _target(told, known, schema)
    lenient = rejects is not None
    _check_target(chosen, check_table(table, told.reading, lenient=lenient) or [chosen])
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", DataWarning)
        frame = _read(table, told, known, rejects)
        _check_target(chosen, list(map(str, frame.columns)))
        frame = labelled(frame, chosen, rejects)
        y = frame[chosen]
        wanted = None if told.favourable is None else _label(told.favourable, y)
        if known is None:
            hints: dict[str, Any] = {**told.actions, "number_formats": told.formats}
            found = vt.Schema.infer(frame, chosen, wanted, **hints)
        else:
            found = known
        found = _stated(found, chosen, y, wanted)
    notes = tuple(str(warning.message) for warning in noticed)
    return Described(found.ignoring(told.ignore), frame.drop(columns=chosen), y, notes)


def _stated(schema: Schema, target: str, y: pd.Series[Any], wanted: Any) -> Schema:
    """Return the schema with both labels; refused with the options to choose from where nobody stated it."""
    if wanted is None and schema.unfavourable is not None:
        return schema
    from veritracer.schema.labels import not_stated, two, well_known  # here: the table is refused first

    values = two(y)
    if wanted is None and schema.favourable is None and well_known(values) is None:
        statements = [shlex.join(["--favourable", str(value)]) for value in values]
        raise TargetError(not_stated(values, target, statements, "fit"))
    return schema.with_labels(y, wanted)


def inspected(table: str, told: Said) -> Inspection:
    """What ``described`` would make of a table, and what somebody should look at; labels may be missing."""
    columns = check_table(table, told.reading)
    if told.target is not None and columns is not None:
        _check_target(told.target, columns)
    frame = _read(table, told, None, None)
    from veritracer.schema.inspection import inspect_table  # here: the table is refused first

    if told.target is not None:
        _check_target(told.target, list(map(str, frame.columns)))
    wanted = None
    if told.target is not None and told.favourable is not None:
        wanted = _label(told.favourable, frame[told.target])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # what is left out is among the findings
        found = inspect_table(
            frame, told.target, favourable=wanted, number_formats=told.formats, **told.actions
        )
    return replace(found, schema=found.schema.ignoring(told.ignore))


def _read(table: str, told: Said, known: Schema | None, rejects: Rejects | None) -> pd.DataFrame:
    return tables.read_table(
        table,
        told.reading.query,
        schema=known,
        ignore=list(told.ignore),
        csv=told.reading.csv,
        rejects=rejects,
    )


def labelled(frame: pd.DataFrame, target: str, rejects: Rejects | None) -> pd.DataFrame:
    """The rows that have a label; the others go to ``rejects``, and are left for others to refuse if none."""
    missing = frame[target].isna()
    if rejects is None or not missing.any():
        return frame
    rows = frame[missing].astype(object).where(frame[missing].notna(), "")
    rows = rows.reindex(columns=rejects.names, fill_value="")  # columns that are ignored were not read
    for number, cells in zip(rows.index, rows.to_numpy().tolist(), strict=True):
        rejects.add(int(number), "no label", [str(cell) for cell in cells])
    return frame[~missing]


def _target(told: Said, known: Schema | None, schema: Path | None) -> str:
    spoken = [option for option, columns in told.actions.items() if columns]
    spoken += ["number_format"] if told.formats else []
    if known is not None and spoken:
        received = f"--schema and --{spoken[0].replace('_', '-')}"
        remedy = "edit the feature in the schema"
        raise SchemaError(message("one description of the columns", received, remedy))
    if known is not None and known.target is not None and told.target not in (None, known.target):
        received = f"{told.target!r}, and {known.target!r} in {schema}"
        raise SchemaError(message("one target", received, "leave --target out, or edit the schema"))
    chosen = told.target or (known.target if known else None)
    if chosen is None:
        remedy = "pass --target with the column of the decision; veritracer inspect TABLE proposes some"
        raise TargetError(message("a target", "neither --target nor one in a schema", remedy))
    if chosen in told.ignore:
        raise TargetError(message("a target that is read", f"{chosen!r}, ignored too", "name another one"))
    return chosen


def _check_target(name: str, columns: Sequence[str]) -> None:
    if name not in columns:
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
    """That columns are immutable because of what their names look like, and how to change that."""
    from veritracer.schema.inference import characteristic

    found = [(f.name, characteristic(f.name)) for f in schema.features if f.name not in named]
    looks = [(name, kind) for name, kind in found if kind is not None]
    if not looks:
        return []
    said = ", ".join(f"{name} ({kind})" for name, kind in looks)
    lifted = as_typed([name for name, _ in looks])
    return [f"protected, so nobody is told to change it: {said}; --free {lifted} lifts that"]


def check_rejects(
    rejects: Path | None, inputs: Sequence[str | Path], out: str | Path | None = None, *, force: bool
) -> None:
    """Refuse a file for rejected rows that is something else."""
    check_output(rejects, inputs, force=force)
    if rejects is not None and out is not None and rejects.absolute() == Path(out).absolute():
        raise DataError(message("a file of its own for rejected rows", f"{out} for both", "name another one"))
    if rejects is not None and rejects.suffix.casefold() != ".csv":
        raise DataError(message("a .csv file for rejected rows", str(rejects), "name it rejects.csv"))
