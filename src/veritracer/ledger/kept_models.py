"""Issuing models as bytes that the ledger keeps, and back."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from veritracer.balls import Norm
from veritracer.encoding import Encoding
from veritracer.errors import LedgerError, message
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
    """The model, refused unless its weights are those that the document names."""
    content: dict[str, Any] = json.loads(document)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        received = f"{content.get('format')!r} {content.get('version')!r}"
        remedy = "read the ledger with the release that wrote it"
        raise LedgerError(message(f"version {VERSION} of {FORMAT}", received, remedy))
    try:
        named = load_tensors(tensors)
    except (safetensors.SafetensorError, ValueError) as error:
        raise _altered(str(error)) from error
    shape = content["network"]
    network = Network(tuple(shape["slopes"]), tuple(shape["readout"]), tuple(shape["biased"]))
    theta = tuple(named[str(i)] for i in range(len(named)))
    if network.digest(theta) != content["model_digest"]:
        raise _altered("others")
    return IssuingModel(
        digest=hashlib.sha256(document).hexdigest(),
        network=network,
        theta=theta,
        threshold=content["threshold"],
        encoding=Encoding.from_json(json.dumps(content["encoding"])),
        norm=content["norm"],
        units=tuple(content["units"]),
        model_digest=content["model_digest"],
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
