"""Certify counterfactuals over a set of models, and test if a model belongs to the set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from veritracer.bounds.attack import Counterexample
from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import EXACT, BoundProblem, check_exact, methods_named, names_by_code
from veritracer.bounds.rounding import round_up
from veritracer.errors import DataError, NotSupportedError, ParamSetError, message, unknown_name
from veritracer.models.balls import Norm
from veritracer.models.network import from_module
from veritracer.models.param_sets import ParamSet, describe_set
from veritracer.options import Effort
from veritracer.proving import CASCADE, PRECISION, ProofBatch, Proofs, decide, prove, search_radius

CHUNK = 2048
"""Rows that are bounded at once: enough to fill a core's vector units, few enough to fit in its cache."""


Verdict = Literal["certified", "broken", "unknown"]
"""What is known of a counterfactual: a proof, a model of the set that breaks it, or neither."""

Incompatibility = Literal["architecture", "encoding", "threshold", "weights"]
"""The part of a model that differs by more than a set allows."""


@dataclass(frozen=True)
class Membership:
    """Membership of a model in the set that certificates cover; true if the model is inside.

    Attributes
    ----------
    outside
        The part of the model that differs by more than the set allows; None if the model is inside.
    reason
        The reason as a sentence, with the parts that cannot be compared from the model alone.
    shares
        Distance of each tensor from the centre, W1, b1, W2, ..., divided by its radius: at most 1 is inside.
        Empty for another architecture.
    """

    outside: Incompatibility | None
    reason: str
    shares: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return self.outside is None


@dataclass(frozen=True)
class Certificate:
    """The certificate of one counterfactual; the fields are those of ``Certificates``."""

    certified: bool
    status: Verdict
    worst_logit: float
    method: str
    conditional: bool
    radius: float | None
    favourable: bool
    valid: bool
    slack: float
    kappa: float
    norm: Norm
    rule: str
    radii: Mapping[str, float]
    center_digest: str
    model_digest: str
    encoding_digest: str | None
    threshold: float | None
    counterexample: Counterexample | None

    def __str__(self) -> str:
        models = _describe_set(self)
        if self.counterexample is not None:
            return f"broken: a model at {models} gives x_cf the decision that it gives x"
        if not self.certified:
            return f"unknown: no proof found at {models}"
        scope = "while x keeps its decision" if self.conditional else "even if the decision on x changes"
        return f"certified by {self.method} at {models}, {scope}"


