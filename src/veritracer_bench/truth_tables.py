"""Tables of independent acceptance, plausibility and simulated outcomes, as Markdown.

``Truth`` looks up the stored numbers over seeds: means, worst seeds and 95 % intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from veritracer_bench.judges import COUNTED, DISTANT, EVERYBODY, NAMES, NEIGHBOURS
from veritracer_bench.methods import COMPARED, resolve
from veritracer_bench.page import Target, joined, missed_markdown, targets_markdown
from veritracer_bench.plan import TITLES
from veritracer_bench.results import Cell, mean_of, settled
from veritracer_bench.tables import Results
from veritracer_bench.truth import COMMON, ERROR, MIDDLE

POOLED = 200
"""With fewer rows than these in a seed, all rows of all seeds count alike."""

OURS = "veritracer"
ORDER = (*COMPARED, "dice")
DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who", "loans", "loans-repaid")


class Spread(NamedTuple):
    """A number over seeds: mean, ends of its 95 % interval, worst seed, and how many seeds there are."""

    mean: float
    low: float
    high: float
    worst: float
    seeds: int


class Column(NamedTuple):
    """A number and its title; ``sign`` says whether more (1) or less (-1) is better; a share is in [0, 1]."""

    number: str
    title: str
    sign: int = 0
    share: bool = True


DISTANCE = Column("distance", "distance", -1, share=False)
MEDIAN = Column("median changes", "median", -1, share=False)


def interval(
    values: Sequence[float], errors: Sequence[float], rows: Sequence[float], column: Column
) -> Spread:
    """Return the mean over seeds with an interval for both trainings and rows.

    Seeds share their rows, so the error of the rows does not shrink with more seeds. A share's interval is
    Wilson's, with as many rows as would have that error.
    """
    each, weights = np.asarray(values, dtype=float), np.ones(len(values)) / len(values)
    if min(rows) < POOLED and sum(rows) > 0:
        weights = np.asarray(rows, dtype=float) / sum(rows)
    mean, count = float(weights @ each), len(each)
    half = MIDDLE**2 * float(weights @ np.square(np.nan_to_num(errors)))
    if count > 1:
        between = float(np.square(weights * (each - mean)).sum()) * count / (count - 1)
        half += float(student.ppf(0.975, count - 1)) ** 2 * between
    low, high = _wilson(mean, half, max(rows)) if column.share else (mean - half**0.5, mean + half**0.5)
    worst = math.nan if column.sign == 0 else float(each.min() if column.sign > 0 else each.max())
    return Spread(settled(mean), settled(low), settled(high), settled(worst), count)


def _wilson(share: float, half: float, rows: float) -> tuple[float, float]:
    """Return Wilson's interval of a share with this squared half-width; scipy's takes whole counts only."""
    inside = share * (1 - share)
    count = rows if half == 0 or inside <= 0 else min(rows, inside * MIDDLE**2 / half)
    count = max(count, 1.0)
    middle = (share + MIDDLE**2 / (2 * count)) / (1 + MIDDLE**2 / count)
    away = MIDDLE / (1 + MIDDLE**2 / count) * (inside / count + MIDDLE**2 / (4 * count**2)) ** 0.5
    return max(0.0, middle - away), min(1.0, middle + away)


class Truth:
    """Stored numbers by dataset, method and column; None if there is none."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.results = Results(cells)
        self._by: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.results.cells:
            if cell.key.experiment == "truth":
                self._by.setdefault((cell.key.dataset, cell.key.method), []).append(cell)

    def datasets(self) -> list[str]:
        """Return the datasets with a result, in the order of the tables."""
        return self.results.datasets("truth", DATASETS)

    def methods(self, dataset: str) -> list[str]:
        """Return the methods with a result on a dataset: ours first, in all its settings, then the others."""
        there = [method for name, method in self._by if name == dataset]
        rank = {name: position for position, name in enumerate(ORDER)}
        return sorted(there, key=lambda name: (rank.get(name.partition("[")[0], 99), name))

    def spread(self, dataset: str, method: str, column: Column) -> Spread | None:
        """Return the number over seeds."""
        values, errors, rows = [], [], []
        for cell in self._by.get((dataset, method), []):
            value = cell.numbers.get(column.number, math.nan)
            if not math.isnan(value):
                values.append(value)
                errors.append(cell.numbers.get(column.number + ERROR, 0.0))
                common = column.number.endswith(COMMON)
                rows.append(cell.numbers["rows" + COMMON if common else "rows"])
        return interval(values, errors, rows, column) if values else None

    def mean(self, dataset: str, method: str, column: Column) -> float:
        """Return the mean over seeds, nan if there is none."""
        spread = self.spread(dataset, method, column)
        return math.nan if spread is None else spread.mean

    def lowest(self, dataset: str, method: str, suffix: str = "") -> Spread | None:
        """Return acceptance by the strictest judge, in the mean over seeds, of those that count."""
        columns = [Column(f"acceptance, {name}{suffix}", name, 1) for name in COUNTED]
        found = [s for column in columns if (s := self.spread(dataset, method, column)) is not None]
        return min(found, key=lambda spread: spread.mean, default=None)

    def peers(self, dataset: str) -> list[str]:
        """Return the methods of others on a dataset."""
        return [
            name
            for name in self.methods(dataset)
            if not name.startswith(("veritracer", "algorithm-1", "generator"))
        ]

    def above_ours(self, dataset: str) -> list[str] | None:
        """Return the methods more accepted by their strictest judge than ours is at no larger distance.

        Those that are nearer than any setting of ours are left out; None where we have no answer.
        """
        points = {}
        for name in self.methods(dataset):
            low = self.lowest(dataset, name)
            if low is not None:
                points[name] = self.mean(dataset, name, DISTANCE), low.mean
        ours = [point for name, point in points.items() if name.partition("[")[0] == OURS]
        found = []
        for name in self.peers(dataset):
            far, accepted = points.get(name, (math.nan, math.nan))
            reached = [share for near, share in ours if near <= far]
            if reached and accepted > max(reached):
                found.append(name)
        return found if ours else None

    def paired(self, dataset: str, trainer: str, number: str) -> list[float]:
        """Return the number of each seed less that of the standard model of the same seed."""
        by = {
            cell.key[2:]: cell.numbers.get(number, math.nan)
            for cell in self.results.cells
            if cell.key[:2] == ("model", dataset)
        }
        seeds = [seed for name, seed in by if name == trainer and ("standard", seed) in by]
        return [by[trainer, seed] - by["standard", seed] for seed in seeds]

    def groups(self, dataset: str) -> list[str]:
        """Return the groups of people on a dataset."""
        for cell in self.results.cells:
            if cell.key[:2] == ("model", dataset):
                names = [n.removeprefix("rows, ") for n in cell.numbers if n.startswith("rows, ")]
                return [name for name in names if name != EVERYBODY]
        return []

    def group_differences(self, dataset: str, trainer: str, kind: str) -> dict[str, float]:
        """Return each group's difference from a standard model: in approval, Brier score or agreement."""
        found = {name: self.paired(dataset, trainer, f"{kind}, {name}") for name in self.groups(dataset)}
        return {group: mean_of(values) for group, values in found.items() if values}


