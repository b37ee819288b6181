"""A notice for the person: the decision, its reasons, what would change it, and what is promised of that.

Its template is filled in in a sandbox that sees nothing but its fields.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from veritracer.errors import LetterError, listing, message, unknown_name
from veritracer.recourse.outcomes import Outcome
from veritracer.recourse.reason_codes import Reason, ReasonCodes, direction
from veritracer.recourse.wording import Change, Move, Promise, move_in_words, set_in_words
from veritracer.schema.values import value_in_words

if TYPE_CHECKING:
    from veritracer.recourse.counterfactuals import Counterfactuals

Format = Literal["text", "html"]
FILES: dict[Format, str] = {"text": "letter.txt", "html": "letter.html"}

Subject = Literal["promised", "valid", "none", "accepted"]
"""What a letter is about: templates know it as ``outcome``."""

WHY: dict[Outcome, str] = {
    Outcome.IMPOSSIBLE: "It is certain that no change that is open to you would alter today's decision.",
    Outcome.TOO_CLOSE: "Your application is so close to the border of the decision that rounding decides. "
    "Please ask us to look at it again.",
    Outcome.OUT_OF_TIME: "We did not find one in the time that was set for it. That does not mean that there "
    "is none.",
    Outcome.UNMET: "We found a change that our model would accept, but not one that we can recommend.",
    Outcome.NOT_FOUND: "We looked for one and found none. That does not mean that there is none.",
}
"""What a person is told where there is no recourse, by how it ended.

Which constraint would have to give is left out: it may be one that no letter should speak of.
"""

BELIEVED = 0.5
"""Advice goes out in a letter if at least this share of the panel's held-out members believes it."""

GIVEN = ("institution", "recipient", "reference", "date", "expires", "contact", "rights")
"""What the institution says; the default templates leave out what it does not."""


def write_letter(
    found: Counterfactuals,
    i: int,
    template: str | os.PathLike[str] | None,
    codes: ReasonCodes,
    kind: Format | None,
    fields: Mapping[str, Any],
) -> str:
    """The letter for counterfactual ``i``."""
    if not -len(found) <= i < len(found):
        remedy = "count from 0"
        raise LetterError(message(f"one of {len(found):,} counterfactuals", f"number {i}", remedy))
    page = Template.of(template, kind)
    if template is None:
        _check_fields(fields)
    return page.render({**dict.fromkeys(GIVEN), **_said(fields), **facts(found, i, codes, fields)})


