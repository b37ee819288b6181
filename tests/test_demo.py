"""The demo counts honestly: its numbers again, by another way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from veritracer import demo
from veritracer.cli.verbs import demo as verb
from veritracer.datasets import Split
from veritracer.errors import DataError, DatasetError
from veritracer.formatting import format_percent
from veritracer.report.retraining_comparison import survival_figure
from veritracer.training import panel
from veritracer_bench.baselines import Wachter
from veritracer_bench.baselines.floors import WachterOptions

pytestmark = pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")  # rows beyond the first ones

EPOCHS = 20
SMALL = {"hidden": (8,), "generator_hidden": (8,), "learning_rate": 0.1, "batch_size": 200}


@dataclass(frozen=True)
class Hasty(WachterOptions):
    """A search that begins where most searches end."""

    weight: float = 30.0


def fewer(split: Split) -> Split:
    return Split(split.X_train[:160], split.X_test[:30], split.y_train[:160], split.y_test[:30])


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wachter, "options", Hasty)
        yield


@pytest.fixture(scope="module")
def found() -> demo.Demo:
    """On few rows, epochs and steps: the way is tested here, not how good the models are."""
    whole = demo.drift_scenario("breast_cancer")
    scenario = replace(whole, today=fewer(whole.today), tomorrow=fewer(whole.tomorrow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "STEPS", 10)
        patch.setattr(demo, "drift_scenario", lambda *_, **options: scenario)
        patch.setattr(
            demo, "TRAININGS", [each._replace(options=SMALL | each.options) for each in demo.TRAININGS]
        )
        return demo.run("breast_cancer", epochs=EPOCHS, workers=1)


def test_three_methods_ours_first(found: demo.Demo) -> None:
    names = [outcome.survival.method for outcome in found.outcomes]
    assert names == ["certified recourse", "CounterNet", "plain gradient search"]
    for outcome in found.outcomes:
        kept = (outcome.survival.fine_tuned, outcome.survival.from_scratch)
        assert all(count is not None and count <= outcome.survival.given for count in kept)
        assert outcome.survival.given <= outcome.survival.rows
        assert 0.5 < outcome.accuracy <= 1.0


def test_everybody_who_was_turned_down_is_counted(found: demo.Demo) -> None:
    x = found.model.encoding_.encode(found.scenario.today.X_test, out_of_range="ignore")
    with torch.no_grad():
        declined = found.model.classifier_(x)[:, 0] <= 0
    ours = found.outcomes[0].survival
    assert 0 < ours.rows == int(declined.sum()) < len(x)
    assert 0 < ours.given == ours.certified == int(found.recourse.certified.sum())
    assert not found.recourse.certified[~declined.numpy()].any()  # nobody else was promised anything


def test_the_count_after_fine_tuning_again(found: demo.Demo) -> None:
    tuned = demo._fine_tuned(found.model, found.scenario.tomorrow, 0)
    rows = found.recourse.certified
    x_cf = found.model.encoding_.encode(found.recourse.frame[rows], out_of_range="ignore")
    with torch.no_grad():
        kept = int((tuned(x_cf)[:, 0] > 0).sum())
    assert 0 < kept == found.outcomes[0].survival.fine_tuned


def test_the_counts_of_plain_gradient_search_again(found: demo.Demo) -> None:
    """The method whose promises break: its counts are neither none nor all, so that they can be wrong."""
    scenario, survival = found.scenario, found.outcomes[2].survival
    plain = demo.trained(demo.Training("standard", "today", SMALL), scenario, EPOCHS, 0)
    encoding, X = plain.encoding_, scenario.today.X_test
    x = encoding.encode(X[plain.decision_function(X) <= 0], out_of_range="ignore")
    labels = torch.as_tensor(plain.schema_.labels(scenario.today.y_train), dtype=x.dtype)
    x_cf = Wachter(plain.classifier_, encoding, encoding.encode(scenario.today.X_train), labels).explain(x)
    tuned = demo._fine_tuned(plain, scenario.tomorrow, 0)
    with torch.no_grad():
        given, kept = (module(x_cf)[:, 0] > 0 for module in (plain.classifier_, tuned))
    assert (survival.rows, survival.given) == (len(x), int(given.sum()))
    assert 0 < int((given & kept).sum()) == survival.fine_tuned < survival.given
    assert survival.cost == pytest.approx(float((x_cf - x).abs().sum(-1)[given].mean()))


def test_the_report_is_given_the_same_numbers(found: demo.Demo) -> None:
    figure = survival_figure(found.comparison)
    for row, outcome in zip(figure.table.rows, found.outcomes, strict=True):
        survival = outcome.survival
        counts = (survival.given, survival.fine_tuned, survival.from_scratch)
        assert row[:2] == (survival.method, f"{survival.rows:,}")
        assert [cell.partition(" (")[0] for cell in row[2:5]] == [f"{count:,}" for count in counts]
    assert found.scenario.passing in figure.caption


def test_the_example_is_certified_and_cheaper_than_most(found: demo.Demo) -> None:
    recourse = found.recourse
    assert found.example is not None
    assert recourse.certified[found.example]
    costs = recourse.cost[recourse.certified]
    assert np.mean(costs < recourse.cost[found.example]) <= 0.25


def test_a_bootstrap_sample_repeats_rows() -> None:
    scenario = demo.drift_scenario("breast_cancer", seed=3)
    today, tomorrow = scenario.today, scenario.tomorrow
    assert len(tomorrow.X_train) == len(today.X_train)
    assert len(tomorrow.X_train.drop_duplicates()) < len(today.X_train.drop_duplicates())
    assert tomorrow.X_test.equals(today.X_test)


def test_years_of_loans_drift() -> None:
    still, moved = demo.drift_scenario(drift=0.0), demo.drift_scenario(drift=2.0)
    assert still.today.X_train.equals(moved.today.X_train)
    assert not np.array_equal(still.tomorrow.y_train, moved.tomorrow.y_train)
    with pytest.raises(DatasetError, match="loans only"):
        demo.drift_scenario("breast_cancer", drift=2.0)


def test_a_change_is_seen_alike_by_another_scale() -> None:
    scenario = demo.drift_scenario("breast_cancer")
    both = [
        demo.Encoding.fit(scenario.data.schema, part.X_train) for part in (scenario.today, scenario.tomorrow)
    ]
    X = scenario.today.X_train.iloc[:5]
    x = both[0].encode(X)
    x_cf = (x + 0.01).clamp(max=1.0)
    given = demo.Given(X, x_cf, None, np.ones(5, dtype=bool))
    seen = demo._seen_by(both[1], both[0], given)
    shown = [encoding.decode(rows) for encoding, rows in zip(both, (x_cf, seen), strict=True)]
    whole = scenario.today.X_train.max() - scenario.today.X_train.min()
    # Shown values are rounded to a thousandth of the range; where the later range ends earlier they are cut.
    close = (shown[0] - shown[1]).abs() <= 0.002 * whole
    assert float(close.to_numpy().mean()) > 0.9


def test_a_model_that_turns_nobody_down_is_refused(found: demo.Demo) -> None:
    favourable = found.scenario.today.X_test[found.recourse.favourable]
    x = found.model.encoding_.decode(found.model.encoding_.encode(favourable, out_of_range="ignore"))
    with pytest.raises(DataError, match="somebody who is turned down"):
        demo.certified_recourse(found.model.explain(x))
    with pytest.raises(DataError, match="somebody who is turned down"):
        demo.proposals(found.model, x)


# ---------------------------------------------------------------- the verb


def told(found: demo.Demo, out: Path, **options: Any) -> None:
    """Run the verb, whose demo was run already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run", lambda *_, tell, **options: tell("training") or found)
        verb.demo(out=out, dataset="breast_cancer", **options)