def worst_of(differences: dict[str, float], kind: str) -> tuple[str, float]:
    """Return the group with the worst difference: of approval in either direction, else in the worse one."""
    order: dict[str, Callable[[float], float]] = {"approval": abs, "Brier": float, "agreement": lambda d: -d}
    worst = max(differences, key=lambda group: order[kind](differences[group]))
    return worst, differences[worst]


# ---------------------------------------------------------------- tables


DISTANCES = {"heloc": 0.06, "taiwan_credit": 0.035, "oula": 0.03, "ctg": 0.08, "who": 0.10, "loans": 0.04}
"""Largest distances, for the goals."""

LEGEND = """\
An entry is the mean over seeds, its 95 % interval in brackets, and the worst seed in parentheses. The rows
are test rows that the method's own model declines (at most {rows} of them, drawn once; where a seed has fewer
than 200, the rows of all seeds are pooled). A missing or invalid answer counts as refused by every judge,
with gain 0; it has no distance and claims nothing. Intervals take in both the spread between trainings and
the rows: judges and rows are the same for all seeds.

- **Judges** are models of other classes, fitted for accuracy on the training rows only, with fixed seeds; an
  entry is the share of the rows whose counterfactual they accept. Boosting and MLPs are also classes of the
  panel, so that they count only in a second column: fitted on *unseen rows*, the half of the test rows that
  the person is not in. The five that count are these two, forest, extra trees and logistic; MLPs are five
  standard ones of this library, of other seeds.
- **Already at x**: the share that the judge accepts as they are. **Of those declined at x**: acceptance among
  the others. **Gain**: mean change of the judge's probability. **Overclaim**: the model's probability at x′
  less the judge's.
- **Distance**: L1 over the number of encoded columns. **Changed**: by more than 0.01 of the range. **LOF**:
  local outlier factor among favourable training rows, each once (k = 10, L1). **Impossible rows** have a
  category that is none.
- **Other models**: the share of valid answers with f_m(x′) = f(x′), for models of the same training with
  other seeds or without a hundredth of the rows, and for standard ones.
- **The simulator** (`loans`): x⁺ is x after the action and its effects, π the true probability. Acceptance:
  f(x⁺) is favourable; improvement: the outcome at x⁺ is; the gaming gap is the one less the other; true gain:
  π(x⁺) − π(x); overclaim: the model's probability at x⁺ less π(x⁺).
- **The models**: differences from a standard model of the same seed; approval rate, Brier score, and how
  often it decides as the judges that count do. Groups are categories of at most an eighth of the rows, and
  the tenth of the test rows that is farthest from the training rows."""


