"""A notice for the person: the decision, its reasons, what would change it, and what is promised of that."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from veritracer.errors import LetterError, message, unknown_name
from veritracer.recourse import letter_words
from veritracer.recourse.letter_template import Format, Template
from veritracer.recourse.reason_codes import ReasonCodes

if TYPE_CHECKING:
    from veritracer.recourse.counterfactuals import Counterfactuals

Outcome = Literal["promised", "valid", "none", "accepted"]

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
    steps = [letter_words.step(c, reason) for c, reason in zip(changes, reasons, strict=True)]
    promised = outcome == "promised"
    expires = _said(fields).get("expires")
    conditions: list[str] = []
    if promised:
        conditions = letter_words.conditions(found.promise(i), found.moves_of(i), steps, codes, expires)
    return {
        "outcome": outcome,
        "reasons": [dict(pair) for pair in {(("code", r.code), ("text", r.text)): 0 for r in reasons}],
        "changes": steps,
        "conditions": conditions,
        "not_covered": letter_words.not_covered(steps, promised=promised) if steps else [],
        "why": _why_none(found, i) if outcome == "none" else "",
    }


def outcome_of(found: Counterfactuals, i: int) -> Outcome:
    """What the letter is about; what was proved for today's model alone is no promise.

    What a panel does not believe is not recommended to anybody, whatever was proved of it.
    """
    if found.favourable[i]:
        return "accepted"
    if found.status[i] == "none" or found.agreement[i] < BELIEVED:
        return "none"
    return "promised" if found.certified[i] and found.kappa > 0 else "valid"


def _why_none(found: Counterfactuals, i: int) -> str:
    return letter_words.HOLLOW if found.status[i] != "none" else letter_words.why_none(str(found.reason[i]))


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
