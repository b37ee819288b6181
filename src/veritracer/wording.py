"""What a person reads, in their language: changes, what may become of them, and promises in plain words.

A ``Language`` is a catalogue of phrases, and how it writes numbers and dates. The catalogues beside this
module are JSON files with the same keys and, in each phrase, the same fields. One of your own has to have all
of them: a letter is whole in its language, or it is not written.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import LetterError, listing, message
from veritracer.formatting import (
    as_written,
    decimal_of,
    format_own_value,
    format_percent,
    format_value,
    is_missing,
    round_down,
)
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Feature
from veritracer.search.problem import Drift

PLACE = Path(__file__).parent / "catalogues"

FEWEST_PEOPLE = 20
"""Fewer people than this have too little in common to speak of."""

MOST_PEOPLE = 0.5
"""More than this share of them is most people."""


@dataclass(frozen=True, eq=False)
class Language:
    """The phrases of a language by name."""

    phrases: Mapping[str, Any]

    @property
    def code(self) -> str:
        """Which language it is, as HTML names it."""
        return str(self.phrases["code"])

    def say(self, key: str, /, **fields: Any) -> str:
        """The phrase with its fields filled in.

        >>> language("de").say("number", number=7)
        'Nummer der Zusage: 7'
        """
        return str(self.phrases[key]).format(**fields)

    def value(self, value: Any) -> str:
        """A cell as a person would write it: all digits, with this language's separators.

        >>> language("de").value(1200.5), language("en").value(1200.5), language("de").value(None)
        ('1.200,5', '1,200.5', 'nicht angegeben')
        """
        words = format_value(value)
        if words == "unknown":
            return self.say("not_stated")
        return words if isinstance(value, str | bool) else self.number(words)

    def number(self, words: str) -> str:
        """A number in English digits, with this language's separators."""
        signs = {",": str(self.phrases["thousands"]), ".": str(self.phrases["decimal"])}
        return "".join(signs.get(sign, sign) for sign in words)

    def date(self, day: datetime.date) -> str:
        """A day in words.

        >>> language("de").date(datetime.date(2027, 3, 1))
        '1. März 2027'
        """
        month = self.phrases["months"][day.month - 1]
        return self.say("date", day=day.day, month=month, year=day.year)

    def joined(self, parts: Sequence[str]) -> str:
        """The parts as a list in a sentence.

        >>> language("en").joined(["a", "b", "c"])
        'a, b and c'
        """
        if len(parts) < 2:
            return "".join(parts)
        return self.say("and", first=", ".join(parts[:-1]), last=parts[-1])


def language(name: str | os.PathLike[str]) -> Language:
    """The language of that name, or the catalogue in that JSON file."""
    known = languages()
    if isinstance(name, str) and name in known:
        return _own(name)
    place = Path(name)
    if place.suffix.casefold() != ".json":
        remedy = "name one of them, or a JSON file with a catalogue"
        raise LetterError(message(f"a language among {', '.join(known)}", repr(str(name)), remedy))
    return _checked(place)


@cache
def languages() -> tuple[str, ...]:
    """The languages that letters can be written in."""
    return tuple(sorted(path.stem for path in PLACE.glob("*.json")))


@cache
def _own(name: str) -> Language:
    return Language(json.loads((PLACE / f"{name}.json").read_text(encoding="utf-8")))


def _checked(place: Path) -> Language:
    """The catalogue in a file; one that lacks a phrase, or a field of one, is refused."""
    try:
        phrases = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        received = f"{place}, which cannot be read ({why})"
        raise LetterError(message("a catalogue of phrases", received, f"copy one from {PLACE}")) from None
    known = _own("en").phrases
    if not isinstance(phrases, dict) or phrases.keys() != known.keys():
        other = sorted(set(phrases) ^ set(known)) if isinstance(phrases, dict) else ["no object"]
        remedy = "translate each phrase of en.json"
        raise LetterError(message("the phrases of a catalogue", f"{listing(other)} too few or many", remedy))
    for key, phrase in known.items():
        if type(phrases[key]) is not type(phrase) or _fields(phrases[key]) != _fields(phrase):
            wanted = listing(_fields(phrase)) or "no field"
            received = repr(phrases[key])[:80]
            raise LetterError(message(f"{wanted} in the phrase {key!r}", received, "correct it"))
    return Language(phrases)


