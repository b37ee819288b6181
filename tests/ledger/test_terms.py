"""No promise outlasts its proof: it covers what people become by themselves until it ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from edited_results import edited
from veritracer.certificate import certify
from veritracer.errors import LedgerError
from veritracer.options import drift_within

DAY = datetime(2030, 1, 1, tzinfo=UTC)
KAPPA = 0.05


@cache
def ageing() -> vt.Recourse:
    """A model that takes points off for age, which grows by itself, and adds them for savings."""
    schema = vt.Schema(
        [
            vt.Feature("age", "integer", lower=18, upper=78, yearly=(0, 1), action="immutable"),
            vt.Feature("months", "integer", lower=0, upper=240, yearly=(0, 12)),
            vt.Feature("savings", "integer", lower=0, upper=100),
        ],
        "ok",
        "yes",
        "no",
    )
    rows = pd.DataFrame({"age": [18, 78], "months": [0, 240], "savings": [0, 100]})
    layer = nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-3.0, -2.5, 4.0]]))
        layer.bias.fill_(-1.5)
    encoding = vt.Encoding.fit(schema, rows)
    return vt.Recourse(nn.Sequential(layer), encoding=encoding, kappa=KAPPA)


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 60, 60),
            "months": rng.integers(0, 120, 60),
            "savings": rng.integers(0, 40, 60),
        }
    )


def issued(found: vt.Counterfactuals, place: Path, **terms: Any) -> vt.ledger.Issued:
    with vt.Ledger(place) as ledger:
        return ledger.issue(found, ageing().module, ids=range(len(found)), now=DAY, **terms)


def aged(found: vt.Counterfactuals, days: int) -> vt.Certificates:
    """Certify the counterfactuals of people who became older, and did nothing else."""
    schema, later = found.encoding.schema, found.frame.copy()
    for name, (_, most) in drift_within(schema, timedelta(days=days)).items():
        later[name] = (later[name] + int(most)).clip(upper=int(schema[name].upper))
    x_cf = found.encoding.encode(later)
    return certify(ageing().module, found.x, x_cf, found.param_set)


def test_a_promise_holds_on_its_last_day_for_who_only_aged(tmp_path: Path) -> None:
    for term in (30, 365, 1000):
        found = ageing().explain(people(), term=timedelta(days=term))
        made = issued(found, tmp_path / f"{term}.db")
        assert made.expires == made.issued + 86_400 * term
        assert len(made) == int(found.certified.sum()) > 10
        assert aged(found, term).certified[found.certified].all()


def test_values_that_grow_by_themselves_are_not_advised_further() -> None:
    start = people()
    for term, most in ((None, 0), ("365d", 12), ("2y", 24)):
        found = ageing().explain(start.assign(months=0), term=term, extremes=True)
        assert (found.frame["months"] <= most).all()
        assert (found.frame["months"] >= 0).all()
    free = ageing().explain(start.assign(months=60), refine=False)
    assert (free.frame["months"].between(60, 72)).all()


def test_a_row_without_a_proof_for_the_term_names_the_months(tmp_path: Path) -> None:
    found = ageing().explain(people(), term="20y")
    short = np.flatnonzero((found.status == "valid") & (found.months > 0))
    assert len(short) > 0
    i = int(short[0])
    months = int(found.months[i])
    assert f"certified for {months} month" in found.reason[i]
    assert (found.months[found.certified] == 240).all()
    made = issued(found, tmp_path / "whole.db")
    assert made.outgrown == len(short)
    assert f"{len(short)} skipped, not certified until they would end" in str(made)
    days = timedelta(days=365 * months // 12)
    again = ageing().explain(people().iloc[[i]], term=days)
    assert again.certified.all()
    assert len(issued(again, tmp_path / "short.db")) == 1


def test_the_ledger_compares_the_region_with_the_term(tmp_path: Path) -> None:
    found = ageing().explain(people(), term="365d")
    longer = issued(found, tmp_path / "a.db", expires=timedelta(days=800))
    assert len(longer) == 0
    assert longer.outgrown == int(found.certified.sum())
    assert len(issued(found, tmp_path / "a.db", expires=timedelta(days=200))) == int(found.certified.sum())
    claimed = edited(found, options=ageing().explain(people().iloc[:1], term="20y").options)
    with pytest.raises(LedgerError, match="the regions that overshoot and drift"):
        issued(claimed, tmp_path / "b.db", expires=timedelta(days=800))
    shown = ageing().explain(people(), term=None)
    assert len(issued(shown, tmp_path / "c.db", expires=timedelta(days=1))) == 0
    wider = ageing().explain(people(), term=None, drift={"age": (0, 3), "months": (0, 36)})
    assert len(issued(wider, tmp_path / "d.db", expires=timedelta(days=1000))) > 0


def test_uncertified_promises_need_a_proof_until_they_end(tmp_path: Path) -> None:
    found = ageing().explain(people(), kappa=3.0)
    made = issued(found, tmp_path / "p.db", uncertified="promise")
    assert len(made) == int(found.proved.sum())
    assert made.outgrown == int(((found.status != "none") & ~found.proved).sum())


def test_endless_promises_need_a_schema_in_which_nothing_grows(tmp_path: Path) -> None:
    found = ageing().explain(people())
    with pytest.raises(LedgerError, match=r"promises that end, got endless ones.*'age', 'months'"):
        issued(found, tmp_path / "p.db", expires=None)
    still = vt.Schema([f.replace(yearly=None) for f in ageing().encoding.schema.features], "ok", "yes", "no")
    rules = vt.Recourse(ageing().module, still, ageing().encoding, kappa=KAPPA)
    assert len(issued(rules.explain(people()), tmp_path / "p.db", expires=None)) > 0


def test_an_edited_set_of_models_reaches_no_promise(tmp_path: Path) -> None:
    """5000 % of a thousandth is provable; the ledger states what the rule gives around the model."""
    found = ageing().explain(people())
    tiny = found.param_set
    claimed = edited(
        found,
        param_set=type(tiny)(
            tiny.network, tiny.center, tuple(u / 1000 for u in tiny.units), tiny.norm, 50.0, tiny.rule
        ),
        radius=np.where(found.certified, 50.0, found.radius),
    )
    with pytest.raises(LedgerError, match="a proof for every certificate"):
        issued(claimed, tmp_path / "p.db")
    moved = tuple(t + 1.0 for t in tiny.center)
    other = edited(
        found,
        param_set=type(tiny)(
            tiny.network, moved, tuple(u / 1000 for u in tiny.units), tiny.norm, tiny.kappa, tiny.rule
        ),
    )
    made = issued(other, tmp_path / "q.db")
    with vt.Ledger(tmp_path / "q.db") as ledger:
        shown = ledger.shown(int(made.sequence[0]))
        (model,) = ledger.models().values()
    assert model.param_set(KAPPA).named_radii == tiny.named_radii
    assert "5 % of" in shown["sentence"]
