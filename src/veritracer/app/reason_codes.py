"""Name the reasons of a decision as an institution does: its codes and texts, and its words for features."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veritracer.changes import DIRECTIONS, Change, Direction
from veritracer.errors import NoticeError, listing, message
from veritracer.formatting import ENGLISH, English, is_missing
from veritracer.schema import Schema

EXAMPLE = '{"savings": ["R01", "Savings are low for the amount requested"]}'


class Reason(BaseModel):
    """One reason: the institution's code, its text, and the words for the feature in a notice.

    Parameters
    ----------
    code, text
        As they stand under "principal reasons".
    label
        What the feature is called in a sentence, such as "your savings"; its name where it is empty.
    unit
        What is written behind a value, or around it where it has ``{}``: ``"months"``, ``"${}"``.
    values
        Words for values, such as ``{"fixed-term": "a fixed-term contract"}``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(min_length=1)
    text: str = Field(min_length=1)
    label: str = ""
    unit: str = ""
    values: dict[str, str] = Field(default_factory=dict)

    def called(self, feature: str) -> str:
        """Return what the feature is called in a sentence."""
        return self.label or feature.replace("_", " ")

    def value(self, value: Any, translate: English = ENGLISH) -> str:
        """Write a value in the institution's words.

        >>> Reason(code="R1", text="Savings are low", unit="${}").value(1200)
        '$1,200'
        """
        if is_missing(value):
            return translate.format_value(value)
        return self.values[str(value)] if str(value) in self.values else self.amount(value, translate)

    def amount(self, value: Any, translate: English = ENGLISH) -> str:
        """Write a number with its unit, whatever that number means as a value."""
        number = translate.format_value(value)
        unit = self.unit if "{}" in self.unit or not self.unit else "{} " + self.unit
        return unit.replace("{}", number) if unit else number


class ReasonCodes(Mapping[str, Mapping[Direction, Reason]]):
    """The reasons of each feature, checked.

    An entry is a pair of code and text, a ``Reason`` or its fields, or one of these for each direction:
    ``raise``, ``reduce``, ``change`` (of a category) and ``state`` (of a value that was missing). "Too many
    credit lines" is no reason to ask for more of them, and "Savings are low" none for savings that nobody
    knows: where ``state`` has no text of its own, a notice says only that they are not stated.

    >>> codes = ReasonCodes({"lines": {"reduce": ("R7", "Too many credit lines")}, "job": ("R2", "No job")})
    >>> codes["lines"]["reduce"].code, len(codes["job"])
    ('R7', 4)
    """

    def __init__(self, codes: Any) -> None:
        if not isinstance(codes, Mapping):
            received = f"a {type(codes).__name__}"
            raise NoticeError(message("reason codes by feature", received, f"write {EXAMPLE}"))
        self._codes = {str(name): _directions(str(name), entry) for name, entry in codes.items()}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the reason codes in a JSON file: an object with an entry for each feature."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            received = f"{path}, which cannot be read ({why})"
            raise NoticeError(message("a file of reason codes", received, f"write {EXAMPLE}")) from None
        except json.JSONDecodeError as error:
            received = f"{path} that is not ({error})"
            raise NoticeError(message("reason codes as JSON", received, "correct that line")) from None
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
        """Return the reason of each change; refuse, by name, those that have none."""
        return self.named([(c.feature.name, c.direction) for c in changes], "every changed feature")

    def named(self, wanted: Sequence[tuple[str, Direction]], what: str) -> list[Reason]:
        """Return the reason of each feature and direction; refuse, by name, those that have none."""
        unmapped = [f"{name} ({way})" for name, way in wanted if way not in self.get(name, {})]
        if unmapped:
            remedy = f"add them to codes, as in {EXAMPLE}"
            received = f"none for {listing(dict.fromkeys(unmapped), limit=20)}"
            raise NoticeError(message(f"a reason code for {what}", received, remedy))
        return [self[name][way] for name, way in wanted]

    def text(self, feature: str, way: Direction, translate: English = ENGLISH) -> str:
        """Return what stands under the principal reasons: for ``state`` no text of another direction.

        >>> codes = ReasonCodes({"savings": ("R1", "Savings are low")})
        >>> [codes.text("savings", way) for way in ("raise", "state")]
        ['Savings are low', 'savings: not stated']
        """
        reason, others = self[feature][way], {one.text for w, one in self[feature].items() if w != "state"}
        if way != "state" or reason.text not in others:
            return reason.text
        return f"{reason.called(feature)}: {translate.format_value(None)}"


def default_codes(schema: Schema, translate: English = ENGLISH) -> ReasonCodes:
    """Return a code and a plain text for each feature of the schema.

    A principal reason that asks to raise a feature means that its value is below the average of the accepted
    applications that the person was compared with.

    >>> from veritracer.schema import Feature
    >>> codes = default_codes(Schema([Feature("open_loans", "integer")]))
    >>> codes["open_loans"]["reduce"].code, codes["open_loans"]["reduce"].text
    ('R01', 'Open loans: above the average of accepted applications')
    """
    say = translate.gettext
    codes: dict[str, Any] = {}
    for k, feature in enumerate(schema.features):
        name = feature.name.replace("_", " ")
        words = {"label": name[:1].upper() + name[1:]}
        texts: dict[Direction, str] = {
            "raise": say("%(label)s: below the average of accepted applications", **words),
            "reduce": say("%(label)s: above the average of accepted applications", **words),
            "change": say("%(label)s: weighed against this application", **words),
            "state": say("%(label)s: not stated", **words),
        }
        codes[feature.name] = {way: (f"R{k + 1:02}", text) for way, text in texts.items()}
    return ReasonCodes(codes)


def as_codes(codes: ReasonCodes | Mapping[str, Any] | str | os.PathLike[str] | None) -> ReasonCodes:
    """Return the reason codes in what a caller has: themselves, a mapping, a file, or none at all."""
    if isinstance(codes, ReasonCodes):
        return codes
    if isinstance(codes, str | os.PathLike):
        return ReasonCodes.load(codes)
    return ReasonCodes({} if codes is None else codes)


def _directions(name: str, entry: Any) -> Mapping[Direction, Reason]:
    """Return the reason for each direction, from any of the ways to write an entry."""
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
        raise NoticeError(message(f"a code and a text for {name!r}", received, f"write {EXAMPLE}")) from None
