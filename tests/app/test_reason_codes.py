"""Reason codes: how they are written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import veritracer as vt
from veritracer.app.reason_codes import Reason
from veritracer.changes import Change
from veritracer.errors import NoticeError
from veritracer.schema import Feature


def test_a_reason_may_depend_on_the_direction() -> None:
    few, many = ("R1", "Too few lines"), ("R2", "Too many lines")
    codes = vt.ReasonCodes({"lines": {"raise": few, "reduce": many}})
    lines = Feature("lines", "integer")
    asked = [Change(lines, 1, 3), Change(lines, 3, 1)]
    assert [r.text for r in codes.reasons(asked)] == [few[1], many[1]]
    with pytest.raises(NoticeError, match=r"lines \(state\)"):
        codes.reasons([Change(lines, None, 3)])


def test_the_codes_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/write-notices.md").read_text(encoding="utf-8")
    codes = vt.ReasonCodes(json.loads(page.partition("```json\n")[2].partition("```")[0]))
    said = [codes.text(name, "state") for name in codes if name != "credit_lines"]
    assert said == ["missed payments: not stated", "Savings were not stated", "your employment: not stated"]


@pytest.mark.parametrize(
    ("feature", "before", "after", "expected"),
    [
        (Feature("level", "ordinal", categories=["low", "high"]), "low", "high", "raise"),
        (Feature("level", "ordinal", categories=["low", "high"]), "high", "low", "reduce"),
        (Feature("job", "categorical", categories=["cook", "clerk"]), "cook", "clerk", "change"),
        (Feature("score", "integer", missing="impute", missing_codes=[-7]), -7, 3, "state"),
        (Feature("score", "integer", missing="impute"), float("nan"), 3, "state"),
    ],
)
def test_the_direction_of_a_change(feature, before, after, expected) -> None:
    assert Change(feature, before, after).direction == expected


def test_values_have_units_and_words() -> None:
    assert Reason(code="1", text="t", unit="months").value(12) == "12 months"
    assert Reason(code="1", text="t", values={"12": "a year"}).value(12) == "a year"
    assert Reason(code="1", text="t", unit="months").value(None) == "not stated"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "reason codes by feature"),
        ("{", "as JSON"),
        ('{"savings": "R01"}', "a code and a text for 'savings'"),
        ('{"savings": ["R01"]}', "a code and a text for 'savings'"),
        ('{"savings": ["", "text"]}', "code"),
        ('{"savings": {"code": "R01", "text": "t", "colour": "red"}}', "colour"),
        ('{"savings": {"up": ["R01", "t"]}}', "'savings'"),
    ],
)
def test_codes_that_are_none_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "codes.json"
    path.write_text(content)
    with pytest.raises(NoticeError, match=re.escape(said)):
        vt.ReasonCodes.load(path)
    with pytest.raises(NoticeError, match="cannot be read"):
        vt.ReasonCodes.load(tmp_path / "absent.json")
