"""Draw the noise of ``loans``, and define the distributions that turn it into values.

Each is the distribution of one variable given its causes. ``sample`` computes a value from a person's noise,
``log_prob`` the probability of an observed value. Both use the same location, scale or rate, so sampling and
inference in ``loans`` stay consistent. Everything broadcasts: causes may be columns of a table, or have axes
of quadrature nodes as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaln, ndtr

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]

BLOCK = 8192
_UNIFORM = (
    *("sex", "region", "employment", "years_employed", "housing", "dependants", "history_years"),
    *("credit_lines", "missed_payments", "purpose", "income_hidden", "savings_hidden", "no_savings"),
    "unrecorded",
)
# Box and Muller generate pairs, so their number is even: the spare one is for the next variable.
_NORMAL = (
    *("age", "education", "income", "prudence", "savings", "card_use", "monthly_debt", "loan_amount"),
    *("term_months", "spare"),
)
# Variables that were added later have a stream of their own, so that earlier rows stay the same.
_LATER_UNIFORM, _LATER_STREAM = ("shock",), (1,)

_NEVER = 1e-300  # smallest probability, so that impossible rows have a score too
_ALMOST_ONE = 1.0 - 1e-6


@dataclass(frozen=True)
class BlockNoise:
    """Noise of one block of rows: independent columns by name.

    Only raw bits of PCG64 are drawn, because NumPy guarantees that they never change, unlike the algorithm of
    ``Generator.normal``. A block is always drawn as a whole, so that a row depends on its seed, its year and
    its position, and never on the number of rows.
    """

    uniform: dict[str, Floats]
    normal: dict[str, Floats]

    @classmethod
    def draw(cls, random_state: int, year: int, block: int) -> BlockNoise:
        """Draw the columns of block number ``block``, each with ``BLOCK`` values."""
        seed = (random_state, year, block)
        u = _uniform(np.random.SeedSequence(seed), len(_UNIFORM) + len(_NORMAL))
        later = _uniform(np.random.SeedSequence(seed, spawn_key=_LATER_STREAM), len(_LATER_UNIFORM))
        uniform = dict(zip((*_UNIFORM, *_LATER_UNIFORM), (*u[: len(_UNIFORM)], *later), strict=True))
        return cls(uniform, dict(zip(_NORMAL, _box_muller(u[len(_UNIFORM) :]), strict=True)))

    def __getitem__(self, name: str) -> Floats:
        return self.normal[name] if name in self.normal else self.uniform[name]


def _uniform(seed: np.random.SeedSequence, count: int) -> Floats:
    """Draw ``count`` rows of uniform numbers, never 0 and never 1, so that logarithms are finite."""
    raw = np.random.PCG64(seed).random_raw(count * BLOCK).reshape(count, BLOCK)
    # The upper 53 bits, put in the middle of their interval.
    u: Floats = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return u


def _box_muller(u: Floats) -> Floats:
    """Convert an even number of uniform rows to as many independent standard normal ones."""
    half = len(u) // 2
    distance, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    return np.concatenate([distance * np.cos(angle), distance * np.sin(angle)])


def sigmoid(logit: Floats) -> Floats:
    """Return the probability with these log odds."""
    return 1.0 / (1.0 + np.exp(-logit))


class LinkFunction(NamedTuple):
    """Map from a normal variable to an amount, and its inverse, infinite beyond the ends."""

    forward: Callable[[Any], Any]
    inverse: Callable[[Any], Any]


def _log(amount: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(amount, 0.0))


def _logit(share: Floats) -> Floats:
    inside = np.clip(share, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.log(inside) - np.log1p(-inside)


LOG, LOGIT = LinkFunction(np.exp, _log), LinkFunction(sigmoid, _logit)
PLAIN = LinkFunction(lambda latent: latent, lambda amount: amount)


class Sampler(ABC):
    """A function from noise to values."""

    @abstractmethod
    def sample(self, *noise: Floats) -> NDArray[Any]:
        """Return the value of each row for its noise."""


@dataclass(frozen=True)
class Transformed(Sampler):
    """A function of the noise, for a variable that needs no probability."""

    function: Callable[[Floats], NDArray[Any]]

    def sample(self, *noise: Floats) -> NDArray[Any]:
        """Return the value of each row for its noise."""
        return self.function(*noise)


class Distribution(Sampler):
    """A distribution given the causes: ``sample`` and ``log_prob``."""

    @abstractmethod
    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each value."""


