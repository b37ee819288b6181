"""How the classifiers of the evaluation are trained: what departs from ``VeriTraCER``'s defaults.

CounterNet is trained as its authors do it: the generator that rebuilds the whole row, and the weights of the
three losses that are the defaults of their own library (1 for accuracy, 0.2 for validity, 0.1 for proximity).
What departs from their code: the proximity is absolute instead of squared, and the accuracy loss is
cross-entropy, as for every other method here. ROAR, SNS and the two floors explain a classifier that was
trained for accuracy alone, as in the paper. All of these start as torch starts a layer. VeriTraCER's own
trainings are Algorithm 1 without a panel, as in the paper; what a panel changes is measured by
``benchmarks/truth.py``.
"""

from __future__ import annotations

from typing import Any

from veritracer.errors import NotSupportedError, unknown_name

_COUNTERNET: dict[str, Any] = {
    "method": "counternet",
    "generator": "counternet",
    "weight_accuracy": 1.0,
    "weight_validity": 0.2,
    "weight_proximity": 0.1,
}

_PLAIN: dict[str, Any] = {"panel": None, "initialisation": "small"}
"""Algorithm 1 and nothing more, from a start near zero: the default before there were panels."""

TRAINERS: dict[str, dict[str, Any]] = {
    "veritracer": _PLAIN,
    "veritracer-ibp": {**_PLAIN, "bound": "ibp"},
    "veritracer-crown-ibp": {**_PLAIN, "bound": "crown-ibp"},
    "counternet": {**_COUNTERNET, "initialisation": "torch"},
    "standard": {"method": "standard", "initialisation": "torch"},
    "veritracer-torch": {**_PLAIN, "initialisation": "torch"},
    "veritracer-steady": {**_PLAIN, "weight_proximity": 3.0},
    "counternet-small": {**_COUNTERNET, "initialisation": "small"},
    "veritracer-default": {},
    "veritracer-plain": _PLAIN,
}
"""Arguments of ``VeriTraCER`` by the name of the training."""

TIMED = ("veritracer", "veritracer-ibp", "veritracer-crown-ibp", "counternet", "standard")
"""The trainings of the table of times; the others differ from one of these in nothing that takes time."""

SECONDS = {
    "veritracer": 110.0,
    "veritracer-crown-ibp": 105.0,
    "veritracer-ibp": 65.0,
    "counternet": 45.0,
    "standard": 20.0,
    "veritracer-torch": 110.0,
    "veritracer-steady": 110.0,
    "counternet-small": 45.0,
    "veritracer-default": 300.0,
    "veritracer-plain": 110.0,
}
"""What ten models take on one core, about: for the order of the work and for the time left."""


def arguments(trainer: str) -> dict[str, Any]:
    """The arguments of ``VeriTraCER`` for this training; an unknown name is refused."""
    if trainer not in TRAINERS:
        raise NotSupportedError(unknown_name("a way of training", trainer, TRAINERS))
    return TRAINERS[trainer]
