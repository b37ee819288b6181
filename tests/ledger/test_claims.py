"""Nothing is issued on trust: what is shown, decided and proved is looked at again before it is promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ledger_cases import behind, issue, model, prepared, recourse, rows_of

import veritracer as vt
from edited_results import edited
from recourse_tables import applicants
from veritracer.certificate import Certificates, certify
from veritracer.errors import LedgerError
from veritracer.ledger import database as tables
from veritracer.ledger import issuing
from veritracer.ledger.promises import certified_region_of
from veritracer.ledger.records import from_json, table_of

Edit = Callable[[vt.Counterfactuals], vt.Counterfactuals]


def first(found: vt.Counterfactuals, holds: Any = True) -> int:
    """The first row that becomes a promise, and of which this holds."""
    return int(np.flatnonzero((found.status != "none") & holds)[0])


def with_cell(name: str, value: Any, frame: str = "frame") -> Edit:
    def edit(found: vt.Counterfactuals) -> vt.Counterfactuals:
        table = getattr(found, frame).copy()
        table.iloc[first(found), table.columns.get_loc(name)] = value
        return edited(found, **{frame: table})

    return edit


def with_number(name: str, value: Any, holds: Callable[[vt.Counterfactuals], Any] = lambda _: True) -> Edit:
    def edit(found: vt.Counterfactuals) -> vt.Counterfactuals:
        array = getattr(found, name).copy()
        array[first(found, holds(found))] = value
        return edited(found, **{name: array})

    return edit


def as_original(found: vt.Counterfactuals) -> vt.Counterfactuals:
    """Somebody is shown their own row, and that is what is said to be certified."""
    i, frame, x_cf = first(found), found.frame.copy(), found.x_cf.clone()
    frame.iloc[i], x_cf[i] = found.original.iloc[i], found.x[i]
    return edited(found, frame=frame, x_cf=x_cf, lower=x_cf, upper=x_cf)


def invented(found: vt.Counterfactuals) -> vt.Counterfactuals:
    """A certificate for what has none: everything about it is consistent but the proof."""
    i = first(found, ~found.certified)
    changed = {n: getattr(found, n).copy() for n in ("certified", "worst_logit", "radius", "status")}
    changed["certified"][i], changed["worst_logit"][i] = True, -1.0
    changed["radius"][i] = max(found.radius[i], found.kappa)
    return edited(found, **changed)


def moved(found: vt.Counterfactuals) -> vt.Counterfactuals:
    x_cf = found.x_cf.clone()
    x_cf[first(found), 2] += 1e-16 + 1e-9
    return edited(found, x_cf=x_cf, lower=x_cf, upper=x_cf)


def other_encoding(found: vt.Counterfactuals) -> vt.Counterfactuals:
    """The same rows through an encoding that was fitted to something else."""
    features = [f.replace(upper=60_000) if f.name == "savings" else f for f in found.encoding.schema.features]
    schema = vt.Schema(features, "approved", "yes", "no")
    return edited(found, encoding=vt.Encoding.fit(schema, applicants(400)[0]))


POINTS: dict[str, tuple[Edit, str]] = {
    "another value is shown": (with_cell("savings", 12_300), "values that encode to the certified rows"),
    "a value that there is not": (with_cell("job", "pirate"), "values that encode to the certified rows"),
    "another row was theirs": (with_cell("debts", 1, "original"), "original rows that encode to"),
    "another row was certified": (moved, "values that encode to the certified rows"),
    "their own row": (as_original, "counterfactuals that are decided otherwise today"),
    "the other decision": (with_number("favourable", True), "today's decisions on the original rows"),
    "an invented certificate": (invented, "a proof for every certificate"),
    "a certificate without its bound": (
        with_number("certified", True, lambda f: ~f.certified),
        "certificates whose bound is below 0",
    ),
    "a larger kappa": (
        lambda f: edited(f, kappa=5.0, radius=f.radius + 5.0),
        "a proof for every certificate",
    ),
    "a larger radius": (with_number("radius", 50.0), "a proof for every radius"),
    "a larger radius below kappa": (
        with_number("radius", 0.049, lambda f: ~f.certified),
        "a proof for every certificate",
    ),
    "no radius": (with_number("radius", np.nan), "a radius of at least kappa"),
    "an endless radius": (with_number("radius", np.inf), "a radius of at least kappa"),
    "a radius below kappa": (
        with_number("radius", 0.01, lambda f: f.certified),
        "a radius of at least kappa",
    ),
    "a better bound": (with_number("worst_logit", -100.0, lambda f: f.certified), "the bound that is proved"),
    "another method": (
        with_number("method", "simul-crown", lambda f: f.certified),
        "the method that proves it",
    ),
    "a larger set": (lambda f: edited(f, radius_rule="norm"), "a proof for every"),
    "a drift": (lambda f: edited(f, drift={"income": 5_000.0}), "the regions that overshoot and drift"),
    "an overshoot": (lambda f: edited(f, overshoot=0.1), "the regions that overshoot and drift"),
    "another encoding": (other_encoding, "the encoding that the certificates speak of"),
    "another digest": (lambda f: edited(f, encoding_digest="0" * 64), "the encoding that the certificates"),
}

REGIONS: dict[str, tuple[Edit, str]] = {
    "a larger drift": (
        lambda f: edited(f, drift={"income": 2_000.0}),
        "the regions that overshoot and drift ask for",
    ),
    "a wider region": (
        lambda f: edited(f, upper=(f.region.upper + 0.3).clamp(max=1.0)),
        "the regions that overshoot and drift ask for",
    ),
    "a region that was not proved": (
        lambda f: wider_region(f, 30_000.0),
        "a proof for every",
    ),
}


def wider_region(found: vt.Counterfactuals, drift: float) -> vt.Counterfactuals:
    """A larger drift, with the region that goes with it."""
    asked = edited(found, drift={"income": drift})
    region = certified_region_of(asked).around(found.x_cf, found.x)
    return edited(asked, lower=region.lower, upper=region.upper)


def refused(found: vt.Counterfactuals, sentence: str, folder: Path) -> None:
    with vt.Ledger(folder / "promises.db") as ledger:
        head = ledger.head
        with pytest.raises(LedgerError, match=f"expected .*{sentence}.*, got .+ — explain again"):
            issue(ledger, found)
        with pytest.raises(LedgerError, match=sentence):
            prepared(found)
        assert ledger.head == head
        assert ledger.counts().live == 0


@pytest.mark.parametrize("case", POINTS)
def test_edited_counterfactuals_are_refused(case: str, tmp_path: Path) -> None:
    edit, sentence = POINTS[case]
    refused(edit(recourse()), sentence, tmp_path)


@pytest.mark.parametrize("case", REGIONS)
def test_edited_regions_are_refused(case: str, tmp_path: Path) -> None:
    edit, sentence = REGIONS[case]
    refused(edit(recourse(rows=12, drift=Drift(income=500.0))), sentence, tmp_path)


class Drift(dict[str, float]):
    """A mapping that ``functools.cache`` takes."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def test_a_condition_must_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def conditionally(*given: Any, **options: Any) -> Certificates:
        found = certify(*given, **options)
        return replace(found, conditional=np.ones(len(found), dtype=bool))

    monkeypatch.setattr(issuing, "certify", conditionally)
    refused(recourse(), "the condition that a proof needs", tmp_path)
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        found = recourse()
        said = edited(found, conditional=np.ones(len(found), dtype=bool))
        assert len(issue(ledger, said)) == int((found.status != "none").sum())


