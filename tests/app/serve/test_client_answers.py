"""What the client makes of the answers of a service, bad and good."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from serving_cases import model, people

import veritracer as vt
from veritracer import model_folder
from veritracer.app.serve import client as module
from veritracer.errors import DataError, ServiceError


@pytest.fixture
def near(url: str) -> Iterator[vt.Client]:
    """A client of the session's service."""
    with vt.Client(url) as made:
        yield made


def frame(count: int = 3) -> pd.DataFrame:
    return pd.DataFrame(list(people()[:count])).assign(id=[f"p{i}" for i in range(count)])


def test_what_an_answer_says(near: vt.Client) -> None:
    X, seen = frame().set_index("id"), []
    found = near.explain(X, letter={"recipient": "Ms Doe"}, watch=lambda done, share: seen.append(share))
    own = model().explain(X)
    assert seen == [1.0]
    assert str(found) == repr(found)
    assert str(found).startswith(f"3 counterfactuals at kappa = {own.kappa}: ")
    assert found.reason.tolist() == own.reason.tolist()
    assert found.valid.tolist() == own.valid.tolist()
    assert found.radius == pytest.approx(np.asarray(own.radius), nan_ok=True)
    assert np.isnan(found.agreement).all()  # the model has no panel
    assert found.table["status"].tolist() == own.status.tolist()
    assert found.table.index.tolist() == X.index.tolist()
    assert "Ms Doe" in (found.letter(0) or "")
    changes = found.changes()
    assert set(changes["row"]) <= set(X.index)
    assert len(changes) == own.n_changes.sum()
    first = changes.iloc[0]
    assert (X.loc[first["row"], first["feature"]], found.frame.loc[first["row"], first["feature"]]) == (
        first["from"],
        first["to"],
    )


def test_pairs_are_pairs(near: vt.Client) -> None:
    with pytest.raises(DataError, match="expected one counterfactual for each row, got 1 for 2"):
        near.certify(frame(2), frame(1))


# ---------------------------------------------------------------- services that answer otherwise

Handler = Callable[[httpx.Request], httpx.Response]
BUSY = {"expected": "room", "received": "none", "remedy": "wait"}


def scripted(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> vt.Client:
    """A client of a service that answers so; nobody sleeps."""
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(handler)))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return vt.Client("http://service")


def answers_of(other: dict[str, Any], schema: dict[str, Any] | None = None) -> Handler:
    """A service that gives everybody their own row, with some values exchanged."""
    schema = schema or json.loads(model().schema_.to_json())
    features = [{"name": name} for name in model().schema_.names]
    plain = ("status", "reason", "sentence", "letter", "method", *module.NUMBERS, "agreement")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"features": features, "schema": schema})
        answers = [
            {
                "decision": "no",
                "favourable": False,
                "probability": 0.1,
                "alternatives": [
                    {
                        **dict.fromkeys(plain),
                        "status": "none",
                        "counterfactual": {**row, **other},
                        "changes": [{"feature": k, "from": row[k], "to": v} for k, v in other.items()],
                    }
                ],
            }
            for row in json.loads(request.content)["rows"]
        ]
        return httpx.Response(200, json={"answers": answers, "notes": ["a note"]})

    return answer


