"""A few people and what they would be told, from the cheapest recourse to the dearest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veritracer.recourse import Counterfactuals
from veritracer.recourse.wording import Change, difference_in_words
from veritracer.report.figure import percent, short
from veritracer.report.subject import Subject
from veritracer.schema.values import value_in_words

MOST = 5
PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Where the examples stand among all people by cost."""

MOST_FACTS = 6


@dataclass(frozen=True)
class Card:
    """One person: which row, what they can not change, what would have to change, and what is proved."""

    title: str
    place: str
    status: str
    facts: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str, str], ...]
    sentence: str
    certificate: tuple[tuple[str, str], ...]


def cards(subject: Subject) -> tuple[Card, ...]:
    """Up to five people, spread over the cost; the last is one without a certificate, where there are any."""
    given = np.flatnonzero(subject.given)
    by_cost = given[np.argsort(subject.cost[given], kind="stable")]
    without = np.flatnonzero(subject.asked & ~subject.certified)
    places = PLACES[: MOST - 1] if len(without) else PLACES
    ranks = [round(p * (len(by_cost) - 1)) for p in places] if len(by_cost) else []
    chosen = list(dict.fromkeys(int(by_cost[rank]) for rank in ranks))
    made = [_card(subject, row, _place(subject, row)) for row in chosen]
    spare = [int(row) for row in without if int(row) not in chosen]
    if spare:
        made.append(_card(subject, spare[0], "without a certificate"))
    return tuple(made)


def _place(subject: Subject, row: int) -> str:
    """Where the person stands by cost, in words."""
    dearer = float((subject.cost[subject.given] > subject.cost[row]).mean())
    return f"cost {short(subject.cost[row])}: cheaper than for {percent(dearer)} of people"


def _card(subject: Subject, row: int, place: str) -> Card:
    recourse, i = subject.recourse, int(subject.first[row])
    label = recourse.frame.index[i]
    name = label[0] if isinstance(label, tuple) else label
    fixed = [f.name for f in subject.schema.features if f.action == "immutable"][:MOST_FACTS]
    return Card(
        title=f"Row {name}",
        place=place,
        status=str(recourse.status[i]),
        facts=tuple((f, value_in_words(subject.table[f].iloc[row])) for f in fixed),
        changes=tuple(_in_words(change) for change in recourse.changes_of(i)),
        sentence=recourse.sentence(i),
        certificate=_certificate(recourse, i),
    )


def _in_words(change: Change) -> tuple[str, str, str, str]:
    """A change as name, from, to, and the difference where it is a number."""
    before, after = value_in_words(change.before), value_in_words(change.after)
    if not change.feature.is_numeric or change.was_missing:
        return change.feature.name, before, after, ""
    sign = "+" if change.after > change.before else "−"
    return change.feature.name, before, after, f"{sign}{difference_in_words(change.before, change.after)}"


def _certificate(recourse: Counterfactuals, i: int) -> tuple[tuple[str, str], ...]:
    """What is proved, as names and values."""
    if recourse.status[i] == "none":
        return (("why", str(recourse.reason[i])),)
    if not recourse.certified[i]:
        return (("why", str(recourse.reason[i])), ("reaches to", f"κ = {recourse.radius[i]:.3g}"))
    condition = "the original row keeps its decision" if recourse.conditional[i] else "none"
    return (
        ("proved at", str(recourse.param_set).replace("kappa", "κ")),
        ("reaches to", f"κ = {recourse.radius[i]:.3g}"),
        ("by", str(recourse.method[i])),
        ("worst logit", f"{_away(recourse, i):+.4f}"),
        ("condition", condition),
    )


def _away(recourse: Counterfactuals, i: int) -> float:
    """The bound of the logit over the set, in the direction of the new decision: above 0 is proved."""
    return -float(recourse.worst_logit[i])
