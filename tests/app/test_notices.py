"""Notices: what they say of each outcome, what they never say, and what they refuse."""

from __future__ import annotations

import datetime
import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

import veritracer as vt
from edited_results import edited
from optional import skip_without_pango
from recourse_tables import SCHEMA, fitted
from veritracer.app.i18n import Translator
from veritracer.app.notice_subjects import Subject
from veritracer.app.notice_templates import page_pdf
from veritracer.app.notices import (
    NoticeForm,
    draft_notices,
    promise_notices,
    render_notice,
    write_notices,
)
from veritracer.app.reason_codes import Reason
from veritracer.app.report.people import in_words
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import NoticeError
from veritracer.search.outcomes import Outcome

CODES = {name: (f"R{k:02}", f"About {name}") for k, name in enumerate(SCHEMA.names)}
PROMISE = re.compile(r"we promise|will be accepted|was proved", re.IGNORECASE)
COMMITS = re.compile(
    r"we commit|wir stehen|will be accepted|Sie angenommen|before \w+ \d|vor dem \d", re.IGNORECASE
)
MAY = datetime.datetime(2031, 5, 1, 12, tzinfo=datetime.UTC)
FIELDS = {"institution": "A Bank", "recipient": "A. Person", "reference": "77", "contact": "Call us."}
DAYS = {"en": "May 1, 2031", "de": "1. Mai 2031"}
UNTIL = "May 1, 2031, 12:00:00\u202fPM UTC"


class Promised(NamedTuple):
    """A ledger, the result whose certified rows it promises, and the numbers of these promises by row."""

    ledger: vt.Ledger
    found: Counterfactuals
    numbers: dict[int, int]
    openings: dict[int, bytes]


def promised(
    found: Counterfactuals, place: Path, expires: datetime.datetime | None = MAY, **terms: Any
) -> Promised:
    """Promise what is certified, in a new ledger."""
    ledger = vt.Ledger(place, key=terms.pop("key", None))
    ids = [f"person {i}" for i in range(int(found.row.max()) + 1)]
    issued = ledger.issue(found, fitted()[0].classifier_, ids=ids, expires=expires, **terms)
    rows = np.flatnonzero(found.certified).tolist()
    numbers = [int(number) for number in issued.sequence]
    return Promised(
        ledger,
        found,
        dict(zip(rows, numbers, strict=True)),
        dict(zip(numbers, issued.openings, strict=True)) if issued.openings else {},
    )


@pytest.fixture(scope="module")
def found() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40])


@pytest.fixture(scope="module")
def uncertified() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40], kappa=3.0, overshoot=0.02)


@pytest.fixture(scope="module")
def book(found: Counterfactuals, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Promised]:
    """Promises that end on 1 May 2031."""
    made = promised(found, tmp_path_factory.mktemp("book") / "promises.db")
    with made.ledger:
        yield made


def issued(book: Promised, i: int, kind: Any = "text", tongue: str = "en") -> str:
    """Return the notice of the promise to row ``i``."""
    return render_notice(book.ledger, book.numbers[i], CODES, format=kind, language=tongue, **FIELDS)


def a_row(found: Counterfactuals, status: str) -> int:
    return int(np.flatnonzero(found.status == status)[0])


def told(found: Counterfactuals, i: int, outcome: Outcome) -> Counterfactuals:
    """The same answers, with row ``i`` without recourse, as it ended; its words say something else."""
    status, ended, favourable = found.status.copy(), found.outcome.copy(), found.favourable.copy()
    reason = found.reason.copy()
    status[i], ended[i], favourable[i], reason[i] = "none", outcome, False, "because of sex"
    return edited(found, status=status, outcome=ended, reason=reason, favourable=favourable)


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