DETAILS, STYLES = ("already", "of declined", "gain", "overclaim"), (".2f", ".2f", "+.2f", "+.2f")
CERTIFIED = Column("certified", "certified, κ = 0.2", 1)
CHANGED = Column("changed share", "share of features", -1, share=False)
OUTLIER = Column("LOF", "LOF, median", -1, share=False)
GAIN = Column("true gain", "true gain", 1, share=False)
OVERCLAIM = Column("true overclaim", "overclaim", 0, share=False)
CROSS = Column("truly cross", "cross one half", 1)

HEADLINES = {
    "Distance (L1 over the number of encoded columns)": DISTANCE,
    "Local outlier factor among favourable training rows (median)": OUTLIER,
}
SUMMARY = """\
The question here is not whether the model accepts its own counterfactuals, but whether others do. Rows
are test rows that the method's own model declines (at most {rows} of them). A *judge* is a model of
another class, fitted for accuracy, that takes no part in training or search; the table shows the judge,
of five, that accepts least in the mean over seeds. A missing or invalid counterfactual counts as
refused. Two of the judges were fitted on rows that neither the model nor its panel saw; the other three
share the training rows, which favours acceptance. Definitions, every judge, and all settings are in the
[appendix](reference/results-appendix.md)."""

JUDGED = tuple(Column(f"acceptance, {name}", name, 1) for name in NAMES)
PLACE = (
    CERTIFIED,
    DISTANCE,
    Column("changes", "features changed", -1, share=False),
    MEDIAN,
    CHANGED,
    OUTLIER,
    Column("inliers", "LOF ≤ 1.5", 1),
    Column("nearest", "to the nearest favourable row", -1, share=False),
    Column("broken", "impossible rows", -1),
)
OTHERS = (
    Column("RI, same training", "other seed, same training", 1),
    Column("RI, standard", "other seed, standard", 1),
    Column("LOO, same training", "left out, same training", 1),
    Column("LOO, standard", "left out, standard", 1),
)
SIMULATED = (
    Column("acceptance after acting", "acceptance", 1),
    Column("improvement", "improvement", 1),
    Column("favourable at x", "favourable before"),
    Column("gaming gap", "gaming gap", -1, share=False),
    GAIN,
    Column("true at x", "π(x)", 0, share=False),
    Column("true after", "π(x⁺)", 1, share=False),
    OVERCLAIM,
    CROSS,
)


