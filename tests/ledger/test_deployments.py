"""Deployments as entries of the chain, in SQLite and PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger_cases import issue, model, recourse

import veritracer as vt
from veritracer.errors import DeploymentError
from veritracer.ledger import audit, digest_of


def test_a_deployment_is_an_entry(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger, recourse())
        found = audit(ledger, model(), recourse=0)
        head = ledger.record_deployment(found, by="desk")
        assert ledger.verify(head).ok
        noted = ledger.history()[-1]
        assert (noted["kind"], noted["by"], noted["reason"]) == ("deployment", "desk", "")
        assert (noted["model"], noted["broken"]) == (digest_of(model().classifier_), 0)
        assert noted["live"] == found.live > 0


def test_many_workers_record_one_deployment(place: str) -> None:
    """Each has its own connection, as processes have."""

    def deploy(_: int) -> str:
        with vt.Ledger(place) as ledger:
            return ledger.record_deployment(audit(ledger, model(), recourse=0), by="serve")

    with ThreadPoolExecutor(4) as threads:
        heads = set()
        for one in [threads.submit(deploy, k) for k in range(4)]:
            if one.exception() is None:
                heads.add(one.result())
            else:
                assert isinstance(one.exception(), DeploymentError)
    with vt.Ledger(place) as ledger:
        assert [one["kind"] for one in ledger.history()].count("deployment") == 1
        assert heads == {ledger.head}


def test_a_reason_that_is_no_text_is_refused(place: str) -> None:
    with vt.Ledger(place) as ledger, pytest.raises(vt.errors.DataError, match="a reason"):
        ledger.record_deployment(audit(ledger, model(), recourse=0), by="serve", reason="\ud800")
