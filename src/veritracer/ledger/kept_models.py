"""Issuing models as bytes that the ledger keeps, and back."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, get_args

import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from veritracer.balls import Norm
from veritracer.encoding import Encoding
from veritracer.errors import LedgerError, VeriTracerError, message
from veritracer.ledger.promised import IssuingModel
from veritracer.network import Network, from_module
from veritracer.param_sets import ParamSet, RadiusRule

FORMAT, VERSION = "veritracer-issuing-model", 1


def describe(
    module: nn.Module, encoding: Encoding, threshold: float, norm: Norm, radius: RadiusRule | float
) -> IssuingModel:
    """A model as it is when it issues promises."""
    network, theta = from_module(module)
    theta = tuple(t.detach().to("cpu", torch.float64, copy=True) for t in theta)
    units = tuple(float(unit) for unit in ParamSet.of(network, theta, norm=norm, radius=radius).units)
    found = IssuingModel(
        digest="",
        network=network,
        theta=theta,
        threshold=float(threshold),
        encoding=encoding,
        norm=norm,
        units=units,
        model_digest=network.digest(theta),
    )
    return _named(found)


def to_bytes(model: IssuingModel) -> tuple[bytes, bytes]:
    """The document, whose SHA-256 is the model's digest, and the weights as safetensors."""
    return _document(model), save_tensors({str(i): t.contiguous() for i, t in enumerate(model.theta)})


def from_bytes(document: bytes, tensors: bytes) -> IssuingModel:
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


def _document(model: IssuingModel) -> bytes:
    shape = model.network
    content = {
        "format": FORMAT,
        "version": VERSION,
        "network": {"slopes": shape.slopes, "readout": shape.readout, "biased": shape.biased},
        "threshold": model.threshold,
        "encoding": json.loads(model.encoding.to_json()),
        "encoding_digest": model.encoding.digest,
        "norm": model.norm,
        "units": model.units,
        "model_digest": model.model_digest,
    }
    return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _named(model: IssuingModel) -> IssuingModel:
    values = {**vars(model), "digest": hashlib.sha256(_document(model)).hexdigest()}
    return IssuingModel(**values)


def _altered(received: str) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify, and take it from a backup"
    return LedgerError(message("the weights that an issuing model's digest names", received, remedy))
