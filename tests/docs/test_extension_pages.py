"""The pages on extending the library: their Python runs as written, and does what they say."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import veritracer as vt
from recourse_tables import fitted
from veritracer.bounds import BOUNDS
from veritracer.changes import describe_models
from veritracer.datasets.loading import SOURCES
from veritracer.errors import DatasetError, ParamSetError
from veritracer.models import register_rule
from veritracer.models.param_sets import RULES
from veritracer_bench.baselines import Neighbour
from veritracer_bench.methods import resolve

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
LINES = 120
"""A page is a screen or two, code included."""


@pytest.fixture(autouse=True)
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, and the registries as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    known = [(registry, dict(registry)) for registry in (BOUNDS, RULES, SOURCES)]
    yield
    for registry, entries in known:
        registry.clear()
        registry.update(entries)


def code_of(page: str) -> list[str]:
    """Return the Python blocks of a page, without their indentation."""
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8")
    assert text.count("\n") < LINES
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```", text, flags=re.M | re.S)
    return [textwrap.dedent(block) for _, block in blocks]


def followed(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page one after the other, and return their names."""
    names: dict[str, Any] = {}
    for block in code_of(page):
        exec(block, names)
    return names


def test_adding_a_bound() -> None:
    names = followed("add-a-bound")
    assert "halved" in BOUNDS
    assert names["found"].method.tolist() == ["halved"]


def test_adding_a_radius_rule() -> None:
    names = followed("add-a-radius-rule")
    module, param_set = names["module"], names["param_set"]
    assert param_set.rule == "rms"
    torch.testing.assert_close(param_set.radii[0], 0.1 * module.weight.detach().square().mean().sqrt())
    assert str(param_set) == "kappa = 0.1 (linf, rms)"
    assert names["found"].rule == "rms"
    assert describe_models(param_set) == (
        "each weight moves by at most 10 % of the root mean square of its matrix"
    )
    ball = vt.ParamSet.around(module, 0.1, "l2", "rms")
    assert describe_models(ball) == "each matrix moves by at most 10 % of its root mean square (l2 norm)"
    with pytest.raises(ParamSetError, match=r"a name other than .*'rms', 'absolute'.*, got 'rms'"):
        register_rule(RULES["rms"])


def test_a_model_is_trained_and_explained_with_an_added_radius_rule() -> None:
    followed("add-a-radius-rule")
    model, rows = fitted("standard")
    found = vt.Recourse(model.classifier_, encoding=model.encoding_, kappa=0.02, radius="rms").explain(
        rows[:9]
    )
    some = int(found.valid.argmax())
    assert "% of the root mean square of its matrix" in found.sentence(some)
    small = {"hidden": (4,), "generator_hidden": (4,), "epochs": 2, "panel": None}
    trained = vt.VeriTraCER(model.schema_, radius="rms", **small).fit(rows, model.predict(rows))
    assert trained.param_set().rule == "rms"


def test_a_rule_that_is_gone_is_refused() -> None:
    param_set = followed("add-a-radius-rule")["param_set"]
    del RULES["rms"]
    with pytest.raises(ParamSetError, match="expected radius 'mean-abs' or 'norm', or numbers, got 'rms'"):
        describe_models(param_set)


def test_adding_a_dataset() -> None:
    data = followed("add-a-dataset")["data"]
    assert data.X.shape == (4, 2)
    assert data.schema["age"].action == "immutable"
    assert "ponies" in vt.datasets.names()
    assert vt.datasets.info("ponies").title == "Ponies at a market"
    with pytest.raises(DatasetError, match="a dataset of the paper for variant='paper', got 'ponies'"):
        vt.datasets.load("ponies", data_dir="data", variant="paper")
    with pytest.raises(DatasetError, match="the name of no known dataset, got 'ponies'"):
        vt.datasets.register("ponies", SOURCES["ponies"])


def test_adding_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's module, by the name that the page gives to ``--methods``; a long test runs its command."""
    [code] = code_of("add-a-baseline")
    Path("halfway.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    importlib.invalidate_caches()
    method = resolve("halfway:Halfway")
    assert (method.name, method.trainer) == ("halfway", "standard")
    model, rows = fitted("standard")
    x = model.encoding_.encode(rows)
    kind = importlib.import_module("halfway").Halfway
    labels = (model.logits(x) > 0).double()
    found, floor = (made(model.classifier_, model.encoding_, x, labels) for made in (kind, Neighbour))
    near, far = found.explain(x[:20]), floor.explain(x[:20])
    assert found.reached(near, found.goal(x[:20])).all()
    assert ((near - x[:20]).abs().sum(-1) <= (far - x[:20]).abs().sum(-1) + 1e-9).all()
