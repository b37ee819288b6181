"""Promises to be held against later models: made by a small model, or by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import veritracer as vt
from memory_ledger import InMemory, in_memory
from recourse_tables import fitted
from veritracer.encoding import Encoding
from veritracer.models.network import from_module, to_module


@cache
def issued(
    method: str = "veritracer", **options: object
) -> tuple[vt.VeriTraCER, InMemory, vt.Counterfactuals]:
    """A model, its promises to people whom it turned down, and the recourse behind them."""
    model, rows = fitted(method)
    found = model.explain(rows[:80], **options)
    promises = in_memory(found, model.classifier_, ids=[f"person {i}" for i in range(80)])
    return model, promises, found


def moved(module: nn.Module, by: float, seed: int = 0) -> nn.Sequential:
    """A model whose every weight moves by up to ``by`` times its tensor's mean magnitude, to a corner."""
    network, theta = from_module(module)
    g = torch.Generator().manual_seed(seed)
    steps = [torch.randint(0, 2, t.shape, generator=g).to(t) * 2 - 1 for t in theta]
    return to_module(
        network, [t.detach() + by * t.detach().abs().mean() * s for t, s in zip(theta, steps, strict=True)]
    )


def with_bias(module: nn.Module, by: float) -> nn.Sequential:
    """The model with ``by`` added to its logit."""
    network, theta = from_module(module)
    return to_module(network, [*(t.detach() for t in theta[:-1]), theta[-1].detach() + by])


def without_originals(promises: InMemory) -> InMemory:
    """The same promises, of which only commitments to the original rows were kept."""
    pieces = (
        replace(piece, x=torch.full_like(piece.x, torch.nan), original=piece.shown)
        for piece in promises.pieces
    )
    return InMemory(promises.issuing, tuple(pieces))


def changed(promises: InMemory, **columns: object) -> InMemory:
    """The same promises with other columns."""
    pieces = []
    for piece in promises.pieces:
        n = len(piece)
        full = {k: v if np.ndim(v) else np.full(n, v) for k, v in columns.items()}
        pieces.append(replace(piece, **full))
    return InMemory(promises.issuing, tuple(pieces))


def points(encoding: Encoding, n: int) -> NDArray[np.float64]:
    """Regions of promises of which the shown row alone was promised."""
    return np.full((n, 2, len(encoding.schema)), np.nan)
