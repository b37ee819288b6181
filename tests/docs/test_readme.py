"""README's example runs as written, its table is what was stored, and it stays short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from veritracer_bench.results import mean_of, read_results
from veritracer_bench.truth_tables import Column, Truth

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"
PAGES = runpy.run_path(str(ROOT / "docs/write_outputs.py"))

TITLES = {"HELOC": "heloc", "Taiwan credit": "taiwan_credit", "OULA": "oula", "CTG": "ctg", "WHO": "who"}
UNSEEN = ", unseen rows"
JUDGES = [f"boosting{UNSEEN}", "forest", "extra trees", "logistic", f"MLPs{UNSEEN}"]
BASELINES = {
    "counternet": "CounterNet",
    "roar": "ROAR",
    "sns": "SNS",
    "wachter": "Wachter",
    "neighbour": "nearest neighbour",
}
GOAL, LOSS = 0.9, 0.005  # acceptance by the strictest model, and accuracy below a standard network's


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    for example, printed in zip(PAGES["examples"](PAGE), PAGES["run"](PAGE, tmp_path), strict=True):
        assert example.agrees(printed), printed


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", README, flags=re.M))
    assert {"demo", "test"} <= named <= targets


def strictest(truth: Truth, dataset: str, method: str) -> float:
    columns = [Column(f"acceptance, {judge}", "", 1) for judge in JUDGES]
    return min(truth.spread(dataset, method, column).mean for column in columns)


def line(truth: Truth, dataset: str) -> list[str]:
    """The cells of a dataset, made again from what was stored; a dagger where a goal is missed."""

    def mean(kind: str, method: str, number: str) -> float:
        return mean_of(truth.results.values(kind, dataset, method, number))

    default = "veritracer"
    own, standard = (mean("model", trainer, "accuracy") for trainer in (default, "standard"))
    accepted = {method: strictest(truth, dataset, method) for method in (default, *BASELINES)}
    best = max(BASELINES, key=lambda method: accepted[method])
    accuracy, acceptance = f"{own:.3f}", f"{accepted[default]:.3f}"
    return [
        f"{accuracy} †" if own < standard - LOSS else accuracy,
        f"{standard:.3f}",
        f"{mean('truth', default, 'certified'):.3f}",
        f"{acceptance} †" if accepted[default] < GOAL else acceptance,
        f"{mean('truth', default, 'distance'):.3f}",
        BASELINES[best],
        f"{accepted[best]:.3f}",
        f"{mean('truth', best, 'distance'):.3f}",
    ]


def test_the_table_is_what_was_stored() -> None:
    truth = Truth(read_results(RESULTS / "truth"))
    rows = README[README.index("| dataset |") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {name: rest for name, *rest in cells} == {title: line(truth, n) for title, n in TITLES.items()}


def test_nothing_points_outside_of_the_repository() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert len(pages) >= 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "shared/" not in text, page
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"{page.relative_to(ROOT)}\n" in listed, page
