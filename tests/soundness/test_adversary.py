"""The hostile review sees what is broken: each part is run with a flaw planted in what it reviews."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.adversary import attack, cascade, corners, forgeries, grids, running, victims
from benchmarks.adversary.__main__ import PARTS
from benchmarks.adversary.running import Line, Part, Result, remembered, run_part

import veritracer as vt
from edited_results import edited

honest = vt.certify


def claiming(**claims: Callable[[vt.Certificates], Any]) -> Callable[..., vt.Certificates]:
    """``certify`` that says something else of what it found."""

    def certify(*args: Any, **options: Any) -> vt.Certificates:
        found = honest(*args, **options)
        return replace(found, **{name: claim(found) for name, claim in claims.items()})

    return certify


everything = claiming(
    certified=lambda c: np.ones_like(c.certified),
    worst_logit=lambda c: np.full_like(c.worst_logit, -1e-9),
    radius=lambda c: None if c.radius is None else 4 * c.radius,
)
another_method = claiming(method=lambda c: np.where(c.method == "ibp", "crown-ibp", "ibp"))
unconditionally = claiming(conditional=lambda c: np.zeros_like(c.conditional))
at_twice_the_radius = claiming(radius=lambda c: None if c.radius is None else 2 * c.radius)


@cache
def conditional_seed() -> int:
    """A network of ``cascade`` with a conditional certificate."""
    return next(s for s in range(1_000_009, 1_000_100) if cascade.check_network(s)["conditional"])


@pytest.mark.filterwarnings("ignore::veritracer.errors.VeriTracerWarning")
class TestPlantedFlaws:
    def test_attacks_break_false_certificates_and_no_true_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = attack.attack_network(2, extreme=False)
        assert (found["broken"], found["rows"], found["violations"]) == (0, attack.ROWS, [])
        assert found["models"] > 3_000
        monkeypatch.setattr(vt, "certify", at_twice_the_radius)
        found = attack.attack_network(2, extreme=False)
        assert found["broken"] > 0
        assert all(one["contained"] for one in found["violations"])
        assert {one["at"] for one in found["violations"]} == {"radius"}

    def test_vertices_break_false_certificates_and_no_true_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert [corners.check(seed)["violations"] for seed in range(4)] == [[]] * 4
        monkeypatch.setattr(vt, "certify", everything)
        assert any(corners.check(seed)["violations"] for seed in range(4))

    @pytest.mark.parametrize("flaw", [everything, another_method, unconditionally])
    def test_plain_bounds_contradict_a_false_name(
        self, flaw: Callable[..., vt.Certificates], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seed = conditional_seed()
        found = cascade.check_network(seed)
        assert (found["broken"], found["violations"]) == (0, [])
        monkeypatch.setattr(vt, "certify", flaw)
        assert cascade.check_network(seed)["broken"] > 0

    @pytest.mark.parametrize("column", ["cost", "kappa", "frame"])
    def test_grids_contradict_a_false_answer(self, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
        honest_explain = vt.Recourse.explain
        assert grids.check_problem(3)["violations"] == []

        def explain(self: vt.Recourse, *args: Any, **options: Any) -> vt.Counterfactuals:
            found = honest_explain(self, *args, **options)
            if column == "frame":  # somebody else's answer
                return replace(found, frame=found.frame.iloc[::-1].set_axis(found.frame.index))
            if column == "cost":  # prices that nobody gave
                return edited(found, options=replace(found.options, cost=dict.fromkeys(found.frame, 20.0)))
            return edited(found, kappa=found.kappa * 20 + 0.1)

        monkeypatch.setattr(vt.Recourse, "explain", explain)
        assert grids.check_problem(3)["violations"]


def test_forgeries_are_found_and_a_blind_check_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, stranger = (victims.Victim(str(tmp_path / f"{name}.db")) for name in ("victim", "stranger"))
    every = forgeries.forgeries(victim, stranger.content)
    assert len(every) > 600
    assert len({one.name for one in every}) > 0.95 * len(every)
    some = [one for kind in ("plain", "relinked") for one in [f for f in every if f.kind == kind][::70]]
    result: Result = {"violations": []}
    for one in some:
        forgeries.attempt(victim, one, "sqlite", result)
    assert result["found_with_head"] == len(some)
    assert result["only_with_head"] > 0
    assert not [v for v in result["violations"] if "not found" in v["what"]]
    blind = vt.Ledger.verify
    monkeypatch.setattr(vt.Ledger, "verify", lambda self, head=None: replace(blind(self), count=0))
    relinked = next(one for one in some if one.kind == "relinked")
    forgeries.attempt(victim, relinked, "sqlite", result)
    assert "not found with the head that was noted" in {v["what"] for v in result["violations"]}
    victim.close()
    stranger.close()


def _lines(results: Sequence[Result]) -> list[Line]:
    return [Line("jobs", running.total(results, "done"), 0, "")]


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    done: list[int] = []

    def job(number: int) -> Result:
        if number == 1 and not done.count(1):
            done.append(1)
            raise RuntimeError("the power failed")
        done.append(number)
        return {"done": 1, "violations": []}

    part = Part("some", 4, 1, job, _lines)
    first = run_part(part, 0.5, 1, "code", tmp_path)
    assert ["crash" in result for result in first] == [False, True]
    assert running.violations(first)[0]["crash"] == "RuntimeError: the power failed"
    state = tmp_path / "some.jsonl"
    state.write_text(state.read_text() + '{"code": "code", "jo')  # stopped in the middle of a line
    assert set(remembered(part, "code", tmp_path)) == {0}
    second = run_part(part, 1.0, 1, "code", tmp_path)
    assert [result["done"] for result in second] == [1, 1, 1, 1]
    assert done == [0, 1, 1, 2, 3]
    assert set(remembered(part, "code", tmp_path)) == {0, 1, 2, 3}
    assert remembered(part, "other code", tmp_path) == {}


def test_a_full_run_is_at_least_what_the_reviewer_did() -> None:
    assert attack.NETWORKS >= 2_900
    assert attack.ROWS >= 48
    assert corners.NETWORKS >= 2_067
    assert all(part.jobs >= part.quick for part in PARTS.values())
