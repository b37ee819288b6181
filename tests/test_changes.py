"""What is said of a region is what was proved of it: raw rows at the ends of the words, asked of models."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import veritracer as vt
from edited_results import edited
from recourse_tables import LEVELS, fitted
from veritracer.app.notices import render_notice
from veritracer.app.report.people import in_words
from veritracer.changes import Change, describe_change, region_of
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DataError
from veritracer.schema import Feature, Schema

NUMBER = r"(-?[\d,]+(?:\.\d+)?)"


def promised_notice(
    found: Counterfactuals, module: nn.Sequential, i: int, codes: dict[str, Any], folder: Path
) -> str:
    """Return the words of the notice of a promise to row ``i``."""
    with vt.Ledger(folder / "promises.db") as ledger:
        ids = [str(k) for k in range(int(found.row.max()) + 1)]
        issued = ledger.issue(found, module, ids=ids, allow_duplicate=True)
        number = int(issued.sequence[np.flatnonzero(found.certified).tolist().index(i)])
        return " ".join(render_notice(ledger, number, codes).split())


def number(text: str) -> float:
    return float(text.replace(",", ""))


def linear(features: list[Feature], weights: list[float], bias: float, frame: pd.DataFrame) -> vt.Recourse:
    """A linear model of these features, on the scale of ``frame``."""
    schema = Schema(features, "y", "yes", "no")
    module = nn.Sequential(nn.Linear(len(weights), 1, dtype=torch.float64))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([weights]))
        module[0].bias.fill_(bias)
    return vt.Recourse(module, schema, vt.Encoding.fit(schema, frame), kappa=0.01)


def lender() -> tuple[vt.Recourse, pd.DataFrame]:
    features = [
        Feature("savings", "integer", lower=0, upper=1000, step=10, action="increase_only"),
        Feature("loan", "integer", lower=0, upper=1000, step=10, action="decrease_only"),
    ]
    frame = pd.DataFrame({"savings": [0, 1000, 300, 450, 120], "loan": [0, 1000, 700, 900, 990]})
    return linear(features, [1.0, -1.0], -0.1, frame), frame


def favourable(recourse: vt.Recourse, rows: pd.DataFrame) -> np.ndarray:
    """What today's model says of raw rows."""
    with torch.no_grad():
        x = recourse.encoding.encode(rows, out_of_range="ignore")
        return (recourse.module(x)[:, 0] > 0).numpy()


