"""Random worlds to speak about: a schema, people, a network that nobody trained, and a question to it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from said import Column, Row, Theta, is_empty
from torch import nn

import veritracer as vt
from veritracer.errors import VeriTracerWarning
from veritracer.schema import Feature, Schema

NAMES = ("income", "savings", "age", "job", "grade", "home", "debt")
WORDS = ("red", "blue", "green", "white")
PEOPLE = 14


@dataclass(frozen=True)
class World:
    """Everything that is spoken about; ``theta`` are the weights of ``module`` in numpy."""

    columns: dict[str, Column]
    encoding: vt.Encoding
    module: nn.Sequential
    theta: Theta
    training: pd.DataFrame
    people: pd.DataFrame
    recourse: vt.Recourse
    options: dict[str, Any]
    known: dict[str, np.ndarray] = field(default_factory=dict)

    def encode(self, rows: Sequence[Row]) -> np.ndarray:
        """Applications as the model reads them; many come up again and again."""
        keys = [repr([row[name] for name in self.columns]) for row in rows]
        fresh = {key: row for key, row in zip(keys, rows, strict=True) if key not in self.known}
        if fresh:
            self.known.update(zip(fresh, encoded(self.encoding, list(fresh.values())), strict=True))
        return np.array([self.known[key] for key in keys])

    def own(self, person: int) -> Row:
        """What somebody has."""
        return plain_row(self.people, person)


def encoded(encoding: vt.Encoding, rows: Sequence[Row]) -> np.ndarray:
    """Rows of raw values as a model's inputs, as any application would be read."""
    names = list(encoding.schema.names)
    table = pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})
    return encoding.encode(table, out_of_range="ignore").numpy()


def plain_row(frame: pd.DataFrame, i: int) -> Row:
    """A row of a table with Python's own values; None where a cell is empty."""
    cells = {name: frame[name].iloc[i] for name in frame.columns}
    own = {name: cell.item() if isinstance(cell, np.generic) else cell for name, cell in cells.items()}
    return {name: None if is_empty(cell) or cell is pd.NA else cell for name, cell in own.items()}


def world(seed: int) -> World:
    """The world of that number."""
    rng = np.random.default_rng(seed)
    features = [_feature(rng, name) for name in rng.permutation(NAMES)[: rng.integers(4, 8)]]
    schema = Schema(features, "y", "yes", "no")
    training = pd.DataFrame({f.name: _cells(rng, f, 60, beyond=False) for f in features})
    encoding = vt.Encoding.fit(schema, training)
    people = pd.DataFrame({f.name: _cells(rng, f, PEOPLE, beyond=True) for f in features})
    module = _network(rng, encoding, training)
    options = _options(rng, features)
    set_ = {"norm": str(rng.choice(["linf", "linf", "l2", "l1"])), "kappa": options["kappa"]}
    rules: list[Any] = ["mean-abs", "norm", 0.01, "mean-abs"]
    rule = rules[rng.integers(len(rules))]
    if rule == "norm" or set_["norm"] != "linf":  # such sets are larger
        options["kappa"] *= 0.2
    if isinstance(rule, float):
        options["kappa"] = 1.0
    recourse = vt.Recourse(
        module, schema, encoding, rows=training, norm=set_["norm"], radius=rule, kappa=options["kappa"]
    )
    theta = [p.detach().numpy() for p in module.parameters()]
    columns = {f.name: _column(f, encoding) for f in features}
    return World(columns, encoding, module, theta, training, people, recourse, options)


