"""Norms, dual norms, projections and samples of entrywise l1, l2 and l∞ balls.

``dims`` is the number of trailing dimensions that belong to one tensor (2 for a weight, 1 for a bias or for a
row of coefficients); the dimensions before them are batch dimensions.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from veritracer.errors import NotSupportedError, unknown_name

Norm = Literal["l1", "l2", "linf"]

DUAL: dict[Norm, Norm] = {"l1": "linf", "l2": "l2", "linf": "l1"}
"""The dual norm q of each p: the maximum of v·t over ‖t‖_p <= 1 is ‖v‖_q."""


def unknown_norm(kind: str) -> NotSupportedError:
    """Return the error for a norm that has no formula here."""
    return NotSupportedError(unknown_name("a norm", kind, get_args(Norm)))


def norm(tensor: Tensor, kind: Norm, dims: int = 1) -> Tensor:
    """Return the entrywise norm over the last ``dims`` dimensions."""
    if kind == "linf":
        return tensor.abs().flatten(-dims).amax(-1)
    if kind == "l1":
        return tensor.abs().flatten(-dims).sum(-1)
    if kind == "l2":
        # torch's norm has gradient 0 where the tensor is 0; a square root would give NaN.
        size: Tensor = torch.linalg.vector_norm(tensor.flatten(-dims), dim=-1)
        return size
    raise unknown_norm(kind)


def mean_abs(tensor: Tensor, dims: int = 1) -> Tensor:
    """Return the mean magnitude over the last ``dims`` dimensions."""
    return tensor.abs().flatten(-dims).mean(-1)


def support_point(direction: Tensor, kind: Norm) -> Tensor:
    """Return the point of the unit ball that is furthest along each direction (n, ...); 0 along 0."""
    if kind == "linf":
        return direction.sign()
    flat = direction.flatten(1)
    if kind == "l2":
        size = flat.norm(dim=-1, keepdim=True)
        return (flat / torch.where(size > 0, size, torch.inf)).view_as(direction)
    if kind != "l1":
        raise unknown_norm(kind)
    best = flat.abs().argmax(-1, keepdim=True)
    return torch.zeros_like(flat).scatter(-1, best, flat.gather(-1, best).sign()).view_as(direction)


def project(tensor: Tensor, radius: Tensor, kind: Norm) -> Tensor:
    """Return the nearest point (Euclidean) of the ball of that radius around zero, for one tensor."""
    if kind == "linf":
        return torch.clamp(tensor, -radius, radius)
    length = norm(tensor, kind, tensor.dim())
    if length <= radius:
        return tensor
    if kind == "l2":
        return tensor * (radius / length)
    if kind != "l1":
        raise unknown_norm(kind)
    return torch.sign(tensor) * torch.relu(tensor.abs() - _l1_threshold(tensor, radius))


def _l1_threshold(tensor: Tensor, radius: Tensor) -> Tensor:
    """Return by how much every magnitude must shrink so that the rest sums to ``radius``.

    With the magnitudes sorted in descending order, the threshold is (sum of the first k - radius) / k for the
    largest k whose k-th magnitude exceeds it.
    """
    magnitudes = tensor.abs().flatten().sort(descending=True).values
    counts = torch.arange(1, magnitudes.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    candidates = (magnitudes.cumsum(0) - radius) / counts
    last = int((magnitudes > candidates).nonzero().max()) if bool((magnitudes > candidates).any()) else 0
    return candidates[last].clamp(min=0)


def sample(n: int, like: Tensor, kind: Norm, generator: torch.Generator) -> Tensor:
    """Draw ``n`` points uniformly from the unit ball of the space of ``like``; shape (n, *like.shape)."""
    shape, size = (n, *like.shape), like.numel()
    if kind == "linf":
        return torch.rand(shape, generator=generator, dtype=like.dtype) * 2 - 1
    direction = _direction(shape, like, kind, generator)
    depth = torch.rand(n, generator=generator, dtype=like.dtype) ** (1.0 / size)
    return direction * depth.view(-1, *(1,) * like.dim())


def sample_corner(n: int, like: Tensor, kind: Norm, generator: torch.Generator) -> Tensor:
    """Draw ``n`` extreme points of the unit ball: vertices of the box or cross-polytope, or unit vectors."""
    shape = (n, *like.shape)
    if kind == "linf":
        return torch.randint(0, 2, shape, generator=generator).to(like.dtype) * 2 - 1
    if kind == "l2":
        return _direction(shape, like, kind, generator)
    if kind != "l1":
        raise unknown_norm(kind)
    flat = torch.zeros((n, like.numel()), dtype=like.dtype)
    where = torch.randint(0, like.numel(), (n, 1), generator=generator)
    signs = torch.randint(0, 2, (n, 1), generator=generator).to(like.dtype) * 2 - 1
    return flat.scatter(1, where, signs).view(shape)


def _direction(shape: tuple[int, ...], like: Tensor, kind: Norm, generator: torch.Generator) -> Tensor:
    """Draw points on the unit sphere of the norm, from the distribution that makes ``sample`` uniform.

    Gaussians divided by their l2 norm are uniform on its sphere; double exponentials divided by their l1 norm
    are uniform on the cross-polytope.
    """
    if kind == "l2":
        raw = torch.randn(shape, generator=generator, dtype=like.dtype)
    elif kind != "l1":
        raise unknown_norm(kind)
    else:
        magnitude = -torch.log1p(-torch.rand(shape, generator=generator, dtype=like.dtype))
        raw = magnitude * (torch.randint(0, 2, shape, generator=generator).to(like.dtype) * 2 - 1)
    length = norm(raw, kind, like.dim()).clamp(min=torch.finfo(like.dtype).tiny)
    return raw / length.view(-1, *(1,) * like.dim())
