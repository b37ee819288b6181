"""Write notices to applicants: the decision, its reasons, what would change it, and what is promised of that.

A notice promises only what the ledger has recorded, and names the number and the last day of the promise.
``render_notice`` writes it from the ledger's record, as often as anybody asks. A notice of a result of
``explain`` is a draft: it says so on every page, and commits to nothing.

Templates are filled in in a sandbox that sees nothing but its fields.
"""

from __future__ import annotations

import datetime
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import numpy as np

from veritracer.app.i18n import Translator
from veritracer.app.reason_codes import Reason, ReasonCodes, as_codes
from veritracer.changes import (
    Change,
    Direction,
    Move,
    codes_within,
    covered_ends,
    describe_change,
    describe_models,
    describe_move,
    read_cells,
)
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import NoticeError, listing, message, unknown_name
from veritracer.files import whole_folder, writable
from veritracer.formatting import as_written, to_python
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.schema import Schema
from veritracer.search.outcomes import LEAST_AGREEMENT, Outcome
from veritracer.search.problem import Drift

if TYPE_CHECKING:
    from veritracer.ledger import Ledger
    from veritracer.ledger.promises import IssuingModel

Format = Literal["text", "html"]
FILES: dict[Format, str] = {"text": "notice.txt", "html": "notice.html"}
PLACE = Path(__file__).parent / "templates"

Proposal = Literal["certified", "valid", "none"]
"""What a notice proposes: changes that are proved for later models, or for today's alone, or nothing."""

GIVEN = ("institution", "recipient", "address", "reference", "date", "contact", "rights")
"""What the institution says; the default templates leave out what it does not."""

TRANSLATING = ("_", "gettext", "ngettext")
"""What a template translates with."""

RECORDED = ("number", "expires")
"""What only the ledger says; None in a notice without a promise."""

ROUNDING = 1e-12
"""Share by which computing a radius anew may differ."""


class Recorded(NamedTuple):
    """A promise in the ledger: its number, when it was issued, and when it ends (None: never), in UTC."""

    number: int
    issued: datetime.datetime
    expires: datetime.datetime | None


