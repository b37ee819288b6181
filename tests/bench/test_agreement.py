"""Agreement of cells with their reference, and the page written from the stored summaries."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest

from veritracer_bench import agreement
from veritracer_bench.agreement import Number, allowed_difference, comparisons
from veritracer_bench.reproduction import ACROSS, Summary, printed_of

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks/results/paper"


def summary(
    method: str = "veritracer",
    dataset: str = "heloc",
    experiment: str = "ri",
    models: int = 10,
    **numbers: float,
) -> Summary:
    """A summary with deviation 0.05 in every number."""
    spread = {column: (mean, 0.05, models) for column, mean in numbers.items()}
    return Summary(experiment, dataset, method, models, spread, printed_of(experiment, dataset, method))


def test_the_width_for_a_rate_has_both_deviations() -> None:
    width = allowed_difference("accuracy", Number(0.7, 0.05, 10), Number(0.7, 0.13, 4))
    assert width == pytest.approx(2 * math.sqrt(0.13**2 / 4 + 0.05**2 / 10) + 0.01)


def test_a_missing_deviation_is_taken_from_ours() -> None:
    width = allowed_difference("DS", Number(0.7, 0.05, 10), Number(0.7, None, 10))
    assert width == pytest.approx(2 * math.sqrt(2 * 0.05**2 / 10) + 0.01)


def test_distances_are_relative_to_the_reference_and_sparsity_is_not() -> None:
    ours, reference = Number(0.1, 0.05, 10), Number(0.2, 0.05, 10)
    assert allowed_difference("proximity", ours, reference) == pytest.approx(0.03)
    assert allowed_difference("DDM", ours, reference) == pytest.approx(0.03)
    assert allowed_difference("sparsity", ours, reference) == 0.05


def test_the_authors_code_comes_before_the_paper() -> None:
    (cell,) = comparisons([summary(proximity=0.09)], [summary(models=4, proximity=0.1)])
    assert (cell.authors, cell.paper) == (Number(0.1, 0.05, 4), Number(0.099, None, 10))
    assert cell.allowed == pytest.approx(0.015)
    assert cell.difference == pytest.approx(-0.01)
    assert cell.agrees
    (alone,) = comparisons([summary(proximity=0.084)], [])
    assert alone.agrees is False  # 0.099 less 15 % is 0.08415


def test_the_paper_s_rate_of_certified_ones_is_that_of_the_ablation() -> None:
    (cell,) = comparisons([summary(**{"δ-robust": 0.77})], [])
    assert cell.paper == Number(0.788, None, 10)
    (other,) = comparisons([summary("counternet", **{"δ-robust": 0.2})], [])
    assert other.paper == Number(0.2629, 0.1829, 10)


def test_only_cells_with_a_reference_and_a_rule_count() -> None:
    found = {
        cell.column: cell for cell in comparisons([summary("ibp", proximity=0.5, valid=1.0, DDM=1.0)], [])
    }
    assert all(cell.agrees is None and cell.allowed is None for cell in found.values())
    assert found["proximity"].paper is not None
    assert found["valid"].difference is None


def test_left_out_rows_are_compared_in_loo_alone() -> None:
    numbers = {ACROSS[0]: 0.86, "accuracy": 0.7}
    (cell,) = comparisons([summary(experiment="loo", **numbers)], [])
    assert (cell.column, cell.paper) == (ACROSS[0], Number(0.86, 0.14, 10))


def test_summaries_come_back_as_they_were_written(tmp_path: Path) -> None:
    found = [summary(accuracy=0.75), summary("counternet", DS=math.nan)]
    agreement.write_summaries(tmp_path / "found.csv", found)
    assert repr(agreement.read_summaries(tmp_path / "found.csv")) == repr(found)


def test_merging_replaces_the_same_models_and_keeps_all_others() -> None:
    stored = [summary(accuracy=0.7), summary(dataset="who", accuracy=0.8)]
    found = [summary(accuracy=0.75, models=4), summary(experiment="loo", accuracy=0.6)]
    together = agreement.merged(stored, found)
    assert [each[:4] for each in together] == [
        ("loo", "heloc", "veritracer", 10),
        ("ri", "heloc", "veritracer", 4),
        ("ri", "who", "veritracer", 10),
    ]
    assert together[1].numbers["accuracy"][0] == 0.75


def test_the_tables_name_what_is_outside() -> None:
    cells = comparisons([summary(proximity=0.2, accuracy=0.738)], [])
    assert "| heloc | ri | 2 | 1 | veritracer proximity |" in agreement.counted_lines(cells)
    lines = agreement.sections(cells)
    assert lines[0] == "### heloc: other seeds"
    assert any(line.startswith("| veritracer | proximity | 0.200 (0.050), 10") for line in lines)


def test_the_page_is_the_one_that_the_stored_summaries_give() -> None:
    text = runpy.run_path(str(ROOT / "docs/write_paper.py"))["text"]()
    page = ROOT / "docs/reference/paper-results.md"
    assert page.read_text(encoding="utf-8") == text, "run python docs/write_paper.py"


def test_the_stored_summaries_are_small() -> None:
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 300_000
