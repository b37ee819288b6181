"""Tables of acceptance by independent models that share no row with the model."""

from __future__ import annotations

from collections.abc import Sequence

from veritracer_bench import curves
from veritracer_bench.judges import MLPS, UNSEEN
from veritracer_bench.methods import METHODS
from veritracer_bench.plan import short_title
from veritracer_bench.results import Cell, mean_of
from veritracer_bench.unseen import (
    JUDGES_NEEDED,
    KINDS,
    KINDS_NEEDED,
    SMALLER_BY,
    Standing,
    acceptance,
    counts,
    standings,
)

AUTHORS = "authors"
"""The experiment of the authors' own counterfactuals."""

ENOUGH = 0.9
"""Acceptance that every qualifying judge is to reach."""

HEAD = f"""\
# Acceptance by independent models that share no row

<!-- python -m benchmarks.unseen -->

The model, its panel and its prototypes have 45 % of the rows, the judges another 45 %, and 10 % are people
who ask. A judge qualifies if its mean accuracy on the people is at most {100 * SMALLER_BY:.0f} points below
that of a standard network fitted on the model's rows. A dataset counts if at least {JUDGES_NEEDED} judges of
{KINDS_NEEDED} kinds qualify. The control of a judge is the same class of model, fitted on the model's rows.
"""


SECTION = """\
The model and its panel have 45 % of the rows, the judges another 45 %, and 10 % are people who ask. Wanted:
every judge that is about as accurate as a standard network accepts at least 0.90. Every judge, its control
and all methods by strength are in the [tables]({place}.md).
"""


