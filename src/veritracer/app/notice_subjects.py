"""The subject of a notice: a row of a result, or a promise in a ledger."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from veritracer.changes import Change, Direction, Move, codes_within, covered_ends, read_cells
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import NoticeError, message
from veritracer.formatting import to_python
from veritracer.models.param_sets import RULES, ParamSet
from veritracer.schema import Schema
from veritracer.search.outcomes import LEAST_AGREEMENT, Outcome
from veritracer.search.problem import Drift

if TYPE_CHECKING:
    from veritracer.ledger.promises import IssuingModel

Proposal = Literal["certified", "valid", "none"]
"""The proposal of a notice: changes proved for later models, or for today's alone, or nothing."""

ROUNDING = 1e-12
"""Share by which computing a radius anew may differ."""


class Recorded(NamedTuple):
    """A promise in the ledger: its number, when it was issued, and when it ends (None: never), in UTC."""

    number: int
    issued: datetime.datetime
    expires: datetime.datetime | None


@dataclass(frozen=True)
class Subject:
    """The subject of a notice: one application, its decision, and the changes that would reverse it.

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
    for rule in RULES:
        named = ParamSet.of(models.network, models.center, models.kappa, models.norm, rule)
        pairs = [(float(a), float(b)) for a, b in zip(named.radii, models.radii, strict=True)]
        if all(abs(a - b) <= ROUNDING * b for a, b in pairs):
            return named
    return models


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)


def _end(text: str) -> datetime.datetime | None:
    return None if text == "never" else _moment(text)