def plain(notice: str, kind: str) -> str:
    """Return the words of a notice, with single spaces."""
    return " ".join(notice.split()) if kind == "text" else text_of(notice)


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_promise_is_told_with_its_reasons_changes_and_number(book, kind) -> None:
    found, i = book.found, next(iter(book.numbers))
    text = plain(issued(book, i, kind), kind)
    for change in found.changes_of(i):
        for value in (change.before, change.after):
            assert Reason(code="-", text="-").value(value) in text
    named = {name for name in SCHEMA.names if re.search(rf"About {name}|R\d\d {name}: not stated", text)}
    assert named == {reason.feature for reason in found.principal_reasons(i)}
    assert "was declined" in text
    assert DAYS["en"] in text
    assert f"number {book.numbers[i]} in our ledger and ends on 2031-05-01 12:00:00 (UTC)" in text
    assert "20 % of the average size in the same matrix or vector" in text
    assert "What we do not promise".casefold() in text.casefold()
    assert all(value in text for value in FIELDS.values())


@pytest.mark.parametrize("tongue", ["en", "de"])
@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_promise_says_what_its_draft_said(book, kind, tongue) -> None:
    """The ledger's record is enough for every sentence, whichever it is read from."""
    for i, number in book.numbers.items():
        draft = plain(render_notice(book.found, i, CODES, format=kind, language=tongue), kind)
        final = plain(render_notice(book.ledger, number, CODES, format=kind, language=tongue), kind)
        say = Translator(tongue).gettext
        start, end = (
            say(title).casefold() for title in ("What would change the decision", "Not promised yet")
        )
        steps = draft.casefold().partition(start)[2].partition(end)[0]
        if kind == "text":
            steps = steps.replace(f"{say('DRAFT')}: ".casefold(), "")
        assert len(steps) > 50
        assert steps.strip().removesuffix(":").strip() in final.casefold()


@pytest.mark.parametrize("tongue", ["en", "de"])
@pytest.mark.parametrize("kind", ["text", "html"])
def test_what_was_not_issued_is_a_draft_and_commits_to_nothing(book, kind, tongue) -> None:
    found, i, say = book.found, next(iter(book.numbers)), Translator(tongue).gettext
    for one in (found, told(found, i, Outcome.NOT_FOUND)):
        notice = render_notice(one, i, CODES, format=kind, language=tongue, **FIELDS)
        text = plain(notice, kind)
        assert text.startswith(say("DRAFT"))  # the title
        nothing = {"en": "Nothing in this draft is promised", "de": "In diesem Entwurf ist nichts zugesagt"}
        assert nothing[tongue] in text
        assert not COMMITS.search(text)
        assert say("What we promise").casefold() not in text.casefold()
    text = plain(issued(book, i, kind, tongue), kind)
    assert say("DRAFT") not in text
    assert say("Promise number: %(number)s", number=book.numbers[i]) in text
    assert COMMITS.search(text)
    assert DAYS[tongue] in text


def test_each_title_of_a_draft_as_text_says_so(found) -> None:
    lines = render_notice(found, a_row(found, "certified"), CODES, **FIELDS).splitlines()
    titles = [one for one in lines if one == one.upper() and any(c.isalpha() for c in one)]
    assert len(titles) > 4
    assert all(one.startswith("DRAFT") for one in titles)
    assert lines[0] == lines[-1] == "DRAFT"


def test_templates_of_ones_own_are_told_that_it_is_a_draft(book) -> None:
    found, i = book.found, next(iter(book.numbers))
    shown = "{{ draft }}|{{ outcome }}|{{ promise }}|{{ terms }}|{{ annex }}|{{ number }}|{{ expires }}"
    assert "\nTrue|certified||[]|[]|None|None\n" in render_notice(found, i, CODES, template=shown)
    fields = {"draft": False, "terms": ["x"], "promise": "x", "annex": "x"}
    assert "\nTrue|certified||[]|[]|None|None\n" in render_notice(found, i, CODES, template=shown, **fields)
    said = render_notice(book.ledger, book.numbers[i], CODES, template=shown)
    number, until = book.numbers[i], re.escape(UNTIL)
    assert re.fullmatch(rf"False\|promised\|We commit .+\|\[.+\]\|\[.+\]\|{number}\|{until}\n", said)
    for name, blocks in {"notice.txt": ["head", "body", "foot"], "notice.html": ["style", "body"]}.items():
        child = f'{{% extends "{name}" %}}' + "".join(f"{{% block {b} %}}{{% endblock %}}" for b in blocks)
        assert "DRAFT" in render_notice(found, i, CODES, template=child)