def _fields(phrase: Any) -> list[str]:
    """The fields of a phrase; of a list its length."""
    if isinstance(phrase, list):
        return [str(len(phrase))]
    try:
        return sorted({name for _, name, _, _ in Formatter().parse(phrase) if name is not None})
    except ValueError:
        return ["a phrase whose braces match"]


class Change(NamedTuple):
    """One feature that changes: from which value to which, and how far it may go beyond that (None: not)."""

    feature: Feature
    before: Any
    after: Any
    limit: Any = None

    @property
    def was_missing(self) -> bool:
        """Whether there was no value before."""
        return is_missing(self.before) or self.before in self.feature.missing_codes

    @property
    def goes_on(self) -> bool:
        """Whether a person may go further than they were told."""
        number = self.feature.is_numeric and not self.was_missing
        return number and self.limit is not None and bool(self.limit != self.after)


class Move(NamedTuple):
    """What may become of one value by itself, on top of whatever its owner does.

    ``codes`` are numbers within reach that mean "missing", and are no values.
    """

    feature: Feature
    drift: Drift
    codes: tuple[Any, ...] = ()


class Promise(NamedTuple):
    """What a certificate promises about later models: which ones, and whether x must keep its decision."""

    models: ParamSet
    conditional: bool
    favourable: bool

    @property
    def kappa(self) -> float:
        """Of the set: what its radii are multiples by."""
        return self.models.kappa


def change_in_words(change: Change) -> str:
    """One change as an instruction, without a capital.

    >>> change_in_words(Change(Feature("savings", "integer"), 1200, 2400))
    'raise savings from 1,200 to 2,400'
    >>> change_in_words(Change(Feature("rate", "continuous"), 0.9, 0.6, limit=0.5))
    'reduce rate from 0.9 to 0.6 (by at least 0.3)'
    """
    feature, before, after, _ = change
    name, old, new = feature.name, format_own_value(before), format_value(after)
    if change.was_missing:
        return f"state {name} as {new}"
    if not feature.is_numeric:
        return f"change {name} from {old} to {new}"
    if after > before:
        return f"raise {name} from {old} to {'at least ' if change.goes_on else ''}{new}"
    if not change.goes_on:
        return f"reduce {name} from {old} to {new}"
    return f"reduce {name} from {old} to {new} (by at least {difference_in_words(before, after)})"


def difference_in_words(before: Any, after: Any) -> str:
    """How far two numbers are apart, in the digits that they are written with.

    >>> difference_in_words(0.6, 0.9)
    '0.3'
    """
    return format_value(abs(decimal_of(after) - decimal_of(as_written(before))))


def instruction(changes: Sequence[Change]) -> str:
    """All changes as one sentence."""
    return _capital(_joined([change_in_words(change) for change in changes])) + "."


def region_in_words(changes: Sequence[Change], moves: Sequence[Move]) -> str:
    """How far people may go beyond what they were told, as a sentence; empty where they may not.

    What is covered is everything at once: carried on to the ends that are named here, and moved from there.
    """
    parts = [
        f"{c.feature.name} {'up' if c.after > c.before else 'down'} to {format_value(c.limit)}"
        for c in changes
        if c.goes_on
    ]
    said = f"Going further is covered too: {_joined(parts)}. " if parts else ""
    moving = [f"{move.feature.name} {move_in_words(move)}" for move in moves]
    return said + (f"Meanwhile and unasked, {_joined(moving)}. " if moving else "")


