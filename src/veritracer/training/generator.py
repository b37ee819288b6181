"""Counterfactual generators: small networks whose proposals are projected onto legal rows.

A generator is a pure function of its parameters, like the classifier. Its proposals pass through the
encoding's projection, so that nothing that the schema forbids is ever proposed, in training or later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.models.network import Network, Theta, activate, affine, sign_of
from veritracer.training.config import TrainingConfig

SMALL = 0.2
"""Scale of the first layer of a classifier with a small start."""


class Context(NamedTuple):
    """Inputs of a generator for each row: the row, the classifier's latents, and its decision as +1 or -1."""

    x: Tensor
    latent: Tensor
    sign: Tensor


@dataclass(frozen=True)
class Noise:
    """The random part of proposals, with a separate stream for each model that is trained side by side.

    ``dropping`` turns on dropout, as in training; categories are drawn either way.
    """

    streams: Sequence[torch.Generator]
    dropping: bool = False

    def dropped(self, h: Tensor, share: float) -> Tensor:
        """Set a random ``share`` of the entries of ``h`` to zero, and scale up the others."""
        if not self.dropping or share == 0.0:
            return h
        kept = self._drawn(h, lambda shape, stream: torch.rand(shape, generator=stream)) >= share
        return h * kept.to(h.dtype) / (1.0 - share)

    def gumbel(self, like: Tensor) -> Tensor:
        """Draw from the standard Gumbel distribution, one number for each entry of ``like``."""
        return self._drawn(
            like, lambda shape, stream: -torch.empty(shape).exponential_(generator=stream).log()
        )

    def _drawn(self, like: Tensor, draw: Callable[[torch.Size, torch.Generator], Tensor]) -> Tensor:
        """Draw from each model's stream, (models, n, k), or from the only one, (n, k)."""
        if like.dim() == 2:
            return draw(like.shape, self.streams[0]).to(like)
        return torch.stack([draw(like.shape[1:], stream) for stream in self.streams]).to(like)


class Generator(Protocol):
    """A proposal for each row as a pure function of parameters ``theta``, and of noise in training."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the widths of the generator's layers, inputs first."""
        ...

    def propose(self, theta: Sequence[Tensor], context: Context, noise: Noise | None = None) -> Tensor:
        """Return encoded rows (..., n, d) that need not be legal yet; without noise, the most likely ones."""
        ...


@dataclass(frozen=True)
class ResidualGenerator:
    """``x + g(x, latent, sign)``: starts from the row itself and learns which changes to make.

    NOTE[paper]: CounterNet rebuilds the whole row from a narrow latent, so its counterfactuals are far away
    from the start. With the last layer at zero this generator begins at distance 0 and moves away only as far
    as validity and robustness require.
    """

    dim: int
    latent: int
    hidden: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the widths of the layers."""
        return (self.dim + self.latent + 1, *self.hidden, self.dim)

    def propose(self, theta: Sequence[Tensor], context: Context, noise: Noise | None = None) -> Tensor:
        """Return the row plus a learned change."""
        inputs = torch.cat([context.x, context.latent, context.sign.unsqueeze(-1)], -1)
        return context.x + _mlp(theta, inputs)


@dataclass(frozen=True)
class CounterNetGenerator:
    """The paper's generator: the whole row anew, from the classifier's latents.

    The options are those of ``TrainingConfig``: with ``clamp``, numbers are clamped to [0, 1] instead of
    passed through a sigmoid; with ``sample`` and noise, categories are drawn (Gumbel).
    """

    dim: int
    latent: int
    hidden: tuple[int, ...]
    groups: tuple[slice, ...]
    slope: float = 0.0
    dropout: float = 0.0
    clamp: bool = False
    sample: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the widths of the layers."""
        return (self.latent, *self.hidden, self.dim)

    def propose(self, theta: Sequence[Tensor], context: Context, noise: Noise | None = None) -> Tensor:
        """Return numbers through the output map and categories through a softmax over their group.

        The greatest entry of a softmax of noisy values is a draw from the softmax of the values themselves.
        """
        raw = _mlp(theta, context.latent, self.slope, self.dropout, noise)
        pieces, end = [], 0
        for group in self.groups:
            pieces += [self._number(raw[..., end : group.start]), self._category(raw[..., group], noise)]
            end = group.stop
        return torch.cat([*pieces, self._number(raw[..., end:])], -1)

    def _number(self, raw: Tensor) -> Tensor:
        return raw.clamp(0.0, 1.0) if self.clamp else torch.sigmoid(raw)

    def _category(self, raw: Tensor, noise: Noise | None) -> Tensor:
        if self.sample and noise is not None:
            raw = raw + noise.gumbel(raw)
        return torch.softmax(raw, -1)


