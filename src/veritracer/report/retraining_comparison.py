"""What became of promises after a retraining: the numbers of one experiment, several methods side by side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from veritracer.errors import DataError, message
from veritracer.formatting import format_number
from veritracer.report.charts import Bar, Figure, Row, Table, bar_picture, percent


@dataclass(frozen=True)
class Survival:
    """How many of a method's counterfactuals hold for later models.

    Attributes
    ----------
    method
        Its name, as a reader should see it.
    rows
        People who were turned down: what every share is a share of.
    given
        How many of them got a counterfactual that was valid on the day.
    fine_tuned, from_scratch
        How many were still valid after the model was fine-tuned on new data, and after a new one was trained
        from scratch; None where that was not tried.
    cost
        The mean L1 distance of what was asked of people, in scaled units; None where nobody measured it.
    certified
        How many had a certificate on the day; None for a method that gives none.
    """

    method: str
    rows: int
    given: int
    fine_tuned: int | None = None
    from_scratch: int | None = None
    cost: float | None = None
    certified: int | None = None

    def __post_init__(self) -> None:
        counts = [self.given, self.fine_tuned, self.from_scratch, self.certified]
        if self.rows < 1 or any(c is not None and not 0 <= c <= self.rows for c in counts):
            received = f"{counts} of {self.rows} rows for {self.method!r}"
            raise DataError(message("counts between 0 and the number of rows", received, "count rows, once"))

    def share(self, count: int | None) -> float | None:
        """The count as a share of all rows; None stays None.

        >>> Survival("certified", rows=200, given=199, fine_tuned=198).share(198)
        0.99
        """
        return None if count is None else count / self.rows


@dataclass(frozen=True)
class RetrainingComparison:
    """The methods, ours first, and what was done: how each was trained and retrained, in a few words."""

    survivals: tuple[Survival, ...]
    caption: str = ""
    title: str = "What became of the promises"

    def __init__(
        self,
        survivals: Iterable[Survival],
        caption: str = "",
        title: str = "What became of the promises",
    ) -> None:
        object.__setattr__(self, "survivals", tuple(survivals))
        object.__setattr__(self, "caption", caption)
        object.__setattr__(self, "title", title)
        if not self.survivals:
            raise DataError(
                message("at least one method", "none", "leave comparison out where there is nothing")
            )


# ---------------------------------------------------------------- its picture


WAYS = (("given", "valid on the day", "s0"),)
LATER = (("fine_tuned", "after fine-tuning", "s1"), ("from_scratch", "after training from scratch", "s2"))


def survival_figure(comparison: RetrainingComparison) -> Figure:
    """Bars for each method: valid on the day, after fine-tuning, after training from scratch."""
    tried = [
        way for way in (*WAYS, *LATER) if any(getattr(s, way[0]) is not None for s in comparison.survivals)
    ]
    rows = [
        Row(s.method, tuple(_bar(s, field, series) for field, _, series in tried if _has(s, field)))
        for s in comparison.survivals
    ]
    header = ["method", "people", *(words for _, words, _ in tried), "certified", "mean cost"]
    lines = [
        [
            s.method,
            f"{s.rows:,}",
            *(_cell(s, getattr(s, field)) for field, _, _ in tried),
            _cell(s, s.certified),
            "–" if s.cost is None else format_number(s.cost),
        ]
        for s in comparison.survivals
    ]
    legend = tuple((f"bar {series}", words) for _, words, series in tried)
    caption = " ".join(part for part in (_conclusion(comparison), comparison.caption) if part)
    picture = bar_picture("survival", rows)
    return Figure("survival", "Promises kept", picture, caption, Table.of(header, lines), legend)


def _conclusion(comparison: RetrainingComparison) -> str:
    """The first method against the best of the others, for each way to retrain."""
    first, others = comparison.survivals[0], comparison.survivals[1:]
    parts = []
    for field, words, _ in LATER:
        kept = first.share(getattr(first, field))
        if kept is None:
            continue
        said = f"{words}, {percent(kept)} of people still have what {first.method} promised them"
        shares = [(share, s.method) for s in others if (share := s.share(getattr(s, field))) is not None]
        if shares:
            best = max(shares)
            said += f"; of the others, {best[1]} does best with {percent(best[0])}"
        parts.append(said[:1].upper() + said[1:] + ".")
    return " ".join([*parts, *_provisos(comparison)])


def _provisos(comparison: RetrainingComparison) -> list[str]:
    """What has to be known before survival is compared: what it cost, and whether the people are the same."""
    first, others = comparison.survivals[0], comparison.survivals[1:]
    said = []
    rivals = [(s.cost, s.method) for s in others if s.cost is not None]
    if first.cost is not None and rivals:
        against = _listed([f"{format_number(cost)} ({method})" for cost, method in rivals])
        more = "more" if first.cost > max(cost for cost, _ in rivals) else "less"
        if min(cost for cost, _ in rivals) <= first.cost <= max(cost for cost, _ in rivals):
            said.append(f"It asks for a mean cost of {format_number(first.cost)}, against {against}.")
        else:
            said.append(
                f"It asks people for {more}: a mean cost of {format_number(first.cost)} against {against}."
            )
    if len({s.rows for s in comparison.survivals}) > 1:
        people = _listed([f"{s.rows:,}" for s in comparison.survivals])
        said.append(f"Each method has a model of its own, and so turns other people down ({people}).")
    return said


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _has(survival: Survival, field: str) -> bool:
    return getattr(survival, field) is not None


def _bar(survival: Survival, field: str, series: str) -> Bar:
    share = survival.share(getattr(survival, field))
    assert share is not None
    return Bar(share, percent(share), series)


def _cell(survival: Survival, many: int | None) -> str:
    share = survival.share(many)
    return "–" if share is None else f"{many:,} ({percent(share)})"
