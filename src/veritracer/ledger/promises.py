"""What the ledger knows, as values: promises by the column, and the models that issued them.

An issuing model is kept as two blobs: a JSON document, whose SHA-256 is the model's digest, and its weights
as safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from veritracer.encoding import Encoding
from veritracer.errors import DataError, LedgerError, VeriTracerError, message
from veritracer.files import envelope
from veritracer.models.balls import Norm
from veritracer.models.network import Network, Theta, from_module
from veritracer.models.param_sets import ParamSet

FORMAT, VERSION = "veritracer-issuing-model", 1


@dataclass(frozen=True)
class IssuingModel:
    """A model as it was when it issued promises: all that a later proof needs.

    Attributes
    ----------
    digest
        Of everything below: the name under which the ledger keeps the model.
    network, theta
        The classifier in float64; the decision threshold is part of its last bias.
    threshold
        The probability at which it decides, as it was set; it must be the same for a later model to be in
        the set.
    encoding
        The map between raw tables and its inputs.
    norm, units
        The set of models: tensor i may move by kappa * ``units[i]`` in this norm.
    model_digest
        Of network and theta alone, as certificates name it.
    """

    digest: str
    network: Network
    theta: Theta
    threshold: float
    encoding: Encoding
    norm: Norm
    units: tuple[float, ...]
    model_digest: str

    def param_set(self, kappa: float) -> ParamSet:
        """The models that a promise at ``kappa`` speaks of."""
        units = tuple(t.new_tensor(unit) for t, unit in zip(self.theta, self.units, strict=True))
        return ParamSet(self.network, self.theta, units, self.norm, kappa)

    @classmethod
    def of(cls, module: nn.Module, encoding: Encoding, threshold: float, model_set: ParamSet) -> IssuingModel:
        """Return a model as it is when it issues promises, with the radii of the set that they speak of."""
        network, theta = from_module(module)
        theta = tuple(t.detach().to("cpu", torch.float64, copy=True) for t in theta)
        found = cls(
            digest="",
            network=network,
            theta=theta,
            threshold=float(threshold),
            encoding=encoding,
            norm=model_set.norm,
            units=tuple(float(unit) for unit in model_set.units),
            model_digest=network.digest(theta),
        )
        return replace(found, digest=hashlib.sha256(found.document()).hexdigest())

    def document(self) -> bytes:
        """The model as canonical JSON, with the digest of its weights."""
        shape = self.network
        content = {
            **envelope(FORMAT, VERSION),
            "network": {"slopes": shape.slopes, "readout": shape.readout, "biased": shape.biased},
            "threshold": self.threshold,
            "encoding": json.loads(self.encoding.to_json()),
            "encoding_digest": self.encoding.digest,
            "norm": self.norm,
            "units": self.units,
            "model_digest": self.model_digest,
        }
        return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The document, whose SHA-256 is the model's digest, and the weights as safetensors."""
        return self.document(), save_tensors({str(i): t.contiguous() for i, t in enumerate(self.theta)})

    @classmethod
    def from_bytes(cls, document: bytes, tensors: bytes) -> IssuingModel:
        """The model, refused unless it is whole and its weights are those that the document names."""
        try:
            content: dict[str, Any] = json.loads(document)
            version = content.get("format"), content.get("version")
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise _altered(str(error)) from error
        if version != (FORMAT, VERSION):
            received = f"{version[0]!r} {version[1]!r}"
            remedy = "read the ledger with the release that wrote it"
            raise LedgerError(message(f"version {VERSION} of {FORMAT}", received, remedy))
        try:
            model = _read(content, load_tensors(tensors), hashlib.sha256(document).hexdigest())
            whole = _is_whole(model) and content["encoding_digest"] == model.encoding.digest
        except (VeriTracerError, safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
            raise _altered(str(error)) from error
        if not whole or model.network.digest(model.theta) != model.model_digest:
            raise _altered("others")
        return model


@dataclass(frozen=True)
class RawRows:
    """Promised rows in raw values, as people know them: what a model with another encoding has to read.

    Attributes
    ----------
    shown
        The counterfactuals, (n, n_features).
    original, known
        People's own rows, and where they can be read; elsewhere ``original`` repeats the shown row.
    lower, upper
        The ends of what was promised, (n, n_features): raw numbers, or positions among the categories of the
        issuing schema. NaN where the shown value alone was promised.
    cut
        Where the ledger does not say how far a promise went, (n,): an early one kept its region only as far
        as the range of its encoding.
    """

    shown: pd.DataFrame
    original: pd.DataFrame
    known: NDArray[np.bool_]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cut: NDArray[np.bool_]


@dataclass(frozen=True)
class Promises:
    """Some promises of one issuing model, as arrays with one entry for each.

    Attributes
    ----------
    model
        The digest of the ``IssuingModel``.
    sequence
        The position in the ledger, which names a promise for good.
    ids
        Whose promise it is, as given by who issued it.
    issued, expires
        Seconds since 1970, in UTC; ``expires`` is infinite where there is no end.
    kappa, conditional
        The set that was promised, and whether the original row must keep its decision; kappa is 0 for what
        was valid on its day and nothing more.
    radius
        The largest kappa at which a proof was found; between ``kappa`` and it the proof may be conditional.
    worst_logit
        The certificate's bound.
    favourable
        The decision on the original row when the promise was made: the counterfactual's is the other one.
    x_cf
        The counterfactual, encoded by the issuing model's encoding: (n, d), float64.
    x
        The original row in the same way; NaN where only its commitment is kept.
    lower, upper
        The ends of the certified region, encoded and so cut at the range of the encoding; both are ``x_cf``
        where only a point was promised.
    raw
        The same rows in raw values; None where nobody asked for them.
    """

    model: str
    sequence: NDArray[np.int64]
    ids: list[str]
    issued: NDArray[np.float64]
    expires: NDArray[np.float64]
    kappa: NDArray[np.float64]
    conditional: NDArray[np.bool_]
    radius: NDArray[np.float64]
    worst_logit: NDArray[np.float64]
    favourable: NDArray[np.bool_]
    x_cf: Tensor
    x: Tensor
    lower: Tensor
    upper: Tensor
    raw: RawRows | None = None

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True)
class Limit:
    """Live promises that ask the same of a later model: to stay in one set.

    ``count`` promises of the issuing model ``model`` at ``kappa``, of which ``conditional`` also need that
    the person keeps today's decision.
    """

    model: str
    kappa: float
    count: int
    conditional: int


