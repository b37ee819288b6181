"""What a kappa costs: how much of the recourse is still certified, how far away it is, and the accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from sklearn.base import clone

from veritracer import metrics
from veritracer.calibration.coverage import coverage
from veritracer.calibration.retraining import Table, Updates, simulated
from veritracer.model import VeriTraCER


@dataclass(frozen=True)
class Cost:
    """What promising ``kappa`` costs with a model that was trained for ``trained_for``.

    Attributes
    ----------
    kappa, trained_for
        What is promised, and the model's own.
    refitted
        Whether the model was trained anew for this, or is today's.
    rows
        Declined test rows that recourse was looked for.
    certified, recourse
        The shares of them with a certified counterfactual, and with one that is at least valid today.
    distance
        The mean proximity of the certified ones (L1 over the number of encoded columns); nan for none.
    accuracy
        On all test rows.
    needed
        The kappa that covers each share of simulated updates of this very model, with the confidence that
        was asked for; None where it was not measured or there were too few updates.
    """

    kappa: float
    trained_for: float
    refitted: bool
    rows: int
    certified: float
    recourse: float
    distance: float
    accuracy: float
    needed: dict[float, float | None]


@dataclass(frozen=True)
class Pricing:
    """What is needed to price a kappa.

    Attributes
    ----------
    model
        Today's.
    train, test
        What refits learn from, and what costs are measured on.
    rows
        At most so many declined test rows are explained.
    updates, update_on
        The updates that are simulated for a refitted model too, and what they learn from.
    shares, confidence
        Of ``Cost.needed``.
    """

    model: VeriTraCER
    train: Table
    test: Table
    rows: int
    updates: Updates | None
    update_on: Table | None
    shares: Sequence[float]
    confidence: float

    def today(self, kappa: float) -> Cost:
        """What promising ``kappa`` costs with today's model."""
        return self._cost(self.model, kappa, refitted=False)

    def trained_for(self, kappa: float) -> Cost:
        """What promising ``kappa`` costs with a model that was trained for it.

        It is another model, and moves otherwise: its own updates are measured too, if they go on from it.
        """
        trained = clone(self.model).set_params(kappa=kappa, schema=self.model.schema_, verbose=0)
        found = self._cost(trained.fit(*self.train), kappa, refitted=True)
        if self.updates is None or self.update_on is None or not self.updates.is_warm:
            return found
        moves = [move.needed for move in simulated(trained, self.update_on, self.updates)]
        needed = {share: coverage(moves, share, self.confidence).kappa for share in self.shares}
        return replace(found, needed=needed)

    def _cost(self, model: VeriTraCER, kappa: float, *, refitted: bool) -> Cost:
        X, y = self.test
        declined = np.flatnonzero(model.decision_function(X) <= 0)[: self.rows]
        certified = recourse = distance = math.nan
        if len(declined):
            asked = X.iloc[declined] if isinstance(X, pd.DataFrame) else X[declined]
            found = model.explain(asked, kappa=kappa, search_radius=False)
            certified, recourse = float(found.certified.mean()), float(found.valid.mean())
            if found.certified.any():
                distance = metrics.proximity(found.x, found.x_cf, found.certified)
        accuracy = float(model.score(X, y))
        trained_for = float(model.kappa)
        return Cost(kappa, trained_for, refitted, len(declined), certified, recourse, distance, accuracy, {})