def answers(place: World) -> vt.Counterfactuals:
    """What its people are told."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # some people are out of range
        return place.recourse.explain(place.people, **place.options)


def later(place: World, by: float, rng: np.random.Generator) -> nn.Sequential:
    """A model whose weights moved by so much of their average size."""
    return _module([t + by * np.abs(t).mean() * rng.choice([-1.0, 1.0], t.shape) for t in place.theta])


def elsewhere(place: World, rng: np.random.Generator) -> tuple[nn.Sequential, vt.Encoding]:
    """A model of the same table with other ranges, and its encoding."""
    table = pd.concat([place.training, place.people], ignore_index=True)
    features = [
        f.replace(lower=None, upper=None) if f.is_numeric else f for f in place.encoding.schema.features
    ]
    features = [f.replace(lower=0.0) if f.grid_step and f.is_numeric else f for f in features]
    encoding = vt.Encoding.fit(Schema(features, "y", "yes", "no"), table)
    return _network(rng, encoding, table), encoding


def _feature(rng: np.random.Generator, name: str) -> Feature:
    kind = str(rng.choice(["integer", "continuous", "continuous", "ordinal", "binary", "categorical"]))
    one_way = ["free"] * 6 + ["immutable", "increase_only", "decrease_only"]
    action = str(rng.choice(one_way if kind != "categorical" else ["free", "free", "immutable"]))
    more: dict[str, Any] = {"action": action}
    if rng.random() < 0.3:
        more |= {"missing": str(rng.choice(["impute", "category"]))}
    if kind == "integer":
        step = int(rng.choice([1, 5, 100]))
        more |= {"lower": 0.0, "upper": float(step * rng.integers(10, 60)), "step": float(step)}
    elif kind == "continuous":
        size = 10.0 ** rng.integers(-3, 5)
        more |= {"lower": 0.0, "upper": float(size * rng.integers(2, 9))}
        more |= {} if rng.random() < 0.7 else {"display_step": "exact"}
    else:
        count = 2 if kind == "binary" else int(rng.integers(2, 5))
        more["categories"] = list(WORDS[:count])
    if kind in ("integer", "continuous") and "missing" in more and rng.random() < 0.5:
        more["missing_codes"] = [-1 if kind == "integer" else -more["upper"] / 8]
    return Feature(name, kind, **more)


def _column(feature: Feature, encoding: vt.Encoding) -> Column:
    return Column(
        feature.name,
        feature.kind,
        feature.lower,
        feature.upper,
        feature.grid_step if feature.is_numeric else None,
        tuple(feature.categories),
        tuple(feature.missing_codes),
    )


def _cells(rng: np.random.Generator, feature: Feature, n: int, *, beyond: bool) -> list[Any]:
    """Cells of a column; ``beyond``: some are out of its range."""
    if feature.is_numeric:
        top = feature.upper * (1.25 if beyond and rng.random() < 0.5 else 1.0)
        values: list[Any] = rng.uniform(0.0, top, n).tolist()
        if feature.grid_step:
            values = [int(feature.grid_step * round(value / feature.grid_step)) for value in values]
            values = [min(value, int(feature.upper)) if not beyond else value for value in values]
        else:
            values = [float(f"{value:.6g}") for value in values]
    else:
        values = rng.choice(feature.categories, n).tolist()
    if feature.missing != "refuse":
        gaps = [None, *feature.missing_codes]
        values = [gaps[rng.integers(len(gaps))] if rng.random() < 0.15 else value for value in values]
        values[0] = next(value for value in values if value not in gaps)
    return values


def _network(rng: np.random.Generator, encoding: vt.Encoding, table: pd.DataFrame) -> nn.Sequential:
    """A network that nobody trained, and that turns half of these rows down."""
    widths = [encoding.dim, *rng.integers(3, 8, rng.integers(1, 3)).tolist(), 1]
    shapes = [s for into, out in pairwise(widths) for s in ((out, into), (out,))]
    theta = [rng.normal(0.0, 1.0, shape) / np.sqrt(shape[-1]) for shape in shapes]
    module = _module(theta)
    with torch.no_grad():
        found = module(encoding.encode(table))[:, 0]
        spread = float(found.std()) or 1.0
        module[-1].weight /= spread
        module[-1].bias.copy_((module[-1].bias - float(found.quantile(0.5))) / spread)
    return module


def _module(theta: Theta) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k in range(0, len(theta), 2):
        layer = nn.Linear(theta[k].shape[1], theta[k].shape[0]).double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(theta[k]))
            layer.bias.copy_(torch.from_numpy(theta[k + 1]))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def _options(rng: np.random.Generator, features: Sequence[Feature]) -> dict[str, Any]:
    """A question: how certain, how far beyond, and what else."""
    options: dict[str, Any] = {
        "kappa": float(rng.choice([0.0, 0.01, 0.03, 0.05, 0.1], p=[0.1, 0.3, 0.3, 0.2, 0.1]))
    }
    options["overshoot"] = float(rng.choice([0.0, 0.02, 0.05, 0.1]))
    drift: dict[str, Any] = {}
    for feature in features:
        if feature.kind == "categorical" or rng.random() < 0.5:
            continue
        if feature.is_numeric:
            size = feature.upper * rng.choice([0.01, 0.05])
            amount = float(f"{size:.2g}") if not feature.grid_step else float(feature.grid_step)
        else:
            amount = 1.0
        drift[feature.name] = [amount, (0.0, amount), (-amount, 0.0), (-amount, 2 * amount)][rng.integers(4)]
    options["drift"] = drift if rng.random() < 0.75 else {}
    options["only_unfavourable"] = bool(rng.random() < 0.8)
    if rng.random() < 0.2:
        options["n"] = 2
    if rng.random() < 0.2:
        options["max_changes"] = 2
    options["search_radius"] = bool(rng.random() < 0.5)
    return options