@pytest.mark.parametrize(
    ("format_", "template"),
    [
        ("text", "{# #}You will be accepted.\fYou see the second page."),
        ("html", "{# #}<html><BODY class='x'><p>You will be accepted.</p></BODY></html>"),
        ("html", "{# #}<p>You will be accepted.</p>"),
    ],
)
def test_every_page_of_a_draft_is_titled_whatever_the_template_says(book, format_, template) -> None:
    i = next(iter(book.numbers))
    for page in render_notice(book.found, i, CODES, template=template, format=format_).split("\f"):
        assert plain(page, format_).partition("You")[0].startswith("DRAFT")
    assert "DRAFT" not in render_notice(
        book.ledger, book.numbers[i], CODES, template=template, format=format_
    )


def test_the_end_of_a_promise_is_the_ledgers_to_the_second(book) -> None:
    number = next(iter(book.numbers.values()))
    text = " ".join(render_notice(book.ledger, number, CODES).split())
    assert f"before {' '.join(UNTIL.split())}, also if" in text
    assert book.ledger.shown(number)["expires"] == "2031-05-01T12:00:00+00:00"


@pytest.mark.parametrize("tongue", ["en", "de"])
def test_without_codes_each_reason_has_a_number_and_a_plain_text(book, tongue) -> None:
    i, number = next(iter(book.numbers.items()))
    for text in (
        render_notice(book.ledger, number, language=tongue),
        render_notice(book.found, i, language=tongue),
    ):
        for reason in book.found.principal_reasons(i):
            label = reason.feature.replace("_", " ")
            code = f"R{SCHEMA.names.index(reason.feature) + 1:02}"
            assert f"  {code}  {label[:1].upper()}{label[1:]}: " in text


@pytest.mark.parametrize("kind", ["text", "html"])
def test_applicants_do_not_read_about_matrices(book, kind) -> None:
    """What was proved is stated in the annex, which comes last."""
    i = next(iter(book.numbers))
    text = plain(issued(book, i, kind), kind)
    annex = text.casefold().index("annex: what was proved")
    technical = re.compile(r"weight|bias|matri|vector|digest|norm\b|κ|kappa", re.IGNORECASE)
    assert not technical.search(re.sub("These weighed", "", text[:annex]))
    assert technical.search(text[annex:])


@pytest.mark.parametrize("name", ["number", "expires"])
def test_only_the_ledger_says_what_number_and_last_day_are(book, name) -> None:
    for source, i in ((book.found, next(iter(book.numbers))), (book.ledger, 1)):
        for template in (None, "{{ changes }}"):
            with pytest.raises(NoticeError, match=rf"the ledger does not know, got '{name}'"):
                render_notice(source, i, CODES, template=template, **{name: "2031-05-01"})


def test_a_promise_without_an_end_says_so(found, tmp_path: Path) -> None:
    made = promised(found, tmp_path / "a.db", None)
    with made.ledger:
        text = plain(render_notice(made.ledger, next(iter(made.numbers.values())), CODES), "text")
    assert "We commit to this without a last day" in text
    assert "in our ledger and has no end" in text


def test_a_notice_can_be_written_again_and_is_of_the_day_of_issue(book) -> None:
    number = next(iter(book.numbers.values()))
    first, again = (render_notice(book.ledger, number, CODES, format="html") for _ in range(2))
    assert first == again
    day = datetime.datetime.fromisoformat(book.ledger.shown(number)["issued"]).date()
    assert Translator("en").format_date(day) in first


@pytest.mark.parametrize("kept", ["commitment", "encrypted"])
def test_rows_that_are_not_readable_need_their_opening_or_the_key(found, tmp_path: Path, kept: str) -> None:
    key = vt.ledger.new_key() if kept == "encrypted" else None
    made = promised(found, tmp_path / "a.db", original=kept, key=key)
    i, number = next(iter(made.numbers.items()))
    with made.ledger as ledger:
        opening = made.openings.get(number)
        text = render_notice(ledger, number, CODES, opening=opening)
        assert made.found.changes_of(i)[0].feature.name.replace("_", " ") in text
    with vt.Ledger(tmp_path / "a.db") as ledger, pytest.raises(NoticeError, match="the person's own row"):
        render_notice(ledger, number, CODES)


