"""The MLflow flavour against a real tracking server: log, load elsewhere, pass the gate, be refused at it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.errors import DataError, LedgerError, PromiseError, VeriTracerWarning

os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}  # read when it is imported
flow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*Any type hint is inferred:UserWarning"
)

ELSEWHERE = """
import sys
import mlflow
import veritracer.mlflow
model = veritracer.mlflow.load_model(sys.argv[1])
function = mlflow.pyfunc.load_model(sys.argv[1])
row = function.input_example
print(model.encoding_.digest, len(function.predict(row)))
told = function.predict(row, params={"output": "recourse"})
print(list(function.get_raw_model().explain(row)) == list(told))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking server on loopback, with a database and artifacts of its own."""
    pytest.importorskip("flask", reason="no MLflow server is installed")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "a"),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{url}/health", process)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it, and the workers that it started
        process.wait(20)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(1_800):
        assert process.poll() is None, "the server ended"
        try:
            opener.open(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


@pytest.fixture
def tracked(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    flow.set_tracking_uri(server)
    yield flow
    flow.set_tracking_uri(None)


def trained(seed: int, flip: bool = False) -> vt.VeriTraCER:
    frame, y = applicants(200, seed=0)
    labels = np.where(y == "yes", "no", "yes") if flip else y
    model = vt.VeriTraCER(
        schema=SCHEMA, method="standard", panel=None, hidden=(6,), epochs=20, random_state=seed
    )
    return model.fit(frame, labels)


def test_from_training_to_promotion_and_a_refusal(tracked: Any, tmp_path: Path) -> None:
    import veritracer.mlflow as flavour

    frame, y = applicants(60, seed=3)
    good, bad = trained(0), trained(1, flip=True)
    ledger = tmp_path / "promises.db"
    with tracked.start_run() as run:
        logged = flavour.log_model(good, registered_model_name="credit", test=(frame, y), report=False)
    found = good.explain(frame, kappa=0.02, refine=False, search_radius=False)
    with vt.Ledger(ledger) as place:
        assert len(place.issue(found, good.classifier_, ids=[f"p{i}" for i in range(60)])) > 5

    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, "models:/credit/1"]
    elsewhere = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert elsewhere.stdout.split()[:2] == [good.encoding_.digest, "1"]
    assert elsewhere.stdout.split()[-1] == "True"
    again = flavour.load_model(logged.model_uri)
    assert np.array_equal(again.predict(frame), good.predict(frame))
    assert logged.signature.inputs.input_names() == list(SCHEMA.names)

    assert flavour.promote("credit", 1, ledger, report=False).ok
    client = tracked.MlflowClient()
    assert client.get_model_version_by_alias("credit", "champion").version == "1"
    metrics = client.get_run(run.info.run_id).data.metrics
    assert {"accuracy", "certified", "promises.broken"} <= set(metrics)
    assert metrics["promises.broken"] == 0

    flavour.log_model(bad, registered_model_name="credit")
    with pytest.raises(PromiseError, match="expected a model that keeps what was promised") as refused:
        flavour.promote("credit", 2, ledger)
    assert refused.value.report.counts["broken"] > 0  # type: ignore[attr-defined]
    assert client.get_model_version_by_alias("credit", "champion").version == "1"
    second = client.get_model_version("credit", "2")
    assert second.tags["veritracer.audit"] == "failed"
    names = {file.path for file in client.list_artifacts(second.run_id, "audit")}
    assert names == {"audit/audit.html", "audit/audit.json"}


def test_an_altered_ledger_lets_nobody_through(tmp_path: Path) -> None:
    import sqlite3

    import veritracer.mlflow as flavour

    frame, _ = applicants(60, seed=3)
    model, ledger = trained(0), tmp_path / "promises.db"
    found = model.explain(frame, kappa=0.02, refine=False, search_radius=False)
    with vt.Ledger(ledger) as place:
        place.issue(found, model.classifier_, ids=[f"p{i}" for i in range(60)])
    with sqlite3.connect(ledger) as connection:
        connection.execute("delete from veritracer_records")
    with pytest.raises(PromiseError, match="a ledger that verifies"):
        flavour.validate(model, ledger)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The client of a registry in a folder, without a server: of two versions the first decides."""
    import veritracer.mlflow as flavour

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    flow.set_tracking_uri((tmp_path / "registry").as_uri())
    flavour.save_model(trained(0), tmp_path / "logged")
    client = flow.MlflowClient()
    client.create_registered_model("credit")
    for _ in range(2):
        client.create_model_version("credit", str(tmp_path / "logged"))
    client.set_registered_model_alias("credit", "champion", "1")
    yield client
    flow.set_tracking_uri(None)


