"""An update of an estimator with a panel: kept, fitted anew, or left behind."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.errors import TrainingError
from veritracer.training import Panel

ONCE = {"epochs": 1, "compare": False}


@cache
def advised() -> vt.VeriTraCER:
    """A small model with the smallest panel."""
    panel = Panel(networks=1, boosted=1, held_out=1)
    model = vt.VeriTraCER(schema=SCHEMA, method="standard", hidden=(6,), epochs=2, panel=panel)
    return model.fit(*applicants(200))


@pytest.mark.parametrize("choice", ["keep", "refit", None])
def test_the_panel_of_an_updated_model(choice: str | None) -> None:
    before, rows = advised().panel_, applicants(150, seed=4)
    updated = advised().update(*rows, panel=choice, **ONCE)
    assert advised().panel_ is before
    assert (updated.panel_ is before) == (choice == "keep")
    if choice is None:
        assert updated.panel_ is None
        return
    x = updated.encoding_.encode(rows[0])
    agree = bool(torch.allclose(before.vote(x), updated.panel_.vote(x)))
    assert agree == (choice == "keep")  # a panel that was fitted anew has seen other rows


def test_another_choice_is_refused() -> None:
    with pytest.raises(TrainingError, match="expected panel='keep', 'refit' or None, got 'drop'"):
        advised().update(*applicants(50), panel="drop", **ONCE)


def test_an_update_that_follows_a_panel_moves_otherwise() -> None:
    """The rows' labels say the opposite: whoever is held to the panel goes less far."""
    frame, y = applicants(150, seed=4)
    turned = np.where(y == "yes", "no", "yes")
    more = {"epochs": 20, "compare": False, "learning_rate": 1e-2}
    held, free = (advised().update(frame, turned, panel=choice, **more) for choice in ("keep", None))
    before = advised().predict_proba(frame)[:, 0]
    apart = [np.abs(model.predict_proba(frame)[:, 0] - before).mean() for model in (held, free)]
    assert apart[0] < 0.9 * apart[1], apart


def test_what_is_to_be_kept_may_be_named_by_its_place(tmp_path: Path) -> None:
    model, place = advised(), tmp_path / "l.db"
    people = applicants(30, seed=9)[0]
    ids, quick = [f"p{i}" for i in range(30)], {"refine": False, "search_radius": False}
    assert len(model.issue(people, ids=ids, ledger=place, uncertified="skip", **quick)) > 0
    kept = model.update(*applicants(100, seed=4), keep=str(place), panel=None, **ONCE)
    assert kept.update_.ok
