"""Models that come as something else than a torch module: a linear model of scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from veritracer.encoding import Encoding
from veritracer.errors import NotSupportedError, TargetError, message

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


def as_module(model: Any, encoding: Encoding, favourable: Any = None) -> nn.Module:
    """The model as a torch module: itself, or the one layer that a fitted ``LogisticRegression`` is."""
    if isinstance(model, nn.Module):
        return model
    from sklearn.linear_model import LogisticRegression  # here: a torch module does without

    if isinstance(model, LogisticRegression) and hasattr(model, "coef_"):
        return _layer(model, _sign(model, encoding, favourable))
    received = type(model).__name__
    remedy = "fit it first" if isinstance(model, LogisticRegression) else "take its linear or torch part"
    raise NotSupportedError(message("a torch MLP or a fitted LogisticRegression", received, remedy))


def _sign(model: LogisticRegression, encoding: Encoding, favourable: Any) -> float:
    """+1 where the model's second class is the favourable one, -1 where it is the first."""
    labels = [np.asarray(label).item() for label in model.classes_]
    if len(labels) != 2:
        raise NotSupportedError(message("a model of two classes", f"{len(labels)}", "map them onto two"))
    wanted = encoding.schema.favourable if favourable is None else favourable
    if favourable is None and set(labels) == {0, 1}:
        # Trained on the raw labels, or on schema.labels(y), where 1 is favourable? Both look the same.
        if wanted in labels and wanted != 1:
            received = f"classes 0 and 1 for a schema in which {wanted!r} is favourable"
            remedy = "pass favourable=1 if it was trained on schema.labels(y), favourable=0 if on raw labels"
            raise TargetError(message("to know which class is favourable", received, remedy))
        wanted = 1
    if wanted not in labels:
        remedy = "train it on schema.labels(y), where 1 is favourable, or pass favourable="
        raise TargetError(message(f"the favourable label {wanted!r} among its classes", f"{labels}", remedy))
    return 1.0 if labels[1] == wanted else -1.0


def _layer(model: LogisticRegression, sign: float) -> nn.Module:
    weight = sign * torch.from_numpy(np.asarray(model.coef_, dtype=np.float64))
    layer = nn.Linear(weight.shape[1], 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(
            sign * torch.from_numpy(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64)))
        )
    return nn.Sequential(layer).eval()