@dataclass(frozen=True)
class Subject:
    """What a notice is about: one application, the decision on it, and what would change that.

    Attributes
    ----------
    schema, favourable, digest
        The columns and labels, whether the application is accepted, and the digest of the model that decided.
    proposal, outcome
        What is proposed, and how the search ended where that is nothing.
    reasons
        The principal reasons, as pairs of feature and direction.
    changes, moves
        What to change, and what may change by itself.
    models, conditional
        The set of models that this is proved for, and whether these have to decide the application as today.
    recorded
        The promise of it in the ledger; None in a draft.
    """

    schema: Schema
    favourable: bool
    digest: str
    proposal: Proposal
    outcome: Outcome
    reasons: Sequence[tuple[str, Direction]] = ()
    changes: Sequence[Change] = ()
    moves: Sequence[Move] = ()
    models: ParamSet | None = None
    conditional: bool = False
    recorded: Recorded | None = None

    @classmethod
    def of_result(cls, found: Counterfactuals, i: int) -> Self:
        """Return the subject of a draft about row ``i`` of a result.

        What a panel does not believe is not recommended to anybody, whatever was proved of it; and what was
        proved for today's model alone is no promise.
        """
        if not -len(found) <= i < len(found):
            raise NoticeError(
                message(f"one of {len(found):,} counterfactuals", f"number {i}", "count from 0")
            )
        favourable, ended = bool(found.favourable[i]), found.outcome[i]
        about: dict[str, Any] = {"schema": found.encoding.schema, "favourable": favourable}
        about |= {"digest": found.model_digest, "outcome": ended, "proposal": "none"}
        if favourable:
            return cls(**about)
        about["reasons"] = [(one.feature, one.direction) for one in found.principal_reasons(i)]
        if found.status[i] == "none":
            return cls(**about)
        if found.agreement[i] < LEAST_AGREEMENT:
            return cls(**{**about, "outcome": Outcome.UNMET})
        if not (found.certified[i] and found.kappa > 0):  # how far one may go on is proved with the rest only
            about["changes"] = [change._replace(limit=None) for change in found.changes_of(i)]
            return cls(**{**about, "proposal": "valid"})
        about |= {"proposal": "certified", "changes": found.changes_of(i), "moves": found.moves_of(i)}
        promise = found.promise(i)
        return cls(**about, models=promise.models, conditional=promise.conditional)

    @classmethod
    def of_promise(
        cls, shown: Mapping[str, Any], model: IssuingModel, opened: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the subject of the notice about a promise, as ``Ledger.shown`` has it.

        ``opened`` is what ``Ledger.opened`` says where the person's own row is not in the ledger.
        """
        number = shown["sequence"]
        if shown["status"] != "live":
            received = f"number {number}, which is {shown['status']}"
            raise NoticeError(message("a live promise", received, "write notices of those that are live"))
        opened = opened or {"row": shown["original"], **shown}
        if opened["row"] is None or opened.get("reasons") is None:
            received = f"a commitment to it in promise {number}" if opened["row"] is None else "an old entry"
            remedy = "give the key of the ledger, or the opening of the promise"
            raise NoticeError(message("the person's own row in the ledger", received, remedy))
        recorded = Recorded(number, _moment(shown["issued"]), _end(shown["expires"]))
        schema = model.encoding.schema
        about: dict[str, Any] = {"schema": schema, "favourable": shown["favourable"], "recorded": recorded}
        about |= {"digest": model.model_digest, "proposal": "certified", "outcome": Outcome.CERTIFIED}
        if shown["favourable"]:
            return cls(**{**about, "proposal": "none", "outcome": Outcome.FAVOURABLE})
        about["reasons"] = [(feature, way) for feature, way in opened["reasons"]]
        changes, moves = _recorded_changes(shown["values"], opened, model)
        if not (shown["certified"] and shown["kappa"] > 0):  # what is valid today alone is no promise
            changes = [change._replace(limit=None) for change in changes]
            return cls(**{**about, "proposal": "valid", "recorded": None, "changes": changes})
        models = _by_rule(model.param_set(shown["kappa"]))
        about |= {"changes": changes, "moves": moves, "models": models}
        return cls(**about, conditional=shown["conditional"])


def _recorded_changes(
    values: Mapping[str, Any], opened: Mapping[str, Any], model: IssuingModel
) -> tuple[list[Change], list[Move]]:
    """Return the changes and moves of a promise, from the rows that the ledger has."""
    from veritracer.ledger.records import table_of

    encoding, schema = model.encoding, model.encoding.schema
    own, shown = (table_of([dict(row)], list(values)) for row in (opened["row"], values))
    x, x_cf = (encoding.encode(table, out_of_range="ignore") for table in (own, shown))
    changed = {schema.names[k] for k in encoding.changed(x_cf, x)[0].nonzero().squeeze(-1).tolist()}
    changes, moves = [], []
    for name, (before, after) in read_cells(encoding, own, shown).items():
        feature, limit = schema[name], opened["limits"].get(name)
        shown_cell = to_python(after[0])
        if name in changed:
            changes.append(Change(feature, to_python(before[0]), shown_cell, limit))
        drift = Drift(*opened["drift"].get(name, (0.0, 0.0)))
        ends = covered_ends(feature, shown_cell, limit, drift) if any(drift) else None
        if ends is not None:
            moves.append(Move(feature, drift, codes_within(feature, *ends)))
    return changes, moves


def _by_rule(models: ParamSet) -> ParamSet:
    """Return the same set, with its radii as a share of the weights where that is what they are."""
    for rule in get_args(RadiusRule):
        named = ParamSet.of(models.network, models.center, models.kappa, models.norm, rule)
        pairs = [(float(a), float(b)) for a, b in zip(named.radii, models.radii, strict=True)]
        if all(abs(a - b) <= ROUNDING * b for a, b in pairs):
            return named
    return models


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def _end(text: str) -> datetime.datetime | None:
    return None if text == "never" else _moment(text)


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
        file. A missing one is refused.
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
    """What many notices share: reason codes, template, language, and the institution's own fields."""

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
        changed = [(change.feature.name, change.direction) for change in subject.changes]
        wanted = [*subject.reasons, *changed] if self.codes or changed else []
        return [(name, way) for name, way in wanted if way not in self.codes.get(name, {})]

    def _context(self, subject: Subject, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a template: what is said of the row, and what the institution adds."""
        say, plural, many = self.translate.gettext, self.translate.ngettext, len(subject.changes)
        reasons = self.codes.reasons(subject.changes)
        steps = [self._step(change, one) for change, one in zip(subject.changes, reasons, strict=True)]
        recorded, promised = subject.recorded, _is_promised(subject)
        draft, certified = recorded is None, subject.proposal == "certified"
        terms = self._terms(subject, steps) if certified else []
        later = (
            say("Nothing is promised for a model that is changed beyond that limit.")
            if promised
            else say("Nothing is promised about later versions of our model, which may decide otherwise.")
        )
        proposal = plural(
            "With the change above, a promise would hold under these conditions once it is issued, as long "
            "as updates of our scoring model keep to the limit in the annex:",
            "With the changes above, a promise would hold under these conditions once it is issued, as long "
            "as updates of our scoring model keep to the limit in the annex:",
            many,
        )
        context = {
            **dict.fromkeys((*GIVEN, *RECORDED)),
            **self._dated(fields, recorded),
            "draft": draft,
            "mark": f"{say('DRAFT')}: " if draft else "",
            "outcome": "accepted" if subject.favourable else "promised" if promised else subject.proposal,
            "record": self._record(subject),
            "reasons": self._reasons(subject),
            "changes": steps,
            "terms": terms,
            "not_covered": [later, *self._not_covered(steps)] if steps else [],
            "proposal": proposal if certified and not promised else "",
            "promise": "",
            "conditions": [],
            "annex": self._annex(subject) if certified else [],
            "why": self._why(subject.outcome) if subject.proposal == "none" else "",
            "language": self.translate.locale.replace("_", "-"),
        }
        if promised:
            assert recorded is not None
            context |= self._promise(recorded, subject, terms)
        return context

    def _promise(self, recorded: Recorded, subject: Subject, terms: Sequence[str]) -> dict[str, Any]:
        """Return what a notice says only of a promise that is in the ledger."""
        say, plural, many = self.translate.gettext, self.translate.ngettext, len(subject.changes)
        limit = self._limit(subject)
        if recorded.expires is None:
            promise = plural(
                "We commit to this without a last day, also if we update our scoring model, as long as the "
                "update keeps to the limit in the annex: with the change above you will be accepted if all "
                "of this holds.",
                "We commit to this without a last day, also if we update our scoring model, as long as the "
                "update keeps to the limit in the annex: with the changes above you will be accepted if all "
                "of this holds.",
                many,
            )
            last, day = say("You may apply at any time: no last day has been set."), None
        else:
            day = self.translate.format_date(recorded.expires.date())
            promise = plural(
                "We commit to this for every application that reaches us before %(expires)s, also if we "
                "update our scoring model until then, as long as the update keeps to the limit in the annex: "
                "with the change above you will be accepted if all of this holds.",
                "We commit to this for every application that reaches us before %(expires)s, also if we "
                "update our scoring model until then, as long as the update keeps to the limit in the annex: "
                "with the changes above you will be accepted if all of this holds.",
                many,
                expires=day,
            )
            last = say("You apply before %(expires)s.", expires=day)
        return {
            "number": recorded.number,
            "expires": day,
            "promise": promise,
            "conditions": [last, limit, *terms],
        }

    def _annex(self, subject: Subject) -> list[str]:
        """Return what was proved, and where the ledger has it."""
        say, recorded = self.translate.gettext, subject.recorded
        lines = [
            self._limit(subject),
            say("It was proved for every model within that limit, not only tried on some."),
            say("Today's model has the digest %(digest)s.", digest=subject.digest),
        ]
        if recorded is None:
            return lines
        if recorded.expires is None:
            number = recorded.number
            lines.append(
                say("This promise is number %(number)s in our ledger and has no end.", number=number)
            )
            return lines
        entry = say(
            "This promise is number %(number)s in our ledger and ends on %(moment)s (UTC).",
            number=recorded.number,
            moment=f"{recorded.expires:%Y-%m-%d %H:%M:%S}",
        )
        return [*lines, entry]

    def _limit(self, subject: Subject) -> str:
        assert subject.models is not None
        return self.translate.gettext(
            "The model that then decides is today's, or an update of it that keeps to the limit for which "
            "this was proved: its %(limit)s, and nothing else of how it decides is changed.",
            limit=describe_models(subject.models, self.translate),
        )

    def _reasons(self, subject: Subject) -> list[dict[str, str]]:
        """Return the principal reasons, each once; none for who gave no codes and needs none."""
        if subject.favourable or not (self.codes or subject.changes):
            return []
        reasons = self.codes.named(subject.reasons, "every principal reason")
        texts = [self.codes.text(*pair, self.translate) for pair in subject.reasons]
        pairs = dict.fromkeys(zip([reason.code for reason in reasons], texts, strict=True))
        return [{"code": code, "text": text} for code, text in pairs]

    def _record(self, subject: Subject) -> str:
        """Return what the decision is called in the institution's records, and which label is favourable."""
        say, schema = self.translate.gettext, subject.schema
        if schema.favourable is None or schema.unfavourable is None:
            return ""
        words = {"target": schema.target or say("the decision")}
        if subject.favourable:
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

    def _dated(self, fields: Mapping[str, Any], recorded: Recorded | None) -> dict[str, Any]:
        """Return the fields with dates in words; a notice is of the day of its promise, or of today."""
        day = datetime.date.today() if recorded is None else recorded.issued.date()
        return {
            name: self.translate.format_date(value) if isinstance(value, datetime.date) else value
            for name, value in {"date": day, **fields}.items()  # a datetime is a date
        }

    def _step(self, change: Change, reason: Reason) -> dict[str, Any]:
        """Return one change in the institution's words."""
        say, way = self.translate.gettext, change.direction
        label, value = reason.called(change.feature.name), partial(reason.value, translate=self.translate)
        before, after = value(as_written(change.before)), value(change.after)
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
        if subject.conditional:
            terms.append(
                say("The model that then decides would still decline your application as it is now.")
            )
        return terms

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


def _is_promised(subject: Subject) -> bool:
    return subject.recorded is not None and subject.proposal == "certified"


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
        name = f"{before + row + 1:06}" + (f"-{found.alternative[i] + 1}" if found.n > 1 else "")
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


# ------------------------------------------------------------------------------------------------ templates


@dataclass(frozen=True)
class Template:
    """The source of a template, what it writes, and what it is called in a message."""

    source: str
    format: Format
    name: str

    @classmethod
    def of(cls, template: str | os.PathLike[str] | None, kind: Format | None) -> Template:
        """Return the template that is meant: a file, the text itself (a brace or two lines), or our own.

        Without ``kind`` a file that ends in .html is HTML, everything else text.
        """
        if kind is not None and kind not in get_args(Format):
            raise NoticeError(message("format 'text' or 'html'", repr(kind), "choose one of them"))
        if template is None:
            own = FILES[kind or "text"]
            return cls((PLACE / own).read_text(encoding="utf-8"), kind or "text", own)
        if isinstance(template, str) and ("{" in template or "\n" in template):
            return cls(template, kind or "text", "the template")
        place = Path(template)
        is_page = place.suffix.casefold() in (".html", ".htm")
        return cls(_read(place), kind or ("html" if is_page else "text"), place.name)

    def render(self, fields: Mapping[str, Any], translate: Translator) -> str:
        """Fill in the template; refuse an unknown field by name."""
        jinja2 = _jinja2()
        environment = _environment(translate, autoescape=self.format == "html")
        try:
            unknown = sorted(
                jinja2.meta.find_undeclared_variables(environment.parse(self.source))
                - {*fields, *TRANSLATING}
            )
            if unknown:
                remedy = f"pass it as a field, or use one of {', '.join(sorted(fields))}"
                raise NoticeError(message(f"known fields in {self.name}", listing(unknown), remedy))
            return str(environment.from_string(self.source).render(fields)).strip() + "\n"
        except jinja2.TemplateSyntaxError as error:
            received = f"line {error.lineno}: {error.message}"
            raise NoticeError(message(f"a Jinja2 template in {self.name}", received, "correct it")) from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, NoticeError):
                raise
            remedy = "see the fields of a notice in docs/how-to/write-notices.md"
            expected = f"a template that can be filled in, {self.name}"
            raise NoticeError(message(expected, str(error) or type(error).__name__, remedy)) from None


def page_pdf(page: str) -> bytes:
    """Return a notice in HTML as PDF, as it would be printed; nothing is fetched from anywhere for it."""
    try:
        # Warnings are of what it imports. Without Pango it prints a few lines as well, before the error.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            import weasyprint
            from weasyprint.urls import URLFetcher
    except ModuleNotFoundError as error:
        said = message("the package weasyprint", "an install without it", "pip install 'veritracer[pdf]'")
        raise NoticeError(said) from error
    except OSError as error:  # what it needs from the system: Pango
        remedy = "install Pango (Debian: apt install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0)"
        received = str(error).splitlines()[0]
        raise NoticeError(message("the libraries that weasyprint needs", received, remedy)) from None
    fetcher = URLFetcher(allowed_protocols=("data",))
    made: bytes = weasyprint.HTML(string=page, url_fetcher=fetcher).write_pdf(pdf_tags=True)
    return made


def _environment(translate: Translator, *, autoescape: bool) -> Any:
    """Return an environment whose templates can reach our own ones (to extend them), and no other file."""
    jinja2 = _jinja2()
    found = jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(PLACE),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    translate.install(found)
    return found


def _jinja2() -> Any:
    """Return the package, which the base install does not have."""
    try:
        import jinja2.meta
        import jinja2.sandbox
    except ModuleNotFoundError as error:
        said = message("the package jinja2", "an install without it", "pip install 'veritracer[report]'")
        raise ModuleNotFoundError(said, name=error.name) from None
    return jinja2


def _read(place: Path) -> str:
    try:
        return place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        received = f"{place}, which cannot be read ({why})"
        raise NoticeError(message("a template file, or the template itself", received, "name one")) from None