def page(cells: Sequence[Cell]) -> str:
    """Return all tables as Markdown."""
    parts = [HEAD]
    datasets = list(dict.fromkeys(cell.key.dataset for cell in cells))
    ours = [cell for cell in cells if cell.key.experiment != AUTHORS]
    theirs = [cell for cell in cells if cell.key.experiment == AUTHORS]
    parts += ["## Verdict", *(f"- {verdict(d, ours)}" for d in datasets if _of(ours, d, "judges"))]
    parts.append("## Judges: accuracy on the people (control of the same size on the model's rows)")
    parts.append(_judges_table([c for c in ours if c.key.method == "judges"]))
    for dataset in datasets:
        if methods := [name for name in _methods(ours, dataset) if "[" not in name]:
            parts += [f"## {short_title(dataset)}: acceptance (control)", _table(ours, dataset, methods)]
        found = curves.points(ours, dataset)
        if any("[" in point.method for point in found):
            parts += [
                f"## {short_title(dataset)}: at equal distance",
                curves.sentence(found),
                _curve_table(found),
            ]
    if theirs:
        parts.append("## The authors' own counterfactuals")
        parts.append(
            "Their models saw all of their training rows. A judge was fitted on the half of the test rows "
            "that the person is not in; its control on as many training rows."
        )
        parts.append(_judges_table([c for c in theirs if c.key.method == "judges"]))
        for dataset in datasets:
            if methods := _methods(theirs, dataset):
                parts += [f"### {short_title(dataset)}", _table(theirs, dataset, methods)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def section(cells: Sequence[Cell], place: str) -> str:
    """Return the section about unseen rows for the page of results; nothing without a result.

    ``place`` is the folder of the tables.
    """
    ours = [cell for cell in cells if cell.key.experiment != AUTHORS]
    datasets = [d for d in dict.fromkeys(cell.key.dataset for cell in ours) if _of(ours, d, "judges")]
    if not datasets:
        return ""
    lines = ["### Judges that share no row with the model", "", SECTION.format(place=place), ""]
    lines += [f"- {verdict(dataset, ours)}" for dataset in datasets]
    for dataset in datasets:
        found = curves.points(ours, dataset)
        if any("[" in point.method for point in found):
            lines += ["", f"**{short_title(dataset)}.** {curves.sentence(found)}"]
    return "\n".join(lines) + "\n"


def verdict(dataset: str, cells: Sequence[Cell]) -> str:
    """Say whether every qualifying judge accepts enough of the default's counterfactuals; misses first."""
    found = standings(_of(cells, dataset, "judges"))
    title = short_title(dataset)
    if not counts(found):
        kinds = {KINDS[each.judge] for each in found if each.qualifies}
        count = sum(each.qualifies for each in found)
        return f"{title}: missed, only {count} judges of {len(kinds)} kinds qualify."
    mine = [cell for cell in _of(cells, dataset, "veritracer") if "distance" in cell.numbers]
    if not mine:
        return f"{title}: the default was not measured, or declined nobody."
    said = {each.judge: acceptance(mine, each.judge + UNSEEN) for each in found if each.qualifies}
    below = [
        f"{judge} {each.mean:.3f} ± {each.half_width:.3f}"
        for judge, each in said.items()
        if each.mean < ENOUGH
    ]
    size = f"{len({c.key.experiment for c in mine})} splits, {len({c.key.seed for c in mine})} seeds"
    if below:
        return f"{title}: missed by {', '.join(below)} ({len(said)} judges qualify; {size})."
    lowest = min(said, key=lambda judge: said[judge].mean)
    return f"{title}: reached; the lowest of {len(said)} is {lowest}, {said[lowest].mean:.3f} ({size})."


def qualifying(cells: Sequence[Cell], dataset: str) -> list[str]:
    """Return the judges that qualify for a dataset, of the splits among the cells."""
    found: list[Standing] = standings(_of(cells, dataset, "judges"))
    return [each.judge for each in found if each.qualifies]


def _of(cells: Sequence[Cell], dataset: str, method: str) -> list[Cell]:
    return [cell for cell in cells if cell.key[1:3] == (dataset, method)]


def _methods(cells: Sequence[Cell], dataset: str) -> list[str]:
    names = {c.key.method for c in cells if c.key.dataset == dataset and c.key.method != "judges"}
    return sorted(names, key=lambda name: (name != "veritracer", name))


def _judges_table(cells: Sequence[Cell]) -> str:
    """Return a line for each judge and a column for each dataset; those that do not qualify in brackets."""
    datasets = list(dict.fromkeys(cell.key.dataset for cell in cells))
    found = {d: {s.judge: s for s in standings([c for c in cells if c.key.dataset == d])} for d in datasets}
    lines = [["standard network", *(f"{found[d][MLPS].control:.3f}" for d in datasets)]]
    for judge, kind in KINDS.items():
        lines.append([f"{judge} ({kind})", *(_standing(found[d].get(judge)) for d in datasets)])
    return _markdown(["judge (kind)", *map(short_title, datasets)], lines)


def _standing(each: Standing | None) -> str:
    if each is None:
        return "–"
    text = f"{each.accuracy:.3f} ({each.control:.3f})"
    return text if each.qualifies else f"*{text}, does not qualify*"


def _table(cells: Sequence[Cell], dataset: str, methods: Sequence[str]) -> str:
    """Return a line for each number and judge, and a column for each method."""
    found = {each.judge: each for each in standings(_of(cells, dataset, "judges"))}
    of_method = {name: _of(cells, dataset, name) for name in methods}
    lines = []
    for label, name in (
        ("splits × seeds", ""),
        ("rows", "rows"),
        ("found", "found"),
        ("certified", "certified"),
    ):
        lines.append([label, *(_mean(of_method[m], name) for m in methods)])
    lines += [[name, *(_mean(of_method[m], name) for m in methods)] for name in ("distance", "LOF")]
    for judge, standing in found.items():
        label = judge if standing.qualifies else f"*{judge}*"
        lines.append([label, *(_accepted(of_method[m], judge) for m in methods)])
    return _markdown(["", *(_method_title(m) for m in methods)], lines)


def _curve_table(found: Sequence[curves.Point]) -> str:
    """Return a line for each method and strength: distance, LOF and the lowest judge."""
    ours = {c.point: c.ours for c in curves.compared(found)}
    lines = [
        [
            point.method,
            f"{point.distance:.3f}",
            f"{point.lof:.2f}",
            f"{point.lowest.mean:.3f} ± {point.lowest.half_width:.3f}",
            point.judge,
            "–" if ours.get(point) is None else f"{ours[point]:.3f}",
        ]
        for point in found
    ]
    return _markdown(["method", "distance", "LOF", "lowest judge", "which", "ours at this distance"], lines)


def _mean(cells: Sequence[Cell], name: str) -> str:
    if not name:
        return f"{len(cells)}"
    value = mean_of([cell.numbers[name] for cell in cells if name in cell.numbers])
    return f"{value:.0f}" if name == "rows" else f"{value:.3f}"


def _accepted(cells: Sequence[Cell], judge: str) -> str:
    own, control = acceptance(cells, judge + UNSEEN), acceptance(cells, judge)
    return f"{own.mean:.3f} ± {own.half_width:.3f} ({control.mean:.3f})"


def _method_title(name: str) -> str:
    return METHODS[name].title if name in METHODS else name


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