def summary(cells: Iterable[Cell], picture: str = "frontier.png") -> str:
    """Return the section of the results page: a table for each headline number, and the goals missed."""
    truth = Truth(cells)
    if not truth.datasets():
        return ""
    parts = ["## Acceptance by independent models", SUMMARY.format(rows=_rows(truth))]
    parts += [f"![Distance against acceptance by the strictest judge]({picture})"]
    shown = [name for name in truth.datasets() if not name.endswith("-people")]
    parts += [
        _headline(truth, shown, "Acceptance by the strictest of five judges, with 95 % intervals", None)
    ]
    parts += [_more_accepted(truth, shown), _certified_everywhere(truth, shown)]
    for title, column in HEADLINES.items():
        parts += [_headline(truth, shown, title, column)]
    found = [target for target in wanted(truth) if not math.isnan(target.measured)]
    if found:
        parts += ["### Goals of the default settings", missed_markdown(found)]
    return joined(parts)


def _headline(truth: Truth, datasets: Sequence[str], title: str, column: Column | None) -> str:
    """Make a table with a line for each method and a column for each dataset."""
    methods = dict.fromkeys(
        name for dataset in datasets for name in truth.methods(dataset) if "[" not in name
    )
    rank = {name: position for position, name in enumerate(ORDER)}
    lines = []
    for method in sorted(methods, key=lambda name: (rank.get(name, 99), name)):
        cells = []
        for dataset in datasets:
            spread = (
                truth.lowest(dataset, method) if column is None else truth.spread(dataset, method, column)
            )
            interval_text = f" [{spread.low:.2f}, {spread.high:.2f}]" if spread and column is None else ""
            cells.append("–" if spread is None else f"{spread.mean:.3f}{interval_text}")
        lines.append([method_title(method), *cells])
    return _markdown(title, ["", *map(title_of, datasets)], lines)


def _more_accepted(truth: Truth, datasets: Sequence[str]) -> str:
    """Name the methods that the strictest judge accepts more often than the default, and their distance."""
    parts = []
    for dataset in datasets:
        own = truth.lowest(dataset, OURS)
        for method in truth.peers(dataset):
            low = truth.lowest(dataset, method)
            if own is not None and low is not None and low.mean > own.mean:
                far = truth.mean(dataset, method, DISTANCE) / truth.mean(dataset, OURS, DISTANCE)
                parts.append(
                    f"{method_title(method)} on {title_of(dataset)} (at {far:.1f} times the distance)"
                )
    return f"Accepted more often than the default: {'; '.join(parts)}." if parts else ""


def _certified_everywhere(truth: Truth, datasets: Sequence[str]) -> str:
    """State the smallest certified share of our methods, and the largest of the others."""

    def shares(methods: Iterable[str]) -> list[float]:
        return [
            spread.mean
            for dataset in datasets
            for method in methods
            if (spread := truth.spread(dataset, method, CERTIFIED)) is not None
        ]

    ours = shares([OURS, "algorithm-1"])
    others = shares(dict.fromkeys(name for dataset in datasets for name in truth.peers(dataset)))
    if not (ours and others):
        return ""
    return (
        f"Certified at κ = 0.2: at least {math.floor(1000 * min(ours)) / 1000:.3f} of the rows for the first "
        f"two methods on every dataset, at most {max(others):.3f} for the others."
    )