def test_numbers_that_are_text_travel_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come back as the column writes them."""
    schema = json.loads(model().schema_.to_json())
    for feature in schema["features"]:
        feature |= {"number_format": "1.234,5 €"} if feature["name"] == "income" else {}
    answer, seen = answers_of({"income": 15880.5}, schema), []

    def watched(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            seen.extend(row["income"] for row in json.loads(request.content)["rows"])
        return answer(request)

    near, X = scripted(monkeypatch, watched), frame().drop(columns="id")
    X["income"] = ["1.234,5 €", "983 €", "20.000 €"]
    assert near.explain(X).frame["income"].tolist() == ["15.880,5 €"] * 3
    assert seen == [1234.5, 983.0, 20000.0]


def test_cells_travel_as_people_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float32 next to 0.1 is 0.1, as it is to the library itself; whatever is missing is null."""
    sent: list[Any] = []

    def decide(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"features": [{"name": name} for name in columns]})
        sent.extend(json.loads(request.content)["rows"])
        return httpx.Response(200, json={"decisions": [{"decision": "no"}] * 2})

    columns: dict[str, Any] = {
        "narrow": np.array([0.1, np.nan], dtype=np.float32),
        "masked": pd.array([0.1, pd.NA], dtype="Float32"),
        "whole": pd.array([3, pd.NA], dtype="Int64"),
        "object": pd.Series([np.float32(0.3), None], dtype=object),
        "truth": np.array([True, False]),
        "text": ["a", None],
    }
    assert scripted(monkeypatch, decide).predict(pd.DataFrame(columns)).tolist() == ["no", "no"]
    first, second = sent
    assert first == {"narrow": 0.1, "masked": 0.1, "whole": 3, "object": 0.3, "truth": True, "text": "a"}
    assert second == {**dict.fromkeys(columns), "truth": False}


def test_a_whole_number_may_become_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose grid is finer than the table's own type."""
    found = scripted(monkeypatch, answers_of({"debts": 2.5})).explain(frame().drop(columns="id"))
    assert found.frame["debts"].dtype == float
    assert found.frame["debts"].tolist() == [2.5] * 3
    assert found.frame["age"].dtype == int
    assert found.notes == ["(from row 0) a note"]


def test_busy_services_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    answers = [
        httpx.Response(429, json=BUSY, headers={"Retry-After": "3"}),
        httpx.Response(503, json=BUSY, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        httpx.Response(503, json=BUSY, headers={"Retry-After": "3600"}),
        httpx.Response(200, json={"live": 3}),
    ]
    client = scripted(monkeypatch, lambda request: answers.pop(0))
    monkeypatch.setattr(module.time, "sleep", slept.append)
    assert client.ledger() == {"live": 3}
    assert slept == [3.0, 1.0, 10.0]


def test_a_service_that_stays_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def busy(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, json=BUSY)

    with pytest.raises(ServiceError, match="expected room, got none — wait") as refused:
        scripted(monkeypatch, busy).ledger()
    assert (refused.value.status, asked) == (503, ["/v1/ledger"] * module.RETRIES)


def test_a_lost_answer_is_asked_for_again_where_that_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def once(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"features": [{"name": "age"}]})
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ReadTimeout("lost")
        return httpx.Response(200, json={"promises": []})

    client = scripted(monkeypatch, once)
    asked = {"ids": ["a"], "choose": [0], "letter": {}, "allow_duplicate": True}
    assert client.issue(pd.DataFrame({"age": [1]}), **asked) == {"promises": []}
    assert keys == [keys[0]] * 2

    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("lost")

    with pytest.raises(ServiceError, match="got ReadTimeout from http://service"):
        scripted(monkeypatch, lost).ledger()


def test_strangers_are_no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServiceError, match="expected the URL of a service, got 'http://a:b'"):
        vt.Client("http://a:b")
    with pytest.raises(ServiceError, match="got status 200 and no JSON — check the URL"):
        scripted(monkeypatch, lambda request: httpx.Response(200, text="<html>")).model()
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match=r"expected the package httpx.*veritracer\[serve\]"):
        vt.Client("http://service")


def test_an_audit_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    states = iter(["running", "failed"])
    problem = {"status": 422, "expected": "a model", "received": "another", "remedy": "save it"}

    def answer(request: httpx.Request) -> httpx.Response:
        sent = request.read()
        if request.method == "POST":
            assert model_folder.TENSORS.encode() in sent
            return httpx.Response(202, json={"id": "1", "state": "waiting", "progress": 0.0})
        told = {"id": "1", "state": next(states), "progress": 0.5, "problem": problem}
        return httpx.Response(200, json=told)

    seen: list[float] = []
    with pytest.raises(ServiceError, match="expected a model, got another — save it"):
        scripted(monkeypatch, answer).audit(saved / "candidates" / "same", watch=seen.append)
    assert seen == [0.5, 0.5]
