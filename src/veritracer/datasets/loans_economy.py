"""What differs between the years of ``loans``: the economy, who applies, and what the lender looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass

# What one criterion counts in year 1, in log odds of approval, and by which share that changes as years pass.
POLICY = {
    "room": (3.4, 0.10),
    "buffer": (0.55, -0.12),
    "missed": (-0.75, 0.10),
    "card_use": (-1.9, 0.12),
    "history": (1.1, 0.05),
    "thin_file": (-0.6, 0.10),
    "tenure": (0.9, 0.05),
    "insecure_job": (-0.7, 0.15),
    "no_job": (-1.3, 0.10),
    "debt_to_income": (-2.4, 0.12),
    "loan_to_income": (-1.6, 0.10),
    "home": (0.35, -0.10),
    "education": (0.35, -0.20),
    "business": (-0.4, 0.10),
}


@dataclass(frozen=True)
class Economy:
    """The state of one year; ``shift`` is 0 in year 1 and says how far things have moved since.

    Parameters
    ----------
    rate : yearly interest on a new loan.
    wages, prices : levels, 1 in year 1; prices rise faster, so there is less to spare.
    unemployment : log odds of being out of work that everybody gets on top.
    youth, precarity : how much younger applicants are, and how much more often they have insecure jobs.
    distress : log of how many more payments are missed.
    caution : log odds that an application needs on top in order to be approved.
    """

    shift: float
    rate: float
    wages: float
    prices: float
    unemployment: float
    youth: float
    precarity: float
    distress: float
    caution: float

    @classmethod
    def of(cls, year: int, drift: float) -> Economy:
        """The economy of ``year``: one unit of shift a year at first, levelling off at four."""
        shift = 4.0 * math.tanh(drift * (year - 1) / 4.0)
        return cls(
            shift=shift,
            rate=0.060 + 0.012 * shift,
            wages=math.exp(0.02 * shift),
            prices=math.exp(0.045 * shift),
            unemployment=0.15 * shift,
            youth=0.08 * shift,
            precarity=0.12 * shift,
            distress=0.06 * shift,
            caution=0.12 * shift,
        )

    def weight(self, criterion: str) -> float:
        """What the criterion counts this year; it may vanish, but never turns into its opposite."""
        first, change = POLICY[criterion]
        return first * max(0.0, 1.0 + change * self.shift)
