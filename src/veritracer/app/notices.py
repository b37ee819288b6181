"""A notice for the person: the decision, its reasons, what would change it, and what is promised of that.

A letter promises only what the ledger has recorded, and names the number and the last day of the promise.
Every other letter that shows changes is a draft: it says so on every page, and commits to nothing.

Its template is filled in in a sandbox that sees nothing but its fields.
"""

from __future__ import annotations

import datetime
import io
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from veritracer.errors import LetterError, listing, message, unknown_name
from veritracer.formatting import as_written
from veritracer.reasons import Direction, Reason, ReasonCodes, direction, told
from veritracer.search.outcomes import LEAST_AGREEMENT, Outcome
from veritracer.wording import Change, Language, Move, language, limit_in_words, move_in_words

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

Format = Literal["text", "html"]
FILES: dict[Format, str] = {"text": "letter.txt", "html": "letter.html"}

Subject = Literal["promised", "certified", "valid", "none", "accepted"]
"""What a letter is about: templates know it as ``outcome``. It is promised only where the ledger says so."""

WHY: dict[Outcome, str] = {
    Outcome.IMPOSSIBLE: "why_impossible",
    Outcome.TOO_CLOSE: "why_too_close",
    Outcome.OUT_OF_TIME: "why_out_of_time",
    Outcome.UNMET: "why_unmet",
    Outcome.NOT_FOUND: "why_not_found",
}
"""The phrase that a person is told where there is no recourse, by how it ended.

Which constraint would have to give is left out: it may be one that no letter should speak of.
"""

GIVEN = ("institution", "recipient", "address", "reference", "date", "contact", "rights")
"""What the institution says; the default templates leave out what it does not."""

RECORDED = ("number", "expires")
"""What only the ledger says; None in a letter without a promise."""


class Recorded(NamedTuple):
    """The number of a promise in the ledger, and when it ends, in seconds since 1970 (infinite: never)."""

    number: int
    expires: float

    @property
    def end(self) -> datetime.datetime | None:
        """The end as a moment in UTC; None where there is none."""
        finite = math.isfinite(self.expires)
        return datetime.datetime.fromtimestamp(self.expires, datetime.UTC) if finite else None


def write_letter(
    found: Counterfactuals,
    i: int,
    template: str | os.PathLike[str] | None,
    codes: ReasonCodes,
    kind: Format | None,
    fields: Mapping[str, Any],
    words: Language | None = None,
    recorded: Recorded | None = None,
) -> str:
    """Write the letter for counterfactual ``i``: a draft unless it is of a promise that was ``recorded``."""
    if not -len(found) <= i < len(found):
        remedy = "count from 0"
        raise LetterError(message(f"one of {len(found):,} counterfactuals", f"number {i}", remedy))
    words = words or language("en")
    page = Template.of(template, kind)
    check_recorded(fields)
    if template is None:
        check_fields(fields)
    said = facts(found, i, codes, words)
    return page.render(filled(said, fields, words, recorded, draft=recorded is None))


def facts(found: Counterfactuals, i: int, codes: ReasonCodes, words: Language) -> dict[str, Any]:
    """What a template may say of counterfactual ``i``: plain words of this row, and of no other.

    They are texts, lists and mappings of texts: ``filled`` adds what is known later, such as a number.
    """
    outcome = outcome_of(found, i)
    changes = found.changes_of(i) if outcome in ("certified", "valid") else []
    if outcome == "valid":  # how far one may go on is proved only where all of it is
        changes = [change._replace(limit=None) for change in changes]
    asked = codes.reasons(changes)
    steps = [_step(c, reason, words) for c, reason in zip(changes, asked, strict=True)]
    terms, limit, condition = [], "", ""
    if outcome == "certified":
        promise = found.promise(i)
        terms = _terms(found.moves_of(i), steps, codes, words)
        limit = words.say("limit", limit=limit_in_words(promise.models, words))
        condition = words.say("still_declined") if promise.conditional else ""
    return {
        "outcome": outcome,
        "record": _record(found, i, words),
        "reasons": _reasons(found, i, codes, words, given=bool(codes or changes)),
        "changes": steps,
        "terms": [*terms, *([condition] if condition else [])],
        "limit": limit,
        "digest": found.model_digest,
        "not_covered": _not_covered(steps, words) if steps else [],
        "why": _why_none(found, i, words) if outcome == "none" else "",
    }


