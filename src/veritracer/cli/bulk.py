"""Folders, patterns, and several cores: the verbs that work in blocks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from veritracer import distributed, persistence, tablefiles
from veritracer.cli.printing import note, print_json, progress, say
from veritracer.errors import DataError, message

if TYPE_CHECKING:
    from veritracer.distributed import Outcome, RunFolder


class Bulk(NamedTuple):
    """How a verb was asked to work in blocks."""

    engine: Literal["local", "ray"]
    workers: int | None
    rows: int
    kind: Literal["parquet", "csv", "jsonl"]

    def wanted(self, table: str) -> bool:
        """Whether it was: by a folder or a pattern, by several cores, or by a cluster."""
        return self.engine == "ray" or self.workers is not None or tablefiles.is_many(table)

    def refuse(self, given: dict[str, Any]) -> None:
        """Refuse what is made of one table as a whole."""
        for name, value in given.items():
            if value is not None:
                remedy = f"leave {name} out, or work on one table without --workers"
                raise DataError(message("what can be done block by block", name, remedy))

    def question(self, model: str, options: dict[str, Any], **more: Any) -> distributed.Question:
        """What is asked, of a model that is there and whole."""
        persistence.verified(model)
        distributed.prepare(self.engine, self.workers)
        return distributed.Question(model=model, options=options, **more)

    def inputs(self, table: str, separator: str) -> distributed.Inputs:
        """The tables; refuses a pipe, which can not be read again."""
        if table == tablefiles.STANDARD:
            remedy = "save it as a file first"
            raise DataError(message("tables that can be read again", "standard input", remedy))
        return distributed.Inputs(table, separator, self.rows)

    def folder(self, out: str | None, asked: dict[str, Any]) -> RunFolder:
        """The folder of the run, new or to go on in."""
        if out is None:
            remedy = "add --out FOLDER, in which each block is a file"
            raise DataError(message("a folder for the blocks", "no --out", remedy))
        return distributed.RunFolder.open(Path(out), asked, self.kind)

    def run(self, text: str, call: Any, *args: Any, folder: RunFolder, quiet: bool) -> Outcome:
        """What became of all blocks."""
        with folder.unless_begun(), progress(text, quiet=quiet) as watch:
            outcome: Outcome = call(*args, watch=watch)
        note(outcome.ended.notes, quiet=quiet)
        return outcome

    def engine_for(self) -> distributed.Engine:
        """Where the blocks are done."""
        return distributed.engine_of(self.engine, self.workers)


def print_outcome(outcome: Outcome, out: str | None, lines: list[str], *, quiet: bool, as_json: bool) -> None:
    """Print how the rows ended, and how many blocks that took."""
    if as_json:
        counts = {"out": out, "blocks": outcome.blocks, "skipped": outcome.skipped}
        print_json({**counts, "promises": outcome.promises, **asdict(outcome.ended)})
    elif not quiet:
        before = f", {outcome.skipped:,} of which were there already" if outcome.skipped else ""
        say(*lines, f"{outcome.blocks:,} blocks{before}: {out}")
