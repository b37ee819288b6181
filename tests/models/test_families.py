"""What a family of models registers, and that nothing else is taken for one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from veritracer import ParamSet
from veritracer.bounds.attack import attack
from veritracer.errors import NotSupportedError
from veritracer.models import Intersection
from veritracer.proving import ProofBatch, decide, prove

ROWS = torch.zeros(1, 2, dtype=torch.float64)
SIGN = torch.ones(1, dtype=torch.float64)

Call = Callable[[Any], Any]


def proved(models: Any) -> Tensor:
    return prove(models, ProofBatch(ROWS, ROWS, SIGN)).worst_logit


def attacked(models: Any) -> Tensor:
    return attack(models, ROWS, ROWS, SIGN, steps=1).worst_logit


@pytest.mark.parametrize("call", [proved, attacked])
@pytest.mark.parametrize("kind", ["intersection", "model", "nothing"])
def test_a_set_of_an_unknown_type_is_refused(call: Call, kind: str) -> None:
    model = torch.nn.Linear(2, 1)
    unknown = {"intersection": Intersection.of([ParamSet.around(model)]), "model": model, "nothing": None}[
        kind
    ]
    with pytest.raises(NotSupportedError, match=f"a registered family, got {type(unknown).__name__}"):
        call(unknown)


@pytest.mark.parametrize("unknown", [None, "model", object()])
def test_a_model_of_an_unknown_type_is_refused(unknown: object) -> None:
    with pytest.raises(NotSupportedError, match=f"a registered family, got {type(unknown).__name__}"):
        decide(unknown, ROWS)


def test_networks_are_registered() -> None:
    model = torch.nn.Linear(2, 1).double()
    assert decide(model, ROWS).sign.item() == (1.0 if model.bias.item() > 0 else -1.0)
    models = ParamSet.around(model)
    assert attacked(models).item() <= proved(models).item()
