"""Counterfactual methods behind one interface: ``explain(x)`` returns a counterfactual for each row.

``BASELINES[name](classifier, encoding, x_train, y_train, config, random_state)``. A new method is a subclass
of ``Baseline`` and an entry in ``BASELINES``; the tests contain the contract that all methods keep.
"""

from __future__ import annotations

from typing import Any

from veritracer_bench.baselines.adapters import (
    CounterNet,
    Dice,
    DiceOptions,
    Ellice,
    ElliceOptions,
    GeneratorOptions,
)
from veritracer_bench.baselines.explainer import Baseline, Explainer, Options
from veritracer_bench.baselines.floors import Neighbour, NeighbourOptions, Wachter, WachterOptions
from veritracer_bench.baselines.roar import Roar, RoarOptions
from veritracer_bench.baselines.robust import Proplace, ProplaceOptions, Rnce, RobustOptions
from veritracer_bench.baselines.sns import Elastic, ElasticOptions, Sns, SnsOptions

__all__ = [
    "BASELINES",
    "Baseline",
    "CounterNet",
    "Dice",
    "DiceOptions",
    "Elastic",
    "ElasticOptions",
    "Ellice",
    "ElliceOptions",
    "Explainer",
    "GeneratorOptions",
    "Neighbour",
    "NeighbourOptions",
    "Options",
    "Proplace",
    "ProplaceOptions",
    "Rnce",
    "Roar",
    "RoarOptions",
    "RobustOptions",
    "Sns",
    "SnsOptions",
    "Wachter",
    "WachterOptions",
]

BASELINES: dict[str, type[Baseline[Any]]] = {
    method.name: method
    for method in (Neighbour, Wachter, Elastic, Roar, Sns, Rnce, Proplace, CounterNet, Dice, Ellice)
}
"""All methods by name."""
