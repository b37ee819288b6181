"""The letter: what it says of each outcome, what it never says, and what it refuses."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import veritracer as vt
from recourse_tables import SCHEMA, fitted
from veritracer.errors import LetterError
from veritracer.recourse import Counterfactuals, Reason
from veritracer.recourse.outcomes import Outcome
from veritracer.recourse.reason_codes import direction
from veritracer.recourse.wording import Change
from veritracer.schema import Feature

CODES = {name: (f"R{k:02}", f"About {name}") for k, name in enumerate(SCHEMA.names)}
PROMISE = re.compile(r"we promise|will be accepted|was proved", re.IGNORECASE)
FIELDS = {"institution": "A Bank", "recipient": "A. Person", "reference": "77", "contact": "Call us."}


@pytest.fixture(scope="module")
def found() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40])


@pytest.fixture(scope="module")
def uncertified() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40], kappa=3.0, overshoot=0.02)


def a_row(found: Counterfactuals, status: str) -> int:
    return int(np.flatnonzero(found.status == status)[0])


def told(found: Counterfactuals, i: int, outcome: Outcome) -> Counterfactuals:
    """The same answers, with row ``i`` without recourse, as it ended; its words say something else."""
    status, ended, favourable = found.status.copy(), found.outcome.copy(), found.favourable.copy()
    reason = found.reason.copy()
    status[i], ended[i], favourable[i], reason[i] = "none", outcome, False, "because of sex"
    return dataclasses.replace(found, status=status, outcome=ended, reason=reason, favourable=favourable)


def text_of(page: str) -> str:
    """The words of an HTML page outside of its style, as a reader sees them."""

    class Words(HTMLParser):
        words: list[str] = []  # noqa: RUF012  # one for each call
        hidden = False

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.hidden = tag == "style"

        def handle_endtag(self, tag: str) -> None:
            self.hidden = False

        def handle_data(self, data: str) -> None:
            if not self.hidden:
                self.words.append(data)

    parser = Words()
    parser.words = []
    parser.feed(page)
    return " ".join(" ".join(parser.words).split())


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_certified_answer_is_told_with_its_reasons_changes_and_promise(found, kind) -> None:
    i = a_row(found, "certified")
    letter = found.letter(i, codes=CODES, format=kind, **FIELDS, expires=datetime.date(2031, 5, 1))
    text = " ".join(letter.split()) if kind == "text" else text_of(letter)
    for change in found.changes_of(i):
        assert CODES[change.feature.name][1] in text
        for value in (change.before, change.after):
            assert Reason(code="-", text="-").value(value) in text
    unchanged = set(SCHEMA.names) - {c.feature.name for c in found.changes_of(i)}
    assert not any(f"About {name}" in text for name in unchanged)
    assert "was declined" in text
    assert "1 May 2031" in text
    assert "20 % of the average size in the same matrix or vector" in text
    assert "What we do not promise".casefold() in text.casefold()
    assert all(value in text for value in FIELDS.values())


@pytest.mark.parametrize("kind", ["text", "html"])
def test_what_is_valid_today_is_called_no_promise(uncertified, kind) -> None:
    i = a_row(uncertified, "valid")
    letter = uncertified.letter(i, codes=CODES, format=kind)
    assert "not a promise" in letter.casefold()
    assert not PROMISE.search(letter)
    assert "at least" not in letter  # going further is proved only where the region is


def test_a_proof_for_todays_model_alone_is_no_promise() -> None:
    model, X = fitted()
    found = model.explain(X[:10], kappa=0.0)
    letter = found.letter(a_row(found, "certified"), codes=CODES)
    assert "NOT A PROMISE" in letter
    assert not PROMISE.search(letter)


@pytest.mark.parametrize("kind", ["text", "html"])
@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.IMPOSSIBLE, "certain"),
        (Outcome.NOT_FOUND, "found none"),
        (Outcome.OUT_OF_TIME, "in the time"),
        (Outcome.TOO_CLOSE, "rounding decides"),
        (Outcome.UNMET, "not one that we can recommend"),
    ],
)
def test_a_row_without_recourse_is_told_so_and_why(found, kind, outcome, said) -> None:
    i = a_row(found, "certified")
    letter = told(found, i, outcome).letter(i, format=kind)
    assert "can not propose a change" in letter
    assert said in " ".join(letter.split())
    assert not PROMISE.search(letter)
    assert "sex" not in text_of(letter)  # which constraint would have to give is nothing for a letter


def test_an_accepted_person_is_not_told_how_to_be_declined() -> None:
    model, X = fitted()
    found = model.explain(X[:40], only_unfavourable=False)
    i = int(np.flatnonzero(found.favourable & found.valid)[0])
    letter = found.letter(i)
    assert "was accepted" in letter
    assert "declined" not in letter
    assert "WHAT" not in letter


def test_a_conditional_promise_names_its_condition(found) -> None:
    i = a_row(found, "certified")
    letters = [
        dataclasses.replace(found, conditional=np.full(len(found), conditional)).letter(i, codes=CODES)
        for conditional in (False, True)
    ]
    assert ["still decline" in letter for letter in letters] == [False, True]


def test_a_region_is_told_with_its_ends() -> None:
    model, X = fitted()
    found = model.explain(X[:40], overshoot=0.05, drift={"age": 2})
    pairs = [(i, c) for i in range(len(found)) for c in found.changes_of(i) if found.certified[i]]
    i, change = next((i, c) for i, c in pairs if c.goes_on)
    letter = " ".join(found.letter(i, codes=CODES).split())
    assert Reason(code="-", text="-").value(change.limit) in letter
    assert "age (which may change by up to 2)" in letter


def test_a_letter_holds_nothing_of_other_people(found) -> None:
    """With every other row replaced by another value, the letter is the same."""
    i = a_row(found, "certified")
    others = [k for k in range(len(found)) if k != i]
    changed = found.original.copy()
    changed.iloc[others, changed.columns.get_loc("savings")] = 49_900
    again = dataclasses.replace(found, original=changed)
    assert again.letter(i, codes=CODES) == found.letter(i, codes=CODES)
    shown = found.letter(i, template="{{ changes }}{{ conditions }}{{ why }}", codes=CODES)
    kept = set(SCHEMA.names) - {c.feature.name for c in found.changes_of(i)}
    assert not any(f"'{name}'" in shown for name in kept)


def test_every_changed_feature_must_have_a_reason(found) -> None:
    i = int(np.argmax(found.n_changes))
    names = [c.feature.name for c in found.changes_of(i)]
    with pytest.raises(LetterError) as refused:
        found.letter(i)
    assert all(name in str(refused.value) for name in names)
    with pytest.raises(LetterError, match=re.escape(names[-1])) as refused:
        found.letter(i, codes={k: v for k, v in CODES.items() if k != names[-1]})
    assert names[0] not in str(refused.value).partition("—")[0]


def test_a_reason_may_depend_on_the_direction() -> None:
    few, many = ("R1", "Too few lines"), ("R2", "Too many lines")
    codes = vt.ReasonCodes({"lines": {"raise": few, "reduce": many}})
    lines = Feature("lines", "integer")
    asked = [Change(lines, 1, 3), Change(lines, 3, 1)]
    assert [r.text for r in codes.reasons(asked)] == [few[1], many[1]]
    with pytest.raises(LetterError, match=r"lines \(state\)"):
        codes.reasons([Change(lines, None, 3)])


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
    assert direction(Change(feature, before, after)) == expected


def test_values_have_units_and_words() -> None:
    assert Reason(code="1", text="t", unit="months").value(12) == "12 months"
    assert Reason(code="1", text="t", values={"12": "a year"}).value(12) == "a year"
    assert Reason(code="1", text="t", unit="months").value(None) == "not stated"


def test_codes_from_a_file(found, tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    path.write_text(json.dumps(CODES))
    i = a_row(found, "certified")
    assert found.letter(i, codes=path) == found.letter(i, codes=CODES)
    assert dict(vt.ReasonCodes.load(path)) == dict(vt.ReasonCodes(CODES))


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
    with pytest.raises(LetterError, match=re.escape(said)):
        vt.ReasonCodes.load(path)
    with pytest.raises(LetterError, match="can not be read"):
        vt.ReasonCodes.load(tmp_path / "absent.json")


def test_an_own_template_as_text_as_a_file_and_as_a_child_of_ours(found, tmp_path: Path) -> None:
    i = a_row(found, "certified")
    own = "{{ branch }}: {{ changes[0].instruction }}"
    said = found.letter(i, own, CODES, branch="North")
    assert re.fullmatch(r"North: \w+ .+\.\n", said)
    path = tmp_path / "own.html"
    path.write_text(own)
    assert found.letter(i, path, CODES, branch="<North>").startswith("&lt;North&gt;: ")
    child = '{% extends "letter.txt" %}{% block head %}{{ branch }}{% endblock %}'
    assert found.letter(i, child, CODES, branch="North").startswith("North\nDear applicant,")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ nmae }}", "'nmae'"),
        ("{{ changes[0].colour }}", "colour"),
        ("{% if %}", "line 1"),
        ("{{ changes.__class__.__mro__ }}", "unsafe"),
        ("{{ changes.clear() }}", "unsafe"),
        ('{% include "/etc/passwd" %}', "/etc/passwd"),
        ("{{ 1 / 0 }}", "division"),
        ("{% for k in range(10 ** 9) %}{% endfor %}", "range"),
        ("absent.txt", "can not be read"),
    ],
)
def test_a_template_that_can_not_be_filled_in_is_refused_in_one_sentence(found, template, said) -> None:
    with pytest.raises(LetterError, match=re.escape(said)) as refused:
        found.letter(a_row(found, "certified"), template, CODES)
    assert re.fullmatch(r"expected .+, got .+ — .+", str(refused.value))


def test_what_html_is_given_is_escaped(found) -> None:
    i = a_row(found, "certified")
    hostile = dict.fromkeys(FIELDS, "<script>alert(1)</script>")
    codes = dict.fromkeys(SCHEMA.names, ("<b>", "<script>"))
    page = found.letter(i, codes=codes, format="html", **hostile)
    assert "<script" not in page
    assert "<b>" not in page


def test_the_page_needs_nothing_from_elsewhere(found) -> None:
    page = found.letter(a_row(found, "certified"), codes=CODES, format="html", **FIELDS)
    assert not re.search(r"https?:|src=|url\(|@import|<link", page)
    assert "@media print" in page


def test_fields_rows_and_formats_are_checked(found) -> None:
    with pytest.raises(LetterError, match="did you mean 'contact'"):
        found.letter(0, codes=CODES, contct="us")
    with pytest.raises(LetterError, match="number 40"):
        found.letter(40, codes=CODES)
    with pytest.raises(LetterError, match="'text' or 'html'"):
        found.letter(0, codes=CODES, format="pdf")


def test_without_jinja2_the_extra_is_named(found, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)  # what Python keeps for a package that is not there
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'veritracer[report]'")):
        found.letter(a_row(found, "certified"), codes=CODES)
