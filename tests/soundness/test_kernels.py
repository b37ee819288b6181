"""What does not depend on the machine: verdicts, statuses and counterfactuals; logits up to their last digit.

The last bits of a matrix product depend on the processor's kernels, on threads, and on the rows that are
computed together. Here the same questions are asked in pieces of other sizes and, with ``--long``, by
processes with other kernels and threads. ``make kernels`` also runs the suites that this concerns under each
setting.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from memory_ledger import in_memory
from recourse_tables import SCHEMA, applicants
from veritracer.ledger import audit

HERE = Path(__file__).parent
SIZES = (1, 3, 7, 1000)
SETTINGS = {
    "plain kernels": {"ATEN_CPU_CAPABILITY": "default"},
    "compatible MKL": {"MKL_CBWR": "COMPATIBLE"},
    "both": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "two threads": {"OMP_NUM_THREADS": "2", "TEST_THREADS": "2"},
}
LOGITS = ("worst_logit", "logit", "cost")
DIGIT = 1.01e-9
"""One unit of the tenth digit of a logit below 10: what lies at the edge of two is told as either."""


@cache
def question() -> tuple[nn.Sequential, vt.Recourse, pd.DataFrame]:
    """A network that nobody trained: odd widths, so that every kernel has rows and columns left over."""
    frame, _ = applicants(200)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    rng = np.random.default_rng(5)
    sizes = [(13, encoding.dim), (13,), (7, 13), (7,), (1, 7), (1,)]
    theta = [torch.from_numpy(rng.normal(0.0, 1.0, s) / np.sqrt(s[-1])) for s in sizes]
    layers = [nn.Linear(w.shape[1], w.shape[0]).double() for w in theta[::2]]
    with torch.no_grad():
        for k, layer in enumerate(layers):
            layer.weight.copy_(theta[2 * k])
            layer.bias.copy_(theta[2 * k + 1])
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()
    with torch.no_grad():
        module[4].bias -= module(encoding.encode(frame)).median()
    return module, vt.Recourse(module, encoding=encoding, rows=frame, kappa=0.02), frame.iloc[:26]


def explained(size: int) -> list[dict[str, Any]]:
    """The rows of the JSON document, asked for in pieces."""
    _, recourse, people = question()
    parts = [people.iloc[at : at + size] for at in range(0, len(people), size)]
    found = [recourse.explain(part, drift={"income": 500.0}, search_radius=False) for part in parts]
    return [row for one in found for row in json.loads(one.to_json())["rows"]]


def certified(size: int) -> list[dict[str, Any]]:
    """Certificates of the same people, for rows that are not refined."""
    module, recourse, people = question()
    x = recourse.encoding.encode(people)
    x_cf = recourse.encoding.encode(people.iloc[::-1])
    models = recourse.param_set()
    parts = [slice(at, at + size) for at in range(0, len(x), size)]
    found = [vt.certify(module, x[part], x_cf[part], models) for part in parts]
    names = ("certified", "worst_logit", "method", "conditional", "radius", "favourable", "valid")
    return [{name: getattr(row, name) for name in names} for one in found for row in one]


def audited(size: int) -> dict[str, Any]:
    """An audit of a model that breaks some promises, read in pieces."""
    module, recourse, people = question()
    found = recourse.explain(people, drift={"income": 500.0}, search_radius=False)
    promises = in_memory(found, module, ids=[str(i) for i in range(len(people))])
    later, rng = copy.deepcopy(module), np.random.default_rng(1)
    with torch.no_grad():
        for weights in later.parameters():
            weights += torch.from_numpy(rng.choice([-0.1, 0.1], tuple(weights.shape)))
    told = audit(promises, later, encoding=recourse.encoding, recourse=1, chunk=size, at=0.0).to_plain()
    assert 0 < told["counts"]["broken"] < told["live"]
    return told


PARTS = {"explain": explained, "certify": certified, "audit": audited}


def same(one: Any, other: Any, name: str = "") -> None:
    """Nothing; the two say the same, and logits differ in their last digit at most."""
    if name in LOGITS and isinstance(one, float) and isinstance(other, float):
        assert one == other or abs(one - other) <= DIGIT, (name, one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key in one:
            same(one[key], other[key], key)
    elif isinstance(one, list):
        assert len(one) == len(other), name
        for pair in zip(one, other, strict=True):
            same(*pair, name)
    else:
        assert one == other, (name, one, other)


@cache
def whole(part: str) -> Any:
    return json.loads(json.dumps(PARTS[part](SIZES[-1])))


@pytest.mark.parametrize("size", SIZES[:-1])
@pytest.mark.parametrize("part", PARTS)
def test_pieces_of_any_size_say_the_same(part: str, size: int) -> None:
    same(json.loads(json.dumps(PARTS[part](size))), whole(part))


@pytest.mark.parametrize("setting", SETTINGS)
def test_other_kernels_and_threads_say_the_same(setting: str, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("only with --long, as in make kernels")
    said = subprocess.run(
        [sys.executable, str(HERE / "test_kernels.py")],
        env={**os.environ, **SETTINGS[setting], "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    for part, found in json.loads(said.stdout).items():
        same(found, whole(part))


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
    print(json.dumps({name: compute(SIZES[-1]) for name, compute in PARTS.items()}))
