"""Run a command over tables: the options of every such command, its output, and the summary at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from veritracer import engines, tables
from veritracer.app.cli.options import (
    AsJson,
    EngineName,
    Force,
    Ignore,
    Quiet,
    ReadOptions,
    RejectsFile,
    SpreadsheetSafe,
    names,
)
from veritracer.app.cli.output import note, percent, print_json, progress, say
from veritracer.app.cli.places import check_new, check_rejects
from veritracer.errors import DataError, message
from veritracer.options import BATCH_ROWS

if TYPE_CHECKING:
    from veritracer.tables import Output, Progress, RunSummary


@dataclass(frozen=True, kw_only=True)
class TableOptions(ReadOptions):
    """Options for running a command over tables, and for its results."""

    out: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="New file for the results (.csv, .parquet, .jsonl), or a folder with a part for each batch.",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns to copy to the output, such as an identifier."),
    ] = None
    ignore: Ignore = None
    rejects: RejectsFile = None
    spreadsheet_safe: SpreadsheetSafe = False
    force: Force = False
    quiet: Quiet = False
    as_json: AsJson = False
    engine: EngineName = "local"
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of workers; by default 1 for one table, and all cores for several."),
    ] = None
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = BATCH_ROWS
    part_format: Annotated[
        Literal["parquet", "csv", "jsonl"], typer.Option(help="Format of the parts of a folder.")
    ] = "parquet"

    @property
    def ignored(self) -> list[str]:
        """Return the names of the columns to leave unread."""
        return names(self.ignore)

    def kept(self, id_column: str | None) -> tuple[str, ...]:
        """Return the names of the columns to copy, the identifier first."""
        return tuple(dict.fromkeys([*([] if id_column is None else [id_column]), *names(self.keep)]))

    def check_outputs(self) -> None:
        """Refuse outputs that exist, except those of a run that the same command continues."""
        continues = self.out is not None and (Path(self.out).is_dir() or Path(f"{self.out}.run").is_dir())
        check_new(self.out, force=self.force or continues)
        check_rejects(self.rejects, self.out, force=self.force, continues=continues)

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
            _check_apart(self.out, one.place)
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

    def engine_for(self, inputs: tables.TableSource, *, in_order: bool) -> engines.Engine:
        """Return the engine; a stream is written in order, which one worker does."""
        if in_order:
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

    def run(
        self, text: str, job: tables.Job, inputs: tables.TableSource, pairs: tables.TableSource | None = None
    ) -> RunSummary:
        """Do the job on every row, and print what was noticed; ``pairs`` are the other tables of certify."""
        asked, places = job.document(), [inputs]
        batches = inputs.batches
        if pairs is not None:
            asked["counterfactuals"] = pairs.document()["table"]
            places.append(pairs)
            batches = partial(tables.paired, inputs, pairs)
        silent = pairs is not None and self.out is None  # the summary alone is wanted
        out = tables.Output() if silent else self.open_output(asked, *places)
        with self.running(text, out) as watch:
            engine = self.engine_for(inputs, in_order=isinstance(out, tables.StreamOutput))
            task = partial(tables.do_batch, job)
            found = tables.run_table(task, batches, out, engine, rejects=self.rejects, progress=watch)
        self.print_notes(found)
        return found

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


def recourse_lines(found: RunSummary) -> list[str]:
    """Say in two lines what the rows of a table got."""
    counts = found.counts
    asked = counts["rows"] - counts["favourable"]
    first = f"{counts['rows']:,} rows, {counts['favourable']:,} of them already favourable."
    if not asked:
        return [first]
    return [
        first,
        f"Recourse for the other {asked:,}: {counts['certified']:,} certified at {found.facts['models']}, "
        f"which is {percent(counts['certified'] / asked)}; {counts['valid']:,} accepted today without proof; "
        f"{counts['none']:,} without recourse.",
    ]


def _check_apart(out: str | None, table: str) -> None:
    """Refuse to write into the folder that is read: the next run would read what this one wrote."""
    read = Path(table)
    if out is None or tables.is_url(out) or not read.is_dir():
        return
    if Path(out).resolve().is_relative_to(read.resolve()):
        raise DataError(message(f"a place outside of {table}", out, "name a place beside it"))