def move_in_words(
    move: Move, amount: Callable[[Any], str] = format_value, words: Language | None = None
) -> str:
    """What may become of a value by itself, as the rest of a sentence; ``amount`` writes numbers.

    >>> savings = Feature("savings", "integer")
    >>> move_in_words(Move(savings, Drift(-200, 200))), move_in_words(Move(savings, Drift(-50, 200)))
    ('may change by up to 200', 'may grow by up to 200 or fall by up to 50')
    >>> move_in_words(Move(savings, Drift(0, 200)))
    'may grow by up to 200, but must not fall'
    """
    words = words or language("en")
    feature, (least, most), codes = move
    if feature.kind == "binary":
        both = least < 0 < most
        return (
            words.say("move_any")
            if both
            else words.say("move_become", value=str(feature.categories[int(most > 0)]))
        )
    said, ending = (amount, "") if feature.is_numeric else (partial(_levels, words), "_levels")
    key = "up" if least == 0 else "down" if most == 0 else "both" if most == -least else "each"
    key += "" if key == "both" else ending
    fields = {"least": said(-least), "most": said(most)}
    sentence = words.say(f"move_{key}", **fields)
    if not codes:
        return sentence
    return words.say("move_not", words=sentence, codes=words.joined([words.value(c) for c in codes]))


def promise_in_words(promise: Promise, *, holds: bool = True) -> str:
    """What is promised about later models, as a sentence."""
    if promise.kappa == 0:
        return "This is valid for today's model; nothing was asked about later versions."
    start = (
        "This stays valid for any later version of the model"
        if holds
        else ("This is valid today, but proved only for later versions of the model")
    )
    sentence = f"{start} {set_in_words(promise.models)}"
    if promise.conditional:
        decided = "accepted" if promise.favourable else "declined"
        sentence += f", as long as the original application would still be {decided}"
    return sentence + "."


def set_in_words(models: ParamSet) -> str:
    """The set of models: which moves of the weights are covered."""
    return f"whose {limit_in_words(models, language('en'))}"


def limit_in_words(models: ParamSet, words: Language) -> str:
    """How far weights may move, in a language."""
    ball = "" if models.norm == "linf" else "_ball"
    if models.rule == "absolute":
        return words.say(f"set_absolute{ball}", amount=_amounts(models, words), norm=models.norm)
    share = words.number(round_down(100 * models.kappa))
    rule = {"mean-abs": "average", "norm": "norm"}[models.rule]
    return words.say(f"set_{rule}{ball}", share=share, norm=models.norm)


def _amounts(models: ParamSet, words: Language) -> str:
    """The absolute radii: one number where it is the same for all that may move, else each of them."""
    radii = models.named_radii
    if len(set(radii.values())) <= 1:
        return words.number(round_down(max(radii.values(), default=0.0)))
    each = {name: words.number(round_down(radius)) for name, radius in radii.items()}
    return words.joined([words.say("set_amount", radius=each[name], name=name) for name in each])


def repeated_changes(encoding: Encoding, x: Tensor, x_cf: Tensor) -> Iterator[str]:
    """Yield a sentence for each feature that most rows (n, d) change most, or move to an end of its range.

    Each counterfactual may be certified, close and accepted elsewhere; whoever sends all of them should
    still know that they repeat one another.
    """
    if len(x) < FEWEST_PEOPLE:
        return
    moved = encoding.by_feature((x_cf - x).abs())
    main = moved.argmax(-1).bincount(minlength=len(encoding.blocks)) / len(x)
    for k in (main > MOST_PEOPLE).nonzero().squeeze(-1).tolist():
        name = encoding.schema.names[k]
        often = format_percent(float(main[k]))
        yield f"{often} of {len(x):,} counterfactuals change {name!r} most; check what {name!r} measures"
    for block in encoding.blocks:
        if not block.feature.is_numeric:
            continue
        before, after = x[:, block.start], x_cf[:, block.start]
        for end, word in ((0.0, "lowest"), (1.0, "highest")):
            share = float(((after == end) & (before != end)).double().mean())
            if share > MOST_PEOPLE:
                name = block.feature.name
                yield (
                    f"{format_percent(share)} of {len(x):,} counterfactuals set {name!r} to its {word} "
                    "value; a limit keeps each change to a share of the person's own value: "
                    f"limits={{{name!r}: 0.3}} (--limit {name}=0.3)"
                )


def _levels(words: Language, count: float) -> str:
    return words.say("level" if int(count) == 1 else "levels", count=int(count))


def _joined(parts: Sequence[str]) -> str:
    return language("en").joined(parts)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
