"""From counterfactuals to promises: prepared piece by piece, issued all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veritracer.errors import LedgerError, message
from veritracer.ledger import kept_models
from veritracer.ledger.claims import check_claims
from veritracer.ledger.entries import content_of, promised_at, to_bytes
from veritracer.ledger.promised import IssuingModel
from veritracer.ledger.records import Terms, Texts, records
from veritracer.ledger.spool import Spool
from veritracer.recourse import Counterfactuals

if TYPE_CHECKING:
    from veritracer.ledger.sql.reader import Reader
    from veritracer.ledger.sql.store import Store
    from veritracer.ledger.sql.writer import Writer


@dataclass(frozen=True, repr=False)
class Issued:
    """Promises that were made.

    Attributes
    ----------
    sequence
        Their numbers in the ledger.
    ids
        Whose they are.
    head
        The newest link of the chain, in hexadecimal: note it elsewhere.
    skipped
        How many rows have no counterfactual, and so no promise.
    openings
        With ``original="commitment"``: for each promise what proves later which row was committed to (salts,
        encoded row, raw row). It is kept nowhere else.
    recourse
        The counterfactuals, where ``VeriTraCER.issue`` found them.
    """

    sequence: NDArray[np.int64]
    ids: list[str]
    head: str
    skipped: int
    openings: list[bytes] = field(default_factory=list)
    recourse: Counterfactuals | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def __str__(self) -> str:
        numbers = f", {self.sequence[0]:,} to {self.sequence[-1]:,}" if len(self) else ""
        what = "promise" if len(self) == 1 else "promises"
        return f"{len(self):,} {what}{numbers}; {self.skipped:,} rows without; the head is {self.head}"

    __repr__ = __str__  # and not every number and id


class Batch:
    """Promises in preparation: ``add`` holds up nobody, ``commit`` other writers, and shortly."""

    def __init__(self, module: nn.Module, threshold: float, terms: Terms) -> None:
        self.module, self.threshold, self.terms = module, threshold, terms
        self.spool = Spool()
        self.model: IssuingModel | None = None
        self.ids: list[str] = []
        self.openings: list[bytes] = []
        self.skipped = 0
        self._issued: Issued | None = None

    @property
    def issued(self) -> Issued:
        """What was issued, once the batch is done."""
        assert self._issued is not None, "the batch is not committed"
        return self._issued

    def add(self, found: Counterfactuals, ids: Sequence[Any]) -> list[bytes]:
        """The openings of the promises that were added (empty unless originals are only committed to)."""
        model = kept_models.describe(
            self.module, found.encoding, self.threshold, found.norm, found.radius_rule
        )
        self._check(model, found)
        self.model, texts = model, Texts.of(found)
        check_claims(found, texts, self.module, model)
        made, openings = records(found, texts, ids, self.terms)
        for record in made:
            self.spool.put(record)
            self.ids.append(record.who.decode())
        self.openings += openings
        self.skipped += len(found) - len(made)
        return openings

    def commit(self, store: Store) -> None:
        """Nothing; the promises are in the ledger, all of them."""
        if not self.spool.count:
            with store.reading() as reader:
                head = reader.head()
            self._issued = Issued(np.empty(0, np.int64), [], head.hex(), self.skipped)
            return
        with store.writing() as (writer, reader):
            issued, expires = self.terms.after(writer.newest)
            number = self._model_number(writer, reader, issued)
            first = writer.seq + 1
            for record in self.spool:
                writer.promise(record._replace(header=promised_at(record.header, issued, expires)), number)
            head = writer.link
        sequence = np.arange(first, first + len(self.spool), dtype=np.int64)
        self._issued = Issued(sequence, self.ids, head.hex(), self.skipped, self.openings)

    def close(self) -> None:
        """Nothing; what was prepared is gone."""
        self.spool.close()

    def _check(self, model: IssuingModel, found: Counterfactuals) -> None:
        if model.model_digest != found.model_digest:
            received = f"{model.model_digest[:12]}… where they speak of {found.model_digest[:12]}…"
            remedy = "pass the model that explain was called on, as it was then"
            raise LedgerError(message("the model that the certificates speak of", received, remedy))
        if self.model is not None and model.digest != self.model.digest:
            remedy = "issue them one model at a time"
            raise LedgerError(message("counterfactuals of one model and set", "several", remedy))

    def _model_number(self, writer: Writer, reader: Reader, time: float) -> int:
        """The number of the issuing model's entry, which is made if there is none."""
        assert self.model is not None
        for seq, kind, header in reader.events("model"):
            if content_of(kind, header)["digest"] == self.model.digest:
                return int(seq)
        header = to_bytes({"digest": self.model.digest, "time": time})
        return writer.model(header, *kept_models.to_bytes(self.model))