def said_ends(found: Counterfactuals, i: int) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each number that the sentence of row ``i`` speaks for.

    Read from the sentence alone: how far one may carry on, and how far a value may move from there.
    """
    sentence, ends = found.sentence(i), {}
    for name in found.frame.columns:
        cell = found.frame[name].iloc[i]
        if isinstance(cell, str) or pd.isna(cell):
            continue
        low = high = float(cell)
        if on := re.search(rf"covered too:[^.]*\b{name} (up|down) to {NUMBER}", sentence):
            low, high = min(low, number(on[2])), max(high, number(on[2]))
        if both := re.search(rf"\b{name} may change by up to {NUMBER}", sentence):
            low, high = low - number(both[1]), high + number(both[1])
        if up := re.search(rf"\b{name} may grow by up to {NUMBER}", sentence):
            high += number(up[1])
        if down := re.search(
            rf"\b{name} may (?:grow by up to {NUMBER} or )?fall by up to {NUMBER}", sentence
        ):
            low -= number(down[2])
        ends[name] = low, high
    return ends


def corners(found: Counterfactuals, i: int) -> pd.DataFrame:
    """Every raw row at the ends of what the sentence says."""
    ends = said_ends(found, i)
    rows = [dict(zip(ends, corner, strict=True)) for corner in itertools.product(*ends.values())]
    base = found.frame.iloc[[i] * len(rows)].reset_index(drop=True)
    return base.assign(**{name: [row[name] for row in rows] for name in ends})


@pytest.mark.parametrize("drift", [200, (0, 200), (-200, 0), (-50, 200)])
@pytest.mark.parametrize("name", ["savings", "loan"])
@pytest.mark.parametrize("overshoot", [0.0, 0.05])
def test_drift_of_a_one_way_feature_is_certified_as_far_as_it_is_said(
    name: str, drift: float | tuple[float, float], overshoot: float
) -> None:
    recourse, frame = lender()
    found = recourse.explain(frame, drift={name: drift}, overshoot=overshoot)
    assert found.certified.sum() >= 2
    least, most = drift if isinstance(drift, tuple) else (-drift, drift)
    for i in np.flatnonzero(found.certified):
        low, high = said_ends(found, i)[name]
        shown = found.frame[name].iloc[i]
        assert low <= shown + least, found.sentence(i)
        assert high >= shown + most, found.sentence(i)
        assert favourable(recourse, corners(found, i)).all(), found.sentence(i)


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        (200, "savings may change by up to 200"),
        ((0, 200), "savings may grow by up to 200, but must not fall."),
        ((-200, 0), "savings may fall by up to 200, but must not grow."),
        ((-50, 200), "savings may grow by up to 200 or fall by up to 50"),
        (0.1 + 0.2, "savings may change by up to 0.3."),
    ],
)
def test_each_way_to_drift_has_its_words(
    drift: float | tuple[float, float], words: str, tmp_path: Path
) -> None:
    recourse, frame = lender()
    found = recourse.explain(frame, drift={"savings": drift})
    i = int(np.flatnonzero(found.certified)[0])
    assert words in found.sentence(i)
    codes = {name: {"code": "R1", "text": "t", "unit": "euros"} for name in ("savings", "loan")}
    letter = promised_notice(found, recourse.module, i, codes, tmp_path)
    amount = re.search(rf"by up to {NUMBER}", words)[1].strip(",")
    assert f"by up to {amount} euros" in letter
    assert ("must not" in words) == ("must not" in letter)


def test_nothing_is_said_of_a_drift_of_nothing() -> None:
    recourse, frame = lender()
    found = recourse.explain(frame, drift={"savings": 0, "loan": (0.0, 0.0)})
    assert not any("Meanwhile" in found.sentence(i) for i in range(len(found)))


def test_overshoot_and_drift_are_not_granted_twice() -> None:
    recourse, frame = lender()
    found = recourse.explain(frame, overshoot=0.05, drift={"loan": 100, "savings": 100})
    changed = [(i, c) for i in np.flatnonzero(found.certified) for c in found.changes_of(i) if c.goes_on]
    assert changed
    for i, change in changed:
        assert abs(change.limit - change.after) <= 50  # 5 % of 1,000, and the drift not on top of it
        assert favourable(recourse, corners(found, i)).all(), found.sentence(i)


def test_a_region_holds_in_every_model_of_the_set() -> None:
    model, rows = fitted()
    drift = {"age": 3, "income": (-2000, 500), "debts": 1, "education": 1, "rating": 0.05}
    found = model.explain(rows, overshoot=0.05, drift=drift)
    some = np.flatnonzero(found.certified)
    assert len(some) > 20
    models = model.param_set()
    drawn = models.sample(8, torch.Generator().manual_seed(0), corners=True)
    thetas = [models.center, *(tuple(t[k] for t in drawn) for k in range(8))]
    rng = np.random.default_rng(0)
    for i in some[:60]:
        tried = corners(found, i)
        at = LEVELS.index(found.frame["education"].iloc[i])
        tried["education"] = [LEVELS[np.clip(at + step, 0, 3)] for step in rng.integers(-1, 2, len(tried))]
        tried = tried.astype({"age": int, "savings": int, "debts": int})
        x = model.encoding_.encode(tried, out_of_range="ignore")
        assert bool(((x >= found.region.lower[i]) & (x <= found.region.upper[i])).all()), found.sentence(i)
        for theta in thetas:
            assert bool((models.network.logit(theta, x) > 0).all()), found.sentence(i)


def test_what_is_not_proved_is_not_said() -> None:
    """A row that is valid today without any proof says nothing of regions, in words or in numbers."""
    recourse, frame = lender()
    found = recourse.explain(frame, kappa=0.01, overshoot=0.05, drift={"savings": 100}, search_radius=False)
    nothing = np.zeros(len(found))
    bare = edited(
        found,
        certified=nothing.astype(bool),
        radius=nothing,
        status=np.where(found.status == "certified", "valid", found.status),
    )
    i = int(np.flatnonzero(bare.status == "valid")[0])
    sentence = bare.sentence(i)
    assert "Going further" not in sentence
    assert "Meanwhile" not in sentence
    assert "at least" not in sentence
    assert bare.changes()["at_most"].isna().all()
    row = json.loads(bare.to_json())["rows"][i]
    assert "region" not in row
    assert not any("at_most" in change for change in row["changes"])


def test_the_json_says_which_values_are_covered() -> None:
    recourse, frame = lender()
    found = recourse.explain(frame, overshoot=0.05, drift={"loan": 100, "savings": (0, 30)})
    content = json.loads(found.to_json())
    assert content["drift"] == {"loan": 100, "savings": [0, 30]}
    for i in np.flatnonzero(found.certified):
        region, ends = content["rows"][i]["region"], said_ends(found, i)
        assert {name: tuple(pair) for name, pair in region.items()} == ends


def test_levels_drift_by_levels_and_missing_cells_do_not_drift() -> None:
    model, rows = fitted()
    gaps = rows.assign(rating=np.nan).head(60)
    found = model.explain(gaps, drift={"education": (0, 1), "rating": 0.1})
    for i in np.flatnonzero(found.certified):
        may = found.frame["education"].iloc[i] != LEVELS[-1]
        assert ("education may grow by up to 1 level, but must not fall" in found.sentence(i)) == may
    asked = [i for i in np.flatnonzero(found.certified) if pd.isna(found.frame["rating"].iloc[i])]
    assert asked
    assert not any("rating may" in found.sentence(i) for i in asked)


def test_a_code_for_missing_is_no_value_to_drift_to() -> None:
    features = [Feature("age", "integer", lower=0, upper=90, missing="impute", missing_codes=[99])]
    frame = pd.DataFrame({"age": [0, 90, 30, 99]})
    recourse = linear(features, [1.0, -5.0, -5.0], -0.5, frame)
    found = recourse.explain(frame.iloc[[2]], drift={"age": (0, 60)}, only_unfavourable=True)
    assert found.certified[0]
    assert "age may grow by up to 60, but must not fall (and must not be 99)" in found.sentence(0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_words_have_no_more_digits_than_the_grid(dtype: str) -> None:
    features = [Feature("rate", "continuous", lower=0.0, upper=1.0, step=0.1)]
    frame = pd.DataFrame({"rate": np.array([0.0, 1.0, 0.9, 0.8], dtype=dtype)})
    recourse = linear(features, [-1.0], 0.55, frame)
    found = recourse.explain(frame, overshoot=0.15, drift={"rate": 0.1 * 3})
    said = " ".join(found.sentence(i) for i in range(len(found)))
    assert " or further" in said
    codes = {"rate": ("R1", "t")}
    letters = " ".join(render_notice(found, i, codes) for i in range(len(found)))
    for text in (said, letters, found.to_json(), " ".join(found.reason)):
        of_machines = r'"(cost|radius|worst_logit|[Wb]\d)": [-.e\d]+'
        assert not re.search(r"\d\.\d{9,}", re.sub(of_machines, "", text))


@settings(max_examples=60)
@given(
    low=st.sampled_from([0.0, -3.7, 1e6, 1e9, 123456.789]),
    width=st.sampled_from([1.0, 0.4, 7.0, 1000.0]),
    step=st.sampled_from([None, 0.1, 0.05, 1 / 3]),
    share=st.sampled_from([0.0, 0.001, 0.0123, 0.1, 0.217, 0.3]),
    overshoot=st.sampled_from([0.0, 0.05, 0.0499999995, 1 / 3, 0.1]),
    start=st.floats(0.0, 0.4),
)
def test_rounding_never_says_more_than_the_box(
    low: float, width: float, step: float | None, share: float, overshoot: float, start: float
) -> None:
    """Legal values up to the ends of the words, read as anybody's application, lie in the certified box."""
    feature = Feature("v", "continuous", lower=low, upper=low + width, step=step)
    legal = np.linspace(low, low + width, 9)
    if step is not None:
        legal = low + step * np.arange(int(width / step + 1e-9) + 1)
    recourse = linear([feature], [1.0], -0.45, pd.DataFrame({"v": legal}))
    own = recourse.encoding.decode(torch.tensor([[start]], dtype=torch.float64))
    found = recourse.explain(own, overshoot=overshoot, drift={"v": float(f"{share * width:.3g}")})
    if not found.certified[0]:
        return
    first, last = said_ends(found, 0)["v"]
    near = max(1e-6 * (step or 1.0), 4 * np.spacing(abs(low) + width))  # the grid's own last digits
    inside = (legal >= first - near) & (legal <= last + near)
    tried = np.array([first, last]) if step is None else legal[inside]
    x = recourse.encoding.encode(pd.DataFrame({"v": tried}), out_of_range="ignore")
    assert bool(((x >= found.region.lower[0]) & (x <= found.region.upper[0])).all()), found.sentence(0)


