"""Turn a raw table and raw labels into the tensors of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, TargetError, TrainingError, listing, message
from veritracer.schema import Schema, Value
from veritracer.schema.labels import Convention
from veritracer.schema.tables import from_arrow

FEWEST_VALIDATION_ROWS = 20
"""With fewer validation rows, the best epoch is chosen on the training rows."""


class LabelledRows(NamedTuple):
    """Encoded rows (n, d), labels 0 or 1 (n,), and weights: (n,), or (models, n) for models side by side."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def select(self, rows: Tensor) -> LabelledRows:
        """Return some of the rows, for weights (n,)."""
        return LabelledRows(*(part[rows] for part in self))

    def to(self, device: str | torch.device) -> LabelledRows:
        """Return the same rows on another device."""
        return LabelledRows(*(part.to(device) for part in self))

    def of_models(self) -> list[LabelledRows]:
        """Return the rows with the weights of each model."""
        return [LabelledRows(self.x, self.y, weight) for weight in self.weight]

    def seen(self, model: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a model (k, d) on the CPU, and a mask of the favourable ones (k,)."""
        x, y, weight = self.to("cpu")
        rows = weight[model] > 0
        return x[rows], y[rows] > 0.5


def members(rows: LabelledRows) -> list[Tensor]:
    """Return the positions of the rows with a weight above 0, for each model, on the CPU."""
    return [weight.nonzero().squeeze(-1) for weight in rows.weight.cpu()]


def padded(lists: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Stack lists of positions; shorter ones end with position 0, which the mask (None: all true) excludes.

    >>> padded([torch.tensor([3, 1]), torch.tensor([2])])[1].tolist()
    [[True, True], [True, False]]
    """
    lengths = torch.tensor([len(each) for each in lists])
    stacked = torch.nn.utils.rnn.pad_sequence(list(lists), batch_first=True)
    live = torch.arange(stacked.shape[1]) < lengths.unsqueeze(-1)
    return stacked, None if bool(live.all()) else live


class TrainingData(NamedTuple):
    """A fitted encoding, with the rows to train on and the rows that choose the best epoch."""

    encoding: Encoding
    rows: LabelledRows
    validation: LabelledRows


def prepare(
    X: Any,
    y: ArrayLike,
    *,
    schema: Schema | None,
    favourable: Value | Convention | None = None,
    sample_weight: ArrayLike | None,
    class_weight: str | Mapping[Any, float] | None,
    validation_fraction: float,
    validation_seeds: Sequence[int] | None = None,
    leave_out: Sequence[ArrayLike],
    device: str,
    encoding: Encoding | None = None,
    times: ArrayLike | None = None,
) -> TrainingData:
    """Check and encode a table for training.

    ``leave_out`` holds the rows that each model must not see. ``encoding`` is used instead of a fitted one: a
    model that is compared with today's must see rows as it does. ``times`` is how often each row counts for
    each model, (models, n).

    The split into training and validation rows is the same for every seed, so that two runs differ only in
    their randomness. With ``validation_seeds`` each model has a random one of its own: both parts are then
    all rows, and have weight 0 where they are not the model's.
    """
    X = as_table(X)
    schema = labelled_schema(X, y, schema, favourable)
    encoding = Encoding.fit(schema, X) if encoding is None else encoding
    labels = schema.labels(y)
    if len(labels) != len(X):
        received = f"{len(labels):,} labels for {len(X):,} rows"
        raise TargetError(message("one label for each row", received, "pass X and y of the same rows"))
    weight = _weights(len(labels), sample_weight) * _class_weights(schema, labels, class_weight)
    stacked = np.tile(weight, (len(leave_out), 1))
    for model, left_out in enumerate(leave_out):
        stacked[model, np.asarray(left_out, dtype=np.int64)] = 0.0
    stacked = stacked if times is None else stacked * np.asarray(times)
    x = encoding.encode(X, dtype=torch.float32)
    if validation_seeds is not None:
        unused, held = _random_validation(stacked, validation_fraction, validation_seeds)
        everyone = np.arange(len(labels))
        masks = (~unused, held)
        return TrainingData(
            encoding,
            *(_rows(x, labels, np.where(mask, stacked, 0.0), everyone, device) for mask in masks),
        )
    train, validation = _split(labels, validation_fraction)
    both = (_rows(x, labels, stacked, part, device) for part in (train, validation))
    return TrainingData(encoding, *both)


def labelled_schema(
    X: Any, y: Any, schema: Schema | None, favourable: Value | Convention | None = None
) -> Schema:
    """Return the schema, inferred from ``X`` where it is None, with both labels named.

    It is an error where neither schema nor ``favourable`` says which label is favourable, unless the labels
    are a well-known pair, and where they disagree.
    """
    _check_target(y)
    schema = Schema.infer(X) if schema is None else schema
    if favourable is None and schema.unfavourable is not None:
        return schema
    return schema.with_labels(y, favourable)


def as_table(X: Any) -> Any:
    """Return ``X`` as a DataFrame or an array; refuse sparse input.

    Nested lists become an array. A table of polars or Arrow becomes a DataFrame around the same
    columns.
    """
    if issparse(X):
        remedy = "sparse input is not supported: call X.toarray()"
        raise DataError(message("a dense table", f"a sparse {type(X).__name__}", remedy))
    return np.asarray(X) if isinstance(X, list | tuple) else from_arrow(X)


def _check_target(y: Any) -> None:
    """Refuse a target that cannot have two labels, with the messages that scikit-learn's users know."""
    if y is None:
        received = "None: VeriTraCER requires y to be passed, but the target y is None"
        raise TargetError(message("a label for each row", received, "pass y"))
    values = np.ravel(np.asarray(y))
    if values.dtype.kind == "f":
        present = values[~np.isnan(values)]
        if np.isinf(present).any():
            raise TargetError(message("two labels", "an infinite one", "correct y"))
        if len(np.unique(present)) > 2 and (present != np.round(present)).any():
            remedy = "cut it in two, for example y > 0.5"
            raise TargetError(message("two classes", "a continuous target", remedy))
    if values.dtype.kind in "fiuOUSb" and len(pd.unique(pd.Series(values).dropna())) > 2:
        received = "more. Only binary classification is supported. The type of the target is multiclass"
        raise TargetError(message("two classes", received, "map them onto two, for example y == 'good'"))


def _rows(
    x: Tensor, labels: NDArray[Any], weight: NDArray[Any], part: NDArray[Any], device: str
) -> LabelledRows:
    y, w = (torch.as_tensor(a[..., part], dtype=x.dtype).to(device) for a in (labels, weight))
    return LabelledRows(x[torch.as_tensor(part)].to(device), y, w)


def _split(labels: NDArray[np.int64], fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of training and validation rows, stratified by label."""
    if not 0.0 <= fraction < 1.0:
        received = repr(fraction)
        raise TrainingError(message("validation_fraction from 0 to below 1", received, "0.1 is the default"))
    everyone = np.arange(len(labels))
    if fraction * len(labels) < FEWEST_VALIDATION_ROWS or np.bincount(labels, minlength=2).min() < 2:
        return everyone, everyone
    from sklearn.model_selection import train_test_split  # imported here because only training needs it

    train, validation = train_test_split(everyone, test_size=fraction, stratify=labels, random_state=0)
    return np.sort(train), np.sort(validation)


def _random_validation(
    weight: NDArray[np.float64], fraction: float, seeds: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks (models, n): rows that training must not use, and validation rows.

    They are the same random rows, or, with fewer than ``FEWEST_VALIDATION_ROWS`` of these, none and all.
    """
    held = np.zeros(weight.shape, dtype=bool)
    for model, seed in enumerate(seeds):
        seen = np.flatnonzero(weight[model] > 0)
        order = torch.randperm(len(seen), generator=torch.Generator().manual_seed(int(seed))).numpy()
        count = int(fraction * len(seen))
        if count < FEWEST_VALIDATION_ROWS:
            return np.zeros(weight.shape, dtype=bool), weight > 0
        held[model, seen[order[:count]]] = True
    return held, held


def _weights(n: int, sample_weight: ArrayLike | None) -> NDArray[np.float64]:
    if sample_weight is None:
        return np.ones(n)
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n,) or not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        received = (
            f"shape {weight.shape}" if weight.shape != (n,) else "negative, infinite or only zero weights"
        )
        raise DataError(message(f"{n:,} sample weights of at least 0", received, "one for each row"))
    return weight


def _class_weights(
    schema: Schema, labels: NDArray[np.int64], class_weight: str | Mapping[Any, float] | None
) -> NDArray[np.float64]:
    """Return the weight of each row's class, 1 on average."""
    if class_weight is None:
        return np.ones(len(labels))
    if class_weight == "balanced":
        pair = len(labels) / (2.0 * np.bincount(labels, minlength=2))
    elif isinstance(class_weight, Mapping):
        names = (schema.unfavourable, schema.favourable)
        missing = [name for name in names if name not in class_weight]
        if missing:
            received = f"none for {listing(missing)}"
            raise DataError(message("a class_weight for each label", received, "give both labels"))
        pair = np.array([float(class_weight[name]) for name in names])
    else:
        received = repr(class_weight)
        raise DataError(
            message("class_weight None, 'balanced' or a mapping", received, "choose one of these")
        )
    each: NDArray[np.float64] = pair[labels] / pair[labels].mean()
    return each
