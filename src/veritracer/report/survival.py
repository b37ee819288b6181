"""The picture of a story: how many promises each method kept."""

from __future__ import annotations

from veritracer.report.bars import Bar, Row, bar_picture
from veritracer.report.figure import Figure, Table, percent, short
from veritracer.report.story import Story, Survival

WAYS = (("given", "valid on the day", "s0"),)
LATER = (("fine_tuned", "after fine-tuning", "s1"), ("from_scratch", "after training from scratch", "s2"))


def survival_figure(story: Story) -> Figure:
    """Bars for each method: valid on the day, after fine-tuning, after training from scratch."""
    tried = [way for way in (*WAYS, *LATER) if any(getattr(s, way[0]) is not None for s in story.survivals)]
    rows = [
        Row(s.method, tuple(_bar(s, field, series) for field, _, series in tried if _has(s, field)))
        for s in story.survivals
    ]
    header = ["method", "people", *(words for _, words, _ in tried), "certified", "mean cost"]
    lines = [
        [
            s.method,
            f"{s.rows:,}",
            *(_cell(s, getattr(s, field)) for field, _, _ in tried),
            _cell(s, s.certified),
            "–" if s.cost is None else short(s.cost),
        ]
        for s in story.survivals
    ]
    legend = tuple((f"bar {series}", words) for _, words, series in tried)
    caption = " ".join(part for part in (_conclusion(story), story.caption) if part)
    picture = bar_picture("survival", rows)
    return Figure("survival", "Promises kept", picture, caption, Table.of(header, lines), legend)


def _conclusion(story: Story) -> str:
    """The first method against the best of the others, for each way to retrain."""
    first, others = story.survivals[0], story.survivals[1:]
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
    return " ".join([*parts, *_provisos(story)])


def _provisos(story: Story) -> list[str]:
    """What has to be known before survival is compared: what it cost, and whether the people are the same."""
    first, others = story.survivals[0], story.survivals[1:]
    said = []
    rivals = [(s.cost, s.method) for s in others if s.cost is not None]
    if first.cost is not None and rivals:
        against = _listed([f"{short(cost)} ({method})" for cost, method in rivals])
        more = "more" if first.cost > max(cost for cost, _ in rivals) else "less"
        if min(cost for cost, _ in rivals) <= first.cost <= max(cost for cost, _ in rivals):
            said.append(f"It asks for a mean cost of {short(first.cost)}, against {against}.")
        else:
            said.append(f"It asks people for {more}: a mean cost of {short(first.cost)} against {against}.")
    if len({s.rows for s in story.survivals}) > 1:
        people = _listed([f"{s.rows:,}" for s in story.survivals])
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