@dataclass(frozen=True)
class Counts:
    """How many promises there are, by what has become of them, and how many entries are mere advice.

    The sum is all that were made.
    """

    live: int
    expired: int
    released: int
    erased: int
    advice: int = 0


class Told(NamedTuple):
    """The raw values that somebody was shown, and their own; None where these cannot be read."""

    shown: dict[str, Any]
    original: dict[str, Any] | None


def select(piece: Promises, rows: NDArray[np.intp]) -> Promises:
    """Some of the promises."""
    some: Promises = _select(piece, rows, torch.from_numpy(rows))
    return some


def _select(value: Any, rows: NDArray[np.intp], taken: Tensor) -> Any:
    if isinstance(value, Promises | RawRows):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: _select(part, rows, taken) for name, part in parts.items()})
    if isinstance(value, Tensor):
        return value[taken]
    if isinstance(value, pd.DataFrame):
        return value.iloc[rows].reset_index(drop=True)
    if isinstance(value, list):
        return [value[row] for row in rows.tolist()]
    return value[rows] if isinstance(value, np.ndarray) else value


def _read(content: dict[str, Any], named: dict[str, Tensor], digest: str) -> IssuingModel:
    shape = content["network"]
    return IssuingModel(
        digest=digest,
        network=Network(tuple(shape["slopes"]), tuple(shape["readout"]), tuple(shape["biased"])),
        theta=tuple(named[str(i)] for i in range(len(named))),
        threshold=content["threshold"],
        encoding=Encoding.from_json(json.dumps(content["encoding"])),
        norm=content["norm"],
        units=tuple(content["units"]),
        model_digest=content["model_digest"],
    )


def _is_whole(model: IssuingModel) -> bool:
    """Whether the parts fit each other: a model that can decide about rows of its encoding, and a set."""
    network, theta = model.network, model.theta
    layers = len(network.slopes) + 1
    if len(theta) != 2 * layers or len(network.biased) != layers or len(model.units) != len(theta):
        return False
    into = model.encoding.dim
    for weight, bias in network.layers(theta):
        if weight.dim() != 2 or weight.shape[1] != into or tuple(bias.shape) != (len(weight),):
            return False
        into = len(weight)
    finite = all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in theta)
    numbers = all(type(n) is float for n in (*network.slopes, *model.units, model.threshold))
    return (
        finite
        and numbers
        and network.readout == ((1.0,) if into == 1 else (-1.0, 1.0))
        and into in (1, 2)
        and all(type(has) is bool for has in network.biased)
        and all(0.0 <= slope <= 1.0 for slope in network.slopes)
        and all(0.0 <= unit < math.inf for unit in model.units)
        and 0.0 < model.threshold < 1.0
        and model.norm in get_args(Norm)
    )


def _altered(received: str) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify, and take it from a backup"
    return LedgerError(message("the weights that an issuing model's digest names", received, remedy))


def digest_of(module: nn.Module) -> str:
    """The digest by which ledgers and audits name a model: of its network and its weights."""
    network, theta = from_module(module)
    return network.digest(tuple(t.detach().to("cpu", torch.float64) for t in theta))


def check_threshold(threshold: float) -> None:
    """Refuse what is no probability to decide at."""
    if not 0.0 < threshold < 1.0:
        raise DataError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))
