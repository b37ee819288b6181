"""The three shifts: what changes, what stays, and that nothing given is touched."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import veritracer as vt
from training_cases import parameters, people
from veritracer import metrics
from veritracer_bench import shifts

QUICK = vt.VeriTraCER(favourable="yes", method="standard", epochs=4, hidden=(8, 6), batch_size=64)


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, np.ndarray]:
    return people()


def test_random_initialisation_gives_models_that_differ_in_their_seed(data) -> None:
    found = shifts.random_initialisation(QUICK, *data, models=3)
    assert [m.random_state for m in found] == [0, 1, 2]
    assert len({m.encoding_.digest for m in found}) == 1
    first, second, _ = (parameters(m.classifier_) for m in found)
    assert not torch.equal(first, second)
    assert not hasattr(QUICK, "classifier_")


def test_leave_out_keeps_the_seed_and_changes_the_rows(data) -> None:
    found = shifts.leave_out(QUICK, *data, models=3, share=0.1)
    assert [m.random_state for m in found] == [0, 0, 0]
    first, second, _ = (parameters(m.classifier_) for m in found)
    assert not torch.equal(first, second)
    again = shifts.leave_out(QUICK, *data, models=3, share=0.1)
    assert all(
        torch.equal(parameters(a.classifier_), parameters(b.classifier_))
        for a, b in zip(found, again, strict=True)
    )


def test_leaving_out_hardly_moves_a_model_but_another_seed_does(data) -> None:
    seeds = shifts.random_initialisation(QUICK, *data, models=2)
    rows = shifts.leave_out(QUICK, *data, models=2)
    apart = [(parameters(a.classifier_) - parameters(b.classifier_)).norm() for a, b in (seeds, rows)]
    assert apart[1] < 0.5 * apart[0]


def test_distribution_shift_keeps_the_encoding_and_learns_the_new_rows(data) -> None:
    """In the shifted rows nobody with three lines or more is approved: a rule that fine-tuning must find."""
    X, y = data
    stricter = np.where(X["lines"] >= 3, "no", y)
    sizes = {"epochs": 40, "hidden": (8, 6), "batch_size": 64, "learning_rate": 0.02}
    model = vt.VeriTraCER(favourable="yes", method="standard", **sizes)
    found = shifts.distribution_shift(model, (X, y), (X, stricter), trials=2)
    assert [original.random_state for original, _ in found] == [0, 1]
    for original, module in found:
        x, old, new = original.encoding_.encode(X), *(original.schema_.labels(v) for v in (y, stricter))
        assert metrics.accuracy(original.classifier_, x, old) > 0.8
        assert metrics.accuracy(module, x, new) > metrics.accuracy(original.classifier_, x, new) + 0.1


def test_values_beyond_the_original_range_are_clipped_with_a_warning(data) -> None:
    X, y = data
    richer = X.assign(savings=X["savings"] * 2)
    with pytest.warns(vt.errors.DataWarning, match="savings"):
        shifts.distribution_shift(QUICK, (X, y), (richer, y), trials=1, epochs=1)