@dataclass(frozen=True)
class Certificates:
    """Certificates of many counterfactuals, as arrays with one entry for each row.

    Attributes
    ----------
    certified
        True if it was proved that the counterfactual keeps its decision for every model of the set. False
        alone does not mean "broken": see ``status``.
    worst_logit
        Upper bound of the counterfactual's logit over the set, with the sign of the decision on ``x``,
        including ``slack``, rounded up to ten digits. Certified means below zero; infinite if rounding could
        change today's decision on ``x``.
    method
        The bound that proved it, or else the tightest one that was tried; ``exact`` is the exact stage.
    conditional
        True if the proof holds only while ``x`` keeps its decision, False if for every model of the set.
    radius
        The largest kappa at which a proof was found, 0 if there is none; ``None`` if it was not searched.
    favourable
        Today's decision on ``x``, which the counterfactual is proved to leave.
    valid
        True if today's model decides ``x_cf`` differently from ``x``.
    slack
        The allowance for floating-point arithmetic, of the bound and of the model.
    model_digest, encoding_digest, threshold
        The model that decided ``x`` and ``x_cf``, which need not be the centre; the encoding of its rows and
        its threshold as a probability, if known: both are the same for every model of the set.
    param_set
        The set of models that the proof covers: every tensor within its absolute radius of the centre's, in
        the set's norm. ``kappa``, ``norm``, ``rule``, ``radii`` and ``center_digest`` are read from it.
    counterexample
        With ``effort="exact"``, a ``Counterexample`` for each broken row, a model of the set that breaks it,
        and None for the others. Without, None.
    """

    certified: NDArray[np.bool_]
    worst_logit: NDArray[np.float64]
    method: NDArray[np.str_]
    conditional: NDArray[np.bool_]
    radius: NDArray[np.float64] | None
    favourable: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    slack: NDArray[np.float64]
    model_digest: str
    param_set: ParamSet = field(repr=False)
    encoding_digest: str | None = None
    threshold: float | None = None
    counterexample: NDArray[np.object_] | None = field(default=None, repr=False)

    @property
    def broken(self) -> NDArray[np.bool_]:
        """True where a model of the set was found that keeps x's decision and gives x_cf the same one."""
        if self.counterexample is None:
            return np.zeros(len(self), dtype=bool)
        return np.array([each is not None for each in self.counterexample], dtype=bool)

    @property
    def status(self) -> NDArray[np.str_]:
        """Return ``certified``, ``broken`` or, where neither was shown, ``unknown`` for each row."""
        return np.where(self.certified, "certified", np.where(self.broken, "broken", "unknown"))

    @property
    def kappa(self) -> float:
        """Return the kappa of the set."""
        return self.param_set.kappa

    @property
    def norm(self) -> Norm:
        """Return the norm of the set's balls."""
        return self.param_set.norm

    @property
    def rule(self) -> str:
        """Return the rule of the radii, of which kappa is the multiple."""
        return self.param_set.rule

    @cached_property
    def radii(self) -> Mapping[str, float]:
        """Return the absolute radius of each tensor (W1, b1, W2, ...)."""
        return self.param_set.named_radii

    @property
    def center_digest(self) -> str:
        """Return the SHA-256 of the model at the centre of the set."""
        return self.param_set.center_digest

    def __len__(self) -> int:
        return len(self.certified)

    def __getitem__(self, row: int) -> Certificate:
        values = {f.name: getattr(self, f.name) for f in fields(Certificate)}
        cells = {name: v[row] if isinstance(v, np.ndarray) else v for name, v in values.items()}
        return Certificate(
            **{name: v.item() if isinstance(v, np.generic) else v for name, v in cells.items()}
        )

    def __iter__(self) -> Iterator[Certificate]:
        return (self[row] for row in range(len(self)))

    def __str__(self) -> str:
        share = self.certified.mean() if len(self) else 0.0
        count = f"{self.certified.sum():,} of {len(self):,} certified ({share:.1%})"
        return f"{count} at {_describe_set(self)}"

    def covers(self, model: Any) -> Membership:
        """Test if ``model``, a torch module or a fitted ``VeriTraCER``, is in the set, and say why.

        It must have the same architecture, every tensor within its radius in float64, and the same encoding
        and threshold if both sides know theirs. Then every ``certified`` row keeps its promise under this
        model; a ``conditional`` one does so as long as the model decides ``x`` as today.

        >>> old, new = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> certs = certify(old, [[0.0, 1.0]], [[1.0, 0.0]], ParamSet.around(old, radius=0.0))
        >>> bool(certs.covers(old)), bool(certs.covers(new)), certs.covers(new).outside
        (True, False, 'weights')
        """
        return membership(self.param_set, self.encoding_digest, self.threshold, model)


def membership(
    param_set: ParamSet, encoding_digest: str | None, threshold: float | None, model: Any
) -> Membership:
    """Test if ``model`` is in the set, with that encoding and that threshold."""
    module, encoding, decides = _parts(model)
    network, theta = from_module(module)
    if network != param_set.network or [t.shape for t in theta] != [t.shape for t in param_set.center]:
        return Membership("architecture", "another architecture: layers, widths, slopes or biases differ")
    shares = param_set.displacements(theta)
    if None not in (encoding, encoding_digest) and encoding != encoding_digest:
        return Membership("encoding", "another encoding: the same person would be another row", shares)
    if None not in (decides, threshold) and decides != threshold:
        return Membership("threshold", f"it decides at {decides!r}, not at {threshold!r}", shares)
    if not all(share <= 1.0 for share in shares):
        return Membership("weights", _too_far(param_set, param_set.distances(theta), shares), shares)
    pairs = {"encoding": (encoding, encoding_digest), "threshold": (decides, threshold)}
    unknown = " and ".join(name for name, pair in pairs.items() if None in pair)
    rest = f"; its {unknown} cannot be compared here, and must be the same" if unknown else ""
    return Membership(
        None, f"every tensor is within its radius of {param_set.center_digest[:12]}{rest}", shares
    )


def _parts(model: Any) -> tuple[nn.Module, str | None, float | None]:
    """Return the module of a model, and the digest of its encoding and its threshold if it has them."""
    module = getattr(model, "classifier_", model)
    if not isinstance(module, nn.Module):
        remedy = "pass a torch module, or fit the model first"
        raise NotSupportedError(
            message("a torch module or a fitted VeriTraCER", type(model).__name__, remedy)
        )
    if module is model:
        return module, None, None
    return module, model.encoding_.digest, model.threshold_


