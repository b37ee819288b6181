"""Deployments: a model is audited at every start, recorded in the ledger, and kept across restarts."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("fastapi")

from serving_cases import people

import veritracer as vt
from veritracer.app.serve.app import refusal_of
from veritracer.app.serve.operations import Job, Operations, PromiseJob, deploy
from veritracer.app.serve.settings import Settings
from veritracer.errors import DeploymentError, LedgerError, ServiceError
from veritracer.ledger import audit
from veritracer.ledger.issuing import prepare
from veritracer.options import Terms

PROMISED = 2


@pytest.fixture
def promised(saved: Path, tmp_path: Path) -> str:
    """A ledger with promises of the model."""
    place = str(tmp_path / "promises.db")
    issue(saved / "model", place)
    return place


def issue(folder: Path, place: str, first: int = 0) -> None:
    rows = pd.DataFrame(list(people()[:PROMISED]))
    vt.load(folder).issue(rows, ids=list(range(first, first + PROMISED)), ledger=place)


def own(folder: Path, place: str | None, **choices: Any) -> Settings:
    return Settings(model=folder, ledger=place, **choices)


def start(settings: Settings) -> str:
    """Audit and deploy as the command does, and return the digest of the model."""
    return deploy(settings.checked())


def answer(operations: Operations, job: Job) -> Any:
    """Return the reply to one request."""
    (reply,) = operations.run([job], time.monotonic() + 60)
    return reply


def deployments(place: str) -> list[dict[str, Any]]:
    with vt.Ledger(place, create=False) as ledger:
        assert ledger.verify().ok
        return [one for one in ledger.history() if one["kind"] == "deployment"]


def harsh(saved: Path) -> Path:
    return saved / "candidates" / "harsh"


def test_the_command_refuses_a_model_that_breaks_promises_in_one_sentence(saved: Path, promised: str) -> None:
    command = [sys.executable, "-m", "veritracer", "serve", str(harsh(saved)), "--ledger", promised]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("expected a model that keeps every live promise, got one that breaks 2 of 2")
    assert "--serve-broken REASON" in sentence
    assert deployments(promised) == []


def test_a_reason_serves_it_and_is_recorded_and_nothing_is_promised(saved: Path, promised: str) -> None:
    settings, row = own(harsh(saved), promised, serve_broken="the old one is unlawful"), dict(people()[3])
    start(settings)
    operations = Operations(settings)
    assert answer(operations, Job("decide", [row]))["decisions"][0]["decision"] == "no"
    refused = answer(operations, PromiseJob([row], ids=["new"], key="k", content="{}"))
    operations.close()
    assert isinstance(refused, DeploymentError)
    assert "although it breaks 2" in str(refused)
    assert refusal_of(refused).status == 409
    (one,) = deployments(promised)
    assert (one["reason"], one["broken"], one["live"]) == ("the old one is unlawful", PROMISED, PROMISED)
    with pytest.raises(DeploymentError, match="that keeps every live promise"):
        start(own(harsh(saved), promised))  # the reason was one for that start


def test_another_model_is_refused_unless_it_replaces_the_last_one(saved: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "new.db")

    settings = own(saved / "model", place)
    before = start(settings)
    with pytest.raises(DeploymentError, match=f"expected the model deployed last, {before[:12]}.*--replace"):
        start(own(harsh(saved), place))
    after = start(own(harsh(saved), place, replace=True))
    with pytest.raises(DeploymentError, match=f"expected the model deployed last, {after[:12]}.*--replace"):
        start(settings)  # a restart with an old command line undoes nothing
    start(own(harsh(saved), place))
    assert [(one["model"], one["by"]) for one in deployments(place)] == [(before, "serve"), (after, "serve")]
    start(replace(settings, replace=True))
    assert [one["model"] for one in deployments(place)] == [before, after, before]


def test_a_restart_audits_only_promises_since_the_last_deployment(
    saved: Path, promised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited: list[int] = []

    def watched(*given: Any, **how: Any) -> Any:
        found = audit(*given, **how)
        audited.append(found.live)
        return found

    monkeypatch.setattr(vt, "audit", watched)
    settings = own(saved / "model", promised)
    start(settings)
    start(settings)
    issue(saved / "model", promised, first=PROMISED)
    start(settings)
    assert audited == [PROMISED, 0, PROMISED]
    broken = own(harsh(saved), promised, replace=True, serve_broken="why")
    start(broken)
    start(broken)  # what breaks promises passed no audit
    start(replace(settings, replace=True))
    assert audited[3:] == [2 * PROMISED] * 3
    with pytest.raises(DeploymentError, match="breaks 4 of 4"):
        start(own(harsh(saved), promised, replace=True))


def test_a_restart_finds_a_new_promise_that_is_broken(saved: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "l.db")
    start(own(harsh(saved), place))
    issue(saved / "model", place)
    with pytest.raises(DeploymentError, match="breaks 2 of 2"):
        start(own(harsh(saved), place))


def test_options_that_mean_nothing_are_refused(saved: Path) -> None:
    with pytest.raises(ServiceError, match="a ledger with --replace"):
        own(saved / "model", None, replace=True).checked()
    with pytest.raises(ServiceError, match="a ledger with --serve-broken"):
        own(saved / "model", None, serve_broken="why").checked()
    with pytest.raises(ServiceError, match="a reason with --serve-broken"):
        own(saved / "model", "l.db", serve_broken=" ").checked()


def test_starts_at_the_same_time_agree(saved: Path, tmp_path: Path) -> None:
    """The same model is recorded once; of two models one is refused."""
    place = str(tmp_path / "shared.db")
    folders = [saved / "model", harsh(saved), saved / "model", harsh(saved)]
    hosts = [Operations(own(one, place)) for one in folders]
    with ThreadPoolExecutor(len(hosts)) as threads:
        ended = [one.exception() for one in [threads.submit(host.deploy) for host in hosts]]
    for host in hosts:
        host.close()
    assert all(one is None or isinstance(one, DeploymentError) for one in ended)
    started = {folder for folder, error in zip(folders, ended, strict=True) if error is None}
    (one,) = deployments(place)
    assert len(started) == 1
    model = vt.load(started.pop()).param_set().center_digest
    assert one["model"] == model


# ---------------------------------------------------------------- the ledger


@pytest.fixture
def ledger(promised: str) -> Iterator[vt.Ledger]:
    with vt.Ledger(promised) as opened:
        yield opened


def test_what_is_recorded_was_audited(saved: Path, ledger: vt.Ledger, promised: str) -> None:
    model = vt.load(saved / "model")
    found = audit(ledger, model, recourse=0)
    ledger.release([ledger.listing()["number"][0]], "withdrawn")
    with pytest.raises(DeploymentError, match="expected the ledger as it was audited"):
        ledger.record_deployment(found, by="serve")
    found = audit(ledger, model, recourse=0)
    head = ledger.record_deployment(found, by="serve")
    assert head == ledger.head
    assert ledger.record_deployment(found, by="serve") == head  # it is written once
    assert ledger.verify(head).ok


def test_promises_are_of_the_model_that_was_deployed_last(saved: Path, tmp_path: Path) -> None:
    place, model, other = str(tmp_path / "l.db"), vt.load(saved / "model"), vt.load(harsh(saved))
    found = model.explain(pd.DataFrame(list(people()[:1])))
    with vt.Ledger(place) as ledger:
        ledger.record_deployment(audit(ledger, model, recourse=0), by="a")
        first = prepare(found, model.classifier_, model.threshold_, Terms(), ["first"])
        ledger.release(ledger.append(first, deployed=True).sequence, "withdrawn")
        ledger.record_deployment(audit(ledger, other, recourse=0), by="b", replace=True)
        second = prepare(found, model.classifier_, model.threshold_, Terms(), ["second"])
        with pytest.raises(DeploymentError, match="expected the model deployed last"):
            ledger.append(second, deployed=True)
        assert ledger.counts().live == 0
        assert ledger.verify().ok


def test_a_ledger_that_can_only_be_read_is_compared_and_not_written(
    saved: Path, promised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = vt.load(saved / "model"), vt.load(harsh(saved))
    with vt.Ledger(promised) as ledger:
        head = ledger.record_deployment(audit(ledger, model, recourse=0), by="serve")
    monkeypatch.setattr("veritracer.ledger.database.os.access", lambda *_: False)
    with vt.Ledger(promised, create=False) as ledger:
        assert ledger.read_only
        assert ledger.record_deployment(audit(ledger, model, recourse=0), by="serve") == head
        broken = audit(ledger, other, recourse=0)
        with pytest.raises(DeploymentError, match="that keeps every live promise"):
            ledger.record_deployment(broken, by="serve")
        with pytest.raises(LedgerError, match="that can be written"):
            ledger.record_deployment(broken, by="serve", reason="why")


def test_a_tampered_promise_is_a_conflict(saved: Path, promised: str) -> None:
    operations = Operations(own(saved / "model", promised))
    number = int(operations.ledger.listing()["number"][0])
    with sqlite3.connect(promised) as connection:
        connection.execute(
            "UPDATE veritracer_records SET public = replace(public, 'a', 'b') WHERE seq = ?", [number]
        )
    with pytest.raises(LedgerError, match="run veritracer verify") as caught:
        operations.promise(number)
    operations.close()
    assert refusal_of(caught.value).status == 409