@dataclass(frozen=True, eq=False)
class NeighbourGenerator:
    """A fixed generator: the nearest training row with the other label.

    The paper's variant with a fixed generator: only the classifier is trained.
    """

    favourable: Tensor
    unfavourable: Tensor

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return no layers."""
        return ()

    def propose(self, theta: Sequence[Tensor], context: Context, noise: Noise | None = None) -> Tensor:
        """Return the nearest favourable row for unfavourable decisions, and vice versa."""
        x = context.x
        low, high = self._nearest(self.unfavourable.to(x), x), self._nearest(self.favourable.to(x), x)
        return torch.where(context.sign.unsqueeze(-1) > 0, low, high)

    @staticmethod
    def _nearest(pool: Tensor, x: Tensor) -> Tensor:
        return pool[torch.cdist(x, pool, p=1.0).argmin(-1)]


POOL = 2000
"""Maximum number of rows of each label in which a neighbour is searched."""


def make_generator(config: TrainingConfig, encoding: Encoding, x: Tensor, y: Tensor) -> Generator:
    """Return the generator for rows of this encoding; ``x`` and ``y`` are the training rows."""
    latent, hidden = config.latent_width(encoding.dim), config.generator_hidden
    if config.generator == "residual":
        return ResidualGenerator(encoding.dim, latent, hidden)
    if config.generator == "counternet":
        return CounterNetGenerator(
            encoding.dim,
            latent,
            hidden,
            tuple(encoding.groups),
            config.generator_slope,
            config.dropout,
            config.clamp,
            config.sample,
        )
    return NeighbourGenerator(x[y > 0.5][:POOL].clone(), x[y <= 0.5][:POOL].clone())


def init_parameters(
    sizes: Sequence[int], rng: torch.Generator, *, zero_last: bool = False, small: bool = False
) -> Theta:
    """Draw parameters as ``nn.Linear`` does, uniform in ±1/√inputs, from a separate random stream.

    A ``small`` start has a small first layer and no biases. Randomness of the usual start stays in the
    trained network wherever the rows do not contradict it, and counterfactuals exploit it: models of two
    seeds disagree there. From a small start such directions keep almost no weight.
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


def forward_with_context(
    network: Network, theta: Sequence[Tensor], x: Tensor, *, attached: bool = False
) -> tuple[Tensor, Context]:
    """Return the classifier's outputs (..., n, out) and the generator's inputs; ``network.read`` reads them.

    The latents are the activations of the last two hidden layers. They carry no gradients unless they are
    ``attached``: Algorithm 1 updates classifier and generator separately.
    """
    activations = network.activations(theta, x)
    outputs = affine(activations[-1], theta[-2], theta[-1])
    latent = torch.cat(activations[-2:], -1)
    return outputs, Context(x, latent if attached else latent.detach(), sign_of(network.read(outputs)))


def project_straight_through(encoding: Encoding, proposal: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the legal row next to each proposal, and the relaxed row that it came from.

    The forward pass is the hard projection: on the grid, one category. The backward pass is the relaxed one,
    so that gradients pass through rounding and choosing (a straight-through estimate).
    """
    relaxed = encoding.project(proposal, x, relax=True)
    hard = encoding.project(relaxed.detach(), x)
    return relaxed + (hard - relaxed).detach(), relaxed


def _mlp(
    theta: Sequence[Tensor],
    h: Tensor,
    slope: float = 0.0,
    dropout: float = 0.0,
    noise: Noise | None = None,
) -> Tensor:
    last = len(theta) // 2 - 1
    for k in range(last + 1):
        h = affine(h, theta[2 * k], theta[2 * k + 1])
        if k < last:
            h = activate(h, slope)
            h = h if noise is None else noise.dropped(h, dropout)
    return h