def _too_far(param_set: ParamSet, distances: Sequence[float], shares: Sequence[float]) -> str:
    """Describe the tensor that is furthest outside."""
    worst = int(np.argmax(shares))
    name, radius = param_set.names[worst], float(param_set.radii[worst])
    return (
        f"{name} is {distances[worst]:.3g} from the centre where {radius:.3g} is allowed ({param_set.norm})"
    )


def _describe_set(found: Certificate | Certificates) -> str:
    """Describe the set, and say if it is around another model."""
    words = describe_set(found.kappa, found.norm, found.rule, found.radii.values())
    elsewhere = found.center_digest != found.model_digest
    return f"{words} around another model ({found.center_digest[:12]})" if elsewhere else words


def certify(
    module: nn.Module,
    x: Tensor | ArrayLike,
    x_cf: Tensor | Box | ArrayLike,
    param_set: ParamSet,
    *,
    methods: Sequence[str] = CASCADE,
    radius: bool = True,
    effort: Effort = "fast",
    time_budget: float | None = None,
) -> Certificates:
    """Certify that ``x_cf`` keeps a decision other than today's on ``x``, for all models of the set.

    All arithmetic is in float64, whatever the module's precision, with a slack that covers both
    (``bounds.rounding``).

    Parameters
    ----------
    module
        Today's model: a torch MLP in the set.
    x, x_cf
        Encoded rows (n, d), or one row (d,), and their counterfactuals. ``x_cf`` may be a ``Box``, and then
        the certificate covers every row of it.
    param_set
        The set of models, as from ``ParamSet.around``.
    methods
        The bounds to try, in this order.
    radius
        Whether to search for the largest kappa with a proof. Only bounds are used for that; a row that the
        exact stage certifies has at least the radius ``kappa``.
    effort
        ``"exact"`` decides the rows that the bounds leave open by branch and bound (``bounds.branching``):
        each ends as certified, broken with a ``counterexample``, or unknown. It takes sets of norm ``linf``.
    time_budget
        Seconds for the exact stage, for all rows together; the rows that are left then are unknown.

    Raises
    ------
    NotSupportedError
        If the model is no torch MLP, a method is unknown, or the exact stage does not take the set's norm.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -1.0]])), model.bias.data.fill_(-2.0)
    >>> found = certify(model, [[4.0, 1.0]], [[-4.0, -1.0]], ParamSet.around(model, radius=1.9))
    >>> print(found[0])
    certified by simul-crown at radius 1.9 (linf, absolute), while x keeps its decision
    """
    methods_named(methods)  # refuses unknown ones
    _check_effort(param_set, effort, time_budget)
    network, theta = from_module(module)
    _check_set(module, param_set)
    rows, found = _pairs(x, x_cf, theta[0].shape[1], param_set.center[0].device)
    today = decide(module, rows)
    batch = ProofBatch(rows, found, today.sign)
    parts = [_certify_chunk(param_set, batch.select(r), methods, radius) for r in chunks(rows)]
    proofs = Proofs(*(torch.cat(column) for column in zip(*(p[0] for p in parts), strict=True)))
    # If rounding could change today's decision on x, no change of the decision can be proved.
    worst = torch.where(today.clear, proofs.worst_logit, torch.inf)
    reach = torch.where(today.clear, torch.cat([p[1] for p in parts]), 0.0)
    there = decide(module, found.center if isinstance(found, Box) else found)
    certificates = Certificates(
        certified=(worst < 0).cpu().numpy(),
        worst_logit=worst.cpu().numpy(),
        method=np.array(names_by_code())[proofs.method.cpu().numpy()],
        conditional=(proofs.multiplier > 0).cpu().numpy(),
        radius=reach.cpu().numpy() if radius else None,
        favourable=(today.sign > 0).cpu().numpy(),
        valid=(there.sign != today.sign).cpu().numpy(),
        slack=proofs.slack.cpu().numpy(),
        model_digest=network.digest(theta),
        param_set=param_set,
    )
    if effort == "fast":
        return certificates
    open_ = ((worst >= 0) & today.clear).nonzero().squeeze(-1)
    return _decide_exactly(certificates, batch, open_, time_budget)


def certified_radius(
    module: nn.Module,
    x: Tensor | ArrayLike,
    x_cf: Tensor | Box | ArrayLike,
    param_set: ParamSet,
    *,
    methods: Sequence[str] = CASCADE,
) -> NDArray[np.float64]:
    """Return the largest kappa at which a proof was found for each row; 0 if there is none."""
    found = certify(module, x, x_cf, param_set, methods=methods, radius=True).radius
    assert found is not None
    return found