def filled(
    said: Mapping[str, Any],
    fields: Mapping[str, Any],
    words: Language,
    recorded: Recorded | None = None,
    *,
    draft: bool,
) -> dict[str, Any]:
    """Return the fields of a template: what is said of the row, what the institution adds, and the phrases.

    A letter that shows changes is a draft until they are a promise in the ledger, whatever else is asked for.
    """
    certified = said["outcome"] == "certified"
    promised = certified and recorded is not None
    draft = draft or (bool(said["changes"]) and not promised)
    changes = words.say("change_word" if len(said["changes"]) == 1 else "changes_word")
    later = [words.say("beyond_limit" if promised else "later_models")] if said["changes"] else []
    annex = [said["limit"], words.say("proved"), words.say("model", digest=said["digest"])]
    context: dict[str, Any] = {
        **dict.fromkeys((*GIVEN, *RECORDED)),
        **_dated(fields, words),
        **said,
        "draft": draft,
        "mark": f"{words.say('draft')}: " if draft else "",
        "not_covered": [*later, *said["not_covered"]],
        "promise": "",
        "proposal": words.say("proposal", changes=changes) if certified and not promised else "",
        "conditions": [],
        "annex": annex if certified else [],
        "words": words.phrases,
        "say": words.say,
        "language": words.code,
    }
    if certified and recorded is not None:
        context |= _promised(said, recorded, changes, words)
        context["annex"] = [*annex, _entry(recorded, words)]
    return context


def _promised(said: Mapping[str, Any], recorded: Recorded, changes: str, words: Language) -> dict[str, Any]:
    """Return what a letter says only of a promise that is in the ledger."""
    expires = None if recorded.end is None else words.date(recorded.end.date())
    last = words.say("before_expiry", expires=expires) if expires else words.say("no_expiry")
    key = "promise_until" if expires else "promise_always"
    return {
        "outcome": "promised",
        "number": recorded.number,
        "expires": expires,
        "promise": words.say(key, expires=expires, changes=changes),
        "conditions": [last, said["limit"], *said["terms"]],
    }


def _entry(recorded: Recorded, words: Language) -> str:
    """Return the sentence that names the promise's entry in the ledger."""
    if recorded.end is None:
        return words.say("recorded_always", number=recorded.number)
    return words.say("recorded", number=recorded.number, moment=f"{recorded.end:%Y-%m-%d %H:%M:%S}")


def outcome_of(found: Counterfactuals, i: int) -> Subject:
    """What the letter is about; what was proved for today's model alone is no promise.

    What a panel does not believe is not recommended to anybody, whatever was proved of it.
    """
    if found.favourable[i]:
        return "accepted"
    if found.status[i] == "none" or found.agreement[i] < LEAST_AGREEMENT:
        return "none"
    return "certified" if found.certified[i] and found.kappa > 0 else "valid"


def wanted_codes(found: Counterfactuals, i: int) -> list[tuple[str, Direction]]:
    """The features, and which way, that the letter of row ``i`` needs a reason code for."""
    if outcome_of(found, i) == "accepted":
        return []
    reasons = [(one.feature, one.direction) for one in found.principal_reasons(i)]
    return [*reasons, *((c.feature.name, direction(c)) for c in found.changes_of(i))]


def _reasons(
    found: Counterfactuals, i: int, codes: ReasonCodes, words: Language, *, given: bool
) -> list[dict[str, str]]:
    """The principal reasons of the decision, each once; none for who gave no codes and needs none."""
    if found.favourable[i] or not given:
        return []
    wanted = [(one.feature, one.direction) for one in found.principal_reasons(i)]
    reasons = codes.named(wanted, "every principal reason")
    pairs = [(one.code, told(codes, *pair, words)) for one, pair in zip(reasons, wanted, strict=True)]
    return [{"code": code, "text": text} for code, text in dict.fromkeys(pairs)]


