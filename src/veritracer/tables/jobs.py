"""Describe work on a table: the job, its batches of rows, and their results. All of them can be pickled."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from veritracer.tables.notes import Notes
from veritracer.tables.rejects import Reject, Rejects

if TYPE_CHECKING:
    import pyarrow as pa

    from veritracer.schema import Schema

Verb = Literal["explain", "certify", "predict"]


class TableSlice(NamedTuple):
    """Consecutive rows of one table.

    Attributes
    ----------
    table
        What messages call the table.
    rows
        The rows. Where some cannot be parsed, a column ``csv_blocks.ROW`` has the numbers of the others.
    is_text
        Whether every cell is text (CSV), or columns have types (Parquet, SQL).
    start
        Rows of the table before these.
    rejects
        Rows of the table, up to the last one of these, that cannot be parsed.
    """

    table: str
    rows: pa.RecordBatch
    is_text: bool = False
    start: int = 0
    rejects: tuple[Reject, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Some rows of a table, and for ``certify`` their counterfactuals.

    Attributes
    ----------
    source, number
        The name of the table, and the number of the batch in it.
    rows
        The rows.
    digest
        SHA-256 of the rows as an Arrow stream.
    other
        The counterfactuals; their ``ROW`` has the numbers of their rows.
    """

    source: str
    number: int
    rows: TableSlice
    digest: str
    other: TableSlice | None = None

    @property
    def name(self) -> str:
        """Return the name of the batch, which no other batch of a run has."""
        return f"{self.source}.{self.number:06}"


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch.

    Attributes
    ----------
    batch, digest
        The name and the digest of the batch.
    rows
        The rows to write; None where no row could be read.
    counts
        How many rows ended how: ``rows``, and the outcomes of the verb.
    facts
        What is the same for all batches, such as the set of models.
    notes
        Warnings about the data.
    rejects
        Rows that could not be read.
    promised
        For ``issue``: the prepared promises.
    """

    batch: str
    digest: str
    rows: pa.Table | None
    counts: Counter[str]
    facts: Mapping[str, Any]
    notes: Notes
    rejects: Rejects
    promised: Any = None


@dataclass(frozen=True)
class Job:
    """The work to do on every row of a table.

    Attributes
    ----------
    verb
        What is done: the function of ``batches`` with that name.
    model
        The folder of a saved model.
    options
        Options of the verb.
    keep, ignore
        Columns to copy to the output, and columns that nobody reads.
    sentences
        Whether to add a sentence for each counterfactual.
    rules
        A schema with other actions than the model's.
    collect_rejects
        Whether rows that cannot be read are collected; otherwise they are refused.
    digest
        The digest of the model; by default of the one that is in the folder now.
    """

    verb: Verb
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    sentences: bool = False
    rules: Schema | None = None
    collect_rejects: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        """Note which model it is: every worker has to find the same one."""
        object.__setattr__(self, "digest", self.digest or model_digest(self.model))

    def document(self) -> dict[str, Any]:
        """Return what has to be the same when a run continues, as plain values."""
        rules = None if self.rules is None else self.rules.to_json()
        return {**asdict(replace(self, rules=None)), "model": self.digest, "rules": rules}


def model_digest(folder: str) -> str:
    """Return what tells one saved model from another."""
    return hashlib.sha256((Path(folder) / "model.json").read_bytes()).hexdigest()
