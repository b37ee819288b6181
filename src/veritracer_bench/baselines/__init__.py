"""Counterfactual methods behind one interface: ``explain(x)`` returns a counterfactual for each row.

``BASELINES[name](classifier, encoding, x_train, y_train, config, random_state)``. A new method is a subclass
of ``Baseline`` and an entry in ``BASELINES``; the tests contain the contract that all methods keep.
"""

from __future__ import annotations

from typing import Any

from veritracer_bench.baselines.adapters import CounterNet, Dice, DiceOptions, GeneratorOptions
from veritracer_bench.baselines.explainer import Baseline, Explainer, Options
from veritracer_bench.baselines.floors import Neighbour, Wachter, WachterOptions
from veritracer_bench.baselines.roar import Roar, RoarOptions
from veritracer_bench.baselines.sns import Elastic, ElasticOptions, Sns, SnsOptions

__all__ = [
    "BASELINES",
    "Baseline",
    "CounterNet",
    "Dice",
    "DiceOptions",
    "Elastic",
    "ElasticOptions",
    "Explainer",
    "GeneratorOptions",
    "Neighbour",
    "Options",
    "Roar",
    "RoarOptions",
    "Sns",
    "SnsOptions",
    "Wachter",
    "WachterOptions",
]

BASELINES: dict[str, type[Baseline[Any]]] = {
    method.name: method for method in (Neighbour, Wachter, Elastic, Roar, Sns, CounterNet, Dice)
}
"""All methods by name."""
