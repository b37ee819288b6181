"""Multilayer perceptrons as pure functions of their parameters.

``Network`` holds what does not change with the parameters: the activations, which layers have a bias, and how
the outputs become one logit. ``theta`` is the parameters, a flat tuple ``(W1, b1, ..., WK, bK)``. Bounds,
training and attacks differentiate with respect to ``theta`` and never touch an ``nn.Module``.

Every function accepts leading batch dimensions on ``theta``: with ``W`` of shape (S, out, in) and ``x`` of
shape (S, n, in), S models are evaluated at once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from veritracer.errors import NotSupportedError, TrainingError, message

Theta = tuple[Tensor, ...]

SUPPORTED = "Linear, ReLU, LeakyReLU, Identity, Dropout (in eval mode) and nested Sequential"


@dataclass(frozen=True)
class Network:
    """The architecture of an MLP.

    Attributes
    ----------
    slopes
        Slope below zero of the activation after each hidden layer: 0 is ReLU, 0.01 the paper's LeakyReLU, 1
        no activation.
    readout
        Weights that turn the outputs into one logit: ``(1,)`` for one output, ``(-1, 1)`` for two, where the
        second is the favourable class.
    biased
        Whether each layer has a bias. A layer without one has a zero in ``theta`` that no model of the set
        may change.
    """

    slopes: tuple[float, ...]
    readout: tuple[float, ...] = (1.0,)
    biased: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.biased:
            object.__setattr__(self, "biased", (True,) * (len(self.slopes) + 1))

    @property
    def depth(self) -> int:
        """Return the number of linear layers."""
        return len(self.slopes) + 1

    def layers(self, theta: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Return weight (..., out, in) and bias (..., out) of each layer, first to last."""
        return zip(theta[0::2], theta[1::2], strict=True)

    def activations(self, theta: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """Return the input of each layer, (..., n, in): the rows, then the output of every hidden layer."""
        inputs = [x]
        for (weight, bias), slope in zip(self.layers(theta), self.slopes, strict=False):
            inputs.append(activate(affine(inputs[-1], weight, bias), slope))
        return inputs

    def logit(self, theta: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the logit (..., n) of each row of ``x`` (..., n, in): above zero is favourable."""
        return self.logit_from(theta, self.activations(theta, x))

    def logit_from(self, theta: Sequence[Tensor], activations: Sequence[Tensor]) -> Tensor:
        """Return the logit (..., n) of each row from the result of ``activations``."""
        return self.read(affine(activations[-1], theta[-2], theta[-1]))

    def read(self, outputs: Tensor) -> Tensor:
        """Turn the outputs (..., n, out) of the last layer into one logit."""
        if len(self.readout) == 1:
            return outputs[..., 0]
        return outputs @ outputs.new_tensor(self.readout)

    def digest(self, theta: Sequence[Tensor]) -> str:
        """Return the SHA-256 of architecture and parameters, which identifies the model."""
        shapes = [list(t.shape) for t in theta]
        head = json.dumps([self.slopes, self.readout, self.biased, shapes])
        sha = hashlib.sha256(head.encode())
        for tensor in theta:
            sha.update(tensor.detach().to("cpu", torch.float64).contiguous().numpy().tobytes())
        return sha.hexdigest()


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ weight.T + bias``: (..., n, in), (..., out, in), (..., out) -> (..., n, out)."""
    return x @ weight.mT + bias.unsqueeze(-2)


def sign_of(logit: Tensor) -> Tensor:
    """Return the decision: +1 where the logit is favourable (above 0), else -1."""
    return torch.where(logit.detach() > 0, 1.0, -1.0).to(logit.dtype)


def threshold_logit(threshold: float) -> float:
    """Return the logit of the probability ``threshold``; a fitted model has it, negated, in its last bias."""
    if not 0.0 < threshold < 1.0:
        raise TrainingError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))
    return math.log(threshold / (1.0 - threshold))


def rate_threshold(logit: Tensor, rate: float) -> Tensor:
    """Return the logit that the share ``rate`` of these (n,) exceeds, as nearly as ties allow.

    >>> rate_threshold(torch.tensor([0.0, 1.0, 2.0, 4.0]), 0.25)
    tensor(3., dtype=torch.float64)
    """
    if not 0.0 < rate < 1.0:
        raise TrainingError(message("an approval rate between 0 and 1", repr(rate), "0.3 accepts 30 %"))
    ordered = logit.double().sort(descending=True).values
    accepted = min(max(round(rate * len(ordered)), 1), len(ordered) - 1)
    return (ordered[accepted - 1] + ordered[accepted]) / 2


def activate(z: Tensor, slope: float) -> Tensor:
    """Apply LeakyReLU with the given slope; ReLU for 0, the identity for 1."""
    if slope == 0.0:
        return torch.relu(z)
    if slope == 1.0:
        return z
    return torch.nn.functional.leaky_relu(z, slope)


