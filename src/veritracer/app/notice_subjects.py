"""The subject of a notice: one application, its decision, and what the ledger or a result says of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from veritracer.changes import Change, Direction, Move, changes_between, moves_between, read_cells
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Outside
from veritracer.errors import NoticeError, message
from veritracer.formatting import to_python
from veritracer.models.param_sets import RULES, ParamSet
from veritracer.schema import Schema
from veritracer.search.outcomes import LEAST_AGREEMENT, Outcome
from veritracer.search.problem import Drift

if TYPE_CHECKING:
    from veritracer.ledger.promises import IssuingModel

ROUNDING = 1e-12
"""Share by which computing a radius anew may differ."""


@dataclass(frozen=True)
class Subject:
    """The subject of a notice.

    Attributes
    ----------
    schema, digest
        The columns and labels, and the digest of the model that decided.
    status, outcome
        ``accepted``; or what is proposed to a declined applicant: ``certified`` or ``valid`` changes, or
        ``none``; and how the search ended.
    reasons
        The principal reasons, as pairs of feature and direction.
    changes, moves
        What to change, and what may change by itself.
    outside
        The numbers of this one row outside the range of the training rows.
    models, conditional
        The set of models that certified changes are proved for, and whether these have to decide the
        application as today.
    number, issued, expires
        The promise in the ledger, in UTC (``expires`` is None where there is no end); all None in a draft.
    """

    schema: Schema
    digest: str
    status: Literal["accepted", "certified", "valid", "none"]
    outcome: Outcome
    reasons: Sequence[tuple[str, Direction]] = ()
    changes: Sequence[Change] = ()
    moves: Sequence[Move] = ()
    outside: Sequence[Outside] = ()
    models: ParamSet | None = None
    conditional: bool = False
    number: int | None = None
    issued: datetime.datetime | None = None
    expires: datetime.datetime | None = None

    @classmethod
    def of_result(cls, found: Counterfactuals, i: int) -> Self:
        """Return the subject of a draft about row ``i`` of a result.

        A change that the panel does not accept is not recommended, whatever was proved of it, and a proof for
        today's model alone is no certificate.
        """
        if not -len(found) <= i < len(found):
            raise NoticeError(
                message(f"one of {len(found):,} counterfactuals", f"number {i}", "count from 0")
            )
        about: dict[str, Any] = {"schema": found.encoding.schema, "digest": found.model_digest}
        about |= {"outcome": found.outcome[i]}
        if found.favourable[i]:
            return cls(**about, status="accepted")
        about["reasons"] = [(one.feature, one.direction) for one in found.principal_reasons(i)]
        if found.status[i] == "none":
            return cls(**about, status="none")
        if found.agreement[i] < LEAST_AGREEMENT:
            return cls(**{**about, "outcome": Outcome.UNMET}, status="none")
        changes = found.changes_of(i)
        if not (found.certified[i] and found.kappa > 0):
            return cls(**about, status="valid", changes=_only_as_shown(changes))
        about |= {"models": found.param_set, "conditional": bool(found.conditional[i])}
        return cls(**about, status="certified", changes=changes, moves=found.moves_of(i))

    @classmethod
    def of_promise(
        cls, shown: Mapping[str, Any], model: IssuingModel, opened: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the subject of the notice about a promise, as ``Ledger.shown`` has it.

        ``opened`` is what ``Ledger.opened`` says where the person's own row is not in the ledger.
        """
        from veritracer.ledger.records import table_of

        number = shown["sequence"]
        if shown["status"] != "live":
            received = f"number {number}, which is {shown['status']}"
            raise NoticeError(message("a live promise", received, "write notices of those that are live"))
        opened = opened or {"row": shown["original"], **shown}
        if opened["row"] is None or opened.get("reasons") is None:
            received = f"a commitment to it in promise {number}" if opened["row"] is None else "an old entry"
            remedy = "give the key of the ledger, or the opening of the promise"
            raise NoticeError(message("the person's own row in the ledger", received, remedy))
        about: dict[str, Any] = {"schema": model.encoding.schema, "digest": model.model_digest}
        entry: dict[str, Any] = {name: _moment(shown[name]) for name in ("issued", "expires")}
        entry["number"] = number
        if shown["favourable"]:
            return cls(**about, **entry, status="accepted", outcome=Outcome.FAVOURABLE)
        about |= {"outcome": Outcome.CERTIFIED, "reasons": [(name, way) for name, way in opened["reasons"]]}
        changes, moves = _recorded_changes(shown["values"], opened, model)
        own = table_of([dict(opened["row"])], list(shown["values"]))
        about["outside"] = list(model.encoding.outside(own).values())
        if not (shown["certified"] and shown["kappa"] > 0):  # valid today alone: no promise to anybody
            return cls(**about, status="valid", changes=_only_as_shown(changes))
        about |= {"models": _by_rule(model.param_set(shown["kappa"])), "conditional": shown["conditional"]}
        return cls(**about, **entry, status="certified", changes=changes, moves=moves)

    @property
    def is_promised(self) -> bool:
        """Return whether the ledger has a promise of certified changes."""
        return self.number is not None and self.status == "certified"


def _only_as_shown(changes: Sequence[Change]) -> list[Change]:
    """Return the changes without limits: how far one may go on is proved together with the rest only."""
    return [change._replace(limit=None) for change in changes]


def _recorded_changes(
    values: Mapping[str, Any], opened: Mapping[str, Any], model: IssuingModel
) -> tuple[list[Change], list[Move]]:
    """Return the changes and moves of a promise, from the rows that the ledger has."""
    from veritracer.ledger.records import table_of

    encoding = model.encoding
    own, shown = (table_of([dict(row)], list(values)) for row in (opened["row"], values))
    x, x_cf = (encoding.encode(table, out_of_range="ignore")[0] for table in (own, shown))
    both = read_cells(encoding, own, shown).items()
    cells = {name: (to_python(before[0]), to_python(after[0])) for name, (before, after) in both}
    drift = {name: Drift(*opened["drift"][name]) for name in cells if name in opened["drift"]}
    changes = changes_between(encoding, x, x_cf, cells, opened["limits"])
    return changes, moves_between(encoding.schema, cells, opened["limits"], drift)


def _by_rule(models: ParamSet) -> ParamSet:
    """Return the same set, with its radii as a share of the weights where that is what they are."""
    for rule in RULES:
        named = ParamSet.of(models.network, models.center, models.kappa, models.norm, rule)
        pairs = [(float(a), float(b)) for a, b in zip(named.radii, models.radii, strict=True)]
        if all(abs(a - b) <= ROUNDING * b for a, b in pairs):
            return named
    return models


def _moment(text: str) -> datetime.datetime | None:
    return None if text == "never" else datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