def _certify_chunk(
    param_set: ParamSet, batch: ProofBatch, methods: Sequence[str], radius: bool
) -> tuple[Proofs, Tensor]:
    with torch.no_grad():
        proofs = prove(param_set, batch, methods)
        proofs = proofs._replace(worst_logit=round_up(proofs.worst_logit, proofs.slack))
        proved = proofs.worst_logit < 0
        reach = search_radius(param_set, batch, proved, methods) if radius else torch.zeros_like(batch.sign)
    return proofs, reach


def _decide_exactly(
    certificates: Certificates, batch: ProofBatch, rows: Tensor, time_budget: float | None
) -> Certificates:
    """Return the certificates with what the exact stage finds out about these rows, which bounds left open.

    Its proofs do not use the condition on ``x``, so they are unconditional.
    """
    from veritracer.bounds.branching import decide_rows  # here: it imports scipy's solvers

    param_set, part = certificates.param_set, batch.select(rows)
    problem = BoundProblem(param_set, part.x, part.x_cf, part.sign, precision=PRECISION)
    worst, method = certificates.worst_logit.copy(), certificates.method.copy()
    conditional = certificates.conditional.copy()
    counterexample = np.full(len(certificates), None, dtype=object)
    for row, decided in zip(rows.tolist(), decide_rows(problem, time_budget), strict=True):
        assert decided.counterexample is None or decided.worst_logit >= 0, "a proof and a counterexample"
        counterexample[row] = decided.counterexample
        if decided.worst_logit < worst[row]:
            worst[row], method[row], conditional[row] = decided.worst_logit, EXACT, False
    certified, radius = worst < 0, certificates.radius
    if radius is not None:
        radius = np.where(certified, np.maximum(radius, param_set.kappa), radius)
    return replace(
        certificates,
        certified=certified,
        worst_logit=worst,
        method=method,
        conditional=conditional,
        radius=radius,
        counterexample=counterexample,
    )


def _check_effort(param_set: ParamSet, effort: str, time_budget: float | None) -> None:
    """Refuse an unknown effort, and what only the exact stage takes or does not take."""
    if effort not in get_args(Effort):
        raise NotSupportedError(unknown_name("effort 'fast' or 'exact'", effort, get_args(Effort)))
    if effort == "exact":
        check_exact(param_set)
    elif time_budget is not None:
        received = f"time_budget={time_budget!r} with effort={effort!r}"
        raise DataError(message("effort='exact' for a time budget", received, "bounds need no limit"))
    if time_budget is not None and not 0.0 <= time_budget < math.inf:
        remedy = "give seconds, or None for no limit"
        raise DataError(message("time_budget of at least 0", repr(time_budget), remedy))


def chunks(rows: Tensor) -> list[Tensor]:
    """Return the indices of ``rows`` in pieces of ``CHUNK``; one empty piece if there are none."""
    n = len(rows)
    return [torch.arange(at, min(at + CHUNK, n), device=rows.device) for at in range(0, max(n, 1), CHUNK)]


def _check_set(module: nn.Module, param_set: ParamSet) -> None:
    if from_module(module)[0] != param_set.network or not param_set.contains(module):
        remedy = "use ParamSet.around(module, ...)"
        raise ParamSetError(message("a set that contains this model", "a set around another model", remedy))


def _pairs(
    x: Tensor | ArrayLike, x_cf: Tensor | Box | ArrayLike, width: int, device: torch.device
) -> tuple[Tensor, Tensor | Box]:
    """Return rows and counterfactuals (or boxes of them) in float64, checked, as many of each."""
    rows = _rows("x", x, width, device)
    if isinstance(x_cf, Box):
        lower, upper = (_rows(f"x_cf.{end}", getattr(x_cf, end), width, device) for end in ("lower", "upper"))
        counts = {len(lower), len(upper)}
        if len(counts) == 1 and bool((lower > upper).any()):
            raise DataError(message("a box with lower <= upper", "lower above upper", "swap them"))
        found: Tensor | Box = Box(lower, upper)
    else:
        found = _rows("x_cf", x_cf, width, device)
        counts = {len(found)}
    if counts != {len(rows)}:
        received = " and ".join(str(count) for count in sorted(counts))
        raise DataError(message(f"as many counterfactuals as rows ({len(rows)})", received, "pair them up"))
    return rows, found


def _rows(name: str, values: Tensor | ArrayLike, width: int, device: torch.device) -> Tensor:
    # NumPy first: torch would read a list of Python floats as float32.
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


def with_encoding(certificates: Certificates, digest: str, threshold: float | None) -> Certificates:
    """Return the same certificates with the digest of the encoding and the threshold."""
    return replace(certificates, encoding_digest=digest, threshold=threshold)
