"""What a calibration found: moves, coverage, costs and a recommendation, as tables, text and JSON."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from veritracer.balls import Norm
from veritracer.calibration.costs import Cost
from veritracer.calibration.coverage import Coverage, percent, rounded_up
from veritracer.calibration.moves import Move
from veritracer.calibration.recommending import Recommendation
from veritracer.files import document_text, envelope
from veritracer.param_sets import RadiusRule

FORMAT, VERSION = "veritracer-calibration", 1


@dataclass(frozen=True, repr=False)
class Calibration:
    """How far updates move a model, which kappa covers how many of them, and what it costs.

    Attributes
    ----------
    source
        Where the updates come from: ``history``, or the kind that was simulated.
    horizon
        How many updates in a row were measured together.
    kappa, norm, radius_rule
        Today's set of models.
    tensors
        The names of the tensors: W1, b1, W2, ...
    moves, coverage, costs
        One entry for each update; for each share that was asked about; for each kappa and model.
    confidence
        Of what ``coverage`` says.
    recommendation
        A kappa that was measured, or none, and why.
    """

    source: str
    horizon: int
    kappa: float
    norm: Norm
    radius_rule: RadiusRule | float
    tensors: tuple[str, ...]
    moves: tuple[Move, ...]
    coverage: tuple[Coverage, ...]
    confidence: float
    costs: tuple[Cost, ...]
    recommendation: Recommendation

    @property
    def table(self) -> pd.DataFrame:
        """A row for each update: the move of each tensor, in units of its radius at kappa = 1; ``needed``."""
        rows = [[*move.tensors, move.needed] for move in self.moves]
        index = pd.Index([move.name for move in self.moves], name="update")
        return pd.DataFrame(rows, columns=[*self.tensors, "needed"], index=index)

    @property
    def layers(self) -> pd.DataFrame:
        """A row for each tensor: how far it moved, in the middle and at most, and how often it decided."""
        moved = self.table.drop(columns="needed")
        decided = Counter(moved.idxmax(axis=1))
        counts = [decided[name] for name in moved.columns]
        found = pd.DataFrame({"median": moved.median(), "largest": moved.max(), "decided": counts})
        return found.rename_axis("tensor")

    @property
    def price(self) -> pd.DataFrame:
        """A row for each kappa and model: certified share, recourse, distance, accuracy."""
        columns = [
            "kappa",
            "trained_for",
            "refitted",
            "rows",
            "certified",
            "recourse",
            "distance",
            "accuracy",
        ]
        return pd.DataFrame([[getattr(c, name) for name in columns] for c in self.costs], columns=columns)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """One JSON document with everything, under a versioned schema; also written to ``path``."""
        return document_text(self.to_dict(), path)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values; a number that is not finite is None."""
        content = {**envelope(FORMAT, VERSION), **asdict(self)}
        finite: dict[str, Any] = _finite(content)
        return finite

    def headline(self) -> str:
        """The updates and what they need, in a sentence."""
        needed = self.table["needed"]
        kind = "real" if self.source == "history" else f"simulated ({self.source})"
        rows = f", each of {self.horizon} in a row" if self.horizon > 1 else ""
        return (
            f"{len(self.moves)} {kind} updates{rows}: they need kappa = {needed.min():.3g} to "
            f"{needed.max():.3g}; today's is {self.kappa:g} ({self.norm})"
        )

    def __str__(self) -> str:
        lines = [self.headline(), "", *(_covered(each, self.confidence) for each in self.coverage)]
        if self.costs:
            lines += ["", self.price.to_string(index=False, float_format=lambda v: f"{v:.4g}", na_rep="–")]
        return "\n".join([*lines, "", f"Recommended: {self.recommendation.sentence}"])

    __repr__ = __str__


def _covered(each: Coverage, confidence: float) -> str:
    known = (
        f"not known: {each.updates_needed} updates are needed to tell"
        if each.kappa is None
        else f"kappa = {rounded_up(each.kappa):g} with {percent(confidence)} confidence"
    )
    return f"{percent(each.share)} of updates: {known} (of the measured ones: {rounded_up(each.measured):g})"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
