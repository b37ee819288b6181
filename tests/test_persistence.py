"""A model file that somebody changed and gave new digests: it loads as a model that works, or is refused.

The digests say that a file is what was written, not that it makes sense. Here they are computed anew after
every change: fields that are gone, of another type, or out of range; tensors that are gone, of another shape
or precision, or no numbers. Whatever is refused is refused in three parts, by an error of this library.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from sklearn.base import clone
from torch import Tensor

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer import model_folder
from veritracer.errors import ModelFileError, VeriTracerError
from veritracer.training import Panel

KEYS = (
    "params",
    "settings",
    "panel",
    "members",
    "schema",
    "encoding",
    "columns",
    "history",
    "best_epoch",
    "stopped",
    "versions",
)
GENERATORS = ("residual", "counternet", "neighbour", None)
GONE = object()
JUNK = [
    GONE,
    None,
    True,
    "",
    "x",
    "float64",
    0,
    -1,
    1e300,
    10**30,
    0.5,
    math.nan,
    math.inf,
    [],
    [1],
    ["x", "y"],
    [[1.0, 2.0]],
    {},
    {"x": 1},
]


@functools.cache
def saved(generator: str | None = "residual") -> tuple[dict[str, Any], dict[str, Tensor], pd.DataFrame]:
    """The content and the tensors of a small model, and rows that it was not trained on."""
    frame, y = applicants(160)
    chosen = {"method": "standard"} if generator is None else {"generator": generator}
    panel = Panel(networks=1, boosted=2, held_out=1) if generator == "residual" else None
    model = vt.VeriTraCER(
        SCHEMA, hidden=(5, 4), generator_hidden=(4,), epochs=2, keep_rows=30, panel=panel, **chosen
    )
    with tempfile.TemporaryDirectory() as folder:
        model.fit(frame[:150], y[:150]).save(f"{folder}/model")
        content = json.loads(Path(folder, "model", "model.json").read_text())["content"]
        tensors = load_tensors(Path(folder, "model", "model.safetensors").read_bytes())
    return content, tensors, frame[150:]


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document; of long lists the first two."""
    if isinstance(content, dict):
        inner = list(content.items())
    elif isinstance(content, list):
        inner = list(enumerate(content))[:2]
    else:
        inner = []
    return [path] * bool(path) + [p for key, part in inner for p in places(part, (*path, key))]


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(content)
    part = functools.reduce(lambda inner, key: inner[key], path[:-1], made)
    if value is GONE:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return made


def check(content: dict[str, Any], tensors: dict[str, Tensor], rows: pd.DataFrame) -> VeriTracerError | None:
    """The error by which the model is refused, in three parts; None where it works."""
    error = None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model_folder.write(f"{folder}/model", content, tensors)
        try:
            use(vt.load(f"{folder}/model"), rows, folder)
        except VeriTracerError as refused:
            error = refused
    assert error is None or re.fullmatch(r"expected .+, got .+ — .+", str(error), re.DOTALL), error
    return error


def use(model: vt.VeriTraCER, rows: pd.DataFrame, folder: str) -> None:
    """What a loaded model is for."""
    assert model.predict_proba(rows).shape == (len(rows), 2)
    assert len(set(model.predict(rows))) <= 2
    if model.generator_ is not None:
        model.propose(rows)
    found = model.explain(rows.head(3), kappa=0.01)
    assert all(isinstance(found.sentence(i), str) for i in range(len(found)))
    model.save(f"{folder}/again")
    vt.load(f"{folder}/again")


@pytest.mark.parametrize("generator", GENERATORS)
def test_what_was_not_changed_works(generator: str | None) -> None:
    assert check(*saved(generator)) is None
    assert tuple(saved(generator)[0]) == KEYS


@pytest.mark.parametrize("key", KEYS)
def test_a_document_without_one_of_its_parts_is_refused(key: str) -> None:
    content, tensors, rows = saved()
    assert isinstance(check(changed(content, (key,), GONE), tensors, rows), ModelFileError)