def from_module(module: nn.Module) -> tuple[Network, Theta]:
    """Return architecture and parameters of a torch MLP with one logit, or two.

    The parameters are the module's own tensors, not copies: gradients reach the module.

    >>> net, theta = from_module(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)))
    >>> net.slopes, [tuple(t.shape) for t in theta]
    ((0.0,), [(4, 3), (4,), (1, 4), (1,)])
    """
    theta: list[Tensor] = []
    slopes: list[float] = []
    biased: list[bool] = []
    between: list[float] = []  # slopes of the activations after the last Linear so far
    for name, layer in _leaves(module, ""):
        if isinstance(layer, nn.Linear):
            if theta:
                slopes.append(between[0] if between else 1.0)
            between = []
            bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
            theta += [layer.weight, bias]
            biased.append(layer.bias is not None)
        else:
            between.append(_activation_slope(name, layer, behind_linear=bool(theta) and not between))
    _check_ends(theta, behind=bool(between))
    readout = (1.0,) if theta[-2].shape[0] == 1 else (-1.0, 1.0)
    return Network(tuple(slopes), readout, tuple(biased)), tuple(theta)


def to_module(network: Network, theta: Sequence[Tensor]) -> nn.Sequential:
    """Build a plain ``nn.Sequential`` of Linear and (Leaky)ReLU with copies of ``theta``.

    Torch's global random stream is left alone.
    """
    modules: list[nn.Module] = []
    for k, (weight, bias) in enumerate(network.layers(theta)):
        out, into = weight.shape
        linear = nn.Linear(into, out, bias=network.biased[k], dtype=weight.dtype, device="meta")
        linear = linear.to_empty(device=weight.device)  # no random start: it would be overwritten
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
    """Yield the layers that compute something, in order, with their names; refuse other computations."""
    where = f"layer {prefix!r}" if prefix else "the module itself"
    if module._forward_hooks or module._forward_pre_hooks:
        remedy = "remove the hooks: their changes cannot be seen"
        raise NotSupportedError(message("layers without forward hooks", f"hooks on {where}", remedy))
    if isinstance(module, nn.Sequential):
        if type(module).forward is not nn.Sequential.forward:
            remedy = "pass the plain Sequential inside it"
            raise NotSupportedError(
                message("a plain nn.Sequential", f"{where} with a forward of its own", remedy)
            )
        # Not named_children(): it yields a layer that is used in two places only once.
        for name, child in module._modules.items():
            if child is not None:
                yield from _leaves(child, f"{prefix}.{name}" if prefix else name)
    elif isinstance(module, nn.Dropout | nn.AlphaDropout):
        if module.training and module.p > 0:
            received = f"{where} ({module}) in training mode"
            raise NotSupportedError(message("a network in eval mode", received, "call module.eval()"))
    elif not isinstance(module, nn.Identity):
        yield prefix, module


def _activation_slope(name: str, layer: nn.Module, *, behind_linear: bool) -> float:
    """Return the slope below zero of an activation layer; refuse anything that is not one."""
    where = f"layer {name!r}" if name else "the module itself"
    if type(layer) is nn.ReLU:
        slope = 0.0
    elif type(layer) is nn.LeakyReLU:
        slope = float(layer.negative_slope)
    else:
        final = isinstance(layer, nn.Sigmoid | nn.Softmax | nn.LogSoftmax)
        remedy = (
            "remove it: the decision is the sign of the logit" if final else "rebuild the model from these"
        )
        raise NotSupportedError(message(f"only {SUPPORTED}", f"{where}: {layer}", remedy))
    if not 0.0 <= slope <= 1.0:
        remedy = "use a monotone activation"
        raise NotSupportedError(message("a LeakyReLU slope in [0, 1]", f"{slope} in {where}", remedy))
    if not behind_linear:
        remedy = "keep one activation between two Linear layers, and none before the first"
        raise NotSupportedError(message("a Linear layer before each activation", f"{where}: {layer}", remedy))
    return slope


def _check_ends(theta: Sequence[Tensor], *, behind: bool) -> None:
    """Refuse a network without layers, with an activation at its end, or of other outputs or precision."""
    if not theta:
        raise NotSupportedError(
            message(f"an MLP of {SUPPORTED}", "no Linear layer", "pass the classifier itself")
        )
    if behind:
        remedy = "remove it: the decision is the sign of the logit"
        raise NotSupportedError(message("a Linear layer last", "an activation after it", remedy))
    outputs = theta[-2].shape[0]
    if outputs not in (1, 2):
        expected = "one logit, or two (the second is the favourable class)"
        raise NotSupportedError(message(expected, f"{outputs} outputs", "train a binary classifier"))
    kinds = {t.dtype for t in theta}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        received = ", ".join(sorted(str(kind) for kind in kinds))
        raise NotSupportedError(
            message("parameters in float32 or in float64", received, "call module.float()")
        )