def test_the_terminal_is_told_what_became_of_the_promises(
    found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(found, tmp_path)
    text, steps = capsys.readouterr()
    assert steps == "… training\n… writing the report\n"
    ours, others = found.outcomes[0].survival, found.outcomes[2].survival
    assert f"it turns {ours.rows} of them down." in text
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert lines["certified recourse"][2:4] == [str(ours.rows), str(ours.given)]
    kept = lines["plain gradient search"][5]
    assert float(kept) == pytest.approx(100 * others.fine_tuned / others.given, abs=0.1)  # rounded down
    assert found.example is not None
    assert f"What this person is told: {found.recourse.sentence(found.example)}" in text
    assert "a judge accepts" in text
    assert "really creditworthy" not in text  # which is known of loans alone
    assert f"The report: {tmp_path}/report.html" in text


def test_the_page_shows_who_else_believes_it(found: demo.Demo, tmp_path: Path) -> None:
    """The model of the demo has a panel, whose opinion is drawn."""
    told(found, tmp_path / "new", quiet=True)
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    for title in ("Who else believes it", "The way, as others see it"):
        assert title in page
    agreement = found.recourse.agreement[found.recourse.certified]
    most = format_percent(float((agreement >= 0.5).mean()))
    assert f"would decide {most} of the answers as was asked for" in " ".join(page.split())


def test_the_json_has_the_same_numbers(
    found: demo.Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(found, tmp_path, as_json=True)
    text, steps = capsys.readouterr()
    content = json.loads(text)
    assert steps == ""
    assert [each["fine_tuned"] for each in content["methods"]] == [
        each.survival.fine_tuned for each in found.outcomes
    ]
    for each in content["methods"]:
        assert each["kept_from_scratch"] == pytest.approx(each["from_scratch"] / max(each["given"], 1))
    assert content["kept_by_update"] == found.kept == 1.0
    assert [belief["true"] for belief in content["beliefs"]] == [None, None]
    assert content["report"] == str(tmp_path / "report.html")
