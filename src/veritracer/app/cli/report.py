"""``report`` and ``notices``: a page on a model, and notices to the people that it decides about."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import model_folder, tables
from veritracer.app.cli.options import (
    AsJson,
    Force,
    IdColumn,
    Ignore,
    KeyFile,
    ModelFolder,
    Quiet,
    ReadOptions,
    texts,
    with_flags,
)
from veritracer.app.cli.output import note, print_json, say, spinner
from veritracer.app.cli.places import check_ledger, check_new, check_table, load_model, read_key
from veritracer.app.cli.schema_options import ignored
from veritracer.errors import DataError, LedgerError, message
from veritracer.files import writable
from veritracer.options import ExplainOptions

if TYPE_CHECKING:
    from veritracer.app.notices import Notice

OPENING = "recourse.opening"
DRAFTED = 1_000
"""Rows that are explained at once for drafts."""


@with_flags
def report(
    model: ModelFolder,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Test rows: CSV or Parquet; - is standard input.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="New HTML file for the report.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the report.")] = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    reading: ReadOptions,
) -> None:
    """Write an HTML report on a model.

    The report is one file: quality of the decisions, counterfactuals, certificates, and groups of people.
    """
    model_folder.verified(model)
    check_table(table, reading)
    check_new(out, force=force)
    with writable(out), spinner("Writing the report", quiet=quiet):
        from veritracer.app.report import write_report
        from veritracer.tables.cells import read_table

        loaded = load_model(model)
        schema = loaded.schema_
        with tables.collect_warnings() as notes:
            unseen = list(ignored(ignore, id_column))
            frame = read_table(table, reading.query, schema=schema, ignore=unseen, csv=reading.csv)
            y = frame[schema.target] if schema.target in frame.columns else None
            X = frame.drop(columns=[schema.target] if y is not None else [])
            path = write_report(out, loaded, X, y, title=title)
    note(notes.values(), quiet=quiet)
    if as_json:
        print_json({"report": str(path), "rows": len(X)})
    elif not quiet:
        say(f"The report: {path}")


@with_flags
def notices(
    *,
    out: Annotated[Path, typer.Option(help="New folder for the notices.")],
    ledger: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Ledger whose live promises get a notice."),
    ] = None,
    number: Annotated[
        list[int] | None, typer.Option(help="Only the promise of this number; may be repeated.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Model that explains --table for drafts.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --ledger, people and their own fields, or results of issue; with --model, applicants.",
        ),
    ] = None,
    id_column: IdColumn = None,
    codes: Annotated[Path | None, typer.Option(help="Reason codes (JSON).")] = None,
    template: Annotated[Path | None, typer.Option(help="Template of your own (Jinja2).")] = None,
    notice_format: Annotated[
        Literal["text", "html"] | None,
        typer.Option("--format", help="text or html; by default that of the template, or text."),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Text for all notices: institution, contact, ..."),
    ] = None,
    field_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Text from a column of --table: recipient, address, reference, ...",
        ),
    ] = None,
    language: Annotated[str, typer.Option(metavar="LOCALE", help="Language: en, en_GB, de, ...")] = "en",
    locale_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with LOCALE/LC_MESSAGES/veritracer.po of your own."),
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write each notice as PDF.")] = False,
    key_file: KeyFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    reading: ReadOptions,
    options: ExplainOptions,
) -> None:
    """Write notices of promises, or drafts for declined rows.

    Notices of promises are rendered from the ledger's records, as often as you like. With --table only people
    in it get one, and --field-column takes their names and addresses from there; a column recourse.opening
    opens commitments. Without a ledger nothing is promised: with --model and --table each declined row gets
    a draft, by the options of explain.
    """
    columns = {name: column.strip() for name, column in texts("--field-column", field_column).items()}
    fields = texts("--field", field)
    named = {"--table": table, "--id-column": id_column, "--number": number, "--field-column": columns}
    _check_sources(ledger, model, {flag for flag, value in named.items() if value}, options)
    if twice := sorted(set(fields) & set(columns)):
        received = f"{twice[0]!r} as both"
        raise DataError(message("each field as a text or from a column", received, "leave one out"))
    if table is not None:
        check_table(table, reading)
    with spinner("Writing notices", quiet=quiet):
        from veritracer.app.i18n import Translator
        from veritracer.app.notices import NoticeForm, write_notices

        kind = notice_format or ("html" if pdf and template is None else None)
        translate = Translator(language, locale_dir)
        form = NoticeForm.of(codes, template, kind, translate, fields, columns)
        key = None if key_file is None else read_key(key_file)
        if ledger is not None:
            with vt.Ledger(ledger, key=key, create=False) as opened:
                people = None if table is None else _People(table, reading, str(id_column), columns)
                count = write_notices(out, _of_promises(opened, number, people), form, pdf=pdf)
        else:
            made = _drafts(str(model), str(table), reading, options, columns)
            count = write_notices(out, made, form, pdf=pdf)
    if as_json:
        print_json({"out": str(out), "notices": count})
    elif not quiet:
        what = "notice" if ledger is not None else "draft"
        say(f"{count:,} {what}{'' if count == 1 else 's'}: {out}")


def _check_sources(ledger: str | None, model: str | None, named: set[str], options: ExplainOptions) -> None:
    """Refuse options that do not go together; ``named`` are the flags that were given."""
    if (ledger is None) == (model is None):
        received = "neither" if ledger is None else "both"
        remedy = "name a ledger for notices of promises, or a model and a table for drafts"
        raise DataError(message("either --ledger or --model", received, remedy))
    if "--field-column" in named and "--table" not in named:
        raise DataError(message("--field-column with --table", "no --table", "add the table"))
    if ledger is None:
        if "--table" not in named:
            raise DataError(message("--model with --table", "no --table", "add the table of applicants"))
        if "--number" in named:
            raise DataError(message("--number with --ledger", "--model", "leave it out"))
        model_folder.verified(str(model))
        return
    if len(named & {"--table", "--id-column"}) == 1:
        remedy = "add the other one, or leave both out"
        raise DataError(message("--table together with --id-column", "one without the other", remedy))
    check_ledger(ledger)
    if asdict(options) != asdict(ExplainOptions()):
        remedy = "leave them out: a promise is what the ledger says"
        raise DataError(message("--ledger without options of explain", "some", remedy))


class _People:
    """People's own fields and openings, by id, from a table."""

    def __init__(self, table: str, reading: ReadOptions, id_column: str, columns: Mapping[str, str]) -> None:
        self.fields: dict[str, dict[str, Any]] = {}
        self.openings: dict[str, list[bytes]] = {}
        for batch in tables.read_batches(table, reading.query, csv=reading.csv):
            for name in (id_column, *columns.values()):
                _check_column(name, batch.columns)
            wanted = [id_column, *columns.values()]
            wanted += [OPENING] if OPENING in batch.columns else []
            for row in batch.rows.select(list(dict.fromkeys(wanted))).to_pylist():
                who = str(row[id_column])
                self.fields[who] = {name: _text(row[column]) for name, column in columns.items()}
                if text := row.get(OPENING):
                    self.openings.setdefault(who, []).append(_opening(text))


