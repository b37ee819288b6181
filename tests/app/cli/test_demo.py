"""The numbers of the demo, computed a second time, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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
        patch.setattr(demo, "cores", lambda: 1)  # patches are not known to other processes
        result = demo.run(rows=ROWS, tell=steps.append, **PARAMETERS)
    assert len(steps) == 4
    return result


def test_every_declined_applicant_is_counted(found: demo.Demo) -> None:
    declined = found.model.decision_function(found.today.X_test) <= 0
    assert 0 < found.declined == int(declined.sum()) < len(declined)
    assert not found.recourse.certified[~declined].any()
    for advice in found.advice.values():
        assert 0 < advice.issued <= found.declined


def test_shares_of_the_advice(found: demo.Demo) -> None:
    recourse, advice = found.recourse, found.advice["certified"]
    told = recourse.valid & ~recourse.favourable
    truth = loans_truth(recourse.frame[told], recourse.original[told]) > 0.5
    assert advice.issued == told.sum()
    assert advice.approved_in_truth == pytest.approx(truth.sum() / found.declined)
    assert advice.cost == pytest.approx(recourse.cost[told].mean())
    closest = found.advice["closest"]
    assert closest.cost < advice.cost
    assert closest.changes <= advice.changes


def test_promises_kept_by_the_promise_keeping_update(found: demo.Demo) -> None:
    kept = found.retraining["kept"]
    assert kept.kept["certified"] == kept.by_proof["certified"] == 1.0
    assert found.audit.ok
    assert found.audit.live == int((found.recourse.certified & ~found.recourse.favourable).sum())


@pytest.mark.parametrize("name", ["fine_tuned", "from_scratch", "kept"])
def test_the_audit_agrees_with_the_decisions_of_the_retrained_model(found: demo.Demo, name: str) -> None:
    """The audit of the ledger against ``predict``, on the rows that were promised."""
    later = loans(ROWS, year=2).split()
    model, each, recourse = found.models[name], found.retraining[name], found.recourse
    promised = recourse.certified & ~recourse.favourable
    accepts = model.predict(recourse.frame[promised]) == "yes"
    assert each.accuracy == pytest.approx(model.score(later.X_test, later.y_test))
    assert each.kept["certified"] == pytest.approx(float(np.mean(accepts)))
    assert each.by_proof["certified"] == (1.0 if name == "kept" else 0.0)
    closest = found.model.explain(found.today.X_test[~recourse.favourable], **demo.CLOSEST)
    still = model.predict(closest.frame[closest.valid]) == "yes"
    assert each.kept["closest"] == pytest.approx(float(np.mean(still)))


def test_a_model_that_declines_nobody_is_refused(found: demo.Demo) -> None:
    accepted = found.today.X_test[found.recourse.favourable]
    with pytest.raises(DataError, match="at least one declined test row"):
        demo._declined(found.model, accepted)


def printed(found: demo.Demo, out: Path, **options: Any) -> None:
    """Run the command on a demo that was run already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run", lambda *, tell, **_: tell("Training") or found)
        demo.demo(out=out, **options)


def test_the_printed_tables(found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(found, tmp_path / "new")
    text, steps = capsys.readouterr()
    assert steps == "Training ...\nWriting the reports ...\n"
    assert f"It declines {found.declined} of them." in text
    lines = {line.split("  ")[0]: line.split("  ") for line in text.splitlines()}
    issued = next(cell for cell in lines["certified (default)"][1:] if cell)
    assert issued.strip() == str(found.advice["certified"].issued)
    assert lines["updated with --keep (promises kept)"][-1].strip().endswith("%")
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"report.html", "audit.html"}
    page = (tmp_path / "new" / "audit.html").read_text(encoding="utf-8")
    assert f"This model keeps all of {found.audit.live} live promises" in page.replace("\u00a0", " ")


def test_the_json_document(found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(found, tmp_path, as_json=True)
    text, steps = capsys.readouterr()
    document = json.loads(text)
    assert steps == ""
    assert document["declined"] == found.declined
    assert set(document["advice"]) == {"certified", "closest"}
    assert document["retraining"]["kept"]["kept"]["certified"] == 1.0
    assert document["report"] == str(tmp_path / "report.html")


def test_a_failed_demo_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> demo.Demo:
        raise DataError("no rows")

    monkeypatch.setattr(demo, "run", fail)
    with pytest.raises(DataError, match="no rows"):
        demo.demo(out=tmp_path / "new" / "folder", quiet=True)
    assert not list(tmp_path.iterdir())