def test_what_is_no_live_promise_is_refused(uncertified, found, tmp_path: Path) -> None:
    made = promised(found, tmp_path / "a.db")
    number = next(iter(made.numbers.values()))
    with made.ledger as ledger:
        ledger.release([number], "withdrawn")
        with pytest.raises(NoticeError, match=f"a live promise, got number {number}, which is released"):
            render_notice(ledger, number, CODES)
    with vt.Ledger(tmp_path / "b.db") as ledger:
        ids, module = [str(i) for i in range(40)], fitted()[0].classifier_
        done = ledger.issue(uncertified, module, ids=ids, expires=MAY, uncertified="promise")
        certified = set(np.flatnonzero(uncertified.certified).tolist())
        kept = np.flatnonzero(uncertified.status != "none").tolist()
        k = next(k for k, i in enumerate(kept) if i not in certified)
        text = render_notice(ledger, int(done.sequence[k]), CODES)
    assert "THIS IS NOT A PROMISE" in text
    assert "DRAFT" in text
    assert not COMMITS.search(text)
    assert not PROMISE.search(text)


@pytest.mark.parametrize("kind", ["text", "html"])
@pytest.mark.parametrize(("language", "said"), [("en", "accepted application it is “yes”"), ("de", "„yes“")])
def test_a_notice_says_which_label_is_favourable(found, kind, language, said) -> None:
    for i in np.flatnonzero(~found.favourable)[:2].tolist():
        notice = render_notice(found, i, CODES, format=kind, language=language)
        text = " ".join(notice.split()) if kind == "text" else text_of(notice)
        assert said in text
        assert "no“" in text if language == "de" else "is “no”" in text


@pytest.mark.parametrize("kind", ["text", "html"])
def test_what_is_valid_today_is_called_no_promise(uncertified, kind) -> None:
    i = a_row(uncertified, "valid")
    notice = render_notice(uncertified, i, CODES, format=kind)
    assert "not a promise" in notice.casefold()
    assert not PROMISE.search(notice)
    assert "at least" not in notice  # going further is proved only where the region is


def test_a_proof_for_todays_model_alone_is_no_promise() -> None:
    model, X = fitted()
    found = model.explain(X[:10], kappa=0.0)
    notice = render_notice(found, a_row(found, "certified"), CODES)
    assert "NOT A PROMISE" in notice
    assert not PROMISE.search(notice)


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
    notice = render_notice(told(found, i, outcome), i, format=kind)
    assert "cannot propose a change" in notice
    assert said in " ".join(notice.split())
    assert not PROMISE.search(notice)
    assert "sex" not in text_of(notice)  # which constraint would have to give is nothing for a notice


def test_an_accepted_person_is_not_told_how_to_be_declined() -> None:
    model, X = fitted()
    found = model.explain(X[:40], only_unfavourable=False)
    i = int(np.flatnonzero(found.favourable & found.valid)[0])
    notice = render_notice(found, i)
    assert "was accepted" in notice
    assert "declined" not in notice
    assert "WHAT" not in notice


def test_a_conditional_promise_names_its_condition_in_its_own_sentence(book) -> None:
    i, number = next(iter(book.numbers.items()))
    shown = book.ledger.shown(number)
    form = NoticeForm.of(CODES, "{{ promise }}", "text", "en", {})
    for conditional in (False, True):
        one = {**shown, "conditional": conditional}
        subject = Subject.of_promise(one, book.ledger.models()[shown["model"]])
        assert (
            "and would still decline your application as it is now" in form.render(subject)
        ) == conditional
    assert "still decline" not in render_notice(book.found, i, CODES)