@pytest.mark.parametrize(
    ("drift", "said"),
    [
        ({"savings": (1, 200)}, "from at most 0 to at least 0"),
        ({"savings": (-200, -1)}, "from at most 0 to at least 0"),
        ({"savings": (0, 1, 2)}, "a number, or a pair"),
        ({"savings": (0, float("inf"))}, "finite"),
        ({"savings": "200"}, "a number, or a pair"),
        ({"savings": float("nan")}, "a number"),
        ({"savings": True}, "a number, or a pair"),
    ],
)
def test_drifts_that_make_no_sense_are_refused(drift: dict[str, object], said: str) -> None:
    recourse, frame = lender()
    with pytest.raises(DataError, match=said):
        recourse.explain(frame, drift=drift)


def test_numbers_that_are_text_are_compared_and_moved_as_numbers() -> None:
    """The text 5.880 € comes before the text 983 €."""
    rng = np.random.default_rng(0)
    income = [f"{value:,}".replace(",", ".") + " €" for value in rng.integers(100, 7_000, 200)]
    table = pd.DataFrame({"income": income, "age": rng.integers(20, 60, 200)})
    written = {"income": "1.234,5 €"}
    known = table.assign(ok=rng.permutation(["yes", "no"] * 100))
    schema = vt.Schema.infer(known, target="ok", favourable="yes", number_formats=written)
    encoding = vt.Encoding.fit(schema, table)
    own = pd.DataFrame({"income": ["983 €"], "age": [30]})
    shown = pd.DataFrame({"income": ["5.880 €"], "age": [30]})
    layer = nn.Linear(encoding.dim, 1, dtype=torch.float64)
    result = vt.Recourse(nn.Sequential(layer), encoding=encoding, kappa=0.0).explain(own, refine=False)
    found = replace(
        edited(
            result,
            overshoot=0.05,
            drift={"age": (0, 2), "income": 50},
            certified=np.array([True]),
            original=own,
            frame=shown,
        ),
        x=encoding.encode(own),
        x_cf=encoding.encode(shown),
    )
    (change,) = found.changes_of(0)
    assert (change.before, change.after) == (983, 5880)
    assert describe_change(change).startswith("Raise income from 983 to ")
    region = region_of(found, 0)
    assert region["age"] == (30, 32)
    assert region["income"][0] == 5830
    assert region["income"][1] == change.limit + 50 > 5930


