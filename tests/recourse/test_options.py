"""What can be asked of ``explain`` is said once, and seen wherever it can be asked."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.recourse.options import ExplainOptions, Options
from veritracer.recourse.outcomes import Outcome


def test_the_options_are_the_same_by_name_and_as_a_value() -> None:
    names = [option.name for option in dataclasses.fields(Options)]
    assert list(ExplainOptions.__annotations__) == names


@pytest.mark.parametrize("explain", [vt.Recourse.explain, vt.VeriTraCER.explain])
def test_an_editor_sees_every_option_and_its_default(explain: object) -> None:
    shown = inspect.signature(explain).parameters
    assert list(shown)[:2] == ["self", "X"]
    assert {name: shown[name].default for name in ("kappa", "n", "only_unfavourable", "cost")} == {
        "kappa": None,
        "n": 1,
        "only_unfavourable": True,
        "cost": None,
    }
    assert {p.kind for p in list(shown.values())[2:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert list(shown)[2:] == list(ExplainOptions.__annotations__)


def test_an_unknown_option_is_refused_by_name() -> None:
    X, y = applicants(120, seed=1)
    model = vt.VeriTraCER(SCHEMA, method="standard", epochs=40, panel=None).fit(X, y)
    with pytest.raises(TypeError, match="did you mean 'max_changes'"):
        model.explain(X, max_change=2)
    found = model.explain(X, cost=None, limits=None, drift=None)
    accepted = found.outcome == Outcome.FAVOURABLE
    assert (accepted == found.favourable).all()
    assert set(found.reason[accepted]) == {"already favourable"}
    assert {type(ended) for ended in found.outcome} == {Outcome}
    assert ((found.outcome == Outcome.CERTIFIED) == found.certified).all()
