"""Why somebody was declined: what weighed most against them, and what an institution calls it.

A principal reason is not what a counterfactual changes: that is one way out, and may lead past the reasons. A
feature's part is its Shapley value in the logit between a row that the model accepts and the person's own,
averaged over accepted training rows (interventional, as SHAP's permutation explainer has it): in the accepted
row features are replaced by the person's own in random order, and then in the opposite one, and each is
credited with what it changed. The parts of all features sum to the logit minus its mean over those rows.

``ReasonCodes`` has the institution's code and text for a feature, and how people speak of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from veritracer.errors import LetterError, listing, message
from veritracer.formatting import is_missing, to_python
from veritracer.wording import Change, Language, language

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

Direction = Literal["raise", "reduce", "change", "state"]
"""What a person is asked to do with a feature; ``state`` is to give a value that was missing."""

DIRECTIONS = get_args(Direction)
EXAMPLE = '{"savings": ["R01", "Savings are low for the amount requested"]}'

ACCEPTED_ROWS = 128
"""Accepted training rows that a person is compared with."""

MOST_REASONS = 4
"""Principal reasons, at most: more are "not likely to be helpful" (Regulation B, comment 9(b)(2)-1)."""

LEAST_SHARE = 0.1
"""What weighs less than this share of the heaviest reason is no principal one."""


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

    def called(self, feature: str) -> str:
        """What the feature is called in a sentence."""
        return self.label or feature.replace("_", " ")

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
    credit lines" is no reason to ask for more of them, and "Savings are low" none for savings that nobody
    knows: where ``state`` has no text of its own, a letter says only that they are not stated.

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
            received = f"{path}, which cannot be read ({why})"
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


def told(codes: ReasonCodes, feature: str, way: Direction, words: Language) -> str:
    """What stands under the principal reasons: the text, but for ``state`` none of another direction.

    >>> codes = ReasonCodes({"savings": ("R1", "Savings are low")})
    >>> [told(codes, "savings", way, language("en")) for way in ("raise", "state")]
    ['Savings are low', 'savings: not stated']
    """
    reason = codes[feature][way]
    if way != "state" or reason.text not in {one.text for w, one in codes[feature].items() if w != "state"}:
        return reason.text
    return f"{reason.called(feature)}: {words.say('not_stated')}"


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


class PrincipalReason(NamedTuple):
    """What weighed against somebody: a feature, which way it would have to go, its part of the logit."""

    feature: str
    direction: Direction
    contribution: float


def principal_reasons(found: Counterfactuals, i: int) -> list[PrincipalReason]:
    """The features that weighed most against row ``i``, the heaviest first.

    None where the row is favourable, or no accepted training row is known.
    """
    accepted = accepted_rows(found)
    if found.favourable[i] or len(accepted) == 0:
        return []
    x = found.x[i].double().cpu()
    parts = contributions(found, x, accepted)
    least = LEAST_SHARE * float(parts.min())
    order = parts.argsort().tolist()[:MOST_REASONS]
    chosen = [k for k in order if float(parts[k]) < 0 and float(parts[k]) <= least]
    typical = accepted.mean(0)
    return [
        PrincipalReason(found.encoding.schema.names[k], _direction(found, i, k, x, typical), float(parts[k]))
        for k in chosen
    ]


@torch.no_grad()
def contributions(found: Counterfactuals, x: Tensor, accepted: Tensor) -> Tensor:
    """The part of each feature (F,) in the logit of ``x`` (d,), compared with accepted rows (m, d)."""
    owner, features = found.encoding.owner, len(found.encoding.blocks)
    rng = torch.Generator().manual_seed(0)
    total = torch.zeros(features, dtype=torch.float64)
    order = torch.rand(len(accepted), features, generator=rng).argsort(-1)
    for one_way in (order, order.flip(-1)):
        place = one_way.argsort(-1)  # the step at which each feature becomes the person's own
        steps = torch.arange(features + 1).reshape(-1, 1, 1)
        theirs = place[:, owner] < steps  # (F + 1, m, d)
        rows = torch.where(theirs, x, accepted)
        logit = _logit(found, rows.reshape(-1, len(x))).reshape(features + 1, -1)
        changed = logit.diff(dim=0).T  # (m, F), in the order of the walk
        total += changed.gather(-1, place).mean(0)
    return total / 2


def accepted_rows(found: Counterfactuals) -> Tensor:
    """Training rows that today's model accepts, evenly spread: (at most so many, d)."""
    rows = found.reference.neighbours.rows
    if len(rows) == 0:
        return rows
    return found.reference.neighbours.subsample(_logit(found, rows) > 0, ACCEPTED_ROWS)


def _logit(found: Counterfactuals, x: Tensor) -> Tensor:
    models = found.param_set
    center = tuple(t.detach().to("cpu", torch.float64) for t in models.center)
    logit: Tensor = models.network.logit(center, x)
    return logit


def _direction(found: Counterfactuals, i: int, k: int, x: Tensor, typical: Tensor) -> Direction:
    """Which way feature ``k`` is from the accepted rows, as somebody would be asked to go."""
    block = found.encoding.blocks[k]
    feature = block.feature
    cell = to_python(found.advice.cells[feature.name][0][i])
    if is_missing(cell) or cell in feature.missing_codes:
        return "state"
    if not feature.is_numeric and feature.kind != "ordinal":
        return "change"
    return "raise" if float(x[block.start]) < float(typical[block.start]) else "reduce"
