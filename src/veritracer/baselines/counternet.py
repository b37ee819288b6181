"""Counterfactuals of a generator that was trained with its classifier: CounterNet, and VeriTraCER itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from veritracer.baselines.explainer import Baseline, Options
from veritracer.errors import NotSupportedError, message
from veritracer.model import VeriTraCER
from veritracer.network import from_module


@dataclass(frozen=True)
class GeneratorOptions(Options):
    """The trained model whose generator answers; what it proposes is always projected."""

    model: VeriTraCER | None = None


class CounterNet(Baseline[GeneratorOptions]):
    """The proposals of a fitted ``VeriTraCER(method="counternet")``, after Guo, Nguyen and Yadav (2023).

    An adapter: the generator comes from training, and explains the classifier it was trained with and no
    other. ``CounterNet.of(model)`` builds it from the model alone.
    """

    name = "counternet"
    options = GeneratorOptions

    def prepare(self) -> None:
        """Check that the generator is there, and that it belongs to this classifier."""
        model = self.config.model
        if model is None or model.generator_ is None:
            received = "none" if model is None else f"method={model.method!r}, which trains none"
            remedy = "fit VeriTraCER(method='counternet') and pass GeneratorOptions(model=...)"
            raise NotSupportedError(message("a fitted model with a generator", received, remedy))
        network, theta = from_module(model.classifier_)
        if network.digest(theta) != self.network.digest(self.theta):
            remedy = "a generator belongs to the classifier it was trained with: pass model.classifier_"
            raise NotSupportedError(message("the generator's own classifier", "another one", remedy))
        self.model = model

    @classmethod
    def of(cls, model: VeriTraCER) -> Self:
        """The explainer of a fitted model."""
        nothing = torch.zeros(0, model.encoding_.dim, dtype=torch.float64)
        options = GeneratorOptions(model=model)
        return cls(model.classifier_, model.encoding_, nothing, nothing[:, 0], options)

    def search(self, x: Tensor) -> Tensor:
        """One pass through the generator."""
        return self.model.propose_encoded(x)