def test_a_ledger_that_is_not_there_lets_nobody_through(registry: Any, tmp_path: Path) -> None:
    import veritracer.mlflow as flavour

    typo = tmp_path / "typo.db"
    for place in (typo, str(typo), f"sqlite:///{typo}"):
        with pytest.raises(LedgerError, match=r"expected a ledger that exists, got no file .*typo\.db"):
            flavour.promote("credit", 2, place)
        with pytest.raises(LedgerError, match="a ledger that exists"):
            flavour.validate("models:/credit/2", place)
    assert not typo.exists()
    typo.touch()
    with pytest.raises(LedgerError, match=r"expected a ledger in .*, got none"):
        flavour.promote("credit", 2, typo)
    assert str(registry.get_model_version_by_alias("credit", "champion").version) == "1"
    assert registry.get_model_version("credit", "2").tags == {}


def test_a_version_is_promoted_with_a_warning_where_no_promise_is_live(registry: Any, tmp_path: Path) -> None:
    import veritracer.mlflow as flavour

    vt.Ledger(tmp_path / "new.db").close()
    with pytest.warns(VeriTracerWarning, match=r"expected live promises, got none in .*new\.db"):
        found = flavour.promote("credit", 2, tmp_path / "new.db")
    assert found.live == 0
    assert str(registry.get_model_version_by_alias("credit", "champion").version) == "2"
    assert registry.get_model_version("credit", "2").tags == {"veritracer.audit": "nothing to check"}


def test_a_model_of_somebody_else_is_refused(tmp_path: Path) -> None:
    import veritracer.mlflow as flavour

    flow.models.Model(flavors={"other": {}}).save(str(tmp_path / "MLmodel"))
    with pytest.raises(DataError, match="a model that veritracer logged"):
        flavour.load_model(str(tmp_path))


def test_a_function_gives_labels_chances_or_recourse() -> None:
    import veritracer.mlflow as flavour

    model, frame = trained(0), applicants(6, seed=3)[0]
    function = flavour.RecourseFunction(model)
    assert function.predict(frame).tolist() == model.predict(frame).tolist()
    chance = function.predict(frame, {"output": "probability"})
    assert ((chance > model.threshold_) == (model.predict(frame) == "yes")).all()
    with pytest.raises(DataError, match="expected one of label, probability, recourse, got 'poem'"):
        function.predict(frame, {"output": "poem"})


def test_an_evaluation_has_a_report(tracked: Any) -> None:
    import veritracer.mlflow as flavour

    frame, y = applicants(12, seed=3)
    measured = flavour.log_evaluation(trained(0), frame, y)
    run = tracked.search_runs(output_format="list", max_results=1)[0]
    assert run.data.metrics == pytest.approx(measured)
    files = tracked.MlflowClient().list_artifacts(run.info.run_id)
    assert [file.path for file in files] == ["report.html"]


def test_an_install_without_mlflow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.delitem(sys.modules, "veritracer.mlflow", raising=False)
    with pytest.raises(ImportError, match=r"expected the package mlflow.*veritracer\[mlflow\]"):
        importlib.import_module("veritracer.mlflow")
