"""The datasets as the paper's authors use them: their splits, and what is particular to their files.

* Test rows beyond the range of the training rows are not clipped.
* CTG: a random quarter of all rows is the test part; the original data are those without pathological rows.
* WHO: the authors' files are not published. Test rows are those where ``RandomState(0).rand`` is below 0.2,
  the original data are the years before 2012, missing values are the median of the original training rows,
  and the shifted data have a scaler of their own.
* Leave-one-out drops contiguous blocks of the training file, one for each model.

NOTE[paper]: the column of zeros that TC's ``SEX`` has in their encoding is left out here, so that distances
on TC are those of 33 columns instead of 34. Their split of TC cannot be reconstructed; here it is that of
``datasets.load``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer import datasets as catalogue
from veritracer.encoding import Encoding
from veritracer_bench.plan import Later, Subject, subject_of

CTG_TEST, CTG_SEED = 0.25, 1129
WHO_TEST, WHO_SHIFT = 0.2, 2012
LEFT_OUT = 0.01


def paper_subject(name: str, data_dir: str | None = None) -> Subject:
    """Return the dataset with all of its rows, split as by the authors where that is known."""
    if name in SHIFTED:
        subject = SHIFTED[name](data_dir)
        return subject._replace(schema=subject.schema.unconstrained())
    return subject_of(name, 10**9, None, data_dir)


def _ctg(data_dir: str | None) -> Subject:
    from sklearn.model_selection import train_test_split

    data = catalogue.load("ctg", data_dir=data_dir, variant="paper")
    assert data.groups is not None
    parts = train_test_split(np.arange(len(data.X)), test_size=CTG_TEST, random_state=CTG_SEED)
    groups = data.groups.astype(str)
    return _split("ctg", data, parts, data.X.index.isin(data.original.X.index), groups.to_numpy(dtype=str))


def _who(data_dir: str | None) -> Subject:
    data = catalogue.load("who", data_dir=data_dir, variant="paper")
    assert data.groups is not None
    tested = np.random.RandomState(0).rand(len(data.X)) < WHO_TEST
    before = (data.groups < WHO_SHIFT).to_numpy()
    gaps = catalogue.load("who", data_dir=data_dir).X
    filled = replace(data, X=gaps.fillna(gaps[before & ~tested].median()))
    groups = np.where(before, "before 2012", "later")
    return _split("who", filled, (np.flatnonzero(~tested), np.flatnonzero(tested)), before, groups)


SHIFTED: dict[str, Callable[[str | None], Subject]] = {"ctg": _ctg, "who": _who}
"""Datasets with a later part, by name."""


def _split(
    name: str,
    data: catalogue.Dataset,
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    original: NDArray[np.bool_],
    groups: NDArray[np.str_],
) -> Subject:
    """Return the original rows of both parts, with all rows of both as what comes later."""
    train, test = parts
    later = Later(data.X.iloc[train], data.y.iloc[train], data.X.iloc[test], data.y.iloc[test], groups[test])
    train, test = train[original[train]], test[original[test]]
    here = data.X.iloc[train], data.y.iloc[train], data.X.iloc[test], data.y.iloc[test]
    return Subject(name, data.schema, *here, later)


def later_encoding(subject: Subject, encoding: Encoding) -> Encoding:
    """Return the encoding of the shifted data: that of the original data, except for WHO."""
    if subject.name != "who" or subject.later is None:
        return encoding
    return Encoding.fit(encoding.schema, subject.later.X_train)


def unclipped(encoding: Encoding, frame: pd.DataFrame) -> Tensor:
    """Encode rows (n, d) without clipping numbers to the fitted ranges."""
    x = encoding.encode(frame, out_of_range="ignore")
    raw, grids = encoding.numbers(frame), encoding.units.grids
    for position, block in enumerate(encoding.blocks):
        if block.feature.is_numeric and block.group is None:
            unit = grids[position].to_unit(raw[:, position])
            x[:, block.values.start] = torch.where(unit.isnan(), x[:, block.values.start], unit)
    return x


def left_out_block(rows: int, model: int) -> NDArray[np.int64]:
    """Return the positions that a model of the leave-one-out experiment does not see."""
    return np.arange(int(LEFT_OUT * rows * model), int(LEFT_OUT * rows * (model + 1)))