def _rows(truth: Truth) -> str:
    asked = {cell.configuration["rows"] for cell in truth.results.cells if cell.key.experiment == "truth"}
    return " or ".join(f"{most:,}" if most else "all" for most in sorted(asked))


def page(cells: Iterable[Cell]) -> str:
    """Return all tables as Markdown, for the appendix; "" where there is nothing."""
    truth = Truth(cells)
    if not truth.datasets():
        return ""
    parts = ["## Independent models, plausibility and simulated outcomes", LEGEND.format(rows=_rows(truth))]
    parts += ["\n".join(_conditions(truth))]
    found = [target for target in wanted(truth) if not math.isnan(target.measured)]
    if found:
        parts += ["### Goals of the default settings", targets_markdown(found)]
    for dataset in truth.datasets():
        parts += _of_dataset(truth, dataset)
    parts += [_models(truth), _judges(truth)]
    return joined(parts)


def title_of(dataset: str) -> str:
    """Return the title of a dataset and its setting."""
    name = dataset.removesuffix("-people")
    title = TITLES.get(name, name.replace("loans-repaid", "loans, target repaid"))
    return title + (", people's setting" if dataset != name else "")


def method_title(method: str) -> str:
    """Return the title of a method."""
    return resolve(method).title


def _of_dataset(truth: Truth, dataset: str) -> Iterator[str]:
    title = title_of(dataset)
    yield _table(truth, dataset, f"{title}: acceptance by judge", JUDGED, lowest=True)
    yield _details(
        truth, dataset, f"{title}: accepted at x → accepted of those declined at x; gain; overclaim"
    )
    common = tuple(column._replace(number=column.number + COMMON) for column in JUDGED)
    common += (Column("distance" + COMMON, "distance", -1, share=False),)
    yield _table(truth, dataset, f"{title}: rows that every compared model declines", common, suffix=COMMON)
    yield _table(truth, dataset, f"{title}: distance and plausibility", PLACE)
    yield _table(truth, dataset, f"{title}: other models, f_m(x′) = f(x′) of valid answers", OTHERS)
    yield _table(truth, dataset, f"{title}: simulated outcomes", SIMULATED)


def _table(
    truth: Truth,
    dataset: str,
    title: str,
    columns: Sequence[Column],
    *,
    lowest: bool = False,
    suffix: str | None = None,
) -> str:
    """Make a table with a line for each method; "" if no method has any of the numbers."""
    lines = []
    for method in truth.methods(dataset):
        found = [truth.spread(dataset, method, column) for column in columns]
        if lowest or suffix:
            found.append(truth.lowest(dataset, method, suffix or ""))
        if any(found):
            lines.append([method_title(method), *(_text(spread) for spread in found)])
    header = [
        "",
        *(column.title for column in columns),
        *(["strictest that counts"] if lowest or suffix else []),
    ]
    return _markdown(title, header, lines) if lines else ""


def _details(truth: Truth, dataset: str, title: str) -> str:
    def mean(method: str, number: str) -> float:
        return mean_of(truth.results.values("truth", dataset, method, number))

    lines = []
    for method in truth.methods(dataset):
        line = [method_title(method)]
        for judge in NAMES:
            numbers = [mean(method, f"{kind}, {judge}") for kind in DETAILS]
            shown = ["–" if math.isnan(n) else format(n, s) for n, s in zip(numbers, STYLES, strict=True)]
            line.append("–" if math.isnan(numbers[0]) else "{} → {}; {}; {}".format(*shown))
        lines.append(line)
    return _markdown(title, ["", *NAMES], lines)


