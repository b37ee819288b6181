"""The unexplained part of every variable of ``loans``: named columns of noise, drawn block by block.

Only raw bits of PCG64 are drawn, because numpy promises that those never change, whereas its
``Generator.normal`` may be another algorithm in another version. A block is always drawn whole, so a row
depends on its seed, its year and its position, and never on how many rows were asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCK = 8192
_UNIFORM = (
    *("sex", "region", "employment", "tenure", "housing", "dependants", "history", "lines", "missed"),
    *("purpose", "income_hidden", "savings_hidden", "no_savings", "unrecorded"),
)
# Box and Muller make them in pairs, so their number is even: the spare one is for the next variable.
_NORMAL = ("age", "education", "income", "prudence", "savings", "card_use", "debt", "amount", "term", "spare")


@dataclass(frozen=True)
class Noise:
    """The noise of one block: each column has its own name and is independent of the others."""

    uniform: dict[str, Floats]
    normal: dict[str, Floats]

    @classmethod
    def of_block(cls, random_state: int, year: int, block: int) -> Noise:
        """The columns of block number ``block``, each with ``BLOCK`` values."""
        bits = np.random.PCG64(np.random.SeedSequence((random_state, year, block)))
        count = len(_UNIFORM) + len(_NORMAL)
        raw = bits.random_raw(count * BLOCK).reshape(count, BLOCK)
        # The upper 53 bits, put in the middle of their interval: never 0 and never 1, so log is safe.
        u = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        normal = _box_muller(u[len(_UNIFORM) :])
        return cls(dict(zip(_UNIFORM, u, strict=False)), dict(zip(_NORMAL, normal, strict=True)))


def _box_muller(u: Floats) -> Floats:
    """Independent standard normal rows from as many uniform ones; their number must be even."""
    half = len(u) // 2
    distance, angle = np.sqrt(-2.0 * np.log(u[:half])), 2.0 * np.pi * u[half:]
    return np.concatenate([distance * np.cos(angle), distance * np.sin(angle)])
