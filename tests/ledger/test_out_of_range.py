"""Rows outside the range of the training rows: noted and promised nearby, explained only further away."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from veritracer.app.notices import render_notice
from veritracer.errors import DataError, DataWarning

CODES = {name: ("R1", f"Your {name}.") for name in ("debts", "savings")}


@cache
def recourse() -> vt.Recourse:
    """A linear model that has seen debts and savings from 0 to 100; no savings below 0 are legal."""
    schema = vt.Schema(
        [vt.Feature("debts", "integer"), vt.Feature("savings", "integer", lower=0, upper=500)],
        "ok",
        "yes",
        "no",
    )
    rows = pd.DataFrame({"debts": [0, 100, 50, 20], "savings": [0, 500, 50, 70]})
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-3.0, 6.0]]))
        layer.bias.fill_(-1.0)
    encoding = vt.Encoding.fit(schema, rows)
    labels = ["no", "yes", "yes", "no"]
    return vt.Recourse(nn.Sequential(layer), encoding=encoding, rows=rows, labels=labels, kappa=0.05)


PEOPLE = pd.DataFrame({"debts": [40, 150, 230], "savings": [10, 10, 10]})


def test_numbers_that_the_schema_forbids_are_refused_by_name() -> None:
    wrong = PEOPLE.assign(savings=[10, 501, 10])
    for call in (recourse().explain, lambda rows: recourse().certify(rows, PEOPLE)):
        with pytest.raises(
            DataError, match="numbers from 0 to 500 in the column 'savings', got 501 in row 1"
        ):
            call(wrong)
    assert list(recourse().encoding.refused(wrong)) == [1]


def test_nearby_rows_are_promised_with_a_note_and_far_ones_explained_only(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="2 in 'debts'"):
        found = recourse().explain(PEOPLE, extremes=True)
    assert found.certified.all()
    assert found.far_outside.tolist() == [False, False, True]
    note = "Our model knows debts from 0 to 100: 150 counts as 100."
    assert note in found.sentence(1)
    assert "Our model knows" not in found.sentence(0)
    with vt.Ledger(tmp_path / "p.db") as ledger:
        issued = ledger.issue(found, recourse().module, ids=["a", "b", "c"])
        assert issued.ids == ["a", "b"]
        assert issued.out_of_range == 1
        assert "1 skipped, far outside the training rows" in str(issued)
        assert note in ledger.shown(int(issued.sequence[1]))["sentence"]
        notice = " ".join(render_notice(ledger, int(issued.sequence[1]), CODES).split())
        assert note in notice
        assert ledger.verify().ok


def test_an_expiry_is_one_instant_in_notice_and_ledger(tmp_path: Path) -> None:
    found = recourse().explain(PEOPLE.head(1), extremes=True)
    with vt.Ledger(tmp_path / "p.db") as ledger:
        number = int(ledger.issue(found, recourse().module, ids=["a"]).sequence[0])
        expires = ledger.shown(number)["expires"]
        notice = " ".join(render_notice(ledger, number, CODES).split())
    assert f"ends on {expires[:19].replace('T', ' ')} (UTC)" in notice
