"""DiCE's table: what it is told of our rows, and what we make of its answers.

The package itself is an extra, and the contract of all methods is tried with it where it is installed. Here a
stand-in answers, so that each of its answers is known.
"""

from __future__ import annotations

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer_bench.baselines import Dice, DiceOptions

ROWS = 60


class NotFoundError(Exception):
    """What the package raises where it finds nothing."""


class Engine:
    """Proposes the training row that the model is surest of, as far as features may vary."""

    def __init__(self, data: Any, model: Any, method: str) -> None:
        self.table, self.model, self.method, self.asked = data["dataframe"], model["model"], method, []
        self.data = data

    def generate_counterfactuals(self, table: pd.DataFrame, **options: Any) -> Any:
        self.asked.append((table, options, random.random(), np.random.rand()))  # noqa: NPY002
        print("a bar", file=sys.stderr)
        if len(self.asked) == 2:
            raise NotFoundError
        found = table.copy()
        best = int(self.model.predict_proba(self.table)[:, 1].argmax())
        for name in options["features_to_vary"]:
            found[name] = self.table[name].iloc[best]
        return SimpleNamespace(
            cf_examples_list=[SimpleNamespace(final_cfs_df=None if len(self.asked) == 3 else found)]
        )


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> Dice:
    """The adapter of a network that likes savings, in front of the stand-in."""
    package, errors = ModuleType("dice_ml"), ModuleType("raiutils.exceptions")
    package.__dict__.update(Data=dict, Model=dict, Dice=Engine)
    errors.__dict__["UserConfigValidationException"] = NotFoundError
    monkeypatch.setitem(sys.modules, "dice_ml", package)
    monkeypatch.setitem(sys.modules, "raiutils", ModuleType("raiutils"))
    monkeypatch.setitem(sys.modules, "raiutils.exceptions", errors)
    frame, y = applicants(ROWS)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    layer = nn.Linear(encoding.dim, 1).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, encoding.columns.index("savings")] = 10.0
        layer.bias.fill_(-5.0)
    labels = torch.as_tensor(SCHEMA.labels(y)).double()
    return Dice(nn.Sequential(layer), encoding, encoding.encode(frame), labels, DiceOptions(), random_state=5)


def declined(dice: Dice) -> Tensor:
    return dice.x_train[dice.logit(dice.x_train) <= 0]


def test_rows_come_back_as_they_went(dice: Dice) -> None:
    """A column for each number and each category, and one for each mark of a missing cell beside a number."""
    table = dice.engine.table
    assert len(table) == ROWS
    numbers = [name for name in table if name.startswith("number")]
    assert dice.engine.data["continuous_features"] == numbers
    assert len([name for name in table if name.startswith("category")]) == 2  # job and region
    assert torch.equal(dice._encoded(table), dice.x_train)
    favourable = (dice.logit(dice.x_train) > 0).numpy()
    assert np.array_equal(dice.predict(table), favourable.astype(int))
    assert np.allclose(dice.predict_proba(table).sum(-1), 1)


def test_what_can_not_change_is_not_varied(dice: Dice) -> None:
    x_cf = dice.explain(declined(dice)[:1])
    ((_, options, *_),) = dice.engine.asked
    immutable = {b.start for b in dice.encoding.blocks if b.feature.action == "immutable"}
    varied = {
        int(name.removeprefix("number").removeprefix("category")) for name in options["features_to_vary"]
    }
    assert varied == {b.start for b in dice.encoding.blocks} - immutable
    assert options["random_seed"] == 5
    assert bool(dice.reached(x_cf, torch.ones(1)).all())


def test_without_an_answer_rows_stay(dice: Dice) -> None:
    """The second is refused by the package, the third answered with no table."""
    x = declined(dice)[:4]
    x_cf = dice.explain(x)
    moved = (x_cf != x).any(-1)
    assert moved.tolist() == [True, False, False, True]


def test_global_streams_are_given_back(dice: Dice, capsys: pytest.CaptureFixture[str]) -> None:
    """The package draws from them, the same for every row; nobody else notices, nor reads its bars."""
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = random.Random(1).random(), np.random.RandomState(1).rand()
    dice.explain(declined(dice)[:2])
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002
    (_, _, *first), (_, _, *second) = dice.engine.asked
    assert first == second
    assert capsys.readouterr().err == ""