def _record(found: Counterfactuals, i: int, words: Language) -> str:
    """Return what the decision is called in the institution's records, and which label is favourable."""
    schema = found.encoding.schema
    if schema.favourable is None or schema.unfavourable is None:
        return ""
    target, label = schema.target or words.say("the_decision"), str(found.decision[i])
    if found.favourable[i]:
        return words.say("record_accepted", target=target, label=label)
    return words.say("record_declined", target=target, label=label, wanted=str(schema.favourable))


def _why_none(found: Counterfactuals, i: int, words: Language) -> str:
    ended = found.outcome[i] if found.status[i] == "none" else Outcome.UNMET  # a panel does not believe it
    return words.say(WHY.get(ended, "why_other"))


def _dated(fields: Mapping[str, Any], words: Language) -> dict[str, Any]:
    """The fields with dates in words; a letter is of today unless another date is given."""
    dated = {"date": datetime.date.today(), **fields}
    return {
        name: words.date(value) if isinstance(value, datetime.date) else value  # a datetime is one
        for name, value in dated.items()
    }


def check_recorded(fields: Iterable[str]) -> None:
    """Refuse what only the ledger can say of a promise."""
    for name in fields:
        if name in RECORDED:
            remedy = "leave it out: the letter of an issued promise says what was recorded"
            raise LetterError(message("fields that the ledger does not know", repr(name), remedy))


def check_fields(fields: Iterable[str]) -> None:
    """Refuse what the default letter has no place for."""
    for name in fields:
        if name not in GIVEN:
            raise LetterError(unknown_name("a field of the default letter", name, GIVEN, limit=len(GIVEN)))


def _step(change: Change, reason: Reason, words: Language) -> dict[str, Any]:
    """One change in people's words."""
    label = reason.called(change.feature.name)
    before, after = reason.value(as_written(change.before), words), reason.value(change.after, words)
    way = direction(change)
    on = "_on" if change.goes_on and way in ("raise", "reduce") else ""
    limit = reason.value(change.limit, words) if change.goes_on else None
    further = words.say("up_to" if way == "raise" else "down_to", after=after, limit=limit)
    return {
        "feature": change.feature.name,
        "label": label,
        "code": reason.code,
        "direction": way,
        "before": words.say("not_stated") if change.was_missing else before,
        "after": after,
        "at_most": limit,
        "needed": further if on else after,
        "to_do": words.say(f"do_{way}", label=label),
        "instruction": words.say(f"step_{way}{on}", label=label, before=before, after=after),
    }


def _terms(
    moves: Sequence[Move], steps: Sequence[Mapping[str, Any]], codes: ReasonCodes, words: Language
) -> list[str]:
    """What must stay as it is for the promise to hold, a sentence each, in plain words."""
    asked = {step["feature"]: step["label"] for step in steps}
    said = [_rest([move for move in moves if move.feature.name not in asked], codes, words)]
    for move in moves:
        if move.feature.name in asked:  # on top of what is asked, and of going further
            moving = _moving(move, codes, words)[1]
            said.append(words.say("moving_too", label=asked[move.feature.name], words=moving))
    return said


def _not_covered(steps: Sequence[Mapping[str, Any]], words: Language) -> list[str]:
    """What the letter does not say, a sentence each, besides what it does not say of later models."""
    further = [words.say("as_far_as", label=s["label"], limit=s["at_most"]) for s in steps if s["at_most"]]
    return [
        words.say("further", further=", ".join(further)) if further else words.say("only_these"),
        words.say("checked"),
        words.say("yours_to_judge"),
    ]