def _check_column(name: str, columns: tuple[str, ...]) -> None:
    if name not in columns:
        received = f"{', '.join(columns[:20])}"
        raise DataError(message(f"a column {name!r} in the table", received, "name one of them"))


def _text(cell: Any) -> str | None:
    return None if cell is None or cell == "" else str(cell)


def _opening(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        remedy = "give the results as issue wrote them"
        raise DataError(message(f"openings in base64 in {OPENING}", repr(text[:20]), remedy)) from None


def _of_promises(ledger: vt.Ledger, numbers: list[int] | None, people: _People | None) -> Iterator[Notice]:
    """Yield the notices of live promises: those of the numbers and of the people that were named."""
    from veritracer.app.notices import promise_notices

    listed = ledger.listing()
    whose = dict(zip(listed["number"].tolist(), listed["id"].tolist(), strict=True))
    chosen = numbers or listed.loc[listed["status"] == "live", "number"].tolist()
    if people is None:
        yield from promise_notices(ledger, chosen)
        return
    chosen = [one for one in chosen if whose.get(one) in people.fields]
    own = {one: people.fields[whose[one]] for one in chosen}
    openings = {
        one: opening
        for one in chosen
        for opening in people.openings.get(whose[one], [])
        if _opens(ledger, one, opening)
    }
    yield from promise_notices(ledger, chosen, own, openings)


def _opens(ledger: vt.Ledger, number: int, opening: bytes) -> bool:
    """Return whether this opens that promise: somebody may have several."""
    try:
        ledger.opened(number, opening)
    except LedgerError:
        return False
    return True


def _drafts(
    model: str, table: str, reading: ReadOptions, options: ExplainOptions, columns: Mapping[str, str]
) -> Iterator[Notice]:
    """Yield a draft for each declined row of the table."""
    from veritracer.app.notices import draft_notices
    from veritracer.tables.cells import read_table

    loaded = load_model(model)
    schema = loaded.schema_
    with tables.collect_warnings() as notes:
        frame = read_table(table, reading.query, schema=schema, csv=reading.csv)
        for name in columns.values():
            _check_column(name, tuple(map(str, frame.columns)))
        for start in range(0, len(frame), DRAFTED):
            some = frame.iloc[start : start + DRAFTED]
            found = loaded.explain(some[list(schema.names)], **asdict(options))
            cells = {name: some[column].tolist() for name, column in columns.items()}
            own = [{name: _text(column[i]) for name, column in cells.items()} for i in range(len(some))]
            yield from draft_notices(found, own, start)
    note(notes.values())
