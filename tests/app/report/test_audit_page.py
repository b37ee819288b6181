"""The audit as a page: whole, safe, and with the numbers of the audit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from html_pages import Page
from memory_ledger import in_memory
from veritracer.app.report.audit_page import LISTED_ROWS, audit_headline, write_audit_page
from veritracer.ledger.auditing import audit

sys.path.insert(0, str(Path(__file__).parents[2] / "ledger"))
from promise_cases import issued, moved, with_bias


def test_a_failed_audit_names_people_and_what_they_can_do(tmp_path: Path) -> None:
    model, _, found = issued()
    names = [f"<script>{i}</script>" for i in range(80)]
    promises = in_memory(found, model.classifier_, ids=names)
    told = audit(promises, with_bias(model.classifier_, -4.4), encoding=model.encoding_, recourse=2)
    page = Page.read(
        write_audit_page(tmp_path / "deep" / "audit.html", told, title="A <b>", notes=["It verifies."])
    )
    assert (page.unbalanced, page.open) == ([], [])
    assert "script" not in page.names()
    assert {"promises", "distances", "broken", "origins"} <= set(page.by_id)
    assert f"breaks {told.counts['broken']} of {told.live} live promises" in page.text
    assert "It verifies." in page.text
    assert told.recourse[0].sentence in page.by_id["broken"]
    assert page.by_id["broken"].count("not searched") == min(told.counts["broken"], LISTED_ROWS) - 2
    assert all(name in page.by_id["distances"] for name in ("W1", "b3", "linf"))


@pytest.mark.parametrize(("by", "says"), [(0.0, ", 100\xa0% of them"), (0.3, ", 0\xa0% of them")])
def test_a_passed_audit_says_how_much_is_proved(by: float, says: str, tmp_path: Path) -> None:
    model, promises, _ = issued()
    told = audit(promises, moved(model.classifier_, by), encoding=model.encoding_)
    assert told.ok
    assert says in audit_headline(told)
    assert "None." in Page.read(write_audit_page(tmp_path / "audit.html", told)).by_id["broken"]


def test_nobody_was_promised_anything(tmp_path: Path) -> None:
    model, promises, _ = issued()
    nothing = audit(type(promises)(promises.issuing, ()), model)
    assert "no live promise" in Page.read(write_audit_page(tmp_path / "audit.html", nothing)).text
