"""Curves of acceptance against distance, and the comparison at equal distance."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from veritracer_bench import curves, plots, unseen_tables
from veritracer_bench.curves import STRENGTHS, compared, points, sentence, sweep
from veritracer_bench.judges import MLPS, UNSEEN
from veritracer_bench.methods import resolve
from veritracer_bench.results import Cell, Key
from veritracer_bench.truth import ERROR

NAMES = ("boosting", "forest", "logistic", "RBF SVM", "neighbours", MLPS)


def judges(*poor: str) -> Cell:
    numbers = {f"accuracy, {name}{end}": 0.8 for name in NAMES for end in ("", UNSEEN)}
    numbers |= {f"accuracy, {name}{UNSEEN}": 0.7 for name in poor}
    return Cell(Key("split-0", "heloc", "judges", 0), {}, numbers, 1.0, {})


def cell(method: str, distance: float, lowest: float, error: float = 0.01, judge: str = "forest") -> Cell:
    said = {f"acceptance, {name}{UNSEEN}": 0.99 for name in NAMES} | {f"acceptance, {judge}{UNSEEN}": lowest}
    said |= {f"acceptance, {name}{UNSEEN}{ERROR}": error for name in NAMES}
    numbers = {"rows": 50.0, "distance": distance, "LOF": 1.1, **said}
    return Cell(Key("split-0", "heloc", method, 0), {}, numbers, 1.0, {})


OURS = [cell("veritracer[plausibility=0.0]", 0.02, 0.6), cell("veritracer", 0.06, 0.9)]


def test_a_point_has_the_lowest_judge_that_qualifies() -> None:
    (point,) = points([judges(), cell("roar[delta_max=0.3]", 0.05, 0.7)], "heloc")
    assert (point.base, point.judge, point.lowest.mean) == ("roar", "forest", 0.7)
    (point,) = points([judges("forest"), cell("roar[delta_max=0.3]", 0.05, 0.7)], "heloc")
    assert point.lowest.mean == 0.99


def test_our_curve_is_read_at_the_distance_of_the_baseline() -> None:
    others = [cell(f"roar[delta_max={i}]", d, 0.7) for i, d in enumerate((0.01, 0.04, 0.5))]
    found = compared(points([judges(), *OURS, *others], "heloc"))
    assert [each.ours for each in found] == [None, pytest.approx(0.75), pytest.approx(0.9)]


def test_a_baseline_is_above_only_by_more_than_its_interval() -> None:
    inside = [judges(), *OURS, cell("roar[delta_max=0.3]", 0.04, 0.76)]
    assert sentence(points(inside, "heloc")).startswith(
        "At equal distance no baseline's lowest judge is above"
    )
    above = [judges(), *OURS, cell("roar[delta_max=0.3]", 0.04, 0.80)]
    assert sentence(points(above, "heloc")).startswith("Above ours at equal distance: roar[delta_max=0.3]")
    nearer = [judges(), *OURS, cell("roar[delta_max=0.05]", 0.01, 0.95)]
    assert "1 of 1 points are nearer than all of ours" in sentence(points(nearer, "heloc"))
    assert sentence(points(above[:1] + above[3:], "heloc")) == "Nothing to compare."


def test_every_strength_is_a_method_that_resolves() -> None:
    names = sweep(list(STRENGTHS))
    assert len({resolve(name).name for name in names}) == len(names) > 20


def test_the_page_has_the_comparison() -> None:
    text = unseen_tables.page([judges(), *OURS, cell("roar[delta_max=0.3]", 0.04, 0.7)])
    assert "## HELOC: at equal distance" in text
    assert "| roar[delta_max=0.3] | 0.040 | 1.10 | 0.700 ± 0.020 | forest | 0.750 |" in text


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_picture_needs_two_methods(tmp_path: Path) -> None:
    cells = [judges(), *OURS, cell("roar[delta_max=0.3]", 0.04, 0.7)]
    assert plots.acceptance_curves(cells[:3], tmp_path / "curves.png") is None
    picture = plots.acceptance_curves(cells, tmp_path / "curves.png")
    assert picture is not None
    assert picture.stat().st_size > 1000
    assert curves.OURS in STRENGTHS
