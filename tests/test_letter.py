"""The letter: what it says of each outcome, what it never says, and what it refuses."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import veritracer as vt
from optional import skip_without_pango
from recourse_tables import SCHEMA, fitted
from veritracer.app.report.people import _in_words
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import LetterError, SchemaError
from veritracer.letter import Recorded, facts, filled, page_pdf, write_letter
from veritracer.options import yearly_drift
from veritracer.reasons import Reason, ReasonCodes, accepted_rows, contributions, direction
from veritracer.reasons import told as reason_told
from veritracer.schema import Feature
from veritracer.search.outcomes import Outcome
from veritracer.wording import Change, language, languages

CODES = {name: (f"R{k:02}", f"About {name}") for k, name in enumerate(SCHEMA.names)}
PROMISE = re.compile(r"we promise|will be accepted|was proved", re.IGNORECASE)
COMMITS = re.compile(
    r"we commit|wir stehen|will be accepted|Sie angenommen|before \d|vor dem \d", re.IGNORECASE
)
MAY = datetime.datetime(2031, 5, 1, 12, tzinfo=datetime.UTC).timestamp()
FIELDS = {"institution": "A Bank", "recipient": "A. Person", "reference": "77", "contact": "Call us."}


@pytest.fixture(scope="module")
def found() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40])


@pytest.fixture(scope="module")
def uncertified() -> Counterfactuals:
    model, X = fitted()
    return model.explain(X[:40], kappa=3.0, overshoot=0.02)


def issued(found: Counterfactuals, i: int, kind: Any = "text", tongue: str = "en") -> str:
    """The letter of a promise with the number 17 in the ledger, which ends on 1 May 2031."""
    recorded = Recorded(17, MAY)
    return write_letter(found, i, None, ReasonCodes(CODES), kind, FIELDS, language(tongue), recorded)


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
    letter = issued(found, i, kind)
    text = " ".join(letter.split()) if kind == "text" else text_of(letter)
    for change in found.changes_of(i):
        for value in (change.before, change.after):
            assert Reason(code="-", text="-").value(value) in text
    told = {name for name in SCHEMA.names if re.search(rf"About {name}|R\d\d {name}: not stated", text)}
    assert told == {reason.feature for reason in found.principal_reasons(i)}
    assert "was declined" in text
    assert "1 May 2031" in text
    assert "20 % of the average size in the same matrix or vector" in text
    assert "What we do not promise".casefold() in text.casefold()
    assert all(value in text for value in FIELDS.values())


@pytest.mark.parametrize("tongue", ["en", "de"])
@pytest.mark.parametrize("kind", ["text", "html"])
def test_what_was_not_issued_is_a_draft_and_commits_to_nothing(found, kind, tongue) -> None:
    i, none = a_row(found, "certified"), a_row(found, "certified")
    words = language(tongue)
    for one in (found, told(found, none, Outcome.NOT_FOUND)):
        letter = one.letter(i, codes=CODES, format=kind, language=tongue, **FIELDS)
        text = " ".join(letter.split()) if kind == "text" else text_of(letter)
        assert text.startswith(words.say("draft"))  # the title
        assert words.say("draft_note") in text
        assert not COMMITS.search(text)
        assert words.say("promise_title").casefold() not in text.casefold()
    letter = issued(found, i, kind, tongue)
    text = " ".join(letter.split()) if kind == "text" else text_of(letter)
    assert words.say("draft") not in text
    assert words.say("number", number=17) in text
    assert COMMITS.search(text)
    assert words.date(datetime.date(2031, 5, 1)) in text


def test_each_title_of_a_draft_as_text_says_so(found) -> None:
    lines = found.letter(a_row(found, "certified"), codes=CODES, **FIELDS).splitlines()
    titles = [one for one in lines if one == one.upper() and any(c.isalpha() for c in one)]
    assert len(titles) > 4
    assert all(one.startswith("DRAFT") for one in titles)
    assert lines[0] == lines[-1] == "DRAFT"


def test_templates_of_ones_own_are_told_that_it_is_a_draft(found) -> None:
    i = a_row(found, "certified")
    shown = "{{ draft }}|{{ outcome }}|{{ promise }}|{{ conditions }}|{{ number }}|{{ expires }}"
    assert found.letter(i, shown, CODES) == "True|certified||[]|None|None\n"
    assert found.letter(i, shown, CODES, draft=False).startswith("True|certified||")
    said = write_letter(found, i, shown, ReasonCodes(CODES), None, {}, recorded=Recorded(17, MAY))
    assert re.fullmatch(r"False\|promised\|We commit .+\|\[.+\]\|17\|1 May 2031\n", said)
    for name, blocks in {"letter.txt": ["head", "body", "foot"], "letter.html": ["style", "body"]}.items():
        child = f'{{% extends "{name}" %}}' + "".join(f"{{% block {b} %}}{{% endblock %}}" for b in blocks)
        assert "DRAFT" in found.letter(i, child, CODES)


@pytest.mark.parametrize("name", ["number", "expires"])
def test_only_the_ledger_says_what_number_and_last_day_are(found, name) -> None:
    for template in (None, "{{ changes }}"):
        with pytest.raises(LetterError, match=rf"the ledger does not know, got '{name}'"):
            found.letter(a_row(found, "certified"), template, CODES, **{name: "2031-05-01"})


def test_a_promise_without_an_end_says_so(found) -> None:
    i = a_row(found, "certified")
    text = write_letter(found, i, None, ReasonCodes(CODES), "text", {}, recorded=Recorded(17, math.inf))
    assert "We commit to this without a last day" in " ".join(text.split())
    assert "number 17 in our ledger and has no end" in " ".join(text.split())


@pytest.mark.parametrize("kind", ["text", "html"])
@pytest.mark.parametrize(("language", "said"), [("en", "accepted application it is “yes”"), ("de", "„yes“")])
def test_a_letter_says_which_label_is_favourable(found, kind, language, said) -> None:
    for i in np.flatnonzero(~found.favourable)[:2].tolist():
        letter = found.letter(i, codes=CODES, format=kind, language=language)
        text = " ".join(letter.split()) if kind == "text" else text_of(letter)
        assert said in text
        assert "no“" in text if language == "de" else "is “no”" in text


def test_changes_without_a_promise_are_a_draft_also_where_others_are_issued(uncertified) -> None:
    """As ``issue`` writes them: it asks for no drafts."""
    words = language("en")
    said = facts(uncertified, a_row(uncertified, "valid"), ReasonCodes(CODES), words)
    assert filled(said, {}, words, draft=False)["draft"]
    assert not filled({**said, "changes": []}, {}, words, draft=False)["draft"]


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
    assert "cannot propose a change" in letter
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
    letter = found.letter(i, codes={**CODES, "rating": low})
    assert "R9  your rating: not stated" in letter
    assert "The rating is low" not in letter
    assert "R9  rating: not stated" in found.letter(i, codes={**CODES, "rating": ("R9", "The rating is low")})
    assert "R9  your rating: nicht angegeben" in found.letter(
        i, codes={**CODES, "rating": low}, language="de"
    )
    own = {"raise": low, "state": ("R8", "No rating is known")}
    letter = found.letter(i, codes={**CODES, "rating": own})
    assert "R8  No rating is known" in letter
    assert "not stated" not in letter.partition("WHAT WOULD")[0]
    with pytest.raises(LetterError, match=r"rating \(state\)"):
        found.letter(i, codes={**CODES, "rating": {"raise": low}})


def test_the_codes_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/write-notices.md").read_text(encoding="utf-8")
    codes = vt.ReasonCodes(json.loads(page.partition("```json\n")[2].partition("```")[0]))
    said = [reason_told(codes, name, "state", language("en")) for name in codes if name != "credit_lines"]
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
    with pytest.raises(LetterError, match="cannot be read"):
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
    assert "\n\nNorth\nDear applicant," in found.letter(i, child, CODES, branch="North")


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


# ------------------------------------------------------------------------------------- principal reasons


def test_principal_reasons_come_from_the_decision_and_not_from_the_way_out() -> None:
    """A linear model declines for its debt; the only thing that may change is savings."""
    features = [Feature(name, "continuous", lower=0, upper=1) for name in ("debt", "missed", "other")]
    features = [f.replace(action="immutable") for f in features]
    schema = vt.Schema([*features, Feature("savings", "continuous", lower=0, upper=1)])
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.uniform(size=(300, 4)), columns=list(schema.names))
    encoding = vt.Encoding.fit(schema, rows)
    layer = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[-4.0, -2.0, 0.0, 3.0]])
        layer.bias[:] = 0.5
    answers = vt.Recourse(torch.nn.Sequential(layer), encoding=encoding, rows=rows, kappa=0.01)
    person = pd.DataFrame([{"debt": 0.9, "missed": 0.8, "other": 0.1, "savings": 0.6}])
    found = answers.explain(person)
    assert [c.feature.name for c in found.changes_of(0)] in ([], ["savings"])
    reasons = found.principal_reasons(0)
    assert [(one.feature, one.direction) for one in reasons][:2] == [("debt", "reduce"), ("missed", "reduce")]
    assert "other" not in {one.feature for one in reasons}
    # of a linear model a feature's part is its weight times the distance to the accepted rows' mean
    accepted = accepted_rows(found).mean(0)
    x = encoding.encode(person)[0].double()
    parts = contributions(found, x, accepted_rows(found))
    assert torch.allclose(parts, layer.weight[0] * (x - accepted), atol=1e-9)
    codes = {name: (f"R-{name}", f"About {name}") for name in schema.names}
    text = found.letter(0, codes=codes)
    assert "R-debt" in text.partition("WHAT WOULD CHANGE")[0]
    assert "R-other" not in text


def test_the_parts_sum_to_what_is_between_the_person_and_accepted_people(found) -> None:
    i = a_row(found, "certified")
    rows, x = accepted_rows(found), found.x[i].double()
    theta = tuple(t.double() for t in found.param_set.center)
    logit = found.param_set.network.logit(theta, torch.cat([x[None], rows]))
    between = logit[0] - logit[1:].mean()
    assert float(contributions(found, x, rows).sum()) == pytest.approx(float(between), abs=1e-9)
    reasons = found.principal_reasons(i)
    assert 1 <= len(reasons) <= 4
    assert [r.contribution for r in reasons] == sorted(r.contribution for r in reasons)
    assert all(r.contribution < 0 for r in reasons)


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
    with pytest.raises(LetterError, match=rf"every principal reason, got none for '{name} "):
        found.letter(i, codes={k: v for k, v in CODES.items() if k != name})


# ------------------------------------------------------------------------------------------- languages


def test_a_letter_in_german(found) -> None:
    i = a_row(found, "certified")
    text = issued(found, i, "text", "de")
    assert "Ihr Antrag wurde abgelehnt." in text
    assert "HAUPTGRÜNDE UNSERER ENTSCHEIDUNG" in text
    assert "vor dem 1. Mai 2031" in " ".join(text.split())
    assert "Nummer der Zusage: 17" in text
    assert not re.search(r"\b(the|application|model that)\b", text)
    page = found.letter(i, codes=CODES, language="de", format="html")
    assert '<html lang="de">' in page


def test_catalogues_say_the_same_things() -> None:
    known = {name: language(name).phrases for name in languages()}
    assert {"en", "de"} <= set(known)
    for phrases in known.values():
        assert phrases.keys() == known["en"].keys()


def test_a_catalogue_of_ones_own(found, tmp_path: Path) -> None:
    phrases = {**language("en").phrases, "declined": "No."}
    path = tmp_path / "short.json"
    path.write_text(json.dumps(phrases))
    i = a_row(found, "certified")
    assert "\nNo.\n" in found.letter(i, codes=CODES, language=path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"declined": None}, "'declined' too few or many"),
        ({"more": "x"}, "'more' too few or many"),
        ({"number": "Promise"}, "'number' in the phrase 'number'"),
        ({"number": "{number.__class__}"}, "in the phrase 'number'"),
        ({"months": ["January"]}, "in the phrase 'months'"),
    ],
)
def test_a_catalogue_that_is_not_whole_is_refused(found, tmp_path: Path, change, said) -> None:
    phrases = {k: v for k, v in {**language("en").phrases, **change}.items() if v is not None}
    path = tmp_path / "own.json"
    path.write_text(json.dumps(phrases))
    with pytest.raises(LetterError, match=re.escape(said)):
        found.letter(0, codes=CODES, language=path)


def test_an_unknown_language_is_refused(found) -> None:
    with pytest.raises(LetterError, match="a language among de, en, got 'fr'"):
        found.letter(0, codes=CODES, language="fr")


# ------------------------------------------------------------------------------- what changes by itself


def test_what_a_year_brings_is_covered_where_the_schema_says_so() -> None:
    model, X = fitted()
    rules = vt.Schema(
        [f.replace(yearly=(0, 1)) if f.name == "age" else f for f in model.schema_.features],
        model.schema_.target,
        model.schema_.favourable,
        model.schema_.unfavourable,
    )
    again = vt.Schema.from_json(rules.to_json())
    assert again == rules
    assert '"yearly"' not in model.schema_.to_json()
    found = model.recourse(again).explain(X[:12], search_radius=False)
    i = a_row(found, "certified")
    assert found.drift == {"age": (0.0, 1.0)}
    assert "age (which may grow by up to 1, but must not fall)" in " ".join(
        found.letter(i, codes=CODES).split()
    )
    assert model.recourse(again).explain(X[:2], drift={"age": 0}).drift == {"age": 0.0}
    assert not model.explain(X[:2]).drift
    assert yearly_drift(again, 2.1) == {"age": (0.0, 3.0)}


def test_what_can_not_move_by_itself_is_refused() -> None:
    for wrong in ((1, 2), (0, float("inf"))):
        with pytest.raises(SchemaError, match="yearly from at most 0"):
            Feature("age", "integer", yearly=wrong)
    with pytest.raises(SchemaError, match="yearly from at most 0"):
        Feature("job", "categorical", categories=["a", "b"], yearly=(0, 1))
    frame = pd.DataFrame({"age": [30, 40, 50], "ok": ["no", "yes", "no"]})
    assert vt.Schema.infer(frame, "ok", yearly={"age": (0, 1)})["age"].yearly == (0.0, 1.0)
    with pytest.raises(SchemaError, match="a column in yearly"):
        vt.Schema.infer(frame, "ok", yearly={"aeg": (0, 1)})


# ------------------------------------------------------------------------------------------------- PDF


def test_a_letter_as_pdf(found) -> None:
    page = found.letter(a_row(found, "certified"), codes=CODES, format="html", **FIELDS)
    outside = page.replace("</main>", '<img src="file:///etc/hostname"></main>')
    skip_without_pango()
    made = page_pdf(page)
    assert made.startswith(b"%PDF-")
    assert page_pdf(outside).startswith(b"%PDF-")  # and nothing was fetched


def test_every_page_of_a_draft_as_pdf_says_so(found) -> None:
    try:
        import weasyprint
    except OSError:
        pytest.skip("weasyprint cannot load Pango here")
    fields = {**FIELDS, "rights": "You have rights. " * 400}
    for page, drafts in (
        (found.letter(a_row(found, "certified"), codes=CODES, format="html", **fields), 1),
        (issued(found, a_row(found, "certified"), "html"), 0),
    ):
        pages = weasyprint.HTML(string=page).render().pages
        words = [[getattr(box, "text", "") for box in one._page_box.descendants()] for one in pages]
        assert [min(1, some.count("DRAFT")) for some in words] == [drafts] * len(pages)
        assert len(pages) > drafts


def test_without_weasyprint_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(LetterError, match=re.escape("pip install 'veritracer[pdf]'")):
        page_pdf("<p></p>")


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
            found.letter(i, codes=codes),
            found.letter(i, codes=codes, language="de"),
        ):
            assert not long.search(text.replace(",", ".")), text
        for change in found.changes_of(i):
            assert not long.search(" ".join(_in_words(change)))
