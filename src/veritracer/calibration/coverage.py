"""Which kappa covers which share of updates, and what so many of them can tell about that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from veritracer.errors import DataError, message


@dataclass(frozen=True)
class Coverage:
    """What is known of the kappa that covers a share of all updates.

    Attributes
    ----------
    share
        Of the updates that the measured ones are a sample of.
    measured
        The smallest kappa that covers this share of the measured updates.
    kappa
        A kappa that covers at least this share of all updates, with the confidence that was asked for: an
        order statistic of the measured ones. None where there are too few of them for any to be one.
    updates_needed
        The fewest updates with which it is known.
    """

    share: float
    measured: float
    kappa: float | None
    updates_needed: int


def coverage(needed: Sequence[float], share: float, confidence: float) -> Coverage:
    """The order statistics of the needed kappas that stand for a share of all updates.

    With n independent updates, k_(r) is at least the quantile of ``share`` with probability
    P(Binomial(n, share) <= r - 1), whatever the distribution. The smallest such r is taken; if not even the
    largest of them will do, no kappa is known to cover that share.

    >>> coverage([0.1, 0.2, 0.3, 0.4, 0.5], 0.5, confidence=0.95)
    Coverage(share=0.5, measured=0.3, kappa=0.5, updates_needed=5)
    >>> coverage([0.1, 0.2, 0.3, 0.4, 0.5], 0.9, confidence=0.95)
    Coverage(share=0.9, measured=0.5, kappa=None, updates_needed=29)
    """
    check_shares(share, confidence)
    ordered = sorted(needed)
    n = len(ordered)
    below = 0.0
    kappa = None
    for rank in range(1, n + 1):
        below += math.comb(n, rank - 1) * share ** (rank - 1) * (1 - share) ** (n - rank + 1)
        if below >= confidence:
            kappa = ordered[rank - 1]
            break
    measured = ordered[max(1, math.ceil(share * n - 1e-9)) - 1]  # 0.9 * 10 may be an ulp above 9
    fewest = math.ceil(math.log(1 - confidence) / math.log(share) - 1e-9)
    return Coverage(share, measured, kappa, fewest)


def rounded_up(kappa: float) -> float:
    """The next number with three significant digits that is not below: what covers must not shrink.

    >>> rounded_up(1.2341), rounded_up(0.2), rounded_up(0.09991)
    (1.24, 0.2, 0.1)
    """
    if kappa == 0 or not math.isfinite(kappa):
        return kappa
    exact = Decimal(repr(kappa))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING))


def percent(share: float) -> str:
    """A share as people write it.

    >>> percent(0.9), percent(0.995)
    ('90 %', '99.5 %')
    """
    return f"{100 * share:.4g} %"


def check_shares(share: float, confidence: float) -> None:
    """Nothing; refuses what is no share."""
    for name, value in (("coverage", share), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            remedy = "nobody can know about all of them: 0.99 is a lot"
            raise DataError(message(f"a {name} between 0 and 1", f"{value:g}", remedy))
