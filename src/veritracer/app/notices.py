"""Write notices to applicants: the decision, its reasons, what would change it, and what is promised of that.

A notice promises only what the ledger has recorded, and names the number and the last day of the promise.
``render_notice`` writes it from the ledger's record, as often as anybody asks. A notice of a result of
``explain`` is a draft: it says so on every page, and commits to nothing.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from veritracer.app.i18n import Translator
from veritracer.app.notice_subjects import Subject
from veritracer.app.notice_templates import Format, Template, page_pdf
from veritracer.app.reason_codes import Reason, ReasonCodes, as_codes, default_codes
from veritracer.changes import (
    Change,
    Direction,
    Move,
    describe_change,
    describe_models,
    describe_move,
    describe_outside,
)
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import NoticeError, message, unknown_name
from veritracer.files import whole_folder, writable
from veritracer.search.outcomes import Outcome

if TYPE_CHECKING:
    from veritracer.ledger import Ledger
    from veritracer.ledger.promises import IssuingModel

GIVEN = ("institution", "recipient", "address", "reference", "date", "contact", "rights")
"""Fields of the institution; the default templates leave out missing ones."""

RECORDED = ("number", "expires")
"""Fields from the ledger; None in a notice without a promise."""

# ------------------------------------------------------------------------------------------ writing notices


def render_notice(
    source: Counterfactuals | Ledger,
    number: int,
    /,
    codes: ReasonCodes | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    template: str | os.PathLike[str] | None = None,
    format: Format | None = None,  # noqa: A002  # the word that a caller expects
    language: str | Translator = "en",
    opening: bytes | None = None,
    **fields: Any,
) -> str:
    """Write one notice: of a promise in a ledger, or a draft about a row of a result.

    Parameters
    ----------
    source, number
        A ledger and the number of a live promise; or the result of ``explain`` and the position of a row,
        whose notice is marked as a draft and promises nothing.
    codes
        A reason for every feature that changes or is a principal reason: a mapping, ``ReasonCodes`` or a JSON
        file. A missing one is refused. Without codes, each feature has a number and a plain text.
    template, format
        A Jinja2 template, as a file or as text, instead of the default one; ``"text"`` or ``"html"``, by
        default what the file's name says, else text.
    language
        The locale, such as ``"de"``, or a ``Translator`` with a catalogue of one's own.
    opening
        What opens the commitment to the person's own row, for a promise issued with
        ``original="commitment"``.
    **fields
        What the institution adds: institution, recipient, address, reference, date, contact, rights, or
        whatever an own template names.
    """
    form = NoticeForm.of(codes, template, format, language, fields)
    if isinstance(source, Counterfactuals):
        return form.render(Subject.of_result(source, number))
    return form.render(_promised(source, number, source.models(), opening))


def _promised(
    ledger: Ledger, number: int, models: Mapping[str, IssuingModel], opening: bytes | None
) -> Subject:
    shown = ledger.shown(number)
    opened = None if opening is None else ledger.opened(number, opening)
    return Subject.of_promise(shown, models[shown["model"]], opened)


@dataclass(frozen=True)
class NoticeForm:
    """The common form of many notices: reason codes, template, language, and the institution's own fields."""

    codes: ReasonCodes
    template: Template
    translate: Translator
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        codes: ReasonCodes | Mapping[str, Any] | str | os.PathLike[str] | None,
        template: str | os.PathLike[str] | None,
        format: Format | None,  # noqa: A002
        language: str | Translator,
        fields: Mapping[str, Any],
        own: Iterable[str] = (),
    ) -> Self:
        """Return the form, after its fields and the names of each person's own ones were checked."""
        check_fields([*fields, *own], known=template is None)
        translate = language if isinstance(language, Translator) else Translator(language)
        return cls(as_codes(codes), Template.of(template, format), translate, fields)

    def render(self, subject: Subject, own: Mapping[str, Any] | None = None) -> str:
        """Write the notice about a subject; ``own`` are the person's own fields."""
        return self.template.render(self._context(subject, {**self.fields, **(own or {})}), self.translate)

    def missing(self, subject: Subject) -> list[tuple[str, Direction]]:
        """Return the features, and which way, that a notice about the subject needs a reason for."""
        codes, changed = self._codes(subject), [(c.feature.name, c.direction) for c in subject.changes]
        return [(name, way) for name, way in (*subject.reasons, *changed) if way not in codes.get(name, {})]

    def _codes(self, subject: Subject) -> ReasonCodes:
        """Return the institution's reason codes, or the default ones where it has none."""
        return self.codes or default_codes(subject.schema, self.translate)

    def _context(self, subject: Subject, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a template: what is said of the row, and what the institution adds."""
        say = self.translate.gettext
        reasons = self._codes(subject).reasons(subject.changes)
        steps = [self._step(change, one) for change, one in zip(subject.changes, reasons, strict=True)]
        later = (
            say("Nothing is promised for a model that is changed beyond that limit.")
            if subject.is_promised
            else say("Nothing is promised about later versions of our model, which may decide otherwise.")
        )
        context = {
            **dict.fromkeys((*GIVEN, *RECORDED)),
            **self._dated(fields, subject),
            "draft": subject.number is None,
            "mark": f"{say('DRAFT')}: " if subject.number is None else "",
            "outcome": "promised" if subject.is_promised else subject.status,
            "record": self._record(subject),
            "reasons": self._reasons(subject),
            "changes": steps,
            "not_covered": [later, *self._not_covered(steps)] if steps else [],
            "promise": "",
            "terms": [],
            "annex": [],
            "why": self._why(subject.outcome) if subject.status == "none" else "",
            "language": self.translate.locale.replace("_", "-"),
        }
        return context | self._promise(subject, steps) if subject.is_promised else context

    def _promise(self, subject: Subject, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what a notice says only of a promise that is in the ledger."""
        say, number, end = self.translate.gettext, subject.number, subject.expires
        condition = (
            say(" and would still decline your application as it is now") if subject.conditional else ""
        )
        if end is None:
            until = None
            promise = say(
                "We commit to this without a last day, also if we update our scoring model, as long as the "
                "updated model keeps to the limit in the annex%(condition)s: with the values above you will "
                "be accepted if all of this holds.",
                condition=condition,
            )
            entry = say("This promise is number %(number)s in our ledger and has no end.", number=number)
        else:
            until = self.translate.format_moment(end)
            promise = say(
                "We commit to this for every application that reaches us before %(expires)s, also if we "
                "update our scoring model until then, as long as the updated model keeps to the limit in the "
                "annex%(condition)s: with the values above you will be accepted if all of this holds.",
                expires=until,
                condition=condition,
            )
            entry = say(
                "This promise is number %(number)s in our ledger and ends on %(moment)s (UTC).",
                number=number,
                moment=f"{end:%Y-%m-%d %H:%M:%S}",
            )
        assert subject.models is not None
        limit = say(
            "The model that then decides is today's, or an update of it that keeps to the limit for which "
            "this was proved: its %(limit)s, and nothing else of how it decides is changed.",
            limit=describe_models(subject.models, self.translate),
        )
        proved = say("It was proved for every model within that limit, not only tried on some.")
        digest = say("Today's model has the digest %(digest)s.", digest=subject.digest)
        return {
            "number": number,
            "expires": until,
            "promise": promise,
            "terms": self._terms(subject, steps),
            "annex": [limit, proved, digest, entry],
        }

    def _reasons(self, subject: Subject) -> list[dict[str, str]]:
        """Return the principal reasons, each once."""
        codes = self._codes(subject)
        reasons = codes.named(subject.reasons, "every principal reason")
        texts = [codes.text(*pair, self.translate) for pair in subject.reasons]
        pairs = dict.fromkeys(zip([reason.code for reason in reasons], texts, strict=True))
        return [{"code": code, "text": text} for code, text in pairs]

    def _record(self, subject: Subject) -> str:
        """Return what the decision is called in the institution's records, and which label is favourable."""
        say, schema = self.translate.gettext, subject.schema
        if schema.favourable is None or schema.unfavourable is None:
            return ""
        words = {"target": schema.target or say("the decision")}
        if subject.status == "accepted":
            return say("In our records %(target)s is “%(label)s”.", **words, label=schema.favourable)
        return say(
            "In our records %(target)s is “%(label)s”; for an accepted application it is “%(wanted)s”.",
            **words,
            label=schema.unfavourable,
            wanted=schema.favourable,
        )

    def _why(self, outcome: Outcome) -> str:
        """Return why nothing is proposed.

        Which constraint would have to give is left out: it may be one that no notice should speak of.
        """
        say = self.translate.gettext
        if outcome is Outcome.IMPOSSIBLE:
            return say("It is certain that no change that is open to you would alter today's decision.")
        if outcome is Outcome.TOO_CLOSE:
            return say(
                "Your application is so close to the border of the decision that rounding decides. Please "
                "ask us to look at it again."
            )
        if outcome is Outcome.OUT_OF_TIME:
            return say(
                "We did not find one in the time that was set for it. That does not mean that there is none."
            )
        if outcome is Outcome.UNMET:
            return say("We found a change that our model would accept, but not one that we can recommend.")
        if outcome is Outcome.NOT_FOUND:
            return say("We looked for one and found none. That does not mean that there is none.")
        return say("We cannot name one.")

    def _dated(self, fields: Mapping[str, Any], subject: Subject) -> dict[str, Any]:
        """Return the fields with dates in words; a notice is of the day of its promise, or of today."""
        day = datetime.date.today() if subject.issued is None else subject.issued.date()
        return {
            name: self.translate.format_date(value) if isinstance(value, datetime.date) else value
            for name, value in {"date": day, **fields}.items()  # a datetime is a date
        }

    def _step(self, change: Change, reason: Reason) -> dict[str, Any]:
        """Return one change in the institution's words."""
        say, way = self.translate.gettext, change.direction
        label, value = reason.called(change.feature.name), partial(reason.value, translate=self.translate)
        before, after = value(change.stated), value(change.after)
        limit = value(change.limit) if change.goes_on else None
        words = {"label": label, "after": after, "limit": limit}
        needed, to_do = after, say("Change %(label)s", label=label)
        if way == "raise":
            needed = say("%(after)s, up to %(limit)s", **words) if change.goes_on else after
            to_do = say("Raise %(label)s", label=label)
        elif way == "reduce":
            needed = say("%(after)s, down to %(limit)s", **words) if change.goes_on else after
            to_do = say("Reduce %(label)s", label=label)
        elif way == "state":
            to_do = say("State %(label)s", label=label)
        return {
            "feature": change.feature.name,
            "label": label,
            "code": reason.code,
            "direction": way,
            "before": say("not stated") if change.was_missing else before,
            "after": after,
            "at_most": limit,
            "needed": needed,
            "to_do": to_do,
            "instruction": describe_change(change, self.translate, label=label, value=value),
        }

    def _terms(self, subject: Subject, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return what must stay as it is for the promise to hold, a sentence each, in plain words."""
        say, asked = self.translate.gettext, {step["feature"]: step["label"] for step in steps}
        kept = [move for move in subject.moves if move.feature.name not in asked]
        if kept:
            moving = [
                say("%(label)s (which %(words)s)", label=label, words=words)
                for label, words in map(self._move, kept)
            ]
            rest = say(
                "Everything else that you stated is the same as in this application, except for %(moving)s.",
                moving=", ".join(moving),
            )
        else:
            rest = say(
                "Everything else that you stated is the same as in this application, also what changes by "
                "itself."
            )
        terms = [rest]
        for move in subject.moves:
            name = move.feature.name
            if name in asked:  # on top of what is asked, and of going further
                sentence = say(
                    "From wherever you bring it, and without your doing, %(label)s %(words)s.",
                    label=asked[name],
                    words=self._move(move)[1],
                )
                terms.append(sentence)
        labels = {one.name: asked.get(one.name, one.name.replace("_", " ")) for one in subject.outside}
        return terms + [describe_outside(one, 0, self.translate, labels[one.name]) for one in subject.outside]

    def _move(self, move: Move) -> tuple[str, str]:
        """Return what a value is called, and what may become of it by itself."""
        name = move.feature.name
        known = next(iter(self.codes[name].values()), None) if name in self.codes else None
        label = (known.label if known else "") or name.replace("_", " ")
        amount = partial(known.amount, translate=self.translate) if known else None
        return label, describe_move(move, self.translate, amount)

    def _not_covered(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return what the notice does not say, a sentence each, besides what it does not say of models."""
        say = self.translate.gettext
        further = [
            say("%(label)s as far as %(limit)s", label=step["label"], limit=step["at_most"])
            for step in steps
            if step["at_most"]
        ]
        if further:
            first = say(
                "Going further is covered for %(further)s; nothing is said about other values.",
                further=", ".join(further),
            )
        else:
            first = say(
                "Only the values above were examined; nothing is said about others, not even about better "
                "ones."
            )
        return [
            first,
            say("What you state will be checked as in any application."),
            say("Whether these changes are possible or wise for you, only you can judge."),
        ]


def check_fields(names: Iterable[str], *, known: bool) -> None:
    """Refuse fields that only the ledger fills in and, with the default template, those without a place."""
    for name in names:
        if name in RECORDED:
            remedy = "leave it out: the notice of an issued promise says what was recorded"
            raise NoticeError(message("fields that the ledger does not know", repr(name), remedy))
        if known and name not in GIVEN:
            raise NoticeError(unknown_name("a field of the default notice", name, GIVEN, limit=len(GIVEN)))


# --------------------------------------------------------------------------------------------- many notices


class Notice(NamedTuple):
    """One notice to be written: the name of its file, what it is about, and the person's own fields."""

    name: str
    subject: Subject
    own: Mapping[str, Any]


def promise_notices(
    ledger: Ledger,
    numbers: Iterable[int],
    own: Mapping[int, Mapping[str, Any]] | None = None,
    openings: Mapping[int, bytes] | None = None,
) -> Iterator[Notice]:
    """Yield the notices of these promises; ``own`` and ``openings`` are by number."""
    own, openings, models = own or {}, openings or {}, ledger.models()
    for number in numbers:
        subject = _promised(ledger, number, models, openings.get(number))
        yield Notice(f"{number:06}", subject, own.get(number, {}))


def draft_notices(
    found: Counterfactuals, own: Sequence[Mapping[str, Any]] | None = None, before: int = 0
) -> Iterator[Notice]:
    """Yield a draft for each declined row of a result.

    ``own`` are the fields by position of the row; ``before`` rows of the table come before the result's.
    """
    for i in np.flatnonzero(~found.favourable).tolist():
        row = int(found.row[i])
        name = f"{before + row + 1:06}" + (f"-{found.alternative[i] + 1}" if found.options.n > 1 else "")
        yield Notice(name, Subject.of_result(found, i), {} if own is None else own[row])


def write_notices(
    folder: str | os.PathLike[str], notices: Iterable[Notice], form: NoticeForm, *, pdf: bool = False
) -> int:
    """Write each notice into a file of a new folder, and return their number.

    The folder appears when all of them are written; reason codes that are missing are named all at once.
    ``pdf`` also writes each notice in HTML as PDF.
    """
    place = Path(folder)
    if place.exists():
        remedy = "name a new one, so that nobody gets an old notice"
        raise NoticeError(message("a folder for notices that is not there yet", str(place), remedy))
    if pdf:
        if form.template.format != "html":
            remedy = "leave the format out, or give a template in HTML"
            raise NoticeError(message("notices in HTML for PDF files", "notices as text", remedy))
        page_pdf("<p></p>")  # what is missing for it is better known now
    ending, count = "html" if form.template.format == "html" else "txt", 0
    missing: dict[tuple[str, Direction], None] = {}
    with writable(place), whole_folder(place) as partial:
        for name, subject, own in notices:
            missing |= dict.fromkeys(form.missing(subject))
            if missing:
                continue  # nothing will be kept, but all names are wanted
            text = form.render(subject, own)
            (partial / f"{name}.{ending}").write_text(text, encoding="utf-8")
            if pdf:
                (partial / f"{name}.pdf").write_bytes(page_pdf(text))
            count += 1
        form.codes.named([*missing], "every changed feature and every principal reason")
    return count
