"""The sentences of a letter: what to change, what is promised of it, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veritracer.recourse import reasons
from veritracer.recourse.reason_codes import Reason, ReasonCodes, direction
from veritracer.recourse.wording import Change, Move, Promise, move_in_words, set_in_words
from veritracer.schema.values import value_in_words

WHY = {
    reasons.IMPOSSIBLE: "It is certain that no change that is open to you would alter today's decision.",
    reasons.TOO_CLOSE: "Your application is so close to the border of the decision that rounding decides. "
    "Please ask us to look at it again.",
    reasons.OUT_OF_TIME: "We did not find one in the time that was set for it. That does not mean that there "
    "is none.",
    reasons.UNMET: "We found a change that our model would accept, but not one that we can recommend.",
    reasons.NOT_FOUND: "We looked for one and found none. That does not mean that there is none.",
}
"""What a person is told where there is no recourse, by how the reason begins.

Which constraint would have to give is left out: it may be one that no letter should speak of.
"""

HOLLOW = WHY[reasons.UNMET]
"""What a person is told where only a change was found that independent models do not believe."""


def why_none(reason: str) -> str:
    """Why no change is proposed, for the person."""
    found = [said for begins, said in WHY.items() if reason.startswith(begins)]
    return found[0] if found else "We can not name one."


def step(change: Change, reason: Reason) -> dict[str, Any]:
    """One change in people's words."""
    label = reason.label or change.feature.name.replace("_", " ")
    before, after = reason.value(change.before), reason.value(change.after)
    way = direction(change)
    said = {
        "raise": f"Raise {label} from {before} to {'at least ' if change.goes_on else ''}{after}.",
        "reduce": f"Reduce {label} from {before} to {after}{' or further' if change.goes_on else ''}.",
        "change": f"Change {label} from {before} to {after}.",
        "state": f"State {label}: {after}.",
    }
    return {
        "feature": change.feature.name,
        "label": label,
        "direction": way,
        "before": "not stated" if change.was_missing else before,
        "after": after,
        "at_most": reason.value(change.limit) if change.goes_on else None,
        "instruction": said[way],
    }


def conditions(
    promise: Promise,
    moves: Sequence[Move],
    steps: Sequence[Mapping[str, Any]],
    codes: ReasonCodes,
    expires: str | None,
) -> list[str]:
    """What must be so for the promise to hold, a sentence each."""
    limit = set_in_words(promise.models).removeprefix("whose ")
    asked = {step["feature"]: step["label"] for step in steps}
    said = [
        f"You apply before {expires}." if expires else "You may apply at any time: no last day has been set.",
        "The model that then decides is today's, or an update of it that keeps to the limit for which this "
        f"was proved: its {limit}, and nothing else of how it decides is changed.",
        _rest([move for move in moves if move.feature.name not in asked], codes),
    ]
    for move in moves:
        if move.feature.name in asked:  # on top of what is asked, and of going further
            what = f"{asked[move.feature.name]} {_moving(move, codes)[1]}"
            said.append(f"From wherever you bring it, and without your doing, {what}.")
    if promise.conditional:
        said.append("The model that then decides would still decline your application as it is now.")
    return said


def not_covered(steps: Sequence[Mapping[str, Any]], *, promised: bool) -> list[str]:
    """What the letter does not say, a sentence each."""
    further = [f"{s['label']} as far as {s['at_most']}" for s in steps if s["at_most"]]
    values = (
        f"Going further is covered for {', '.join(further)}; nothing is said about other values."
        if further
        else "Only the values above were examined; nothing is said about others, not even about better ones."
    )
    later = (
        "Nothing is promised for a model that is changed beyond that limit."
        if promised
        else "Nothing is promised about later versions of our model, which may decide otherwise."
    )
    return [
        later,
        values,
        "What you state will be checked as in any application.",
        "Whether these changes are possible or wise for you, only you can judge.",
    ]


def _rest(moves: Sequence[Move], codes: ReasonCodes) -> str:
    """What must stay as it is, and what of it may move on its own."""
    same = "Everything else that you stated is the same as in this application"
    if not moves:
        return f"{same}, also what changes by itself."
    moving = [f"{label} (which {words})" for label, words in (_moving(move, codes) for move in moves)]
    return f"{same}, except for {', '.join(moving)}."


def _moving(move: Move, codes: ReasonCodes) -> tuple[str, str]:
    """What a value is called in a letter, and what may become of it by itself."""
    name = move.feature.name
    known = next(iter(codes[name].values()), None) if name in codes else None
    label = (known.label if known else "") or name.replace("_", " ")
    return label, move_in_words(move, known.amount if known else value_in_words)
