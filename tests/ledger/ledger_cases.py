"""Counterfactuals to issue, and a way to change a ledger behind its back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa
import torch
from torch import nn

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.ledger import database as tables
from veritracer.ledger import new_key
from veritracer.ledger.connections import connect, place_of
from veritracer.ledger.issuing import Prepared, prepare
from veritracer.options import Terms

KEY = new_key()

EVERYTHING: dict[str, Any] = {"expires": None, "uncertified": "promise", "allow_duplicate": True}
"""Terms under which every counterfactual is a promise without an end."""


@cache
def model(seed: int = 0) -> vt.VeriTraCER:
    """An estimator around a network of its own: what training would make of it plays no part here."""
    frame, y = applicants(400)
    made = vt.VeriTraCER(schema=SCHEMA, method="standard", hidden=(6,), epochs=1, random_state=seed)
    made.fit(frame, y)
    made.classifier_ = undecided(made.encoding_, made.encoding_.encode(frame), seed)
    return made


def undecided(encoding: vt.Encoding, x: torch.Tensor, seed: int = 0) -> nn.Sequential:
    """A network that nobody trained, and that turns half of these rows down."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(encoding.dim, 6), nn.ReLU(), nn.Linear(6, 1)).double().eval()
    with torch.no_grad():
        network[2].bias -= network(x).median()
    return network


@cache
def recourse(seed: int = 0, rows: int = 40, **options: Any) -> vt.Counterfactuals:
    """Its counterfactuals of some people, some of whom need none."""
    frame, _ = applicants(rows, seed=9)
    return model(seed).explain(frame, **{"kappa": 0.05, **options})


def untrained() -> tuple[nn.Sequential, vt.Counterfactuals]:
    """Such a network without an estimator, and its counterfactuals: made in a moment."""
    frame, _ = applicants(60)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    network = undecided(encoding, encoding.encode(frame))
    answers = vt.Recourse(network, encoding=encoding, rows=frame, kappa=0.01)
    return network, answers.explain(frame, refine=False, search_radius=False)


def ids(found: vt.Counterfactuals, prefix: str = "person") -> list[str]:
    """An id for each row that was asked about."""
    return [f"{prefix} {i}" for i in range(int(found.row.max()) + 1)]


def issue(ledger: vt.Ledger, found: vt.Counterfactuals, prefix: str = "person", **terms: Any) -> Any:
    """What was issued of these counterfactuals: all of them, however often, for ever unless terms say so."""
    return ledger.issue(found, model().classifier_, ids=ids(found, prefix), **{**EVERYTHING, **terms})


def prepared(found: vt.Counterfactuals, prefix: str = "person", **terms: Any) -> Prepared:
    """These counterfactuals as promises that only need to be written."""
    return prepare(found, model().classifier_, 0.5, Terms(**{**EVERYTHING, **terms}), ids(found, prefix))


@contextmanager
def behind(place: str) -> Iterator[sa.Connection]:
    """A connection that obeys no rule but the database's own."""
    engine = connect(place_of(place))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def rows_of(connection: sa.Connection, table: sa.Table) -> list[dict[str, Any]]:
    """All rows of a table."""
    key = next(iter(table.primary_key.columns))
    return [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(key))]


TABLES = (tables.entries, tables.records, tables.models, tables.requests)
