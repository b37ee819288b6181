"""Certificates: what was proved of each counterfactual, by which method, and up to which radius."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from veritracer.balls import Norm
from veritracer.bounds import BOUNDS, Box, Method
from veritracer.bounds.rounding import unit_roundoff
from veritracer.errors import DataError, NotSupportedError, ParamSetError, message
from veritracer.network import from_module
from veritracer.param_sets import ParamSet
from veritracer.proving import CASCADE, Proofs, Question, prove, search_radius

CHUNK = 2048
"""Rows that are bounded at once: enough to fill a core's vector units, small enough to stay in cache."""


@dataclass(frozen=True)
class Certificate:
    """What was proved of one counterfactual."""

    certified: bool
    worst_logit: float
    method: str
    conditional: bool
    radius: float | None
    valid: bool
    slack: float
    kappa: float
    norm: Norm
    model_digest: str
    encoding_digest: str | None

    def __str__(self) -> str:
        if not self.certified:
            return f"unknown: no proof found at kappa = {self.kappa:g} ({self.norm})"
        scope = "while x keeps its decision" if self.conditional else "whatever becomes of x"
        return f"certified by {self.method} at kappa = {self.kappa:g} ({self.norm}), {scope}"


@dataclass(frozen=True)
class Certificates:
    """What was proved of each counterfactual, as arrays with one entry for each row.

    Attributes
    ----------
    certified
        Whether a proof was found that the counterfactual keeps its decision for every model of the set.
        ``False`` is "unknown", never "broken": for that, see ``bounds.attack``.
    worst_logit
        Upper bound over the set of the counterfactual's logit, counted towards the decision of ``x``, with
        ``slack`` added. Certified means below zero.
    method
        Which bound proved it; the tightest one tried where none did.
    conditional
        Whether the proof needs that ``x`` keeps its decision. If not, it holds for every model of the set.
    radius
        The largest kappa at which a proof was found, 0 where there is none; ``None`` if it was not asked for.
    valid
        Whether today's model decides ``x_cf`` otherwise than ``x``.
    slack
        What was added for floating-point arithmetic: the bound's and the model's own.
    kappa, norm, model_digest, encoding_digest
        The set of models that the proof speaks of.
    """

    certified: NDArray[np.bool_]
    worst_logit: NDArray[np.float64]
    method: NDArray[np.str_]
    conditional: NDArray[np.bool_]
    radius: NDArray[np.float64] | None
    valid: NDArray[np.bool_]
    slack: NDArray[np.float64]
    kappa: float
    norm: Norm
    model_digest: str
    encoding_digest: str | None = None

    def __len__(self) -> int:
        return len(self.certified)

    def __getitem__(self, row: int) -> Certificate:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        cells = {name: v[row].item() if isinstance(v, np.ndarray) else v for name, v in values.items()}
        return Certificate(**cells)

    def __iter__(self) -> Iterator[Certificate]:
        return (self[row] for row in range(len(self)))

    def __str__(self) -> str:
        share = self.certified.mean() if len(self) else 0.0
        count = f"{self.certified.sum():,} of {len(self):,} certified ({share:.1%})"
        return f"{count} at kappa = {self.kappa:g} ({self.norm})"


def certify(
    module: nn.Module,
    x: Tensor | ArrayLike,
    x_cf: Tensor | Box | ArrayLike,
    param_set: ParamSet,
    *,
    methods: Sequence[Method] = CASCADE,
    radius: bool = True,
) -> Certificates:
    """Certificates that ``x_cf`` keeps a decision other than today's on ``x``, for all models of the set.

    ``module`` is today's model, a torch MLP in the set; ``x`` and ``x_cf`` are encoded rows (n, d), or one
    row (d,). ``x_cf`` may be a ``Box``, and then every row of it is spoken for. All arithmetic is in
    float64, whatever the module's precision, with a slack that covers both (``bounds.rounding``).

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -1.0]])), model.bias.data.fill_(-2.0)
    >>> found = certify(model, [[4.0, 1.0]], [[-4.0, -1.0]], ParamSet.around(model, radius=1.9))
    >>> print(found[0])
    certified by simul-crown at kappa = 1 (linf), while x keeps its decision
    """
    _check_methods(methods)
    question = _question(module, x, x_cf, param_set)
    parts = [_certify_chunk(param_set, question.select(rows), methods, radius) for rows in chunks(question.x)]
    proofs = Proofs(*(torch.cat(column) for column in zip(*(p[0] for p in parts), strict=True)))
    reach = torch.cat([p[1] for p in parts])
    today = _decision(module, question.x_cf.center if isinstance(question.x_cf, Box) else question.x_cf)
    return Certificates(
        certified=(proofs.worst_logit < 0).cpu().numpy(),
        worst_logit=proofs.worst_logit.cpu().numpy(),
        method=np.array(methods)[proofs.method.cpu().numpy()],
        conditional=(proofs.multiplier > 0).cpu().numpy(),
        radius=reach.cpu().numpy() if radius else None,
        valid=(today != question.sign).cpu().numpy(),
        slack=proofs.slack.cpu().numpy(),
        kappa=param_set.kappa,
        norm=param_set.norm,
        model_digest=param_set.network.digest(from_module(module)[1]),
    )