def _models(truth: Truth) -> str:
    """Make the table of accuracy and AUC, and the largest differences from a standard model in any group."""
    lines = []
    for dataset in truth.datasets():
        keys = dict.fromkeys(c.key.method for c in truth.results.cells if c.key[:2] == ("model", dataset))
        for trainer in sorted(keys, key=lambda name: (name != OURS, name)):
            numbers = [
                truth.results.values("model", dataset, trainer, name)
                for name in ("accuracy", "auc", "fit seconds")
            ]
            shown = [f"{mean_of(n):.3f} ({settled(min(n)):.3f})" for n in numbers[:2]] + [
                f"{mean_of(numbers[2]):.0f}"
            ]
            if trainer == "standard":
                shown += ["–"] * 4
            else:
                shown += [_worst_group(truth, dataset, trainer, kind) for kind in ("approval", "Brier")]
                shown += [_worst_group(truth, dataset, trainer, "agreement")]
                shown += [_distant(truth, dataset, trainer)]
            lines.append([title_of(dataset), trainer, str(len(numbers[0])), *shown])
    header = ["", "training", "seeds", "accuracy (worst)", "AUC (worst)", "seconds to fit"]
    header += ["approval, worst group", "Brier, worst group", "agreement, worst group"]
    header += ["most distant tenth: approval, Brier, agreement"]
    return _markdown("Models compared with a standard model of the same seed", header, lines)


def _worst_group(truth: Truth, dataset: str, trainer: str, kind: str) -> str:
    differences = truth.group_differences(dataset, trainer, kind)
    if not differences:
        return "–"
    group, difference = worst_of(differences, kind)
    return f"{difference:+.3f} ({group})"


def _distant(truth: Truth, dataset: str, trainer: str) -> str:
    shown = []
    for kind in ("approval", "Brier", "agreement"):
        differences = truth.group_differences(dataset, trainer, kind)
        shown.append(f"{differences[DISTANT]:+.3f}" if DISTANT in differences else "–")
    return ", ".join(shown)


def _judges(truth: Truth) -> str:
    lines = []
    for dataset in truth.datasets():
        line = [title_of(dataset)]
        for judge in NAMES:
            pair = [truth.results.values("judges", dataset, judge, n) for n in ("accuracy", "auc")]
            line.append(f"{settled(pair[0][0]):.3f}, {settled(pair[1][0]):.3f}" if all(pair) else "–")
        lines.append(line)
    return _markdown("Judges: accuracy and AUC on the test rows", ["", *NAMES], lines)


def wanted(truth: Truth) -> Iterator[Target]:
    """Yield the goals, for every dataset that has a result of ours."""
    for dataset in [name for name in truth.datasets() if not name.endswith("-people")]:
        title = title_of(dataset)
        yield _least(f"certified, {title}", 0.99, truth.mean(dataset, OURS, CERTIFIED))
        yield from _wanted_of_judges(truth, dataset, title)
        yield from _wanted_of_places(truth, dataset, title)
        for column in OTHERS:
            yield _least(f"{column.title}, {title}", 0.98, truth.mean(dataset, OURS, column))
        yield from _wanted_of_models(truth, dataset, title)
        if dataset == "loans":
            gain, cross, over = (truth.mean(dataset, OURS, each) for each in (GAIN, CROSS, OVERCLAIM))
            yield _least(f"true gain, {title}", 0.55, gain)
            yield _least(f"true probability above one half, {title}", 0.97, cross)
            yield _most(f"overclaim, absolute, {title}", 0.03, abs(over))
        if dataset == "loans-repaid":
            yield from _wanted_of_repaid(truth, dataset, title)
    for dataset in [name for name in truth.datasets() if name.endswith("-people")]:
        yield _most(f"median of changes, {title_of(dataset)}", 4, truth.mean(dataset, OURS, MEDIAN))


