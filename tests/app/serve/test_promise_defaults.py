"""One set of defaults, whoever is asked for promises: certified ones alone, once, for a year."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from serving_cases import model, people, served

pytest.importorskip("fastapi")

import veritracer as vt
from processes import run_here
from veritracer.app.serve.app import Settings
from veritracer.app.serve.models import PromiseRequest
from veritracer.ledger.records import Terms
from veritracer.options import IssueOptions

DAY = 86_400.0
NUMBER = count()
HELPED = people()[:4]
WHO = [f"p{i}" for i in range(len(HELPED))]
Told = dict[str, Any]


def frame() -> pd.DataFrame:
    return pd.DataFrame(HELPED)


def left_out(issued: Any) -> dict[str, int]:
    return {name: getattr(issued, name) for name in ("skipped", "uncertified", "repeated")}


def by_the_model(saved: Path, ledger: Path, options: Told) -> Told:
    issued = model().issue(frame(), ids=WHO, ledger=ledger, **options)
    return {"promises": len(issued), "text": str(issued), **left_out(issued)}


def by_the_ledger(saved: Path, ledger: Path, options: Told) -> Told:
    found = model().explain(frame(), **options)
    with vt.Ledger(ledger) as place:
        issued = place.issue(found, model().classifier_, ids=WHO, threshold=model().threshold_)
    return {"promises": len(issued), "text": str(issued), **left_out(issued)}


def by_a_command(*more: str) -> Callable[[Path, Path, Told], Told]:
    def ask(saved: Path, ledger: Path, options: Told) -> Told:
        work = ledger.parent
        frame().assign(who=WHO).to_csv(work / "people.csv", index=False)
        command = ["issue", str(saved / "model"), "people.csv", "--id-column", "who", "--ledger", str(ledger)]
        command += [f"--{name}={value}" for name, value in options.items()]
        names = [f"out{next(NUMBER)}{'' if more else '.csv'}" for _ in range(2)]
        (done,) = run_here([[*command, *more, "--json", "--out", names[0]]], work)
        assert done.returncode == 0, done
        return {**json.loads(done.stdout), "text": done.stdout}

    return ask


def by_the_service(saved: Path, ledger: Path, options: Told) -> Told:
    body = {"rows": list(HELPED), "ids": WHO, "options": options}
    key = {"Idempotency-Key": f"key-{next(NUMBER)}"}
    with served(Settings(saved / "model", str(ledger))) as url:
        answer = httpx.post(f"{url}/v1/promises", json=body, headers=key, timeout=60)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    left = [one["outcome"] for one in told["skipped"]]
    assert left.count("promised") == told["repeated"]
    return {
        **told,
        "promises": len(told["promises"]),
        "uncertified": len(left) - told["repeated"],
        "text": answer.text,
    }


ASKED = {
    "model.issue": by_the_model,
    "Ledger.issue": by_the_ledger,
    "veritracer issue": by_a_command(),
    "veritracer issue, in blocks": by_a_command("--workers", "1"),
    "the service": by_the_service,
}


@pytest.mark.parametrize("front", ASKED)
def test_promises_are_certified_made_once_and_end_after_a_year(
    front: str, saved: Path, tmp_path: Path
) -> None:
    ask, ledger = ASKED[front], tmp_path / "promises.db"
    far = ask(saved, ledger, {"kappa": 2.0})  # further than anything can be proved
    assert (far["promises"], far["repeated"]) == (0, 0)
    assert far["uncertified"] > 0
    first = ask(saved, ledger, {})
    assert first["promises"] > 0
    again = ask(saved, ledger, {})
    assert (again["promises"], again["repeated"]) == (0, first["promises"])
    assert all(word in again["text"] for word in ("skipped", str(first["promises"])))
    with vt.Ledger(ledger) as place:
        counts = place.counts()
        assert counts.live == first["promises"]
        for piece in place.promises():
            assert piece.kappa.min() > 0
            lasting = piece.expires - piece.issued
            assert (abs(lasting - 365 * DAY) < 1e-3).all()


def test_the_defaults_are_stated_once() -> None:
    """Nothing of its own is said by a signature."""
    wanted = {
        "expires": IssueOptions.expires,
        "uncertified": IssueOptions.uncertified,
        "allow_duplicate": IssueOptions.allow_duplicate,
    }
    assert wanted == {"expires": "term", "uncertified": "skip", "allow_duplicate": False}
    assert Terms().expires == timedelta(days=365)
    for call in (vt.VeriTraCER.issue, vt.Ledger.issue, IssueOptions):
        found = inspect.signature(call).parameters
        assert {name: found[name].default for name in wanted} == wanted, call
    assert (
        inspect.signature(vt.Client.issue).parameters["allow_duplicate"].default
        is IssueOptions.allow_duplicate
    )
    assert PromiseRequest.model_fields["allow_duplicate"].default is IssueOptions.allow_duplicate
    assert Settings(Path("model")).expires == "term"
    assert IssueOptions.term == "365d"
