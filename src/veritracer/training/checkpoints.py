"""Save the state of a training run, and continue from it after a stop.

The continued run equals the uninterrupted one: the file has parameters, moments, random streams and records.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veritracer.errors import TrainingError, message
from veritracer.files import write_whole
from veritracer.training.config import TrainingConfig
from veritracer.training.data import LabelledRows

SECONDS_BETWEEN = 5.0
"""Minimum seconds between two writes, so that short epochs do not wait for the disk."""


class Checkpoint:
    """The file of one run, which is identified by its configuration, rows and seeds.

    Parameters
    ----------
    path
        The file; it need not exist yet.
    seconds_between
        Minimum seconds between two writes.
    """

    def __init__(self, path: str | os.PathLike[str], *, seconds_between: float = SECONDS_BETWEEN) -> None:
        self.path, self.seconds_between = Path(path), seconds_between
        self._written = time.monotonic()

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last write."""
        return time.monotonic() - self._written >= self.seconds_between

    def write(self, run: str, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        """Replace the file by this state of the run with the digest ``run``."""
        from safetensors.torch import save

        flat = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        metadata = {"run": run, "document": json.dumps(document)}
        write_whole(self.path, save(flat, metadata))
        self._written = time.monotonic()

    def read(self, run: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state of the run with that digest; None where there is no file.

        Raises
        ------
        TrainingError
            If the file belongs to another run.
        """
        if not self.path.exists():
            return None
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("run") != run:
                received = f"{self.path} of other settings, rows or seeds"
                remedy = "remove the file, or choose another name"
                raise TrainingError(message("a checkpoint of this run", received, remedy))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
        return tensors, json.loads(metadata["document"])


def digest_of_run(
    config: TrainingConfig,
    rows: LabelledRows,
    validation: LabelledRows,
    seeds: Sequence[int],
    start: Sequence[Any] | None,
) -> str:
    """Return the SHA-256 of everything that a run depends on besides the library itself."""
    sha = hashlib.sha256(json.dumps([asdict(config), list(map(int, seeds))]).encode())
    given = [] if start is None else [t for pair in start for theta in pair for t in theta]
    for tensor in (*rows, *validation, *given):
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def numbered(prefix: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the tensors by names with their positions, for one file with others."""
    return {f"{prefix}.{i}": t for i, t in enumerate(tensors)}


def restore(prefix: str, into: Sequence[Tensor], saved: Mapping[str, Tensor]) -> None:
    """Overwrite tensors by those that ``numbered`` named."""
    with torch.no_grad():
        for i, tensor in enumerate(into):
            tensor.copy_(saved[f"{prefix}.{i}"])
