"""Reason codes: what an institution calls a feature that stood in the way, and how people speak of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veritracer.errors import LetterError, listing, message
from veritracer.recourse.wording import Change, Language, language
from veritracer.schema.values import is_missing

Direction = Literal["raise", "reduce", "change", "state"]
"""What a person is asked to do with a feature; ``state`` is to give a value that was missing."""

DIRECTIONS = get_args(Direction)
EXAMPLE = '{"savings": ["R01", "Savings are low for the amount requested"]}'


class Reason(BaseModel):
    """One reason: the institution's code, its text, and the words for the feature in a letter.

    Parameters
    ----------
    code, text : as they stand under "principal reasons".
    label : what the feature is called in a sentence, such as "your savings"; its name where it is empty.
    unit : what is written behind a value, or around it where it has ``{}``: ``"months"``, ``"${}"``.
    values : words for values, such as ``{"fixed-term": "a fixed-term contract"}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(min_length=1)
    text: str = Field(min_length=1)
    label: str = ""
    unit: str = ""
    values: dict[str, str] = Field(default_factory=dict)

    def value(self, value: Any, words: Language | None = None) -> str:
        """The value in people's words.

        >>> Reason(code="R1", text="Savings are low", unit="${}").value(1200)
        '$1,200'
        """
        if is_missing(value):
            return (words or language("en")).say("not_stated")
        if str(value) in self.values:
            return self.values[str(value)]
        return self.amount(value, words)

    def amount(self, value: Any, words: Language | None = None) -> str:
        """The number with its unit, whatever this number means as a value."""
        said = (words or language("en")).value(value)
        unit = self.unit if "{}" in self.unit or not self.unit else "{} " + self.unit
        return unit.replace("{}", said) if unit else said


class ReasonCodes(Mapping[str, Mapping[Direction, Reason]]):
    """The reasons of each feature, checked.

    An entry is a pair of code and text, a ``Reason`` or its fields, or one of these for each direction:
    ``raise``, ``reduce``, ``change`` (of a category) and ``state`` (of a value that was missing). "Too many
    credit lines" is no reason to ask for more of them.

    >>> codes = ReasonCodes({"lines": {"reduce": ("R7", "Too many credit lines")}, "job": ("R2", "No job")})
    >>> codes["lines"]["reduce"].code, len(codes["job"])
    ('R7', 4)
    """

    def __init__(self, codes: Any) -> None:
        if not isinstance(codes, Mapping):
            received = f"a {type(codes).__name__}"
            raise LetterError(message("reason codes by feature", received, f"write {EXAMPLE}"))
        self._codes = {str(name): _directions(str(name), entry) for name, entry in codes.items()}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The reason codes in a JSON file: an object with an entry for each feature."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            received = f"{path}, which can not be read ({why})"
            raise LetterError(message("a file of reason codes", received, f"write {EXAMPLE}")) from None
        except json.JSONDecodeError as error:
            received = f"{path} that is not ({error})"
            raise LetterError(message("reason codes as JSON", received, "correct that line")) from None
        return cls(content)

    def __getitem__(self, feature: str) -> Mapping[Direction, Reason]:
        return self._codes[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    def __repr__(self) -> str:
        return f"ReasonCodes({listing(self._codes)})"

    def reasons(self, changes: Sequence[Change]) -> list[Reason]:
        """The reason of each change; refused, by name, where one has none."""
        return self.named([(c.feature.name, direction(c)) for c in changes], "every changed feature")

    def named(self, wanted: Sequence[tuple[str, Direction]], what: str) -> list[Reason]:
        """The reason of each feature and direction; refused, by name, where one has none."""
        unmapped = [f"{name} ({way})" for name, way in wanted if way not in self.get(name, {})]
        if unmapped:
            remedy = f"add them to codes, as in {EXAMPLE}"
            received = f"none for {listing(dict.fromkeys(unmapped), limit=20)}"
            raise LetterError(message(f"a reason code for {what}", received, remedy))
        return [self[name][way] for name, way in wanted]


def as_codes(codes: ReasonCodes | Mapping[str, Any] | str | os.PathLike[str] | None) -> ReasonCodes:
    """Reason codes from what a caller has: themselves, a mapping, a file, or none at all."""
    if isinstance(codes, ReasonCodes):
        return codes
    if isinstance(codes, str | os.PathLike):
        return ReasonCodes.load(codes)
    return ReasonCodes({} if codes is None else codes)


def direction(change: Change) -> Direction:
    """What the person is asked to do with the feature."""
    if change.was_missing:
        return "state"
    feature, before, after = change.feature, change.before, change.after
    if feature.kind == "ordinal":
        before, after = (feature.categories.index(v) for v in (before, after))
    elif not feature.is_numeric:
        return "change"
    return "raise" if after > before else "reduce"


def _directions(name: str, entry: Any) -> Mapping[Direction, Reason]:
    """The reason for each direction, from any of the ways to write an entry."""
    if isinstance(entry, Mapping) and entry and set(entry) <= set(DIRECTIONS):
        return {way: _reason(name, one) for way, one in entry.items()}
    reason = _reason(name, entry)
    return dict.fromkeys(DIRECTIONS, reason)


def _reason(name: str, entry: Any) -> Reason:
    if isinstance(entry, Reason):
        return entry
    fields = entry
    if isinstance(entry, list | tuple) and len(entry) == 2:
        fields = {"code": entry[0], "text": entry[1]}
    try:
        return Reason.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the entry"
        received = f"{first['msg'].lower()} ({where})"
        raise LetterError(message(f"a code and a text for {name!r}", received, f"write {EXAMPLE}")) from None
