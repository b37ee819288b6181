"""Work on a table: the job, its batches of rows, and their results. All of them can be pickled."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from veritracer.errors import AdviceWarning, DataWarning

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from veritracer.schema import Schema

Verb = Literal["explain", "certify", "predict"]

ADDED = "recourse."
"""How the names of the columns begin that ``explain`` adds; ``certify`` does not take them for features."""

ROW = "\0row"
"""The column of a batch with the numbers of its rows in their table, counted from 1."""


def integer_column(numbers: NDArray[np.int64]) -> pa.Array:
    """Return whole numbers as an Arrow array; ``pa.array`` would import pandas."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


class Reject(NamedTuple):
    """A row that cannot be read: its number in its table, the reason, and its cells by column."""

    number: int
    reason: str
    cells: dict[str, str]


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a table, and for ``certify`` their counterfactuals.

    Attributes
    ----------
    table
        What messages call the table; never with a password.
    rows
        The rows; the column ``ROW``, if there is one, has their numbers.
    is_text
        Whether every cell is text (CSV), or columns have types (Parquet, SQL).
    rejects
        Rows of the table that cannot be parsed, up to the last one of these.
    share
        How much of the table was read by then, from 0 to 1; None where that is not known.
    source, number
        The name of the table in its run, and the number of the batch in it.
    digest
        SHA-256 of the rows as an Arrow stream.
    other
        The counterfactuals.
    """

    table: str
    rows: pa.RecordBatch
    is_text: bool = False
    rejects: tuple[Reject, ...] = ()
    share: float | None = None
    source: str = ""
    number: int = 0
    digest: str = ""
    other: Batch | None = None

    @property
    def name(self) -> str:
        """Return the name of the batch, which no other batch of a run has."""
        return f"{self.source}.{self.number:06}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the table's columns."""
        return tuple(name for name in self.rows.schema.names if name != ROW)

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Return the numbers of the rows in their table."""
        found: NDArray[np.int64] = self.rows.column(ROW).to_numpy()
        return found


@dataclass(frozen=True)
class BatchResult:
    """The results of a batch.

    Attributes
    ----------
    name, digest
        The batch, and the digest of its rows.
    rows
        The rows to write; None where no row could be read, or where they are written already.
    counts
        How many rows ended how: ``rows``, and the outcomes of the verb.
    facts
        What is the same for all batches, such as the set of models.
    warnings
        Warnings about the data: the first sentence of each kind.
    rejects
        Rows that could not be read.
    columns
        The columns of the part that was written; none if there is no part.
    altered
        Cells of the part that were changed to be safe for spreadsheets.
    promises
        For ``issue``: the number of the first promise, and how many there are.
    prepared
        For ``issue``: the promises before they have numbers.
    """

    name: str
    digest: str
    rows: pa.Table | None = None
    counts: Counter[str] = field(default_factory=Counter)
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    altered: int = 0
    promises: tuple[int, int] = (0, 0)
    prepared: Any = None

    def to_document(self) -> dict[str, Any]:
        """Return everything besides the rows and the prepared promises, as plain values."""
        return {
            "name": self.name,
            "digest": self.digest,
            "counts": dict(self.counts),
            "facts": dict(self.facts),
            "warnings": dict(self.warnings),
            "rejects": [list(reject) for reject in self.rejects],
            "columns": list(self.columns),
            "altered": self.altered,
            "promises": list(self.promises),
        }

    @classmethod
    def from_document(cls, content: Mapping[str, Any], rows: pa.Table | None = None) -> Self:
        """Return the result that a document describes."""
        read = {
            "counts": Counter(content["counts"]),
            "rejects": [Reject(*reject) for reject in content["rejects"]],
            "columns": tuple(content["columns"]),
            "promises": tuple(content["promises"]),
        }
        return cls(**{**content, **read, "rows": rows})


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
    keep
        Columns to copy to the output.
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


@contextmanager
def collect_warnings() -> Iterator[dict[str, str]]:
    """Collect warnings about data and advice inside the block instead of showing them.

    When the block ends, the dictionary has the first sentence of each kind (what a message expected).
    """
    found: dict[str, str] = {}
    with warnings.catch_warnings(record=True) as caught:
        for category in (DataWarning, AdviceWarning):
            warnings.simplefilter("always", category)
        yield found
    for warning in caught:
        text = warning.message.args[0] if isinstance(warning.message, Warning) else warning.message
        found.setdefault(str(getattr(text, "expected", text)), str(text))
