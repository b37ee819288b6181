"""The numbers of the demo, computed a second time, and what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veritracer.app.cli import demo
from veritracer.datasets import loans, loans_truth
from veritracer.errors import DataError
from veritracer.training import panel

ROWS = 600
PARAMETERS: dict[str, Any] = {"epochs": 40, "hidden": (16,), "learning_rate": 0.03, "batch_size": 64}


@pytest.fixture(scope="module")
def found() -> demo.Demo:
    """A small demo: few rows, epochs and steps of the panel."""
    steps: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "STEPS", 20)
        result = demo.run(rows=ROWS, tell=steps.append, **PARAMETERS)
    assert len(steps) == 4
    return result


def test_every_declined_applicant_is_counted(found: demo.Demo) -> None:
    declined = found.model.decision_function(found.today.X_test) <= 0
    assert 0 < found.declined == int(declined.sum()) < len(declined)
    for kind, recourse in found.recourse.items():
        promised = recourse.valid & ~recourse.favourable
        assert not recourse.certified[~declined].any()
        assert 0 < found.advice[kind].issued <= found.declined
        if kind == "closest":
            assert found.advice[kind].issued == promised.sum()


def test_shares_of_the_advice(found: demo.Demo) -> None:
    recourse, advice = found.recourse["certified"], found.advice["certified"]
    told = recourse.valid & ~recourse.favourable
    truth = loans_truth(recourse.frame[told], recourse.original[told]) > 0.5
    assert advice.approved_in_truth == pytest.approx(truth.sum() / found.declined)
    assert advice.cost == pytest.approx(recourse.cost[told].mean())
    closest = found.advice["closest"]
    assert closest.cost < advice.cost
    assert closest.changes <= advice.changes


def test_promises_kept_by_the_promise_keeping_update(found: demo.Demo) -> None:
    advice, audit = found.advice["certified"], found.audits["certified"]["keeping"]
    assert advice.kept["keeping"] == advice.proved["keeping"] == 1.0
    assert audit.ok
    recourse = found.recourse["certified"]
    assert audit.live == advice.issued == int((recourse.certified & ~recourse.favourable).sum())


@pytest.mark.parametrize("name", ["free", "keeping"])
def test_the_audit_agrees_with_the_decisions_of_the_updated_model(found: demo.Demo, name: str) -> None:
    """The audit of the ledger against ``predict``, on the rows that were promised."""
    later = loans(ROWS, year=2).split()
    model = found.updates[name]
    assert found.accuracy[name] == pytest.approx(model.score(later.X_test, later.y_test))
    for kind, recourse in found.recourse.items():
        promised = (recourse.certified if kind == "certified" else recourse.valid) & ~recourse.favourable
        accepts = model.predict(recourse.frame[promised]) == "yes"
        assert found.advice[kind].kept[name] == pytest.approx(float(np.mean(accepts)))
    assert found.advice["closest"].proved[name] == 0.0


def test_a_model_that_declines_nobody_is_refused(found: demo.Demo) -> None:
    class Generous:
        def decision_function(self, X: pd.DataFrame) -> np.ndarray:
            return np.ones(len(X))

    with pytest.raises(DataError, match="at least one declined test row"):
        demo._count_declined(Generous(), found.today)  # type: ignore[arg-type]


def printed(found: demo.Demo, out: Path, **options: Any) -> None:
    """Run the command on a demo that was run already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run", lambda *, tell, **_: tell("Training") or found)
        demo.demo(out=out, **options)


def test_the_printed_table(found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(found, tmp_path / "new")
    text, steps = capsys.readouterr()
    assert steps == "Training ...\nWriting the reports ...\n"
    assert f"declines {found.declined} of them." in text
    lines = [re.split(" {2,}", line.strip()) for line in text.splitlines()]
    issued = [f"{found.advice[kind].issued}" for kind in ("certified", "closest")]
    assert ["promises issued", *issued] in lines
    kept = lines.index(next(line for line in lines if line[0].endswith("promise-keeping update")))
    assert lines[kept][1] == "100 %"
    assert lines[kept + 1] == ["of these by proof", "100 %", "0.0 %"]
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"report.html", "audit.html"}
    page = (tmp_path / "new" / "audit.html").read_text(encoding="utf-8")
    live = found.audits["certified"]["keeping"].live
    assert f"This model keeps all of {live} live promises" in page.replace("\u00a0", " ")


def test_the_json_document(found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(found, tmp_path, as_json=True)
    text, steps = capsys.readouterr()
    document = json.loads(text)
    assert steps == ""
    assert document["declined"] == found.declined
    assert set(document["advice"]) == {"certified", "closest"}
    assert document["advice"]["certified"]["proved"]["keeping"] == 1.0
    assert document["report"] == str(tmp_path / "report.html")


def test_a_failed_demo_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> demo.Demo:
        raise DataError("no rows")

    monkeypatch.setattr(demo, "run", fail)
    with pytest.raises(DataError, match="no rows"):
        demo.demo(out=tmp_path / "new" / "folder", quiet=True)
    assert not list(tmp_path.iterdir())
