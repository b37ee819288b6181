"""A saved model, back in memory."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from veritracer import persistence
from veritracer.encoding import Encoding
from veritracer.generator import make_generator
from veritracer.model import VeriTraCER
from veritracer.network import Theta, to_module
from veritracer.recourse.neighbours import Neighbours
from veritracer.schema import Schema


def load(folder: str | os.PathLike[str]) -> VeriTraCER:
    """The model that ``save`` wrote, after checking that nothing in it was changed."""
    content, tensors = persistence.read(folder)
    params = dict(content["params"])
    schema = None if content["schema"] is None else Schema.from_json(json.dumps(content["schema"]))
    model = VeriTraCER(schema=schema, **params)
    config = model.training_config()
    model.encoding_ = Encoding.from_json(json.dumps(content["encoding"]))
    model.schema_ = model.encoding_.schema
    model.classes_ = np.array(content["classes"]["values"], dtype=content["classes"]["dtype"])
    network = config.network()
    model.classifier_ = to_module(network, _numbered(tensors, "classifier")).eval()
    model.generator_theta_ = _numbered(tensors, "generator")
    model.generator_ = None
    if config.has_generator:
        x, y = _pool(tensors, model.encoding_.dim)
        latent = config.latent_width(model.encoding_.dim)
        model.generator_ = make_generator(
            config.generator, model.encoding_, latent, config.generator_hidden, x, y
        )
    model.neighbours_ = Neighbours(tensors.get("rows", torch.empty(0, model.encoding_.dim)))
    model.history_ = pd.DataFrame(content["history"])
    model.best_epoch_, model.stopped_ = content["best_epoch"], content["stopped"]
    model.describe_inputs(content["columns"])
    return model


def _numbered(tensors: dict[str, Tensor], prefix: str) -> Theta:
    count = sum(name.startswith(f"{prefix}.") for name in tensors)
    return tuple(tensors[f"{prefix}.{index}"] for index in range(count))


def _pool(tensors: dict[str, Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """The rows and labels that a neighbour generator chooses from; none for the others."""
    pools = [tensors.get(f"pool.{side}", torch.empty(0, dim)) for side in ("favourable", "unfavourable")]
    labels = torch.cat([torch.ones(len(pools[0])), torch.zeros(len(pools[1]))])
    return torch.cat(pools), labels
