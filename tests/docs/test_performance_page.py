"""The numbers of docs/reference/performance.md are those that were stored."""

from __future__ import annotations

import math
import re
from pathlib import Path

from veritracer_bench.results import PAPER, mean_of, read_results, settled
from veritracer_bench.tables import Results
from veritracer_bench.truth_tables import Column, Truth

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PAGE = (ROOT / "docs/reference/performance.md").read_text(encoding="utf-8")
TITLES = {"HELOC": "heloc", "Taiwan credit": "taiwan_credit", "OULA": "oula", "CTG": "ctg", "WHO": "who"}
UNSEEN = ", unseen rows"
JUDGES = [f"acceptance, {name}" for name in (f"boosting{UNSEEN}", "forest", "extra trees", "logistic")]
JUDGES.append(f"acceptance, MLPs{UNSEEN}")


def table(first: str) -> list[list[str]]:
    """The lines of the page's table whose first column has this title, without bold and italics."""
    lines = PAGE[PAGE.index(f"\n| {first} |") :].strip().partition("\n\n")[0].splitlines()
    return [[cell.strip().replace("*", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def stored_tables(name: str) -> dict[str, list[dict[str, str]]]:
    """Read the tables of a benchmark by title, each line by column."""
    found = {}
    for part in (RESULTS / f"{name}.md").read_text(encoding="utf-8").split("### ")[1:]:
        title, _, text = part.partition("\n\n")
        header, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()
        ]
        found[title] = [dict(zip(header, line, strict=True)) for line in lines]
    return found


def test_acceptance_by_independent_models_is_what_was_stored() -> None:
    """Every cell of the first table, made again from the stored numbers of its dataset and method."""
    truth = Truth(read_results(RESULTS / "truth"))

    def answered(dataset: str, method: str, number: str) -> list[float]:
        return truth.results.values("truth", dataset, method, number)

    def of_model(dataset: str, trainer: str) -> str:
        numbers = [truth.results.values("model", dataset, trainer, name) for name in ("accuracy", "auc")]
        return ", ".join(f"{mean_of(values):.3f}" for values in numbers)

    def line(dataset: str, method: str, *, ours: bool) -> list[str]:
        judged = [truth.spread(dataset, method, Column(name, "", 1)) for name in JUDGES]
        cells = [f"{each.mean:.3f}" + (f" ({each.worst:.2f})" if ours else "") for each in judged]
        mean = {n: mean_of(answered(dataset, method, n)) for n in ("LOF", "certified", "distance")}
        changes, share = (mean_of(answered(dataset, method, n)) for n in ("changes", "changed share"))
        proved = math.floor(settled(1000 * mean["certified"])) / 1000  # never more than it was
        cells += [f"{mean['LOF']:.2f}", f"{proved:.3f}", f"{mean['distance']:.3f}"]
        cells.append(f"{changes:.1f} of {changes / share:.0f}" if ours else f"{changes:.1f}")
        if ours:
            return [*cells, f"{of_model(dataset, method)} ({of_model(dataset, 'standard')})"]
        return [*cells, of_model(dataset, method) if method == "algorithm-1" else ""]

    lines = {cells[0]: cells[1:] for cells in table("dataset")}
    expected = {t: line(name, "veritracer", ours=True) for t, name in TITLES.items()}
    expected["`loans`"] = line("loans", "veritracer", ours=True)
    rivals = {"Algorithm 1 alone": "algorithm-1", "ROAR": "roar", "CounterNet": "counternet"}
    for title, method in rivals.items():
        cells = line("heloc", method, ours=False)
        cells[6] = "0" if cells[6] == "0.000" else cells[6]
        expected[f"HELOC, {title}"] = cells
    assert lines == expected


def test_the_paper_s_setting_is_what_was_stored() -> None:
    """Every cell of the second table: ours from the stored results, the paper's from what it prints."""
    results = Results(read_results(RESULTS / "bench"))

    def printed(name: str, dataset: str, digits: int) -> str:
        found = PAPER.get((name, dataset, "veritracer"))
        return "–" if found is None else f"{found.mean:.{digits}f}"

    def line(dataset: str) -> list[str]:
        names = ("certified", "keeps", "proximity", "sparsity", "accuracy")
        own = [f"{mean_of(results.values('ri', dataset, 'algorithm-1', n)):.3f}" for n in names]
        paper = [printed("delta", dataset, 2), printed("ri", dataset, 2), printed("proximity", dataset, 3)]
        near = min(PAPER["proximity", dataset, rival].mean for rival in ("roar", "sns"))
        return [*own, ", ".join([*paper, printed("sparsity", dataset, 2)]), f"{near:.3f}"]

    start = PAGE.index("| dataset | certified |")
    lines = [row.strip("|").split("|") for row in PAGE[start:].partition("\n\n")[0].splitlines()[2:]]
    found = {cells[0].strip(): [cell.strip().replace("*", "") for cell in cells[1:]] for cells in lines}
    assert found == {title: line(name) for title, name in TITLES.items()}


def test_ratios_and_rates_are_what_was_stored() -> None:
    stored = stored_tables("certify")
    binding, learned = [title for title in stored if title.endswith(" 128")]
    lines = table("the whole cascade, against Algorithm 2")
    for title, (_, *cells) in zip((binding, learned), lines, strict=True):
        for found, cell in zip((title, title.replace(" 128", " 2,000")), cells, strict=True):
            (speed,) = [line for line in stored[found] if line["method"] == "simul-crown, decision"]
            assert cell == f"{speed['× algorithm 2']}× ({speed['certificates/s']}/s)"
    share = re.search(r"binds on (\d+)%", binding)
    assert share is not None
    assert f"binds on {share[1]} %" in lines[0][0]


def test_tightness_is_what_was_stored() -> None:
    stored = stored_tables("tightness")
    model = ""
    for name, kappa, certified, survives in table("share of 500 counterfactuals"):
        model = name or model
        lines = stored[f"{model}: share of 500 counterfactuals"]
        (at,) = [line for line in lines if float(line["kappa"]) == float(kappa)]
        assert (certified, survives) == (at["simul-crown"], at["survives attack"])
        assert at["ibp"] == at["crown-ibp"] == at["simul-crown"]  # as the page says


def test_numbers_between_the_tables_are_in_the_results() -> None:
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    pages = [ROOT / "docs/reference/results-appendix.md", *RESULTS.glob("*.md")]
    results = "".join(path.read_text(encoding="utf-8") for path in pages)
    quoted = re.findall(r"([\d.]+)×", prose) + re.findall(r"([\d,]+)/s", prose)
    quoted += re.findall(r"\d\.\d{3}", prose)
    assert len(quoted) > 10
    assert [number for number in quoted if number not in re.findall(r"[\d.,]+\d|\d", results)] == []
