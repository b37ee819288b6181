"""The estimator: scikit-learn's conventions, labels and tables of any kind, and models on disk."""

from __future__ import annotations

import copy
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import brier_score_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import veritracer as vt
from optional import posix
from training_cases import people
from veritracer.errors import DataError, ModelFileError, TargetError, TrainingError, TrainingWarning

SIZES = {"panel": None, "epochs": 3, "hidden": (8, 6), "generator_hidden": (8,), "batch_size": 64}
QUICK = {**SIZES, "favourable": "yes"}

EXPECTED_FAILURES = {
    "check_classifier_data_not_an_array": "tables, arrays and lists are read, not array protocols",
    "check_sample_weights_not_an_array": "as above, for the table that goes with the weights",
    "check_sample_weights_pandas_series": "column names must be text, and the check has numbers",
    "check_sample_weight_equivalence_on_dense_data": "a repeated row changes the order of all others",
    "check_complex_data": "refused, with our own three-part message",
    "check_estimators_empty_data_messages": "refused, with our own three-part message",
    "check_supervised_y_2d": "labels in two dimensions are refused, not reshaped with a warning",
    "check_do_not_raise_errors_in_init_or_set_params": "misspelt parameters are refused by the constructor",
}


CHECKED = {**SIZES, "favourable": vt.POSITIVE, "hidden": (16, 8), "learning_rate": 1e-2}


@parametrize_with_checks(
    [vt.VeriTraCER(**{**CHECKED, "epochs": 20})],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
@pytest.mark.filterwarnings("ignore::veritracer.errors.VeriTracerWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_conventions(estimator: vt.VeriTraCER, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def fitted() -> tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray]:
    frame, y = people()
    schema = vt.Schema.infer(frame, immutable=["age"]).with_labels(y, favourable="yes")
    return vt.VeriTraCER(schema=schema, **QUICK).fit(frame, y), frame, y


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (False, True), (-1, 5), (0.0, 1.0)])
def test_labels_of_any_type_come_back(labels: tuple[object, object]) -> None:
    frame, y = people()
    named = np.where(y == "yes", labels[1], labels[0]).astype(np.array(labels).dtype)
    model = vt.VeriTraCER(**{**QUICK, "favourable": labels[1]}).fit(frame, named)
    assert model.classes_.tolist() == sorted(labels)
    assert set(model.predict(frame).tolist()) <= set(labels)
    assert model.predict(frame).dtype == named.dtype


def test_favourable_may_be_the_smaller_label() -> None:
    frame, y = people()
    schema = vt.Schema.infer(frame).with_labels(y, favourable="no")
    model = vt.VeriTraCER(schema=schema, **SIZES).fit(frame, y)
    logit = model.classifier_(model.encoding_.encode(frame))[:, 0]
    assert (model.predict(frame) == np.where(logit.detach() > 0, "no", "yes")).all()
    proba = model.predict_proba(frame)
    assert (proba.argmax(1) == (model.predict(frame) == "yes")).all()
    assert proba.sum(1) == pytest.approx(1.0)


def test_threshold_is_part_of_the_logit() -> None:
    frame, y = people()
    strict = vt.VeriTraCER(threshold=0.8, method="standard", **{**QUICK, "epochs": 40}).fit(frame, y)
    favourable = strict.predict(frame) == "yes"
    assert (favourable == (strict.predict_proba(frame)[:, 1] > 0.8)).all()
    assert favourable.mean() < (y == "yes").mean()


@pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")  # values beyond the training rows
def test_probabilities_are_calibrated_enough() -> None:
    """Brier score close to that of the same network without robust training, and below a constant's."""
    frame, y = people(900)
    options = {"favourable": "yes", "panel": None, "hidden": (16, 8), "epochs": 60, "bound": "crown-ibp"}
    robust = vt.VeriTraCER(**options).fit(frame[:600], y[:600])
    standard = vt.VeriTraCER(method="standard", **options).fit(frame[:600], y[:600])
    scores = [
        brier_score_loss(y[600:] == "yes", m.predict_proba(frame[600:])[:, 1]) for m in (robust, standard)
    ]
    assert scores[0] < scores[1] + 0.02
    assert scores[0] < 0.15
    # Reliability: of the rows in the middle of the scale about as many are favourable as it says.
    probability = robust.predict_proba(frame[600:])[:, 1]
    middle = (probability > 0.2) & (probability < 0.8)
    assert probability[middle].mean() == pytest.approx((y[600:] == "yes")[middle].mean(), abs=0.15)


def test_same_seed_same_model_bit_for_bit(fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray]) -> None:
    model, frame, y = fitted
    again = clone(model).fit(frame, y)
    assert (again.decision_function(frame) == model.decision_function(frame)).all()
    other = clone(model).set_params(random_state=1).fit(frame, y)
    assert (other.decision_function(frame) != model.decision_function(frame)).any()


@pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")  # values beyond the training rows
def test_pipelines_and_grid_search() -> None:
    frame, y = people()
    search = GridSearchCV(vt.VeriTraCER(**QUICK), {"kappa": [0.05, 0.2], "weight_robust": [1.0]}, cv=2)
    assert search.fit(frame, y).best_params_["kappa"] in (0.05, 0.2)
    assert make_pipeline(vt.VeriTraCER(**QUICK)).fit(frame, y).predict(frame).shape == (240,)


def test_misspelt_parameters_are_suggested() -> None:
    with pytest.raises(TypeError, match="did you mean 'kappa'"):
        vt.VeriTraCER(kapa=0.1)
    with pytest.raises(ValueError, match="did you mean 'learning_rate'"):
        vt.VeriTraCER().set_params(learning_rat=0.1)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"method": "robust"}, "'veritracer' or 'counternet' or 'standard'"),
        ({"bound": "lp"}, "'ibp'"),
        ({"norm": "l3"}, "'linf'"),
        ({"generator": "gan"}, "'residual'"),
        ({"epochs": 0}, "epochs of at least 1"),
        ({"hidden": ()}, "hidden layers"),
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_bad_choices_are_explained(params: dict[str, object], words: str) -> None:
    frame, y = people(60)
    with pytest.raises(TrainingError, match=words):
        vt.VeriTraCER(**{**QUICK, **params}).fit(frame, y)


def test_bad_tables_are_explained() -> None:
    frame, y = people(60)
    model = vt.VeriTraCER(**QUICK)
    with pytest.raises(TargetError):
        model.fit(frame, ["yes"] * 60)
    with pytest.raises(TargetError):
        model.fit(frame, y[:30])
    with pytest.raises(DataError, match="sample weights"):
        model.fit(frame, y, sample_weight=[1.0])
    with pytest.raises(DataError, match="class_weight"):
        vt.VeriTraCER(class_weight={"yes": 1.0}, **QUICK).fit(frame, y)


def test_fifty_rows_are_enough_to_run() -> None:
    frame, y = people(50)
    model = vt.VeriTraCER(**{**QUICK, "epochs": 200}).fit(frame, y)
    assert model.score(frame, y) > 0.7


def test_rare_classes_can_be_weighted() -> None:
    frame, y = people(600)
    rare = (y == "no") | (np.arange(600) % 8 == 0)
    table, labels = frame[rare], y[rare]
    options = {"favourable": "yes", "method": "standard", "hidden": (8,), "epochs": 15}
    plain = vt.VeriTraCER(**options).fit(table, labels).predict(table)
    weighted = vt.VeriTraCER(class_weight="balanced", **options).fit(table, labels).predict(table)
    assert (weighted == "yes").sum() > (plain == "yes").sum()


def test_fit_many_equals_separate_fits() -> None:
    frame, y = people()
    model = vt.VeriTraCER(**QUICK)
    many = model.fit_many(frame, y, seeds=[0, 5])
    for seed, one in zip([0, 5], many, strict=True):
        alone = vt.VeriTraCER(**QUICK, random_state=seed).fit(frame, y)
        assert one.random_state == seed
        assert one.decision_function(frame) == pytest.approx(alone.decision_function(frame), abs=1e-3)
    left_out = model.fit_many(frame, y, seeds=[0, 0], leave_out=[[], list(range(100))])
    assert (left_out[0].decision_function(frame) != left_out[1].decision_function(frame)).any()
    with pytest.raises(TrainingError, match="as many"):
        model.fit_many(frame, y, seeds=[0, 1], leave_out=[[]])


def test_proposals_and_certificates_speak_of_raw_values(
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray],
) -> None:
    model, frame, _ = fitted
    proposals = model.propose(frame)
    assert list(proposals.columns) == list(frame.columns)
    assert (proposals["age"] == frame["age"]).all()
    certs = model.certify(frame, proposals, kappa=0.01)
    assert certs.kappa == 0.01
    assert certs.encoding_digest == model.encoding_.digest
    assert (certs.favourable == (model.predict(frame) == "yes")).all()
    with pytest.raises(TrainingError, match="generator"):
        vt.VeriTraCER(method="standard", **QUICK).fit(frame, people()[1]).propose(frame)


def test_certificates_and_recourse_say_which_models_they_cover(
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray],
) -> None:
    model, frame, y = fitted
    certs, recourse = model.certify(frame, model.propose(frame)), model.explain(frame.head(5))
    refitted = vt.VeriTraCER(**QUICK).fit(frame.assign(savings=frame["savings"] * 2), y)
    retuned = copy.copy(model).set_params(threshold=0.7)
    for found in (certs, recourse):
        assert found.covers(model)
        assert "cannot be compared" not in found.covers(model).reason
        assert found.covers(refitted).outside == "encoding"
        assert found.covers(retuned).outside == "threshold"
        assert found.covers(model.classifier_)
    assert (certs.threshold, recourse.threshold) == (0.5, 0.5)


