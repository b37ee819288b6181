"""One registry of bounds: what it has is what proves, under its own name; what it has not is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veritracer as vt
from networks import make_case
from veritracer.bounds import (
    BOUNDS,
    UNCONDITIONAL,
    Bound,
    BoundMethod,
    BoundProblem,
    ibp,
    method_named,
    register,
)
from veritracer.errors import NotSupportedError, TrainingError, VeriTracerError
from veritracer.proving import CASCADE, ProofBatch, prove
from veritracer.training.config import TrainingConfig

ASKED: list[BoundProblem] = []


def loose(asked: BoundProblem) -> Bound:
    """IBP and one more: sound, and unlike any other bound."""
    ASKED.append(asked)
    return Bound(asked.interval + 1.0, torch.zeros_like(asked.interval))


@pytest.fixture
def added() -> Iterator[BoundMethod]:
    entry = register(BoundMethod("loose", 200, conditional=False, function=loose))
    ASKED.clear()
    yield entry
    del BOUNDS["loose"]


def linear() -> tuple[nn.Module, Tensor, Tensor, vt.ParamSet]:
    module = nn.Linear(2, 1).double()
    module.weight.data.copy_(torch.tensor([[4.0, 0.0]]))
    module.bias.data.fill_(0.0)
    x, x_cf = torch.tensor([[-1.0, 0.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    return module, x, x_cf, vt.ParamSet.around(module, radius=0.25)


def test_a_bound_that_is_added_can_be_trained_with(added: BoundMethod) -> None:
    assert TrainingConfig(bound="loose").checked().bound == added.name  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=r"expected bound 'ibp' or .* or 'loose'"):
        TrainingConfig(bound="lose").checked()  # type: ignore[arg-type]


def test_a_bound_that_is_added_proves_under_its_own_name(added: BoundMethod) -> None:
    module, x, x_cf, param_set = linear()
    found = vt.certify(module, x, x_cf, param_set, methods=["loose"], radius=False)
    plain = vt.certify(module, x, x_cf, param_set, methods=["ibp"], radius=False)
    assert ASKED
    assert found.method.tolist() == ["loose"]
    assert found.certified.all()
    np.testing.assert_allclose(found.worst_logit, plain.worst_logit + 1.0, atol=1e-9)


def test_a_bound_that_is_added_takes_its_turn_in_a_cascade(added: BoundMethod) -> None:
    module, x, x_cf, _ = linear()
    wide = vt.ParamSet.around(module, radius=1.75)
    certs = vt.certify(module, x, x_cf, wide, methods=["loose", "ibp"], radius=False)
    assert certs.method.tolist() == ["ibp"]  # the tighter one counts, whoever comes first
    # Unproved rows only: the first one to prove a row is the last to see it.
    case = make_case(seed=3)
    batch = ProofBatch(case.x, case.x_cf, case.sign)
    proofs = prove(case.param_set, batch, ["ibp", "loose"])
    assert set(proofs.method.tolist()) <= {BOUNDS["ibp"].code, added.code}


def test_a_bound_is_called_with_plain_arguments_too(added: BoundMethod) -> None:
    case = make_case(seed=1)
    asked = case.param_set, case.x, case.x_cf, case.sign
    torch.testing.assert_close(added(*asked).worst_logit, ibp(*asked).worst_logit + 1.0)


@pytest.mark.parametrize("names", [["alpha-crown"], ["ibp", "simul-crwon"], ["loose"], []])
def test_a_name_that_is_not_registered_is_refused(names: list[str]) -> None:
    module, x, x_cf, param_set = linear()
    with pytest.raises(NotSupportedError, match=r"ibp.*got.*—"):
        vt.certify(module, x, x_cf, param_set, methods=names)
    case = make_case(seed=3)
    with pytest.raises(NotSupportedError):
        prove(case.param_set, ProofBatch(case.x, case.x_cf, case.sign), names)


def test_a_misspelt_name_is_recognised() -> None:
    with pytest.raises(NotSupportedError, match="did you mean 'simul-crown'"):
        method_named("simul-crwon")


def test_codes_are_those_that_ledgers_have_stored_since_the_first_release() -> None:
    stored = {"ibp": 1, "crown-ibp": 2, "simul-crown": 3}
    assert {name: BOUNDS[name].code for name in stored} == stored
    assert tuple(BOUNDS) == CASCADE


def test_what_is_unconditional_is_read_from_the_registry() -> None:
    assert [name for name in BOUNDS if not BOUNDS[name].conditional] == list(UNCONDITIONAL)
    assert {"ibp", "crown-ibp"} <= set(UNCONDITIONAL)
    assert "simul-crown" not in UNCONDITIONAL


@pytest.mark.parametrize(
    ("name", "code"), [("ibp", 9), ("exact", 9), ("another", 1), ("another", 0), ("another", 256)]
)
def test_a_name_or_a_code_is_given_once(name: str, code: int) -> None:
    before = dict(BOUNDS)
    with pytest.raises(VeriTracerError):
        register(BoundMethod(name, code, conditional=False, function=loose))
    assert before == BOUNDS


def test_a_bound_that_is_registered_as_unconditional_may_not_use_the_condition() -> None:
    def cheats(asked: BoundProblem) -> Bound:
        return Bound(asked.interval, torch.ones_like(asked.interval))

    module, x, x_cf, param_set = linear()
    register(BoundMethod("cheats", 201, conditional=False, function=cheats))
    try:
        with pytest.raises(NotSupportedError, match="conditional"):
            vt.certify(module, x, x_cf, param_set, methods=["cheats"])
    finally:
        del BOUNDS["cheats"]