def test_a_region_is_told_with_its_ends(tmp_path: Path) -> None:
    model, X = fitted()
    found = model.explain(X[:40], overshoot=0.05, drift={"age": 2})
    pairs = [(i, c) for i in range(len(found)) for c in found.changes_of(i) if found.certified[i]]
    i, change = next((i, c) for i, c in pairs if c.goes_on)
    made = promised(found, tmp_path / "a.db")
    with made.ledger as ledger:
        final = render_notice(ledger, made.numbers[i], CODES)
    for notice in (render_notice(found, i, CODES), final):
        assert Reason(code="-", text="-").value(change.limit) in plain(notice, "text")
    assert "age (which may change by up to 2)" in plain(final, "text")


def test_a_notice_holds_nothing_of_other_people(found) -> None:
    """With every other row replaced by another value, the notice is the same."""
    i = a_row(found, "certified")
    others = [k for k in range(len(found)) if k != i]
    changed = found.original.copy()
    changed.iloc[others, changed.columns.get_loc("savings")] = 49_900
    again = edited(found, original=changed)
    assert render_notice(again, i, CODES) == render_notice(found, i, CODES)
    shown = render_notice(found, i, CODES, template="{{ changes }}{{ not_covered }}{{ why }}")
    kept = set(SCHEMA.names) - {c.feature.name for c in found.changes_of(i)}
    assert not any(f"'{name}'" in shown for name in kept)


def test_every_changed_feature_must_have_a_reason(found) -> None:
    i = int(np.argmax(found.n_changes))
    names = [c.feature.name for c in found.changes_of(i)]
    with pytest.raises(NoticeError, match=re.escape(names[-1])) as refused:
        render_notice(found, i, codes={k: v for k, v in CODES.items() if k != names[-1]})
    assert names[0] not in str(refused.value).partition("—")[0]


def missing_rating() -> tuple[Counterfactuals, int]:
    """Answers, and a row whose rating is missing and among its principal reasons."""
    model, X = fitted()
    rows = X[:200].assign(rating=np.nan)
    found = model.explain(rows, refine=False, search_radius=False)
    declined = np.flatnonzero(~found.favourable).tolist()
    wanted = ("rating", "state")
    named = (i for i in declined if wanted in [tuple(one)[:2] for one in found.principal_reasons(i)])
    return found, next(named)


def test_what_was_written_for_a_value_is_not_said_of_a_missing_one() -> None:
    found, i = missing_rating()
    low = {"code": "R9", "text": "The rating is low", "label": "your rating"}
    notice = render_notice(found, i, codes={**CODES, "rating": low})
    assert "R9  your rating: not stated" in notice
    assert "The rating is low" not in notice
    assert "R9  rating: not stated" in render_notice(
        found, i, codes={**CODES, "rating": ("R9", "The rating is low")}
    )
    assert "R9  your rating: nicht angegeben" in render_notice(
        found, i, {**CODES, "rating": low}, language="de"
    )
    own = {"raise": low, "state": ("R8", "No rating is known")}
    notice = render_notice(found, i, codes={**CODES, "rating": own})
    assert "R8  No rating is known" in notice
    assert "not stated" not in notice.partition("WHAT WOULD")[0]
    with pytest.raises(NoticeError, match=r"rating \(state\)"):
        render_notice(found, i, codes={**CODES, "rating": {"raise": low}})


def test_codes_from_a_file(found, tmp_path: Path) -> None:
    path = tmp_path / "codes.json"
    path.write_text(json.dumps(CODES))
    i = a_row(found, "certified")
    assert render_notice(found, i, codes=path) == render_notice(found, i, CODES)
    assert dict(vt.ReasonCodes.load(path)) == dict(vt.ReasonCodes(CODES))


