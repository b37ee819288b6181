"""Today's rows and tomorrow's: what the model is trained on, and what it is retrained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from veritracer import datasets
from veritracer.datasets import Dataset, Split
from veritracer.errors import DatasetError, message

SHIFTED = ("ctg", "who")


@dataclass(frozen=True)
class Years:
    """Two samples of one table.

    Attributes
    ----------
    data
        The dataset of today.
    today, tomorrow
        Rows to learn from and rows to test on, before and after.
    passing
        What happened in between, as the end of a sentence.
    """

    data: Dataset
    today: Split
    tomorrow: Split
    passing: str


def years(
    dataset: str = "loans", *, drift: float = 1.0, seed: int = 0, data_dir: Path | None = None
) -> Years:
    """Today and tomorrow of a dataset.

    ``loans`` moves on by a year, ``ctg`` and ``who`` have the paper's shift; the others get a bootstrap
    sample of their own training rows.
    """
    if dataset == "loans":
        data = datasets.loans(random_state=seed)
        later = datasets.loans(year=2, drift=drift, random_state=seed)
        passing = f"a year passes: economy, applicants and policy drift (drift {drift:g})"
        return Years(data, data.split(), later.split(), passing)
    if drift != 1.0:
        remedy = "leave --drift out: the other datasets are as they are"
        raise DatasetError(message("a drift for loans only", f"one for {dataset!r}", remedy))
    whole = datasets.load(dataset, data_dir=data_dir)
    if dataset in SHIFTED:
        data = whole.original
        later = whole.shifted
        passing = f"the data shifts as in the paper: {len(data.X):,} rows become {len(later.X):,}"
        return Years(data, data.split(random_state=seed), later.split(random_state=seed), passing)
    split = whole.split(random_state=seed)
    passing = "the model is retrained on a bootstrap sample of the training rows"
    return Years(whole, split, _bootstrap(split, seed), passing)


def _bootstrap(split: Split, seed: int) -> Split:
    """The same test rows, and as many training rows, drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(split.X_train), len(split.X_train))
    X: pd.DataFrame = split.X_train.iloc[drawn].reset_index(drop=True)
    y: pd.Series[Any] = split.y_train.iloc[drawn].reset_index(drop=True)
    return split._replace(X_train=X, y_train=y)
