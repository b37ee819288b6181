"""The promises that a model does not keep: whose they are, by how much, and what these people could do.

Those that can not be checked are listed too, each with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from veritracer.errors import DataWarning
from veritracer.ledger.candidate import Candidate
from veritracer.ledger.in_memory import select
from veritracer.ledger.promised import Promises
from veritracer.ledger.snapshot import Told
from veritracer.ledger.sources import View
from veritracer.ledger.texts import Row, table_of
from veritracer.ledger.times import in_words
from veritracer.ledger.verdicts import BROKEN, NOT_CHECKABLE, REASONS, Judged

PROMISED = ("kappa", "model", "issued", "expires")


class NewRecourse(NamedTuple):
    """What a person whose promise was broken could do now.

    ``start`` says from where: their ``original row``, or the ``promised row`` where the former is not kept
    or is accepted by now. ``changes`` are (feature, from, to) in raw values.
    """

    sequence: int
    id: str
    start: str
    status: str
    changes: tuple[tuple[str, Any, Any], ...]
    sentence: str


@dataclass
class BrokenPromises:
    """All broken promises of a run, as they are found; the rows of the worst ones are kept.

    ``most`` is how many of them are to be given new recourse; None is all.
    """

    most: int | None
    pieces: list[pd.DataFrame] = field(default_factory=list)
    worst: list[tuple[float, Promises]] = field(default_factory=list)

    def add(self, promises: Promises, judged: Judged) -> None:
        """Notes the broken ones among these promises."""
        rows = np.flatnonzero(judged.verdict == BROKEN)
        if len(rows) == 0:
            return
        some, margin = select(promises, rows), judged.margin[rows]
        self.pieces.append(_listed(some, logit=margin))
        kept = np.lexsort((some.sequence, margin))[: self.most]
        self.worst += [(float(margin[k]), select(some, np.array([k]))) for k in kept]
        self.worst = sorted(self.worst, key=lambda pair: (pair[0], int(pair[1].sequence[0])))[: self.most]

    def table(self) -> pd.DataFrame:
        """All of them, the worst first: how far x′ is on the wrong side is the (negative) ``logit``."""
        return _joined(self.pieces, "logit", ["logit", "sequence"])

    def told(self, view: View) -> list[Told]:
        """What the people of the worst ones were shown, and what they have."""
        return view.told([int(one.sequence[0]) for _, one in self.worst])

    def recourse(self, candidate: Candidate, told: Sequence[Told]) -> tuple[NewRecourse, ...]:
        """New recourse by the candidate for the worst ones, in their order: from what they really have."""
        if not self.worst:
            return ()
        favourable = torch.tensor([bool(one.favourable[0]) for _, one in self.worst])
        own = [t.shown if t.original is None else t.original for t in told]
        same = _decided(candidate, own) == favourable
        known = torch.tensor([t.original is not None for t in told])
        original = (known & same).tolist()
        start = [row if kept else t.shown for row, t, kept in zip(own, told, original, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # a row of another encoding may be out of range
            found = candidate.recourse().explain(
                _table(candidate, start), only_unfavourable=False, search_radius=False
            )
        return tuple(
            NewRecourse(
                int(one.sequence[0]),
                one.ids[0],
                "original row" if original[i] else "promised row",
                str(found.status[i]),
                tuple((c.feature.name, c.before, c.after) for c in found.changes_of(i)),
                found.sentence(i),
            )
            for i, (_, one) in enumerate(self.worst)
        )


@dataclass
class UncheckedPromises:
    """All promises of a run that can not be checked, as they are found."""

    pieces: list[pd.DataFrame] = field(default_factory=list)

    def add(self, promises: Promises, judged: Judged) -> None:
        """Notes those among these promises."""
        rows = np.flatnonzero(judged.verdict == NOT_CHECKABLE)
        if len(rows):
            some = select(promises, rows)
            self.pieces.append(_listed(some, reason=np.array(REASONS, dtype=object)[judged.why[rows]]))

    def table(self) -> pd.DataFrame:
        """All of them, with the reason."""
        return _joined(self.pieces, "reason", ["sequence"])


def _listed(some: Promises, **more: Any) -> pd.DataFrame:
    """A line for each promise: whose it is, something more, and what was promised."""
    return pd.DataFrame(
        {
            "sequence": some.sequence,
            "id": some.ids,
            **more,
            "kappa": some.kappa,
            "model": some.model,
            "issued": some.issued,
            "expires": some.expires,
        }
    )


def _joined(pieces: list[pd.DataFrame], column: str, order: list[str]) -> pd.DataFrame:
    """The pieces as one table, with dates in words."""
    if not pieces:
        return pd.DataFrame({name: [] for name in ("sequence", "id", column, *PROMISED)})
    whole = pd.concat(pieces).sort_values(order, ignore_index=True)
    for name in ("issued", "expires"):
        whole[name] = [in_words(moment) for moment in whole[name]]
    return whole


def _table(candidate: Candidate, rows: Sequence[Row]) -> pd.DataFrame:
    return table_of(rows, candidate.encoding.schema.names)


def _decided(candidate: Candidate, rows: Sequence[Row]) -> Tensor:
    """Whether the candidate says favourable of each raw row, (n,)."""
    x = candidate.encoding.encode(_table(candidate, rows), out_of_range="ignore")
    with torch.no_grad():
        return candidate.network.logit(candidate.theta, x) > 0
