"""Models that come as something else than a torch module: a linear model of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from veritracer.encoding import Encoding
from veritracer.errors import NotSupportedError, TargetError, message


def as_module(model: Any, encoding: Encoding) -> nn.Module:
    """The model as a torch module: itself, or the one layer that a fitted ``LogisticRegression`` is."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, LogisticRegression) and hasattr(model, "coef_"):
        return _layer(model, encoding)
    received = type(model).__name__
    remedy = "fit it first" if isinstance(model, LogisticRegression) else "take its linear or torch part"
    raise NotSupportedError(message("a torch MLP or a fitted LogisticRegression", received, remedy))


def _layer(model: LogisticRegression, encoding: Encoding) -> nn.Module:
    labels = [np.asarray(label).item() for label in model.classes_]
    if len(labels) != 2:
        raise NotSupportedError(message("a model of two classes", f"{len(labels)}", "map them onto two"))
    favourable = encoding.schema.favourable
    if favourable in labels:
        sign = 1.0 if labels[1] == favourable else -1.0
    elif set(labels) == {0, 1}:
        sign = 1.0
    else:
        remedy = "train it on schema.labels(y), where 1 is favourable"
        raise TargetError(
            message(f"the favourable label {favourable!r} among its classes", f"{labels}", remedy)
        )
    weight = sign * torch.from_numpy(np.asarray(model.coef_, dtype=np.float64))
    layer = nn.Linear(weight.shape[1], 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(
            sign * torch.from_numpy(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64)))
        )
    return nn.Sequential(layer).eval()