OPTIONS: list[dict[str, Any]] = [
    {},
    {"refine": False},
    {"refine": False, "search_radius": False},
    {"kappa": 0.0},
    {"kappa": 0.2, "n": 2},
    {"kappa": 0.1, "overshoot": 0.03},
    {"kappa": 0.02, "drift": Drift(income=700.0, age=1.0), "overshoot": 0.01},
    {"kappa": 0.05, "refine": False, "effort": "exact"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_explain_answers_is_issued(options: dict[str, Any], tmp_path: Path) -> None:
    found = recourse(rows=24, **options)
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        issued = issue(ledger, found)
        assert len(issued) == int((found.status != "none").sum()) > 0
        assert ledger.verify(issued.head).ok


def exact_results() -> vt.Counterfactuals:
    """Regions of which the exact stage proves some, and finds a model that breaks others."""
    wide = {"drift": Drift(income=10_000.0), "overshoot": 0.1}
    return recourse(rows=60, kappa=0.02, refine=False, effort="exact", **wide)


def test_exact_proofs_are_proved_again_by_the_exact_stage(tmp_path: Path) -> None:
    found = exact_results()
    exactly = found.certified & (found.method == "exact")
    assert exactly.any()
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        issued = issue(ledger, found, uncertified="skip")
        assert len(issued) == int(found.certified.sum())
        assert ledger.verify(issued.head).ok


def test_an_exact_proof_of_what_is_broken_is_refused(tmp_path: Path) -> None:
    found = exact_results()
    broken = found.certificates.broken
    assert broken.any()
    i = first(found, broken)
    changed = {
        n: getattr(found, n).copy() for n in ("certified", "worst_logit", "radius", "status", "method")
    }
    changed["certified"][i], changed["worst_logit"][i] = True, -1.0
    changed["radius"][i], changed["status"][i], changed["method"][i] = found.kappa, "certified", "exact"
    refused(edited(found, **changed), "a proof for every certificate", tmp_path)


def test_a_bound_is_not_an_exact_proof(tmp_path: Path) -> None:
    found = recourse()
    method = found.method.copy()
    method[first(found, found.certified)] = "exact"
    refused(edited(found, method=method), "the method that proves it", tmp_path)


DTYPES = {
    "as they are": {},
    "narrow": {"income": "float32", "rating": "float32", "savings": "int32"},
    "very narrow": {"rating": "float16", "savings": "float32"},
    "nullable": {"income": "Float64", "savings": "Int64", "rating": "Float32", "age": "UInt8"},
    "objects": {"income": object, "savings": object, "education": object, "rating": object},
    "categories": {"job": "category", "education": "category", "debts": "category"},
    "Arrow": {"income": "float32[pyarrow]", "savings": "int64[pyarrow]", "job": "string[pyarrow]"},
}


@pytest.mark.parametrize("dtypes", DTYPES)
def test_the_text_that_is_kept_encodes_to_what_was_certified(dtypes: str, tmp_path: Path) -> None:
    frame = applicants(30, seed=9)[0].astype(DTYPES[dtypes])
    found = model().explain(frame, kappa=0.05)
    rows = np.flatnonzero(found.status != "none")
    place = str(tmp_path / "promises.db")
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found)
        assert ledger.verify().ok
        told = [ledger.shown(int(number)) for number in issued.sequence]
    names = found.encoding.schema.names
    shown, own = (table_of([one[part] for one in told], names) for part in ("values", "original"))
    assert torch.equal(found.encoding.encode(shown), found.x_cf[rows])
    assert torch.equal(found.encoding.encode(own), found.x[rows])
    with behind(place) as connection:
        texts = [from_json(row["public"]) for row in rows_of(connection, tables.records)]
    assert texts == [one["values"] for one in told]
    assert all(pd.api.types.is_scalar(cell) for text in texts for cell in text.values())
