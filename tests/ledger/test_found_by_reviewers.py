"""What reviewers found: each of these once gave a verdict, or a ledger, that was not to be trusted."""

from __future__ import annotations

import copy
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from ledger_cases import ids, issue, recourse
from promise_cases import issued, with_bias
from torch import Tensor, nn

import veritracer as vt
from veritracer.errors import DataError, LedgerError, NotSupportedError, TrainingError
from veritracer.ledger import audit
from veritracer.times import format_time, parse_expiry


def test_a_model_that_calls_the_other_label_favourable_is_refused() -> None:
    model, promises, _ = issued()
    schema = model.encoding_.schema
    swapped = vt.Schema(schema.features, schema.target, schema.unfavourable, schema.favourable)
    other = copy.copy(model)
    other.schema_, other.encoding_ = swapped, vt.Encoding(swapped, model.encoding_.fitted)
    assert other.encoding_.digest == model.encoding_.digest  # nothing else tells them apart
    with pytest.raises(LedgerError, match="favourable"):
        audit(promises, other)


def hide_promises(path: Path) -> None:
    """Give the file an index without promises that says of itself that it is whole."""
    database = sqlite3.connect(path)
    whole = "CREATE INDEX fast ON veritracer_entries (model)"
    database.execute(f"{whole} WHERE kind <> 'promise'")
    database.execute("PRAGMA writable_schema = ON")
    database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'fast'", (whole,))
    database.commit()
    database.close()


def test_an_index_can_not_hide_promises(tmp_path: Path) -> None:
    path = tmp_path / "promises.db"
    with vt.Ledger(path) as ledger:
        made = issue(ledger, recourse())
        before = ledger.counts(), ledger.requirements()
    hide_promises(path)
    with vt.Ledger(path) as ledger:
        assert (ledger.counts(), ledger.requirements()) == before
        assert sum(len(piece) for piece in ledger.promises()) == len(made.sequence)
        assert ledger.verify(made.head).ok


class Sly(nn.Linear):
    """A layer that says something else of the last of many rows."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if len(out) > 1:
            out[-1] = -1.0
        return out


def test_the_module_itself_predicts_every_row() -> None:
    model, promises, _ = issued()
    sly = with_bias(model.classifier_, 0.0)
    last = sly[-1]
    sly[-1] = Sly(last.in_features, last.out_features).double()
    sly[-1].load_state_dict(last.state_dict())
    with pytest.raises(NotSupportedError, match="what its layers say"):
        audit(promises, sly, encoding=model.encoding_)


@pytest.mark.parametrize("threshold", [0.0, 1.0, 7.0, float("nan")])
def test_a_threshold_is_a_probability(threshold: float, tmp_path: Path) -> None:
    model, promises, found = issued()
    with pytest.raises(DataError, match="threshold"):
        audit(promises, model.classifier_, encoding=model.encoding_, threshold=threshold)
    with vt.Ledger(tmp_path / "promises.db") as ledger, pytest.raises(DataError, match="threshold"):
        ledger.issue(found, model.classifier_, ids=ids(found), threshold=threshold)


def test_a_model_with_nan_weights_is_refused() -> None:
    model, promises, _ = issued()
    with pytest.raises(NotSupportedError, match="finite"):
        audit(promises, with_bias(model.classifier_, float("nan")), encoding=model.encoding_)


@pytest.mark.parametrize("rate", [float("nan"), -1.0, 0.0])
def test_a_learning_rate_is_positive(rate: float) -> None:
    model, promises, found = issued()
    labels = model.predict(found.original)
    with pytest.raises(TrainingError, match="learning_rate"):
        model.update(found.original, labels, keep=promises, learning_rate=rate)


def test_an_update_that_diverges_is_no_model() -> None:
    model, _, found = issued()
    labels = model.predict(found.original)
    with pytest.raises(TrainingError, match="finite"):
        model.update(found.original, labels, learning_rate=1e300, epochs=3, compare=False)


def test_an_end_that_no_date_can_say_is_refused(tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        with pytest.raises(DataError, match="9999"):
            issue(ledger, recourse(), expires=timedelta(days=9000 * 365))
        with pytest.raises(DataError, match="expected expires to be"):
            issue(ledger, recourse(), expires="2027-01-31")
    assert format_time(1e300).endswith("since 1970")


@pytest.mark.parametrize("text", ["99999999999d", "²d", "d", "-3d"])
def test_a_duration_that_is_none_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(DataError, match="a duration or a date"):
        parse_expiry(text)
