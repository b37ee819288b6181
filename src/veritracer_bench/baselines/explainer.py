"""The interface that all counterfactual methods share: rows in, one counterfactual for each of them out."""

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
"""Rows that are searched together: many enough for one batched optimisation, few enough for memory."""


class Explainer(Protocol):
    """A method that returns a counterfactual for each encoded row."""

    @property
    def name(self) -> str:
        """Return the name of the method in tables."""
        ...

    def explain(self, x: Tensor) -> Tensor:
        """Return a float64 counterfactual (n, d) for each encoded row; invalid if none was found."""
        ...


@dataclass(frozen=True)
class Options:
    """Options of every method.

    Attributes
    ----------
    project
        Whether to return rows that a person could have (``Encoding.project``): on the grid, one category,
        immutable features unchanged. Off, as in the papers, whose methods ignore this; a projected
        counterfactual may have become invalid.
    """

    project: bool = False


C = TypeVar("C", bound=Options)


class Baseline(ABC, Generic[C]):
    """An ``Explainer`` of one classifier; a method is a subclass with ``name``, ``options`` and ``search``.

    Parameters
    ----------
    classifier
        A torch MLP as ``from_module`` reads it: one logit, favourable above 0.
    encoding
        The encoding of the rows.
    x_train, y_train
        Encoded training rows (m, d), and their labels (m,): 1 is favourable.
    config
        The method's hyperparameters; ``None`` uses the defaults.
    random_state
        Seed of the method's randomness, which is drawn once, so that a row's answer does not depend on the
        other rows.
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
        """Prepare what every search needs; called once, at the end of the constructor."""

    @abstractmethod
    def search(self, x: Tensor) -> Tensor:
        """Return counterfactuals (n, d) for a batch of at least one row, each independent of the others."""

    def explain(self, x: Tensor) -> Tensor:
        """Return a float64 counterfactual (n, d) for each encoded row; invalid if none was found."""
        rows = self._rows(x)
        found = [self.search(batch) for batch in torch.split(rows, SEARCH_BATCH) if len(batch)]
        x_cf = torch.cat(found).detach() if found else rows.clone()
        return self.encoding.project(x_cf, rows) if self.config.project else x_cf

    def logit(self, x: Tensor) -> Tensor:
        """Return the classifier's logits (...) of rows (..., d)."""
        return self.network.logit(self.theta, x)

    def goal(self, x: Tensor) -> Tensor:
        """Return the decision (n,) to reach: +1 for unfavourable rows, -1 for favourable ones."""
        return -sign_of(self.logit(x))

    def reached(self, x_cf: Tensor, goal: Tensor) -> Tensor:
        """Return where the decision (...) on ``x_cf`` is the goal, strictly beyond the boundary."""
        return self.logit(x_cf) * goal > 0

    def stream(self) -> torch.Generator:
        """Return a fresh random stream, the same for every batch."""
        return torch.Generator().manual_seed(self.random_state)

    def _checked(self, config: C | None) -> C:
        chosen = self.options() if config is None else config
        if not isinstance(chosen, self.options):
            expected = f"a {self.options.__name__} for {self.name!r}"
            raise NotSupportedError(message(expected, repr(chosen), "each method has options of its own"))
        return chosen  # type: ignore[return-value]  # `options` is the class that C stands for

    def _rows(self, x: Tensor) -> Tensor:
        """Return a checked float64 copy of encoded rows."""
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
    """Return the cheaper of two counterfactuals for each row, and its cost; the new one only if allowed."""
    better = allowed & (cost < best_cost)
    return torch.where(better.unsqueeze(-1), new, best), torch.where(better, cost, best_cost)
