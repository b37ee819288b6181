"""What an update came to: how good each way to update is, and which promises stood in its way."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from veritracer.ledger.promised import Limit
from veritracer.ledger.verdicts import VERDICTS

FORMAT, VERSION = "veritracer-update", 1


@dataclass(frozen=True)
class Way:
    """One model that could decide from now on.

    Attributes
    ----------
    accuracy, loss
        On the new rows that were kept aside: share decided rightly, and mean cross-entropy.
    counts
        How many live promises get each verdict; None where there are no promises to keep.
    """

    accuracy: float
    loss: float
    counts: dict[str, int] | None = None

    @property
    def kept(self) -> float | None:
        """The share of live promises that are neither broken nor not checkable; None without any."""
        if not self.counts:
            return None
        live = sum(self.counts[name] for name in VERDICTS)
        lost = self.counts["broken"] + self.counts["not checkable"]
        return None if live == 0 else 1 - lost / live


@dataclass(frozen=True)
class Binding:
    """One limit, and what it cost.

    Attributes
    ----------
    limit
        Which promises: of which model, at which kappa, how many.
    used
        How far the updated model went, in radii of this limit: 1 is its border.
    at_border
        The share of all weights that the limit holds back.
    released
        The update without these promises; None where that was not tried.
    gain
        What that would be worth: accuracy won by releasing them.
    """

    limit: Limit
    used: float
    at_border: float
    released: Way | None = None
    gain: float | None = None


@dataclass(frozen=True)
class UpdateReport:
    """What an update came to.

    Attributes
    ----------
    ways
        By name: ``today`` (no update), ``kept`` (inside of what was promised), ``free`` (wherever training
        goes) and ``from scratch``; those that were tried.
    limits
        The tightest limit of each issuing model, the one that holds back most first.
    unproved
        How many promises no set protects, by the reason: they are kept by a penalty at best, and checked.
    newly_broken
        The numbers of promises that today's model keeps and the updated one does not.
    trained, held_out
        How many new rows were learned from, and how many were kept aside.
    max_loss
        How much accuracy the promises may cost against the free update; None is any.
    """

    ways: dict[str, Way]
    limits: tuple[Binding, ...] = ()
    unproved: dict[str, int] = field(default_factory=dict)
    newly_broken: tuple[int, ...] = ()
    trained: int = 0
    held_out: int = 0
    max_loss: float | None = None

    @property
    def cost(self) -> float | None:
        """Accuracy that keeping the promises costs against the free update; None without promises."""
        if "kept" not in self.ways or "free" not in self.ways:
            return None
        return self.ways["free"].accuracy - self.ways["kept"].accuracy

    @property
    def acceptable(self) -> bool:
        """Whether keeping the promises costs no more than ``max_loss``."""
        return self.max_loss is None or self.cost is None or self.cost <= self.max_loss

    @property
    def ok(self) -> bool:
        """Whether the update is acceptable and breaks no promise that was kept until now."""
        return self.acceptable and not self.newly_broken

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def to_plain(self) -> dict[str, Any]:
        """The report as numbers, texts, lists and mappings."""
        body = {**asdict(self), "newly_broken": list(self.newly_broken)}
        return {"format": FORMAT, "version": VERSION, "ok": self.ok, "cost": self.cost, **body}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as JSON text, also written to ``path``."""
        text = json.dumps(self.to_plain(), ensure_ascii=False, indent=1, allow_nan=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text


def lines(report: UpdateReport) -> list[str]:
    """The report in sentences, a line for each way and each limit."""
    said = [f"{report.trained:,} new rows learned from, {report.held_out:,} kept aside."]
    for name, way in report.ways.items():
        proved = "" if way.counts is None else f", {way.counts['kept by proof']:,} of them by proof"
        unknown = (way.counts or {}).get("not checkable", 0)
        proved += f", {unknown:,} can not be checked" if unknown else ""
        kept = "" if way.kept is None else f"; {way.kept:.2%} of promises kept{proved}"
        said.append(f"{name}: accuracy {way.accuracy:.4f}{kept}")
    for one in report.limits:
        gain = "" if one.gain is None else f"; releasing them gains {one.gain:+.4f} of accuracy"
        said.append(
            f"{one.limit.count:,} promises of {one.limit.model[:12]} at kappa = {one.limit.kappa:g}: "
            f"{one.used:.2f} of the radius used, {one.at_border:.1%} of the weights held back{gain}"
        )
    said += [f"{count:,} promises without a proof to keep ({why})" for why, count in report.unproved.items()]
    return said
