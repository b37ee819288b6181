"""Endpoints for programs: decisions, recourse, certificates, promises, audits."""

from __future__ import annotations

import json
import threading
from dataclasses import fields
from typing import Any

import httpx
import pandas as pd
import pytest
from serving_cases import model, people

import veritracer as vt
from veritracer.app.serve.app import Settings
from veritracer.options import ExplainOptions


def asked(count: int = 1, start: int = 0) -> list[dict[str, Any]]:
    return [dict(row) for row in people()[start : start + count]]


def issue(client: httpx.Client, key: str, count: int = 4, **more: Any) -> httpx.Response:
    body = {"rows": asked(count), "ids": [f"{key} {i}" for i in range(count)], **more}
    return client.post("/v1/promises", json=body, headers={"Idempotency-Key": key})


def test_decisions_are_the_models(client: httpx.Client) -> None:
    rows = asked(5)
    told = client.post("/v1/decisions", json={"rows": rows}).json()["decisions"]
    frame = pd.DataFrame(rows)
    assert [one["decision"] for one in told] == model().predict(frame).tolist()
    chance = model().predict_proba(frame)[:, list(model().classes_).index("yes")]
    assert [one["probability"] for one in told] == pytest.approx(chance.tolist(), abs=1e-9)


def test_recourse_is_what_the_library_finds(client: httpx.Client) -> None:
    rows = asked(12)
    told = client.post("/v1/recourse", json={"rows": rows}).json()
    found = model().explain(pd.DataFrame(rows))
    first = [one["alternatives"][0] for one in told["answers"]]
    assert [one["status"] for one in first] == found.status.tolist()
    assert [one["sentence"] for one in first] == [found.sentence(i) for i in range(len(found))]
    assert [one["reason"] for one in first] == found.reason.tolist()
    assert (told["model_digest"], told["kappa"]) == (found.model_digest, found.kappa)
    assert "certified" in found.status


def test_options_and_notices(client: httpx.Client) -> None:
    rows = asked(8)
    body = {
        "rows": rows,
        "options": {"n": 3, "immutable": ["income"], "max_changes": 3},
        "notice": {"recipient": "Ms Doe"},
    }
    answers = client.post("/v1/recourse", json=body).json()["answers"]
    assert max(len(one["alternatives"]) for one in answers) > 1
    for answer in answers:
        for one in answer["alternatives"]:
            assert "income" not in {change["feature"] for change in one["changes"]}
            assert len(one["changes"]) <= 3
            assert "Ms Doe" in one["notice"]
            assert "Bank of Examples" in one["notice"]
            assert one["notice"].startswith("DRAFT\n")
            assert "We commit" not in one["notice"]


def test_a_certificate_for_a_counterfactual_from_anywhere(client: httpx.Client) -> None:
    rows = asked(12)
    told = client.post("/v1/recourse", json={"rows": rows}).json()["answers"]
    pairs = [
        {"row": row, "counterfactual": one["alternatives"][0]["counterfactual"]}
        for row, one in zip(rows, told, strict=True)
    ]
    found = client.post("/v1/certificates", json={"pairs": pairs}).json()["certificates"]
    for one, answer in zip(found, told, strict=True):
        assert one["certified"] == answer["alternatives"][0]["certified"]
        assert one["valid"] == answer["alternatives"][0]["valid"]
        assert not one["today"]["favourable"]
        assert one["then"]["favourable"] == one["valid"]


def test_company_changes_no_answer_and_a_bad_row_harms_nobody(client: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [{"rows": [row]} for row in asked(8)]
    bad = {**bodies[3]["rows"][0], "savings": 2_050}  # not a multiple of 100: only the encoding sees that
    bodies.append({"rows": [bad]})
    alone = [client.post("/v1/recourse", json=body) for body in bodies]
    together: dict[int, httpx.Response] = {}

    def ask(i: int) -> None:
        together[i] = client.post("/v1/recourse", json=bodies[i])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in alone] == [200] * 8 + [422]
    for i, answer in enumerate(alone[:8]):
        for one, other in zip(answer.json()["answers"], together[i].json()["answers"], strict=True):
            for key in ("status", "counterfactual", "reason", "method"):
                assert one["alternatives"][0][key] == other["alternatives"][0][key]
    assert together[8].status_code == 422
    assert together[8].json()["expected"] == alone[8].json()["expected"]


