"""Counterfactual generators: small networks that propose, and a projection that makes the proposal legal.

A generator is a pure function of its parameters, like the classifier. What it proposes goes through the
encoding's projection, so that neither in training nor later anything is proposed that the schema forbids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.models.network import Network, Theta, sign_of
from veritracer.training.config import GeneratorKind

SMALL = 0.2
"""The first layer of a classifier that starts small has this share of the usual weights."""


class Context(NamedTuple):
    """What a generator sees of each row: the row, the classifier's latents, and its decision as +1 or -1."""

    x: Tensor
    latent: Tensor
    sign: Tensor


class Generator(Protocol):
    """A proposal for each row as a pure function of parameters ``theta``."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the generator's layers, inputs first."""
        ...

    def propose(self, theta: Sequence[Tensor], context: Context) -> Tensor:
        """Encoded rows (..., n, d) that need not be legal yet."""
        ...


@dataclass(frozen=True)
class ResidualGenerator:
    """``x + g(x, latent, sign)``: it starts from the row itself and learns what to change.

    NOTE[paper]: CounterNet rebuilds the whole row from a narrow latent, so its counterfactuals are far
    away from the start. With the last layer at zero this one begins at distance 0 and leaves it only as
    far as validity and robustness ask.
    """

    dim: int
    latent: int
    hidden: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the layers."""
        return (self.dim + self.latent + 1, *self.hidden, self.dim)

    def propose(self, theta: Sequence[Tensor], context: Context) -> Tensor:
        """The row plus a learned change."""
        inputs = torch.cat([context.x, context.latent, context.sign.unsqueeze(-1)], -1)
        return context.x + _mlp(theta, inputs)


@dataclass(frozen=True)
class CounterNetGenerator:
    """The paper's generator: the whole row anew, from the classifier's latents."""

    dim: int
    latent: int
    hidden: tuple[int, ...]
    groups: tuple[slice, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Widths of the layers."""
        return (self.latent, *self.hidden, self.dim)

    def propose(self, theta: Sequence[Tensor], context: Context) -> Tensor:
        """Numbers by a sigmoid, categories by a softmax over their group."""
        raw = _mlp(theta, context.latent)
        pieces, end = [], 0
        for group in self.groups:
            pieces += [torch.sigmoid(raw[..., end : group.start]), torch.softmax(raw[..., group], -1)]
            end = group.stop
        return torch.cat([*pieces, torch.sigmoid(raw[..., end:])], -1)


@dataclass(frozen=True, eq=False)
class NeighbourGenerator:
    """A generator with nothing to learn: the nearest training row that has the other label.

    The paper's variant with a fixed generator: only the classifier is trained.
    """

    favourable: Tensor
    unfavourable: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        """No layers."""
        return ()

    def propose(self, theta: Sequence[Tensor], context: Context) -> Tensor:
        """The nearest favourable row for unfavourable decisions, and the other way round."""
        x = context.x
        low, high = self._nearest(self.unfavourable.to(x), x), self._nearest(self.favourable.to(x), x)
        return torch.where(context.sign.unsqueeze(-1) > 0, low, high)

    @staticmethod
    def _nearest(pool: Tensor, x: Tensor) -> Tensor:
        return pool[torch.cdist(x, pool, p=1.0).argmin(-1)]


POOL = 2000
"""Rows of each label that a neighbour is looked for among, at most."""


def make_generator(
    kind: GeneratorKind, encoding: Encoding, latent: int, hidden: tuple[int, ...], x: Tensor, y: Tensor
) -> Generator:
    """The generator of that kind for rows of this encoding; ``x`` and ``y`` are the training rows."""
    if kind == "residual":
        return ResidualGenerator(encoding.dim, latent, hidden)
    if kind == "counternet":
        return CounterNetGenerator(encoding.dim, latent, hidden, tuple(encoding.groups))
    return NeighbourGenerator(x[y > 0.5][:POOL].clone(), x[y <= 0.5][:POOL].clone())


def init_parameters(
    sizes: Sequence[int], rng: torch.Generator, *, zero_last: bool = False, small: bool = False
) -> Theta:
    """Parameters as ``nn.Linear`` starts them, uniform in ±1/√inputs, from a random stream of their own.

    A ``small`` start has a small first layer and no biases. What is random in the usual start stays in the
    trained network wherever the rows do not contradict it, and that is where counterfactuals go: models of
    two seeds disagree there. From a small start such directions keep next to no weight.
    """
    theta: list[Tensor] = []
    for into, out in pairwise(sizes):
        reach = into**-0.5
        theta.append((torch.rand(out, into, generator=rng, dtype=torch.float64) * 2 - 1) * reach)
        theta.append((torch.rand(out, generator=rng, dtype=torch.float64) * 2 - 1) * reach)
    if small:
        theta[0] = SMALL * theta[0]
        theta[1::2] = [torch.zeros_like(bias) for bias in theta[1::2]]
    if zero_last:
        theta[-2:] = [torch.zeros_like(t) for t in theta[-2:]]
    return tuple(theta)


def forward_with_context(network: Network, theta: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Context]:
    """The classifier's logits (..., n), and what the generator sees of each row.

    The latents are the activations of the last two hidden layers, without gradients: Algorithm 1 updates
    the classifier and the generator apart.
    """
    activations = network.activations(theta, x)
    logit = network.logit_from(theta, activations)
    return logit, Context(x, torch.cat(activations[-2:], -1).detach(), sign_of(logit))


def project_straight_through(encoding: Encoding, proposal: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The legal row next to each proposal, and the relaxed one that it came from.

    Forward it is the hard projection: on the grid, one category. Backward it is the relaxed one, so that
    gradients pass through rounding and choosing (a straight-through estimate).
    """
    relaxed = encoding.project(proposal, x, relax=True)
    hard = encoding.project(relaxed.detach(), x)
    return relaxed + (hard - relaxed).detach(), relaxed


def _mlp(theta: Sequence[Tensor], h: Tensor) -> Tensor:
    last = len(theta) // 2 - 1
    for k in range(last + 1):
        h = h @ theta[2 * k].mT + theta[2 * k + 1].unsqueeze(-2)
        if k < last:
            h = torch.relu(h)
    return h