def certified_radius(
    module: nn.Module,
    x: Tensor | ArrayLike,
    x_cf: Tensor | Box | ArrayLike,
    param_set: ParamSet,
    *,
    methods: Sequence[Method] = CASCADE,
) -> NDArray[np.float64]:
    """The largest kappa at which a proof was found for each row; 0 where there is none."""
    found = certify(module, x, x_cf, param_set, methods=methods, radius=True).radius
    assert found is not None
    return found


def _certify_chunk(
    param_set: ParamSet, question: Question, methods: Sequence[Method], radius: bool
) -> tuple[Proofs, Tensor]:
    with torch.no_grad():
        proofs = prove(param_set, question, methods)
        proved = proofs.worst_logit < 0
        reach = (
            search_radius(param_set, question, proved, methods) if radius else torch.zeros_like(question.sign)
        )
    return proofs, reach


def chunks(rows: Tensor) -> list[Tensor]:
    """Indices of ``rows`` in pieces of ``CHUNK``; one empty piece if there are none."""
    n = len(rows)
    return [torch.arange(at, min(at + CHUNK, n), device=rows.device) for at in range(0, max(n, 1), CHUNK)]


def _decision(module: nn.Module, x: Tensor) -> Tensor:
    """+1 where the module, in its own precision, says favourable and -1 where it does not, in float64."""
    network, theta = from_module(module)
    with torch.no_grad():
        logit = network.logit(theta, x.to(theta[0].dtype))
    return torch.where(logit > 0, 1.0, -1.0).to(torch.float64)


def _question(
    module: nn.Module, x: Tensor | ArrayLike, x_cf: Tensor | Box | ArrayLike, param_set: ParamSet
) -> Question:
    """The rows in float64 on the set's device, checked, with the module's decisions."""
    network, theta = from_module(module)
    if network != param_set.network or not param_set.contains(module):
        raise ParamSetError(
            message(
                "a set that contains this model",
                "a set around another one",
                "use ParamSet.around(module, ...)",
            )
        )
    device, width = param_set.center[0].device, theta[0].shape[1]
    rows = _rows("x", x, width, device)
    if isinstance(x_cf, Box):
        found: Tensor | Box = Box(
            _rows("x_cf.lower", x_cf.lower, width, device), _rows("x_cf.upper", x_cf.upper, width, device)
        )
        count = len(found[0])
        if bool((x_cf.lower > x_cf.upper).any()):
            raise DataError(message("a box with lower <= upper", "lower above upper", "exchange them"))
    else:
        found = _rows("x_cf", x_cf, width, device)
        count = len(found)
    if count != len(rows):
        raise DataError(message(f"as many counterfactuals as rows ({len(rows)})", f"{count}", "pair them up"))
    return Question(rows, found, _decision(module, rows), unit_roundoff(theta[0].dtype))


def _rows(name: str, values: Tensor | ArrayLike, width: int, device: torch.device) -> Tensor:
    tensor = torch.as_tensor(values).detach().to(device, torch.float64)
    tensor = tensor.unsqueeze(0) if tensor.dim() == 1 else tensor
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise DataError(
            message(
                f"{name} of shape (rows, {width})",
                f"{tuple(tensor.shape)}",
                "encode the rows with the model's encoding",
            )
        )
    if not bool(torch.isfinite(tensor).all()):
        raise DataError(
            message(
                f"finite numbers in {name}", "nan or infinity", "encode the rows with the model's encoding"
            )
        )
    return tensor


def _check_methods(methods: Sequence[str]) -> None:
    unknown = [m for m in methods if m not in BOUNDS]
    if unknown or not methods:
        raise NotSupportedError(
            message(f"methods among {list(BOUNDS)}", f"{list(methods)}", "choose one or more of these")
        )


def with_encoding(certificates: Certificates, digest: str) -> Certificates:
    """The same certificates, which now also name the encoding that their rows came through."""
    return replace(certificates, encoding_digest=digest)