def _wanted_of_repaid(truth: Truth, dataset: str, title: str) -> Iterator[Target]:
    """Yield the goals of acceptance, improvement and gaming gap: no method of others is better."""
    for column in (SIMULATED[0], SIMULATED[1], SIMULATED[3]):
        own = truth.mean(dataset, OURS, column)
        theirs = [truth.mean(dataset, name, column) for name in truth.peers(dataset)]
        there = [value for value in theirs if not math.isnan(value)]
        if there:
            best = max(there) if column.sign > 0 else min(there)
            said = f"{'≥' if column.sign > 0 else '≤'} {best:.3f} (best of the others)"
            yield Target(f"{column.title}, {title}", said, own, (own - best) * column.sign >= 0)


def _wanted_of_judges(truth: Truth, dataset: str, title: str) -> Iterator[Target]:
    for judge in [name for name in NAMES if name != NEIGHBOURS]:
        spread = truth.spread(dataset, OURS, Column(f"acceptance, {judge}", judge, 1))
        counts = "" if judge in COUNTED else " (the panel's class and rows: does not count)"
        if spread is not None:
            yield _least(f"{judge}, {title}{counts}", 0.90, spread.mean)
            yield _least(f"{judge}, worst seed, {title}{counts}", 0.80, spread.worst)


def _wanted_of_places(truth: Truth, dataset: str, title: str) -> Iterator[Target]:
    theirs = [truth.mean(dataset, method, OUTLIER) for method in ("roar", "counternet")]
    bar = min((value for value in theirs if not math.isnan(value)), default=math.nan) + 0.1
    own = truth.mean(dataset, OURS, OUTLIER)
    if not math.isnan(bar):
        yield Target(f"LOF, {title}", f"≤ {bar:.2f} (lower of ROAR, CounterNet, + 0.1)", own, own <= bar)
    if dataset in DISTANCES:
        yield _most(f"distance, {title}", DISTANCES[dataset], truth.mean(dataset, OURS, DISTANCE))
    above = truth.above_ours(dataset)
    if above is not None:
        yield Target(f"methods more accepted at equal distance, {title}", "0", float(len(above)), not above)
    yield _most(f"share of features changed, {title}", 0.4, truth.mean(dataset, OURS, CHANGED))


def _wanted_of_models(truth: Truth, dataset: str, title: str) -> Iterator[Target]:
    for number, least in (("accuracy", -0.005), ("auc", -0.005)):
        values = truth.paired(dataset, OURS, number)
        if values:
            yield _least(f"{number}, difference from a standard model, {title}", least, mean_of(values))
    for kind, most in (("approval", 0.01), ("Brier", 0.005), ("agreement", 0.05)):
        differences = truth.group_differences(dataset, OURS, kind)
        if differences:
            group, difference = worst_of(differences, kind)
            size = {"approval": abs(difference), "Brier": difference, "agreement": -difference}[kind]
            yield _most(f"{kind}, difference from a standard model for {group}, {title}", most, size)


def _least(what: str, least: float, value: float) -> Target:
    return Target(what, f"≥ {least:g}", value, value >= least)


def _most(what: str, most: float, value: float) -> Target:
    return Target(what, f"≤ {most:g}", value, value <= most)


def _conditions(truth: Truth) -> Iterator[str]:
    """Yield seeds and rows of each dataset, and the machines."""
    for dataset in truth.datasets():
        rows = truth.results.values("truth", dataset, OURS, "rows")
        if rows:
            yield f"- {title_of(dataset)}: {len(rows)} seeds, {min(rows):.0f} to {max(rows):.0f} rows."
    places = {tuple(sorted((k, str(v)) for k, v in cell.where.items())) for cell in truth.results.cells}
    for place in sorted(places):
        yield "- " + ", ".join(f"{name} {value}" for name, value in place) + "."


def _text(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    shown = f"{spread.mean:.3f} [{spread.low:.2f}, {spread.high:.2f}]"
    return shown if math.isnan(spread.worst) or spread.seeds < 2 else f"{shown} ({spread.worst:.2f})"


def _markdown(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    text = ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *lines)]
    return "\n".join([f"### {title}", "", *text]) + "\n"
