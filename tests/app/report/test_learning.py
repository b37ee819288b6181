"""What a report says of how training went, from histories that are written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from veritracer.app.report.quality import learning_figures


def model(best: int = 3, **columns: list[float]) -> Any:
    """A model that has nothing but a history."""
    count = len(next(iter(columns.values())))
    history = pd.DataFrame({"epoch": range(1, count + 1), "kappa": [0.01] * count, **columns})
    return SimpleNamespace(history_=history.set_index("epoch", drop=False), best_epoch_=best)


def captions(made: Any) -> list[str]:
    return [figure.caption for figure in learning_figures(made)]


def test_one_epoch_is_no_history() -> None:
    assert captions(model(1, objective=[1.0])) == []


@pytest.mark.parametrize(
    ("losses", "best", "said"),
    [
        ([1.0, 0.8, 0.5], 3, "it was still falling, so more epochs may help."),
        ([1.0, 0.5, 0.5], 3, "training had converged."),
        ([1.0, 0.5, 0.9], 2, "training had not converged."),
    ],
)
def test_how_a_loss_ended(losses: list[float], best: int, said: str) -> None:
    (caption,) = captions(model(best, objective=losses))
    assert caption.endswith(said)
    assert f"was {losses[0]:g}" in caption