def test_what_a_year_brings_is_covered_where_the_schema_says_so(tmp_path: Path) -> None:
    model, X = fitted()
    rules = vt.Schema(
        [f.replace(yearly=(0, 1)) if f.name == "age" else f for f in model.schema_.features],
        model.schema_.target,
        model.schema_.favourable,
        model.schema_.unfavourable,
    )
    again = vt.Schema.from_json(rules.to_json())
    assert again == rules
    assert '"yearly"' not in model.schema_.to_json()
    found = model.recourse(again).explain(X[:12], search_radius=False)
    codes = dict.fromkeys(rules.names, ("R1", "t"))
    i = int(np.flatnonzero(found.status == "certified")[0])
    assert found.drift == {"age": (0.0, 1.0)}
    letter = promised_notice(found, model.classifier_, i, codes, tmp_path)
    assert "age (which may grow by up to 1, but must not fall)" in letter
    assert model.recourse(again).explain(X[:2], drift={"age": 0}).drift == {"age": 0.0}
    assert not model.explain(X[:2]).drift
    assert model.recourse(again).explain(X[:2], term="2y").drift == {"age": (0.0, 2.0)}
    assert not model.recourse(again).explain(X[:2], term=None).drift


# ------------------------------------------------------------------------------------ numbers in sentences


@st.composite
def numeric_changes(draw: st.DrawFn) -> Change:
    """A change of a number, often a small one of a large number with many digits."""
    after = draw(st.decimals(-(10**12), 10**12, places=draw(st.integers(0, 6))))
    apart = (
        draw(st.floats(1e-9, 1e3))
        * draw(st.sampled_from([1.0, 1e-6, 1e-3, 1e6]))
        * draw(st.sampled_from([-1, 1]))
    )
    before = float(after) + apart
    kind = draw(st.sampled_from([float, np.float32]))
    limit = float(after) + abs(apart) if before < float(after) else float(after) - abs(apart)
    feature = Feature("when", "continuous")
    return Change(feature, float(kind(before)), float(after), draw(st.sampled_from([None, limit])))


@settings(max_examples=300)
@given(numeric_changes())
def test_what_a_sentence_says_of_two_numbers_is_true_of_the_row(change: Change) -> None:
    before, after = (exact(value) for value in (change.before, change.after))
    if before == after:
        return
    said = re.fullmatch(
        r"(Raise|Reduce) when from (\S+) to (?:at least )?(\S+?)(?: or further)?\.", describe_change(change)
    )
    old, new = (Decimal(text.replace(",", "")) for text in (said[2], said[3]))
    assert new == after
    assert (said[1] == "Raise") == (before < after) == (old < new)
    assert old != new
    assert abs((new - old) - (after - before)) <= abs(after - before) / 1000
    _, shown, to, by = in_words(change)
    old, new = (Decimal(text.replace(",", "")) for text in (shown, to))
    assert Decimal(by.replace(",", "").replace("−", "-")) == new - old


def exact(value: float) -> Decimal:
    return Decimal(repr(float(value)))
