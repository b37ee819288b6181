"""A model that promises are held against: ours, or any torch MLP with its encoding and its threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from veritracer.encoding import Encoding
from veritracer.errors import DataError, NotSupportedError, message
from veritracer.network import Network, Theta, from_module
from veritracer.recourse import Recourse


@dataclass(frozen=True)
class Candidate:
    """A model as an audit sees it.

    Attributes
    ----------
    module
        The classifier; the sign of its logit is the decision.
    network, theta
        Its architecture and parameters, in float64.
    encoding
        The map between raw tables and its inputs.
    threshold
        The probability at which that is: part of the last bias, and not applied again.
    recourse
        What finds new recourse for people whose promise it breaks.
    """

    module: nn.Module
    network: Network
    theta: Theta
    encoding: Encoding
    threshold: float
    recourse: Callable[[], Recourse]

    @classmethod
    def of(cls, model: Any, encoding: Encoding | None = None, threshold: float | None = None) -> Candidate:
        """The candidate that ``model`` is: a fitted VeriTraCER, a ``Recourse``, or a torch module.

        A module needs its ``encoding``; ``threshold`` is the model's own, else 0.5.
        """
        if isinstance(model, Candidate):
            return model
        if hasattr(model, "classifier_") and hasattr(model, "encoding_"):
            module, known, finder = model.classifier_, model.encoding_, model.recourse
            threshold = model.threshold if threshold is None else threshold
        elif isinstance(model, Recourse):
            module, known, finder = model.module, model.encoding, lambda: model
        elif isinstance(model, nn.Module) and encoding is not None:
            module, known, finder = model, encoding, lambda: Recourse(model, None, encoding)
        else:
            received = f"a {type(model).__name__}" + (" without" if isinstance(model, nn.Module) else "")
            remedy = "pass a fitted VeriTraCER, or a torch module and encoding="
            raise NotSupportedError(message("a model with its encoding", received, remedy))
        threshold = 0.5 if threshold is None else threshold
        check_threshold(threshold)
        network, theta = from_module(module)
        if not all(bool(t.isfinite().all()) for t in theta):
            remedy = "training diverged: update again at a smaller learning rate"
            raise NotSupportedError(message("finite weights", "nan or infinity among them", remedy))
        exact = tuple(t.detach().to("cpu", torch.float64) for t in theta)
        return cls(module, network, exact, encoding or known, threshold, finder)

    def with_module(self, module: nn.Module) -> Candidate:
        """The same encoding and threshold with another classifier."""
        return Candidate.of(module, self.encoding, self.threshold)


def check_threshold(threshold: float) -> None:
    """Nothing; refuses what is no probability to decide at."""
    if not 0.0 < threshold < 1.0:
        raise DataError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))
