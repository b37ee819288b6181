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
from veritracer.decisions import decisions
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
    favourable: bool
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
        ``slack`` added. Certified means below zero; infinite where today's decision on ``x`` is itself within
        rounding of the other one.
    method
        Which bound proved it; the tightest one tried where none did.
    conditional
        Whether the proof needs that ``x`` keeps its decision. If not, it holds for every model of the set.
    radius
        The largest kappa at which a proof was found, 0 where there is none; ``None`` if it was not asked for.
    favourable
        Today's decision on ``x``, which the counterfactual is proved to leave.
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
    favourable: NDArray[np.bool_]
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
    network, theta = from_module(module)
    _check_set(module, param_set)
    rows, found = _pairs(x, x_cf, theta[0].shape[1], param_set.center[0].device)
    today = decisions(module, rows)
    question = Question(rows, found, today.sign)
    parts = [_certify_chunk(param_set, question.select(r), methods, radius) for r in chunks(rows)]
    proofs = Proofs(*(torch.cat(column) for column in zip(*(p[0] for p in parts), strict=True)))
    # If rounding could turn today's decision on x, there is nothing that x_cf could be proved to leave.
    worst = torch.where(today.clear, proofs.worst_logit, torch.inf)
    reach = torch.where(today.clear, torch.cat([p[1] for p in parts]), 0.0)
    there = decisions(module, found.center if isinstance(found, Box) else found)
    return Certificates(
        certified=(worst < 0).cpu().numpy(),
        worst_logit=worst.cpu().numpy(),
        method=np.array(methods)[proofs.method.cpu().numpy()],
        conditional=(proofs.multiplier > 0).cpu().numpy(),
        radius=reach.cpu().numpy() if radius else None,
        favourable=(today.sign > 0).cpu().numpy(),
        valid=(there.sign != today.sign).cpu().numpy(),
        slack=proofs.slack.cpu().numpy(),
        kappa=param_set.kappa,
        norm=param_set.norm,
        model_digest=network.digest(theta),
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


def _check_set(module: nn.Module, param_set: ParamSet) -> None:
    if from_module(module)[0] != param_set.network or not param_set.contains(module):
        remedy = "use ParamSet.around(module, ...)"
        raise ParamSetError(message("a set that contains this model", "a set around another one", remedy))


def _pairs(
    x: Tensor | ArrayLike, x_cf: Tensor | Box | ArrayLike, width: int, device: torch.device
) -> tuple[Tensor, Tensor | Box]:
    """Rows and counterfactuals (or boxes of them) in float64, checked and as many of each."""
    rows = _rows("x", x, width, device)
    if isinstance(x_cf, Box):
        lower, upper = (_rows(f"x_cf.{end}", getattr(x_cf, end), width, device) for end in ("lower", "upper"))
        counts = {len(lower), len(upper)}
        if len(counts) == 1 and bool((lower > upper).any()):
            raise DataError(message("a box with lower <= upper", "lower above upper", "exchange them"))
        found: Tensor | Box = Box(lower, upper)
    else:
        found = _rows("x_cf", x_cf, width, device)
        counts = {len(found)}
    if counts != {len(rows)}:
        received = " and ".join(str(count) for count in sorted(counts))
        raise DataError(message(f"as many counterfactuals as rows ({len(rows)})", received, "pair them up"))
    return rows, found


def _rows(name: str, values: Tensor | ArrayLike, width: int, device: torch.device) -> Tensor:
    # numpy first: torch would read a list of Python floats as float32.
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values, dtype=np.float64))
    tensor = tensor.detach().to(device, torch.float64)
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
