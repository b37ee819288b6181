"""A small lender's table to train on, and a model's parameters as one vector."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from veritracer.encoding import Encoding
from veritracer.models.network import from_module
from veritracer.schema import Schema


def people(n: int = 240, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A small lender's table with every kind of feature, and who was approved."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "savings": rng.normal(5000, 2000, n).round(2),
            "lines": rng.integers(0, 9, n),
            "purpose": rng.choice(["car", "house", "study"], n),
            "grade": rng.choice(["low", "mid", "high"], n),
        }
    )
    score = frame["savings"] / 2000 - frame["lines"] / 3 + (frame["grade"] == "high") + rng.normal(0, 0.3, n)
    return frame, np.where(score > score.median(), "yes", "no")


SCHEMA_OPTIONS = {
    "immutable": ["age"],
    "decrease_only": ["lines"],
    "ordinal": {"grade": ["low", "mid", "high"]},
}


def encoded(n: int = 240) -> tuple[Encoding, Tensor, Tensor]:
    """Their encoding, encoded rows and labels."""
    frame, y = people(n)
    schema = Schema.infer(frame, **SCHEMA_OPTIONS).with_labels(y, favourable="yes")
    encoding = Encoding.fit(schema, frame)
    return encoding, encoding.encode(frame), torch.as_tensor(schema.labels(y)).double()


def parameters(module: nn.Module) -> Tensor:
    """All weights and biases of a module, one after the other."""
    return torch.cat([t.detach().flatten() for t in from_module(module)[1]])