def _rest(moves: Sequence[Move], codes: ReasonCodes, words: Language) -> str:
    """What must stay as it is, and what of it may move on its own."""
    if not moves:
        return words.say("same")
    pairs = (_moving(move, codes, words) for move in moves)
    moving = [words.say("moving", label=label, words=said) for label, said in pairs]
    return words.say("same_except", moving=", ".join(moving))


def _moving(move: Move, codes: ReasonCodes, words: Language) -> tuple[str, str]:
    """What a value is called in a letter, and what may become of it by itself."""
    name = move.feature.name
    known = next(iter(codes[name].values()), None) if name in codes else None
    label = (known.label if known else "") or name.replace("_", " ")
    amount = partial(known.amount, words=words) if known else words.value
    return label, move_in_words(move, amount, words)


@dataclass(frozen=True)
class Template:
    """The source of a template, what it writes, and what it is called in a message."""

    source: str
    format: Format
    name: str

    @classmethod
    def of(cls, template: str | os.PathLike[str] | None, kind: Format | None) -> Template:
        """The template that is meant: a file, the text itself (which has a brace or two lines), or our own.

        Without ``kind`` a file that ends in .html is HTML, everything else text.
        """
        if kind is not None and kind not in get_args(Format):
            raise LetterError(message("format 'text' or 'html'", repr(kind), "choose one of them"))
        if template is None:
            own = FILES[kind or "text"]
            place = Path(__file__).parent / "templates" / own
            return cls(place.read_text(encoding="utf-8"), kind or "text", own)
        if isinstance(template, str) and ("{" in template or "\n" in template):
            return cls(template, kind or "text", "the template")
        place = Path(template)
        is_page = place.suffix.casefold() in (".html", ".htm")
        return cls(_read(place), kind or ("html" if is_page else "text"), place.name)

    def render(self, fields: Mapping[str, Any]) -> str:
        """The letter, with one end of line at its end; an unknown field is refused by name."""
        jinja2 = _jinja2()
        environment = _environment(autoescape=self.format == "html")
        try:
            unknown = sorted(
                jinja2.meta.find_undeclared_variables(environment.parse(self.source)) - {*fields}
            )
            if unknown:
                remedy = f"pass it to letter(), or use one of {', '.join(sorted(fields))}"
                raise LetterError(message(f"known fields in {self.name}", listing(unknown), remedy))
            return str(environment.from_string(self.source).render(fields)).strip() + "\n"
        except jinja2.TemplateSyntaxError as error:
            received = f"line {error.lineno}: {error.message}"
            raise LetterError(message(f"a Jinja2 template in {self.name}", received, "correct it")) from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            if isinstance(error, LetterError):
                raise
            remedy = "see the fields of a letter in docs/how-to/write-notices.md"
            expected = f"a template that can be filled in, {self.name}"
            raise LetterError(message(expected, str(error) or type(error).__name__, remedy)) from None


def page_pdf(page: str) -> bytes:
    """A letter in HTML as PDF, as it would be printed; nothing is fetched from anywhere for it."""
    try:
        # Warnings are of what it imports. Without Pango it prints a few lines as well, before the error.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            import weasyprint
            from weasyprint.urls import URLFetcher
    except ModuleNotFoundError as error:
        said = message("the package weasyprint", "an install without it", "pip install 'veritracer[pdf]'")
        raise LetterError(said) from error
    except OSError as error:  # what it needs from the system: Pango
        remedy = "install Pango (Debian: apt install libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0)"
        received = str(error).splitlines()[0]
        raise LetterError(message("the libraries that weasyprint needs", received, remedy)) from None
    fetcher = URLFetcher(allowed_protocols=("data",))
    made: bytes = weasyprint.HTML(string=page, url_fetcher=fetcher).write_pdf(pdf_tags=True)
    return made


def _environment(*, autoescape: bool) -> Any:
    """An environment whose templates can reach our own ones (to extend them), and no other file."""
    jinja2 = _jinja2()
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.PackageLoader("veritracer"),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _jinja2() -> Any:
    """The package, which the base install does not have."""
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
        raise LetterError(message("a template file, or the template itself", received, "name one")) from None