def facts(found: Counterfactuals, i: int, codes: ReasonCodes, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a template may say of counterfactual ``i``: plain words of this row, and of no other."""
    outcome = outcome_of(found, i)
    changes = found.changes_of(i) if outcome in ("promised", "valid") else []
    if outcome == "valid":  # how far one may go on is proved only where all of it is
        changes = [change._replace(limit=None) for change in changes]
    reasons = codes.reasons(changes)
    steps = [_step(c, reason) for c, reason in zip(changes, reasons, strict=True)]
    promised = outcome == "promised"
    expires = _said(fields).get("expires")
    conditions: list[str] = []
    if promised:
        conditions = _conditions(found.promise(i), found.moves_of(i), steps, codes, expires)
    return {
        "outcome": outcome,
        "reasons": [dict(pair) for pair in {(("code", r.code), ("text", r.text)): 0 for r in reasons}],
        "changes": steps,
        "conditions": conditions,
        "not_covered": _not_covered(steps, promised=promised) if steps else [],
        "why": _why_none(found, i) if outcome == "none" else "",
    }


def outcome_of(found: Counterfactuals, i: int) -> Subject:
    """What the letter is about; what was proved for today's model alone is no promise.

    What a panel does not believe is not recommended to anybody, whatever was proved of it.
    """
    if found.favourable[i]:
        return "accepted"
    if found.status[i] == "none" or found.agreement[i] < BELIEVED:
        return "none"
    return "promised" if found.certified[i] and found.kappa > 0 else "valid"


def _why_none(found: Counterfactuals, i: int) -> str:
    ended = found.outcome[i] if found.status[i] == "none" else Outcome.UNMET  # a panel does not believe it
    return WHY.get(ended, "We can not name one.")


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with dates in words; a letter is of today unless another date is given."""
    dated = {"date": datetime.date.today(), **fields}
    return {name: _words(value) for name, value in dated.items()}


def _words(value: Any) -> Any:
    if isinstance(value, datetime.date):  # a datetime is one
        return f"{value.day} {value:%B %Y}"
    return value


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name not in GIVEN:
            raise LetterError(unknown_name("a field of the default letter", name, GIVEN, limit=len(GIVEN)))


def _step(change: Change, reason: Reason) -> dict[str, Any]:
    """One change in people's words."""
    label = reason.label or change.feature.name.replace("_", " ")
    before, after = reason.value(change.before), reason.value(change.after)
    way = direction(change)
    said = {
        "raise": f"Raise {label} from {before} to {'at least ' if change.goes_on else ''}{after}.",
        "reduce": f"Reduce {label} from {before} to {after}{' or further' if change.goes_on else ''}.",
        "change": f"Change {label} from {before} to {after}.",
        "state": f"State {label}: {after}.",
    }
    return {
        "feature": change.feature.name,
        "label": label,
        "direction": way,
        "before": "not stated" if change.was_missing else before,
        "after": after,
        "at_most": reason.value(change.limit) if change.goes_on else None,
        "instruction": said[way],
    }


def _conditions(
    promise: Promise,
    moves: Sequence[Move],
    steps: Sequence[Mapping[str, Any]],
    codes: ReasonCodes,
    expires: str | None,
) -> list[str]:
    """What must be so for the promise to hold, a sentence each."""
    limit = set_in_words(promise.models).removeprefix("whose ")
    asked = {step["feature"]: step["label"] for step in steps}
    said = [
        f"You apply before {expires}." if expires else "You may apply at any time: no last day has been set.",
        "The model that then decides is today's, or an update of it that keeps to the limit for which this "
        f"was proved: its {limit}, and nothing else of how it decides is changed.",
        _rest([move for move in moves if move.feature.name not in asked], codes),
    ]
    for move in moves:
        if move.feature.name in asked:  # on top of what is asked, and of going further
            what = f"{asked[move.feature.name]} {_moving(move, codes)[1]}"
            said.append(f"From wherever you bring it, and without your doing, {what}.")
    if promise.conditional:
        said.append("The model that then decides would still decline your application as it is now.")
    return said


def _not_covered(steps: Sequence[Mapping[str, Any]], *, promised: bool) -> list[str]:
    """What the letter does not say, a sentence each."""
    further = [f"{s['label']} as far as {s['at_most']}" for s in steps if s["at_most"]]
    values = (
        f"Going further is covered for {', '.join(further)}; nothing is said about other values."
        if further
        else "Only the values above were examined; nothing is said about others, not even about better ones."
    )
    later = (
        "Nothing is promised for a model that is changed beyond that limit."
        if promised
        else "Nothing is promised about later versions of our model, which may decide otherwise."
    )
    return [
        later,
        values,
        "What you state will be checked as in any application.",
        "Whether these changes are possible or wise for you, only you can judge.",
    ]


def _rest(moves: Sequence[Move], codes: ReasonCodes) -> str:
    """What must stay as it is, and what of it may move on its own."""
    same = "Everything else that you stated is the same as in this application"
    if not moves:
        return f"{same}, also what changes by itself."
    moving = [f"{label} (which {words})" for label, words in (_moving(move, codes) for move in moves)]
    return f"{same}, except for {', '.join(moving)}."


def _moving(move: Move, codes: ReasonCodes) -> tuple[str, str]:
    """What a value is called in a letter, and what may become of it by itself."""
    name = move.feature.name
    known = next(iter(codes[name].values()), None) if name in codes else None
    label = (known.label if known else "") or name.replace("_", " ")
    return label, move_in_words(move, known.amount if known else value_in_words)


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
            remedy = "see the fields of a letter in docs/letters.md"
            expected = f"a template that can be filled in, {self.name}"
            raise LetterError(message(expected, str(error) or type(error).__name__, remedy)) from None


def _environment(*, autoescape: bool) -> Any:
    """An environment whose templates can reach our own ones (to extend them), and no other file."""
    jinja2 = _jinja2()
    return jinja2.sandbox.ImmutableSandboxedEnvironment(
        loader=jinja2.PackageLoader("veritracer.recourse"),
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
        received = f"{place}, which can not be read ({why})"
        raise LetterError(message("a template file, or the template itself", received, "name one")) from None
