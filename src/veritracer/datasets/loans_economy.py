"""What differs between the years of ``loans``: the economy, who applies, and what the lender looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass

_PACE, _MOST_SHIFT = 0.7, 6.0

# What one criterion counts in year 1, in log odds of approval, and by which share that changes as years pass.
POLICY = {
    "room": (2.0, 0.03),
    "buffer": (0.65, -0.05),
    "missed": (-0.65, 0.03),
    "card_use": (-2.5, 0.04),
    "history": (0.9, 0.02),
    "thin_file": (-0.6, 0.04),
    "tenure": (0.7, 0.02),
    "insecure_job": (-0.5, 0.06),
    "no_job": (-0.9, 0.04),
    "debt_to_income": (-3.6, 0.04),
    "loan_to_income": (-3.2, 0.03),
    "home": (0.35, -0.04),
    "education": (0.35, -0.10),
    "business": (-0.4, 0.04),
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
        """The economy of ``year``: a shift of 0.7 a year (times the drift) at first, levelling off at 6."""
        shift = _MOST_SHIFT * math.tanh(_PACE * drift * (year - 1) / _MOST_SHIFT)
        return cls(
            shift=shift,
            rate=0.060 + 0.004 * shift,
            wages=math.exp(0.01 * shift),
            prices=math.exp(0.012 * shift),
            unemployment=0.05 * shift,
            youth=0.03 * shift,
            precarity=0.05 * shift,
            distress=0.025 * shift,
            caution=0.01 * shift,
        )

    def weight(self, criterion: str) -> float:
        """What the criterion counts this year; it may vanish, but never turns into its opposite."""
        first, change = POLICY[criterion]
        return first * max(0.0, 1.0 + change * self.shift)
