"""What every method of explanation has in common: rows in, a counterfactual for each of them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from veritracer.encoding import Encoding
from veritracer.errors import DataError, NotSupportedError, message
from veritracer.models.network import from_module, sign_of

SEARCH_BATCH = 512
"""Rows that are searched for together: many enough for one batched optimisation, few enough for memory."""


class Explainer(Protocol):
    """Anything that gives a counterfactual for each encoded row."""

    @property
    def name(self) -> str:
        """What tables call the method."""
        ...

    def explain(self, x: Tensor) -> Tensor:
        """A counterfactual (n, d) in float64 for each encoded row (n, d); not valid where none was found."""
        ...


@dataclass(frozen=True)
class Options:
    """What can be chosen for every method.

    Attributes
    ----------
    project
        Whether to end on rows that a person could have (``Encoding.project``): on the grid, one category,
        immutable features as they were. Off, as in the papers, whose methods know nothing of this; a
        projected counterfactual may have lost its validity.
    """

    project: bool = False


C = TypeVar("C", bound=Options)


class Baseline(ABC, Generic[C]):
    """An ``Explainer`` of one classifier; a method is a subclass with ``name``, ``options`` and ``search``.

    Parameters
    ----------
    classifier
        A torch MLP as ``from_module`` reads it: one logit, above 0 means favourable.
    encoding
        Of the rows.
    x_train, y_train
        Encoded training rows (m, d), and their labels (m,): 1 is favourable.
    config
        The method's hyperparameters; ``None`` takes the defaults.
    random_state
        Seed of what is random; drawn once, so that a row's answer does not depend on the other rows.
    """

    name: ClassVar[str]
    options: ClassVar[type[Options]]

    def __init__(
        self,
        classifier: nn.Module,
        encoding: Encoding,
        x_train: Tensor,
        y_train: Tensor,
        config: C | None = None,
        random_state: int = 0,
    ) -> None:
        self.encoding = encoding
        self.network, theta = from_module(classifier)
        self.theta = tuple(t.detach().to("cpu", torch.float64, copy=True) for t in theta)
        self.x_train, self.y_train = self._rows(x_train), y_train.detach().to("cpu", torch.float64)
        self.config: C = self._checked(config)
        self.random_state = random_state
        self.prepare()

    def prepare(self) -> None:  # most methods have nothing to prepare
        """Make what every search needs, once; the end of the constructor."""

    @abstractmethod
    def search(self, x: Tensor) -> Tensor:
        """Counterfactuals (n, d) for a batch of at least one row, each found without regard to the others."""

    def explain(self, x: Tensor) -> Tensor:
        """A counterfactual (n, d) in float64 for each encoded row (n, d); not valid where none was found."""
        rows = self._rows(x)
        found = [self.search(batch) for batch in torch.split(rows, SEARCH_BATCH) if len(batch)]
        x_cf = torch.cat(found).detach() if found else rows.clone()
        return self.encoding.project(x_cf, rows) if self.config.project else x_cf

    def logit(self, x: Tensor) -> Tensor:
        """The classifier's logits (...) of rows (..., d)."""
        return self.network.logit(self.theta, x)

    def goal(self, x: Tensor) -> Tensor:
        """The decision (n,) that a counterfactual must reach: +1 for unfavourable rows, -1 for favourable."""
        return -sign_of(self.logit(x))

    def reached(self, x_cf: Tensor, goal: Tensor) -> Tensor:
        """Where the decision (...) on ``x_cf`` is the goal, beyond the border itself."""
        return self.logit(x_cf) * goal > 0

    def stream(self) -> torch.Generator:
        """A fresh random stream, the same for every batch."""
        return torch.Generator().manual_seed(self.random_state)

    def _checked(self, config: C | None) -> C:
        chosen = self.options() if config is None else config
        if not isinstance(chosen, self.options):
            expected = f"a {self.options.__name__} for {self.name!r}"
            raise NotSupportedError(message(expected, repr(chosen), "each method has options of its own"))
        return chosen  # type: ignore[return-value]  # `options` is the class that C stands for

    def _rows(self, x: Tensor) -> Tensor:
        """A float64 copy of encoded rows, checked."""
        width = self.encoding.dim
        if x.dim() != 2 or x.shape[1] != width or width != self.theta[0].shape[1]:
            received = f"{tuple(x.shape)} for a network of {self.theta[0].shape[1]} inputs"
            raise DataError(message(f"rows (n, {width})", received, "use the encoding of this classifier"))
        rows = x.detach().to("cpu", torch.float64, copy=True)
        if not bool(torch.isfinite(rows).all()):
            raise DataError(message("finite rows", "nan or infinity", "encode the rows with the encoding"))
        return rows


def closest(
    best: Tensor, best_cost: Tensor, new: Tensor, cost: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """The cheaper of two counterfactuals for each row, and its cost; the new one only where it is allowed."""
    better = allowed & (cost < best_cost)
    return torch.where(better.unsqueeze(-1), new, best), torch.where(better, cost, best_cost)