def test_classifier_is_a_plain_sequential(fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray]) -> None:
    model, frame, _ = fitted
    assert type(model.classifier_) is nn.Sequential
    assert {type(layer) for layer in model.classifier_} == {nn.Linear, nn.ReLU}
    assert (
        model.classifier_(model.encoding_.encode(frame)).detach().numpy()[:, 0]
        == model.decision_function(frame)
    ).all()


@posix
def test_ctrl_c_stops_after_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    frame, y = people()
    model = vt.VeriTraCER(**{**QUICK, "epochs": 100_000}, verbose=1)
    threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.warns(TrainingWarning, match="the best of"):
        model.fit(frame, y)
    assert time.monotonic() - start < 60
    assert "interrupted" in model.stopped_
    assert model.predict(frame).shape == (240,)
    assert "accuracy" in capsys.readouterr().err


def test_silent_by_default(
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    frame, y = people(60)
    vt.VeriTraCER(**QUICK).fit(frame, y)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("generator", ["residual", "counternet", "neighbour"])
def test_a_saved_model_comes_back(generator: str, tmp_path: Path) -> None:
    frame, y = people()
    model = vt.VeriTraCER(generator=generator, **QUICK).fit(frame, y)
    model.save(tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]
    back = vt.load(tmp_path / "model")
    assert (back.decision_function(frame) == model.decision_function(frame)).all()
    pd.testing.assert_frame_equal(back.propose(frame), model.propose(frame))
    assert back.classes_.tolist() == model.classes_.tolist()
    assert back.get_params(deep=False)["kappa"] == model.kappa
    assert back.certify(frame, model.propose(frame)).model_digest == model.certify(frame, frame).model_digest
    pd.testing.assert_frame_equal(back.history_, model.history_)
    clone(back).fit(frame, y)


def test_saving_again_replaces_the_model(
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray], tmp_path: Path
) -> None:
    model, frame, y = fitted
    other = clone(model).set_params(random_state=9).fit(frame, y)
    model.save(tmp_path / "m")
    other.save(tmp_path / "m")
    assert (vt.load(tmp_path / "m").decision_function(frame) == other.decision_function(frame)).all()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("moment", ["json", "rename"])
def test_a_crash_while_saving_leaves_a_whole_model(
    moment: str,
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, frame, y = fitted
    model.save(tmp_path / "m")
    other = clone(model).set_params(random_state=9).fit(frame, y)
    from veritracer import model_folder

    if moment == "json":
        monkeypatch.setattr(model_folder.json, "dumps", _crash)
    else:
        monkeypatch.setattr(model_folder.shutil, "rmtree", lambda *a, **k: None)
        real = Path.rename

        def rename(self: Path, target: Path) -> Path:
            if target == tmp_path / "m":
                raise OSError("power is gone")
            return real(self, target)

        monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises((OSError, RuntimeError)):
        other.save(tmp_path / "m")
    monkeypatch.undo()
    assert (vt.load(tmp_path / "m").decision_function(frame) == model.decision_function(frame)).all()


def _crash(*args: object, **kwargs: object) -> str:
    raise RuntimeError("power is gone")


def test_what_is_not_the_saved_model_is_refused(
    fitted: tuple[vt.VeriTraCER, pd.DataFrame, np.ndarray], tmp_path: Path
) -> None:
    model, _, _ = fitted

    def damaged(change: object) -> None:
        folder = tmp_path / "m"
        model.save(folder)
        change(folder)
        with pytest.raises(ModelFileError) as caught:
            vt.load(folder)
        assert "expected" in str(caught.value)
        assert " — " in str(caught.value)

    def edit(folder: Path, **changes: object) -> None:
        document = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**document, **changes}))

    def flip(folder: Path) -> None:
        data = bytearray((folder / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (folder / "model.safetensors").write_bytes(bytes(data))

    damaged(flip)
    damaged(lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:100]))
    damaged(lambda f: (f / "model.safetensors").unlink())
    damaged(lambda f: (f / "model.json").write_text("{"))
    damaged(lambda f: (f / "model.json").write_text("[]"))
    damaged(lambda f: edit(f, version=99))
    damaged(lambda f: edit(f, content={}))
    damaged(lambda f: edit(f, extra=1))
    (tmp_path / "pickled").mkdir()
    torch.save({}, tmp_path / "pickled" / "model.pt")
    with pytest.raises(ModelFileError, match="pickle files are not supported"):
        vt.load(tmp_path / "pickled")
    with pytest.raises(ModelFileError, match="no "):
        vt.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="choose another name"):
        model.save(tmp_path / "pickled")