@settings(max_examples=150)
@given(data=st.data(), value=st.sampled_from(JUNK))
def test_a_changed_field_is_refused_or_works(data: st.DataObject, value: Any) -> None:
    content, tensors, rows = saved()
    path = data.draw(st.sampled_from(places(content)))
    check(changed(content, path, value), tensors, rows)


def broken_tensors(tensors: dict[str, Tensor], name: str) -> dict[str, dict[str, Tensor]]:
    """The tensors with one of them broken in every way, by how."""
    whole = tensors[name]
    ways = {
        "one row more": torch.cat([whole, whole[:1]]),
        "a column more": torch.nn.functional.pad(whole, (0, 1)),
        "flat": whole.reshape(-1),
        "one more dimension": whole.unsqueeze(0),
        "empty": whole[:0],
        "whole numbers": whole.round().long(),
        "half precision": whole.half(),
        "truth values": whole > 0,
    }
    if whole.is_floating_point():
        ways["not a number"] = whole.clone()
        ways["not a number"].view(-1)[0] = math.nan
        ways["infinite"] = torch.full_like(whole, math.inf)
    found = {way: {**tensors, name: tensor} for way, tensor in ways.items()}
    found["gone"] = {k: t for k, t in tensors.items() if k != name}
    found["under another name"] = {("other" if k == name else k): t for k, t in tensors.items()}
    return found


@pytest.mark.parametrize("generator", [pytest.param("residual", marks=pytest.mark.long), *GENERATORS[1:]])
def test_changed_tensors_are_refused_or_work(generator: str | None) -> None:
    content, tensors, rows = saved(generator)
    for name in tensors:
        for way, broken in broken_tensors(tensors, name).items():
            error = check(content, broken, rows)
            if way in ("not a number", "infinite", "one more dimension", "truth values"):
                assert isinstance(error, ModelFileError), (name, way)
            if name.startswith("classifier") and way != "flat":  # a bias is flat
                assert isinstance(error, ModelFileError), (name, way)


def test_a_generator_of_another_kind_is_refused() -> None:
    """The document of one model with the tensors of another."""
    for kind in ("residual", "counternet", "neighbour"):
        content, _, rows = saved(kind)
        for other in GENERATORS:
            if other != kind:
                assert isinstance(check(content, saved(other)[1], rows), ModelFileError)


def test_a_model_without_its_unfavourable_label_is_refused() -> None:
    content, tensors, rows = saved()
    error = check(changed(content, ("encoding", "schema", "unfavourable"), None), tensors, rows)
    assert isinstance(error, ModelFileError)


@pytest.mark.parametrize("favourable", [1e300, math.nan, 0.5])
def test_labels_of_two_types_are_refused(favourable: float) -> None:
    content, tensors, rows = saved()
    other = changed(content, ("encoding", "schema", "favourable"), favourable)
    assert check(other, tensors, rows) is not None


def test_a_parameter_that_there_is_not_is_refused() -> None:
    content, tensors, rows = saved("neighbour")
    error = check(changed(content, ("params", "speed"), 3), tensors, rows)
    assert "expected parameters of VeriTraCER in a saved model, got 'speed'" in str(error)


def test_settings_stay_when_a_recipe_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, tensors, _ = saved("residual")
    assert content["params"]["kappa"] is None
    model_folder.write(tmp_path / "model", changed(content, ("settings", "kappa"), 0.35), tensors)
    model = vt.load(tmp_path / "model")
    assert (model.kappa, model.settings_.kappa) == (None, 0.35)
    assert clone(model).settings_.kappa == 0.2  # an unfitted model takes what the library sets today


def test_columns_are_known_before_a_model_is_loaded(tmp_path: Path) -> None:
    content, tensors, _ = saved("neighbour")
    model_folder.write(tmp_path / "whole", content, tensors)
    found = model_folder.columns(tmp_path / "whole")
    assert found is not None
    assert (found.names, found.target) == (tuple(SCHEMA.names), "approved")
    model_folder.write(tmp_path / "other", changed(content, ("encoding",), None), tensors)
    assert model_folder.columns(tmp_path / "other") is None  # load says what is wrong with it