def test_an_own_template_as_text_as_a_file_and_as_a_child_of_ours(found, tmp_path: Path) -> None:
    i = a_row(found, "certified")
    own = "{{ branch }}: {{ changes[0].instruction }}"
    said = render_notice(found, i, CODES, template=own, branch="North")
    assert re.search(r"^North: \w+ .+\.$", said, re.MULTILINE)
    path = tmp_path / "own.html"
    path.write_text(own)
    assert "&lt;North&gt;: " in render_notice(found, i, CODES, template=path, branch="<North>")
    child = '{% extends "notice.txt" %}{% block head %}{{ branch }}{% endblock %}'
    assert "\n\nNorth\nDear applicant," in render_notice(found, i, CODES, template=child, branch="North")


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
        ("absent.txt", "cannot be read"),
    ],
)
def test_a_template_that_can_not_be_filled_in_is_refused_in_one_sentence(found, template, said) -> None:
    with pytest.raises(NoticeError, match=re.escape(said)) as refused:
        render_notice(found, a_row(found, "certified"), CODES, template=template)
    assert re.fullmatch(r"expected .+, got .+ — .+", str(refused.value))


def test_what_html_is_given_is_escaped(found) -> None:
    i = a_row(found, "certified")
    hostile = dict.fromkeys(FIELDS, "<script>alert(1)</script>")
    codes = dict.fromkeys(SCHEMA.names, ("<b>", "<script>"))
    page = render_notice(found, i, codes, format="html", **hostile)
    assert "<script" not in page
    assert "<b>" not in page


def test_the_page_needs_nothing_from_elsewhere(found) -> None:
    page = render_notice(found, a_row(found, "certified"), CODES, format="html", **FIELDS)
    assert not re.search(r"https?:|src=|url\(|@import|<link", page)
    assert "@media print" in page


def test_fields_rows_and_formats_are_checked(found) -> None:
    with pytest.raises(NoticeError, match="did you mean 'contact'"):
        render_notice(found, 0, CODES, contct="us")
    with pytest.raises(NoticeError, match="number 40"):
        render_notice(found, 40, CODES)
    with pytest.raises(NoticeError, match="'text' or 'html'"):
        render_notice(found, 0, CODES, format="pdf")


def test_without_jinja2_the_extra_is_named(found, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)  # what Python keeps for a package that is not there
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'veritracer[report]'")):
        render_notice(found, a_row(found, "certified"), CODES)


def test_a_principal_reason_without_a_code_is_refused_by_name(found) -> None:
    i = a_row(found, "certified")
    asked = {c.feature.name for c in found.changes_of(i)}
    name = next((r.feature for r in found.principal_reasons(i) if r.feature not in asked), None)
    if name is None:
        i = next(
            k
            for k in np.flatnonzero(found.certified)
            if {r.feature for r in found.principal_reasons(k)} - {c.feature.name for c in found.changes_of(k)}
        )
        asked = {c.feature.name for c in found.changes_of(i)}
        name = next(r.feature for r in found.principal_reasons(i) if r.feature not in asked)
    with pytest.raises(NoticeError, match=rf"every principal reason, got none for '{name} "):
        render_notice(found, i, codes={k: v for k, v in CODES.items() if k != name})


# ------------------------------------------------------------------------------------------- languages


def test_a_notice_in_german(book) -> None:
    i, number = next(iter(book.numbers.items()))
    text = issued(book, i, "text", "de")
    assert "Ihr Antrag wurde abgelehnt." in text
    assert "HAUPTGRÜNDE UNSERER ENTSCHEIDUNG" in text
    assert "vor dem 1. Mai 2031" in " ".join(text.split())
    assert f"Nummer der Zusage: {number}" in text
    assert not re.search(r"\b(the|application|model that)\b", text)
    page = render_notice(book.found, i, CODES, language="de", format="html")
    assert '<html lang="de">' in page


def test_an_unknown_language_is_refused(found) -> None:
    with pytest.raises(NoticeError, match="a locale among en, de, got 'fr'"):
        render_notice(found, 0, CODES, language="fr")


# ------------------------------------------------------------------------------------------------- PDF


def test_a_notice_as_pdf(found) -> None:
    page = render_notice(found, a_row(found, "certified"), CODES, format="html", **FIELDS)
    outside = page.replace("</main>", '<img src="file:///etc/hostname"></main>')
    skip_without_pango()
    made = page_pdf(page)
    assert made.startswith(b"%PDF-")
    assert page_pdf(outside).startswith(b"%PDF-")  # and nothing was fetched


