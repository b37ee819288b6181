"""The promises that a model breaks: whose they are, by how much, and what these people could do instead."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from veritracer.errors import DataWarning
from veritracer.ledger.candidate import Candidate
from veritracer.ledger.in_memory import select
from veritracer.ledger.promised import IssuingModel, Promises
from veritracer.ledger.reading import rows_for
from veritracer.ledger.times import in_words
from veritracer.ledger.verdicts import BROKEN, Judged

COLUMNS = ("sequence", "id", "logit", "kappa", "model", "issued", "expires")


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
        columns = (some.sequence, some.ids, margin, some.kappa, some.model, some.issued, some.expires)
        self.pieces.append(pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))))
        kept = np.argsort(margin, kind="stable")[: self.most]
        self.worst += [(float(margin[k]), select(some, np.array([k]))) for k in kept]
        self.worst = sorted(self.worst, key=lambda pair: pair[0])[: self.most]

    def table(self) -> pd.DataFrame:
        """All of them, the worst first: how far x′ is on the wrong side is the (negative) ``logit``."""
        if not self.pieces:
            return pd.DataFrame({name: [] for name in COLUMNS})
        whole = pd.concat(self.pieces).sort_values(["logit", "sequence"], ignore_index=True)
        for name in ("issued", "expires"):
            whole[name] = [in_words(moment) for moment in whole[name]]
        return whole

    def recourse(self, candidate: Candidate, models: Mapping[str, IssuingModel]) -> tuple[NewRecourse, ...]:
        """New recourse by the candidate for the worst ones, in their order."""
        found: dict[int, NewRecourse] = {}
        by_model: dict[tuple[str, bool], list[Promises]] = {}
        for _, one in self.worst:
            by_model.setdefault((one.model, bool(one.favourable[0])), []).append(one)
        for (model, _), some in by_model.items():
            for answer in _recourse(candidate, models[model], some):
                found[answer.sequence] = answer
        return tuple(found[int(one.sequence[0])] for _, one in self.worst)


def _recourse(candidate: Candidate, issuing: IssuingModel, some: list[Promises]) -> list[NewRecourse]:
    """New recourse for people to whom one model gave the same decision."""
    rows = [rows_for(candidate.encoding, one, issuing) for one in some]
    x_cf, x = (torch.cat([getattr(r, name) for r in rows]) for name in ("x_cf", "x"))
    original = ~torch.isnan(x).any(-1) & _decided(candidate, x, favourable=bool(some[0].favourable[0]))
    start = torch.where(original.unsqueeze(-1), x, x_cf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a row of another encoding may be out of range
        told = candidate.recourse().explain(
            candidate.encoding.decode(start), only_unfavourable=False, search_radius=False
        )
    return [
        NewRecourse(
            int(one.sequence[0]),
            one.ids[0],
            "original row" if original[i] else "promised row",
            str(told.status[i]),
            tuple((c.feature.name, c.before, c.after) for c in told.changes_of(i)),
            told.sentence(i),
        )
        for i, one in enumerate(some)
    ]


def _decided(candidate: Candidate, x: Tensor, *, favourable: bool) -> Tensor:
    """Where the candidate decides so on each row; False where the row is not known."""
    with torch.no_grad():
        logit = candidate.network.logit(candidate.theta, x)
    return ~torch.isnan(logit) & ((logit > 0) == favourable)
