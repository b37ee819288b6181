"""Which kappa to promise: one that was measured, and that is affordable; or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veritracer.calibration.costs import Cost
from veritracer.calibration.coverage import Coverage, percent, rounded_up

FROM_SCRATCH = (
    "Networks that are trained from scratch end far apart even where they decide alike: very different "
    "weights give nearly the same decisions. No kappa worth promising covers that. Let updates go on from "
    "today's model instead (fine-tuning), inside of the promised set: model.update(X, y, keep=ledger)."
)
STAY_INSIDE = (
    "Updates that stay inside of the promised set need no larger kappa: model.update(X, y, keep=ledger). "
    "Gentler ones need less: fewer epochs, a smaller learning rate."
)


@dataclass(frozen=True)
class Acceptable:
    """What a kappa may cost: how much recourse must stay certified, how much accuracy may be lost."""

    certified: float = 0.9
    loss: float = 0.02


@dataclass(frozen=True)
class Recommendation:
    """The kappa to promise, the share of updates that it covers, whether to train for it, and why.

    ``kappa`` and ``covers`` are None where nothing that was measured can be recommended.
    """

    kappa: float | None
    covers: float | None
    train_for_it: bool
    sentence: str


def recommend(
    covered: Sequence[Coverage], costs: Sequence[Cost], acceptable: Acceptable, *, from_scratch: bool
) -> Recommendation:
    """The kappa that covers the largest share that is known, among those that are affordable."""
    known = sorted((c for c in covered if c.kappa is not None), key=lambda c: -c.share)
    instead = FROM_SCRATCH if from_scratch else STAY_INSIDE
    if not known:
        fewest = min(c.updates_needed for c in covered)
        return _none(f"these updates are too few to tell about any share; at least {fewest} are needed.", "")
    if not costs:
        return _covering(known[0], "what it costs was not measured.", train=False)
    for each in known:
        found = _affordable(each, costs, acceptable)
        if found is not None:
            return found
    return _none(_too_dear(known[-1], costs), instead)


def _affordable(each: Coverage, costs: Sequence[Cost], acceptable: Acceptable) -> Recommendation | None:
    """The kappa of this share, if today's model affords it, or else one that is trained for it."""
    kappa = _kappa(each)
    here = [c for c in costs if c.kappa == kappa and c.certified >= acceptable.certified]
    if any(not c.refitted for c in here):
        return _covering(each, "today's model affords it.", train=False)
    usual = max((c.accuracy for c in costs if c.refitted), default=0.0)
    for c in here:
        own = c.needed.get(each.share)
        if c.accuracy >= usual - acceptable.loss and own is not None and own <= kappa:
            return _covering(each, f"train for it: VeriTraCER(kappa={kappa:g}).", train=True)
    return None


def _covering(each: Coverage, and_: str, *, train: bool) -> Recommendation:
    kappa = _kappa(each)
    said = f"kappa = {kappa:g} covers {percent(each.share)} of updates such as these; {and_}"
    return Recommendation(kappa, each.share, train, said)


def _none(why: str, instead: str) -> Recommendation:
    return Recommendation(None, None, False, f"None: {why} {instead}".strip())


def _too_dear(least: Coverage, costs: Sequence[Cost]) -> str:
    """Why not even the smallest share is affordable, in numbers."""
    kappa = _kappa(least)
    first = f"already {percent(least.share)} of updates need kappa = {kappa:g}"
    shares = [c.certified for c in costs if c.kappa == kappa]
    if not shares:
        return f"{first}."
    return f"{first}, at which {percent(max(shares))} of recourse is certified at best."


def _kappa(each: Coverage) -> float:
    assert each.kappa is not None
    return rounded_up(each.kappa)