def test_every_page_of_a_draft_as_pdf_says_so(book) -> None:
    try:
        import weasyprint
    except OSError:
        pytest.skip("weasyprint cannot load Pango here")
    fields = {**FIELDS, "rights": "You have rights. " * 400}
    for page, drafts in (
        (render_notice(book.found, a_row(book.found, "certified"), CODES, format="html", **fields), 1),
        (issued(book, next(iter(book.numbers)), "html"), 0),
    ):
        pages = weasyprint.HTML(string=page).render().pages
        words = [[getattr(box, "text", "") for box in one._page_box.descendants()] for one in pages]
        assert [min(1, some.count("DRAFT")) for some in words] == [drafts] * len(pages)
        assert len(pages) > drafts


def test_without_weasyprint_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(NoticeError, match=re.escape("pip install 'veritracer[pdf]'")):
        page_pdf("<p></p>")


# --------------------------------------------------------------------------------------- many notices


def test_a_folder_appears_when_all_notices_are_written(book, tmp_path: Path) -> None:
    form = NoticeForm.of(CODES, None, None, "en", FIELDS, ["address"])
    own = {number: {"address": f"Street {number}"} for number in book.numbers.values()}
    notices = promise_notices(book.ledger, book.numbers.values(), own)
    assert write_notices(tmp_path / "new", notices, form) == len(book.numbers)
    for number in book.numbers.values():
        text = (tmp_path / "new" / f"{number:06}.txt").read_text()
        assert f"Promise number: {number}\n" in text
        assert f"Street {number}\n" in text
    with pytest.raises(NoticeError, match="not there yet"):
        write_notices(tmp_path / "new", [], form)


def test_all_missing_codes_are_named_at_once(found, tmp_path: Path) -> None:
    form = NoticeForm.of({"age": CODES["age"]}, None, None, "en", {})
    with pytest.raises(NoticeError, match="every changed feature and every principal reason") as refused:
        write_notices(tmp_path / "new", draft_notices(found), form)
    assert all(name in str(refused.value) for name in ("savings", "income", "rating"))
    assert not (tmp_path / "new").exists()


def test_drafts_are_named_by_row_and_alternative(tmp_path: Path) -> None:
    model, X = fitted()
    found = model.explain(X[:12], n=2)
    write_notices(tmp_path / "new", draft_notices(found), NoticeForm.of(CODES, None, "html", "en", {}))
    declined = np.flatnonzero(~found.favourable)
    names = {f"{found.row[i] + 1:06}-{found.alternative[i] + 1}.html" for i in declined}
    assert {path.name for path in (tmp_path / "new").iterdir()} == names
    assert all("DRAFT" in path.read_text() for path in (tmp_path / "new").iterdir())


# -------------------------------------------------------------------------------------- tidy numbers


def test_nothing_that_people_read_has_the_noise_of_narrow_floats() -> None:
    """A column that somebody stored as float32 once, and as text with all its digits afterwards."""
    rng = np.random.default_rng(3)
    rate = rng.uniform(0.2, 0.9, 200).round(3).astype(np.float32).astype(float)
    frame = pd.DataFrame({"rate": rate, "score": rng.uniform(0, 3, 200).round(2) / 3})
    schema = vt.Schema.infer(frame)
    encoding = vt.Encoding.fit(schema, frame)
    layer = torch.nn.Linear(2, 1).double()
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[3.0, 2.0]])
        layer.bias[:] = -2.5
    found = vt.Recourse(torch.nn.Sequential(layer), encoding=encoding, rows=frame, kappa=0.01).explain(
        frame[:40], overshoot=0.02
    )
    assert found.valid.sum() > 5
    long = re.compile(r"\d\.\d{9,}")
    assert any(long.search(repr(v)) for v in frame["rate"])
    codes = {name: ("R", name) for name in schema.names}
    for i in np.flatnonzero(found.status != "none").tolist():
        for text in (
            found.sentence(i),
            render_notice(found, i, codes),
            render_notice(found, i, codes, language="de"),
        ):
            assert not long.search(text.replace(",", ".")), text
        for change in found.changes_of(i):
            assert not long.search(" ".join(in_words(change)))
