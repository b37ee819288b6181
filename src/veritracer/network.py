"""A multilayer perceptron as a pure function of its parameters.

``Network`` is everything about a classifier that its parameters are not: the activations, which
layers have a bias, and how the outputs become one logit. ``theta`` is the parameters themselves, a
flat tuple ``(W1, b1, ..., WK, bK)``. Bounds, training and attacks differentiate through ``theta``
and never touch an ``nn.Module``.

Every function takes leading batch dimensions on ``theta``: with ``W`` of shape (S, out, in) and ``x``
of shape (S, n, in), S models are evaluated at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veritracer.errors import NotSupportedError, message

Theta = tuple[Tensor, ...]

SUPPORTED = "Linear, ReLU, LeakyReLU, Identity, Dropout (in eval mode) and nested Sequential"


@dataclass(frozen=True)
class Network:
    """The architecture of an MLP: what stays when its parameters change.

    Attributes
    ----------
    slopes
        Slope below zero of the activation behind each hidden layer: 0 is ReLU, 0.01 the paper's
        LeakyReLU, 1 no activation at all.
    readout
        Weights that turn the outputs into one logit: ``(1,)`` for one output, ``(-1, 1)`` for two,
        where the second is the favourable class.
    biased
        Whether each layer has a bias. A layer without one has a zero in ``theta`` that no model of
        the set may move.
    """

    slopes: tuple[float, ...]
    readout: tuple[float, ...] = (1.0,)
    biased: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.biased:
            object.__setattr__(self, "biased", (True,) * (len(self.slopes) + 1))

    @property
    def depth(self) -> int:
        """Number of linear layers."""
        return len(self.slopes) + 1

    def layers(self, theta: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Weight (..., out, in) and bias (..., out) of each layer, first to last."""
        return zip(theta[0::2], theta[1::2], strict=True)

    def activations(self, theta: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """What goes into each layer, (..., n, in): the rows themselves, then every hidden layer's output."""
        inputs = [x]
        for (weight, bias), slope in zip(self.layers(theta), self.slopes, strict=False):
            inputs.append(activate(affine(inputs[-1], weight, bias), slope))
        return inputs

    def logit(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """The logit of each row of ``x`` (..., n, in), as (..., n): above zero means favourable."""
        return self.read(affine(self.activations(theta, x)[-1], theta[-2], theta[-1]))

    def read(self, outputs: Tensor) -> Tensor:
        """One logit from the outputs (..., n, out) of the last layer."""
        if len(self.readout) == 1:
            return outputs[..., 0]
        return outputs @ outputs.new_tensor(self.readout)

    def digest(self, theta: Sequence[Tensor]) -> str:
        """SHA-256 of architecture and parameters: two models share it only if they are the same model."""
        shapes = [list(t.shape) for t in theta]
        head = json.dumps([self.slopes, self.readout, self.biased, shapes])
        sha = hashlib.sha256(head.encode())
        for tensor in theta:
            sha.update(tensor.detach().to("cpu", torch.float64).contiguous().numpy().tobytes())
        return sha.hexdigest()


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x @ weight.T + bias`` with shapes (..., n, in), (..., out, in), (..., out) -> (..., n, out)."""
    return x @ weight.mT + bias.unsqueeze(-2)


def activate(z: Tensor, slope: float) -> Tensor:
    """LeakyReLU of the given slope; ReLU for 0, nothing for 1."""
    if slope == 0.0:
        return torch.relu(z)
    if slope == 1.0:
        return z
    return torch.nn.functional.leaky_relu(z, slope)


def from_module(module: nn.Module) -> tuple[Network, Theta]:
    """Architecture and parameters of a torch MLP with one logit, or two.

    The parameters are the module's own tensors, not copies: gradients reach the module.

    >>> net, theta = from_module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> net.slopes, [tuple(t.shape) for t in theta]
    ((0.0,), [(4, 3), (4,), (1, 4), (1,)])
    """
    theta: list[Tensor] = []
    slopes: list[float] = []
    biased: list[bool] = []
    pending = 1.0  # slope of what stands between the previous Linear and the next one
    for name, layer in _leaves(module, ""):
        if isinstance(layer, nn.Linear):
            if theta:
                slopes.append(pending)
            pending = 1.0
            theta += [layer.weight, layer.weight.new_zeros(layer.out_features)]
            biased.append(layer.bias is not None)
            if layer.bias is not None:
                theta[-1] = layer.bias
        else:
            pending = _activation_slope(name, layer, pending, behind_linear=bool(theta))
    _check_ends(theta, pending)
    readout = (1.0,) if theta[-2].shape[0] == 1 else (-1.0, 1.0)
    return Network(tuple(slopes), readout, tuple(biased)), tuple(theta)


def to_module(network: Network, theta: Sequence[Tensor]) -> nn.Sequential:
    """A plain ``nn.Sequential`` of Linear and (Leaky)ReLU that holds copies of ``theta``."""
    modules: list[nn.Module] = []
    for k, (weight, bias) in enumerate(network.layers(theta)):
        out, into = weight.shape
        linear = nn.Linear(into, out, bias=network.biased[k], dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            linear.weight.copy_(weight)
            if network.biased[k]:
                linear.bias.copy_(bias)
        modules.append(linear)
        if k < len(network.slopes) and network.slopes[k] != 1.0:
            slope = network.slopes[k]
            modules.append(nn.ReLU() if slope == 0.0 else nn.LeakyReLU(slope))
    return nn.Sequential(*modules)


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers that do something, in order, with their names."""
    if isinstance(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _leaves(child, f"{prefix}.{name}" if prefix else name)
    elif isinstance(module, nn.Dropout | nn.AlphaDropout):
        if module.training and module.p > 0:
            raise NotSupportedError(
                message(
                    "a network in eval mode",
                    f"layer {prefix!r} ({module}) in training mode",
                    "call module.eval()",
                )
            )
    elif not isinstance(module, nn.Identity):
        yield prefix, module


def _activation_slope(name: str, layer: nn.Module, pending: float, *, behind_linear: bool) -> float:
    """Slope below zero of an activation layer; anything that is not one is refused."""
    slope: float | None = None
    if isinstance(layer, nn.ReLU):
        slope = 0.0
    elif isinstance(layer, nn.LeakyReLU):
        slope = float(layer.negative_slope)
    where = f"layer {name!r}" if name else "the module itself"
    if slope is None:
        final = isinstance(layer, nn.Sigmoid | nn.Softmax | nn.LogSoftmax)
        remedy = (
            "take it off: the decision is the sign of the logit"
            if final
            else "rebuild the model from these layers"
        )
        raise NotSupportedError(message(f"only {SUPPORTED}", f"{where}: {layer}", remedy))
    if not 0.0 <= slope <= 1.0:
        raise NotSupportedError(
            message("a LeakyReLU slope in [0, 1]", f"{slope} in {where}", "use a monotone activation")
        )
    if not behind_linear:
        raise NotSupportedError(
            message("a Linear layer first", f"{where}: {layer}", "drop it or scale the inputs instead")
        )
    # LeakyReLU twice is LeakyReLU with the product of the slopes.
    return pending * slope


def _check_ends(theta: Sequence[Tensor], pending: float) -> None:
    """Refuse a network without layers, with an activation behind its logit, or with other outputs."""
    if not theta:
        raise NotSupportedError(
            message(f"an MLP of {SUPPORTED}", "no Linear layer", "pass the classifier itself")
        )
    if pending != 1.0:
        raise NotSupportedError(
            message(
                "a Linear layer last",
                "an activation behind it",
                "take it off: the decision is the sign of the logit",
            )
        )
    outputs = theta[-2].shape[0]
    if outputs not in (1, 2):
        raise NotSupportedError(
            message(
                "one logit, or two (the second is the favourable class)",
                f"{outputs} outputs",
                "train a binary classifier",
            )
        )
