"""A language that letters are written in: a catalogue of phrases, and how it writes numbers and dates.

The catalogues beside this module are JSON files with the same keys and, in each phrase, the same fields. One
of your own has to have all of them: a letter is whole in its language, or it is not written.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from veritracer.errors import LetterError, listing, message
from veritracer.schema.values import value_in_words

PLACE = Path(__file__).parent / "catalogues"


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
        words = value_in_words(value)
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
        received = f"{place}, which can not be read ({why})"
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