def test_promises_are_issued_once(client: httpx.Client, settings: Settings) -> None:
    first = issue(client, "first", expires="365d", notice={})
    again = issue(client, "first", expires="365d", notice={})
    assert (first.status_code, again.status_code) == (201, 200)
    one, other = first.json(), again.json()
    assert (one["again"], other["again"]) == (False, True)
    assert [p["number"] for p in one["promises"]] == [p["number"] for p in other["promises"]] != []
    assert one["checksum"] == other["checksum"]
    assert one["skipped"] == other["skipped"]
    assert len(one["promises"]) + len(one["skipped"]) == 4
    promise = one["promises"][0]
    assert f"Promise number: {promise['number']}" in promise["notice"]
    words = " ".join(promise["notice"].split())
    assert words.index(f" {promise['expires'][:4]},") < words.index(" UTC, also if we update")
    assert "DRAFT" not in promise["notice"]
    told = client.get(f"/v1/promises/{promise['number']}").json()
    assert told["sentence"] == promise["sentence"]
    with vt.Ledger(settings.ledger or "") as ledger:
        assert ledger.verify(one["checksum"]).ok
        assert ledger.shown(promise["number"])["values"] == told["values"]
    reused = issue(client, "first", count=3)
    assert (reused.status_code, reused.json()["type"]) == (422, "urn:veritracer:problem:request-reused")


def test_an_application_is_promised_once_unless_asked(client: httpx.Client) -> None:
    body = {"rows": asked(4), "ids": [f"one of {i}" for i in range(4)]}

    def told(key: str, **more: Any) -> dict[str, Any]:
        answer = client.post("/v1/promises", json={**body, **more}, headers={"Idempotency-Key": key})
        return dict(answer.json())

    first, second, third = told("apply-1"), told("apply-2"), told("apply-3", allow_duplicate=True)
    assert len(first["promises"]) == len(third["promises"]) > 0
    assert second["promises"] == []
    promised = [one for one in second["skipped"] if one["outcome"] == "promised"]
    assert [one["row"] for one in promised] == [one["row"] for one in first["promises"]]
    assert promised[0]["reason"] == "the same application has a promise already"
    assert told("apply-2") == {**second, "again": True}
    other = told("apply-4", ids=[f"another {i}" for i in range(4)])
    assert len(other["promises"]) == len(first["promises"])


def test_one_of_the_alternatives_is_promised(client: httpx.Client) -> None:
    rows = asked(10)
    told = client.post("/v1/recourse", json={"rows": rows, "options": {"n": 3}}).json()["answers"]
    i = next(i for i, one in enumerate(told) if len(one["alternatives"]) > 1)
    body = {"rows": [rows[i]], "ids": ["chooser"], "options": {"n": 3}, "choose": [1]}
    issued = client.post("/v1/promises", json=body, headers={"Idempotency-Key": "chosen"}).json()
    (promise,) = issued["promises"]
    assert promise["alternative"] == 1
    assert promise["values"] == told[i]["alternatives"][1]["counterfactual"]
    body["choose"] = [7]
    refused = client.post("/v1/promises", json=body, headers={"Idempotency-Key": "chosen-2"})
    assert refused.status_code == 422


def test_an_erasure(client: httpx.Client) -> None:
    numbers = [p["number"] for p in issue(client, "gone", count=8).json()["promises"]]
    erased = client.delete(f"/v1/promises/{numbers[0]}").json()["erased"]
    assert erased == [numbers[0]]
    assert client.get(f"/v1/promises/{numbers[0]}").status_code == 404
    assert client.post("/v1/ledger/verify", json={}).json()["ok"]
    again = issue(client, "gone", count=8).json()
    assert [p["erased"] for p in again["promises"]] == [True] + [False] * (len(numbers) - 1)
    assert client.post("/v1/erasures", json={"id": "nobody"}).status_code == 404


def test_audits_and_deployments_are_read_from_the_ledger(client: httpx.Client, settings: Settings) -> None:
    issue(client, "audited")
    with vt.Ledger(settings.ledger or "") as ledger:
        ledger.record_audit(vt.audit(ledger, model(), recourse=0))
    told = client.get("/v1/audits").json()["audits"]
    assert [one["kind"] for one in told][:2] == ["audit", "deployment"]
    assert (told[0]["passed"], told[0]["broken"]) == (True, 0)
    assert client.post("/v1/audits", json={"candidate": "harsh"}).status_code == 405


def test_health_readiness_and_numbers(client: httpx.Client) -> None:
    assert client.get("/healthz").json()["status"] == "alive"
    assert client.get("/readyz").json() == {"status": "ready"}
    text = client.get("/metrics").text
    assert 'veritracer_requests_total{method="GET",route="/healthz",status="200"}' in text
    assert "veritracer_batch_rows_bucket" in text


def test_the_document_of_the_interface(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert set(schemas["Row"]["properties"]) == set(people()[0])
    (row,) = schemas["Row"]["examples"]
    for path, body in [
        ("decisions", {"rows": [row]}),
        ("recourse", {"rows": [row], "options": {"n": 2}}),
        ("certificates", {"pairs": [{"row": row, "counterfactual": row}]}),
    ]:
        assert client.post(f"/v1/{path}", json=body).status_code == 200
    assert {"Rows", "RecourseRequest", "CertificateRequest", "PromiseRequest", "Pair"} <= set(schemas)
    assert set(schemas["ExplainOptions"]["properties"]) == {one.name for one in fields(ExplainOptions)}
    assert json.dumps(document).count("#/components/schemas/Problem") > 20