@dataclass(frozen=True)
class Amount(Distribution):
    """``unit`` times the link of a normal variable, rounded to ``step`` and clipped to the range.

    The likelihood of an amount at an end of the range includes everything beyond it; an amount between two
    steps has the likelihood of the interval of that width around it.
    """

    location: Floats
    scale: Floats | float
    link: LinkFunction
    step: float
    lowest: float
    highest: float
    unit: Floats | float = 1.0

    def sample(self, *noise: Floats) -> Floats:
        """Return the amount of each row for its standard normal noise."""
        (z,) = noise
        amount: Floats = self.unit * self.link.forward(self.location + self.scale * z)
        return np.clip(np.rint(amount / self.step) * self.step, self.lowest, self.highest)

    def noise_of(self, value: Floats) -> Floats:
        """Return the noise that gives exactly this value."""
        return np.asarray((self.link.inverse(value / self.unit) - self.location) / self.scale)

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each value."""
        least = np.where(value <= self.lowest, -np.inf, self._edge(value - self.step / 2))
        most = np.where(value >= self.highest, np.inf, self._edge(value + self.step / 2))
        # In the upper tail the differences are taken between complements, which are exact there.
        upper = least > 0
        low, high = np.where(upper, -most, least), np.where(upper, -least, most)
        probability: Floats = ndtr(high) - ndtr(low)
        return np.log(np.maximum(probability, _NEVER))

    def _edge(self, amount: Floats) -> Floats:
        share = amount / self.unit
        if self.link is LOGIT:  # a share of 1 or more counts as nearly 1, so that such a row is informative
            share = np.minimum(share, _ALMOST_ONE)
        return np.asarray((self.link.inverse(share) - self.location) / self.scale)


@dataclass(frozen=True)
class Poisson(Distribution):
    """A Poisson count, at most ``most``."""

    rate: Floats
    most: int

    def sample(self, *noise: Floats) -> Codes:
        """Return the count of each row for its uniform noise."""
        (u,) = noise
        term = np.exp(-self.rate)
        below, count = term.copy(), np.zeros(len(u), dtype=np.int64)
        for k in range(1, self.most + 1):
            count += u > below
            term = term * self.rate / k
            below += term
        return count

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each count; ``most`` includes all larger ones."""
        k = np.rint(value)
        fewer = k * np.log(self.rate) - self.rate - gammaln(k + 1.0)
        return np.asarray(np.where(k >= self.most, np.log(gammainc(self.most, self.rate)), fewer))


@dataclass(frozen=True)
class Categorical(Distribution):
    """A category: shares are proportional to the exponential of the utilities."""

    utilities: list[Any]

    def sample(self, *noise: Floats) -> Codes:
        """Return the category of each row for its uniform noise."""
        (u,) = noise
        shares = np.cumsum(self._odds(u), axis=0)
        passed: Codes = (u * shares[-1] > shares[:-1]).sum(axis=0)
        return passed

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the share of each category."""
        odds = self._odds(value)
        picked = np.take_along_axis(odds, value[np.newaxis], axis=0)[0]
        return np.asarray(np.log(picked / odds.sum(axis=0)))

    def _odds(self, like: NDArray[Any]) -> Floats:
        utilities: Floats = np.stack(np.broadcast_arrays(*self.utilities, like)[:-1])
        return np.exp(utilities)


@dataclass(frozen=True)
class Bernoulli(Distribution):
    """True with this probability."""

    probability: Floats

    def sample(self, *noise: Floats) -> Flags:
        """Return the event of each row for its uniform noise."""
        (u,) = noise
        return np.asarray(u < self.probability)

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each value."""
        return np.log(np.where(value, self.probability, 1.0 - self.probability))


@dataclass(frozen=True)
class ZeroInflated(Distribution):
    """0 with a probability, otherwise distributed like ``other``; it needs two columns of noise."""

    other: Distribution
    nothing: Floats

    def sample(self, *noise: Floats) -> Floats:
        """Return the value of each row for the noise of ``other`` and the uniform noise of zeros."""
        own, u = noise
        return np.where(u < self.nothing, 0.0, self.other.sample(own))

    def nodes(self, z: Floats, log_density: Floats) -> tuple[Floats, Floats]:
        """Return 0 and the values at the nodes ``z``, along a last axis, with their log probabilities."""
        values, nothing = self.other.sample(z), self.nothing
        log_share = log_density - np.log(np.exp(log_density).sum())
        some = np.broadcast_to(np.log1p(-nothing) + log_share, values.shape)
        none = np.broadcast_to(np.log(nothing), (*values.shape[:-1], 1))
        return np.concatenate([np.zeros_like(none), values], axis=-1), np.concatenate([none, some], axis=-1)

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each value."""
        some = (1.0 - self.nothing) * np.exp(self.other.log_prob(value))
        return np.log(np.maximum(np.where(value <= 0.0, self.nothing, 0.0) + some, _NEVER))


@dataclass(frozen=True)
class Masked(Distribution):
    """Distributed like ``other`` where ``possible``; elsewhere 0, with likelihood 1."""

    other: Distribution
    possible: Flags

    def sample(self, *noise: Floats) -> NDArray[Any]:
        """Return the value of each row for the noise of ``other``."""
        drawn = self.other.sample(*noise)
        return np.where(self.possible, drawn, np.zeros_like(drawn))

    def log_prob(self, value: NDArray[Any]) -> Floats:
        """Return the logarithm of the probability of each value, 0 where none is possible."""
        return np.where(self.possible, self.other.log_prob(value), 0.0)
