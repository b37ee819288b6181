"""Describe counterfactuals in words: the changes, the covered region, and the promise.

There is one function for each sentence. ``translate`` is English, or a ``Translator`` for another language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import Encoding, Outside
from veritracer.encoding.exact import Texts, widened
from veritracer.formatting import (
    ENGLISH,
    English,
    as_written,
    decimal_of,
    format_percent,
    is_missing,
    round_down,
    to_python,
)
from veritracer.models.param_sets import ABSOLUTE, ParamSet, rule_named
from veritracer.schema import Schema
from veritracer.schema.feature import Feature, is_number
from veritracer.search.problem import OUTWARDS, Drift

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

Direction = Literal["raise", "reduce", "change", "state"]
"""Direction of a change; ``state`` means to give a value that was missing."""

DIRECTIONS = get_args(Direction)

FEWEST_PEOPLE = 20
"""Smallest number of rows for which repeated changes are reported."""

MOST_PEOPLE = 0.5
"""Share of the rows above which a repeated change is reported."""


class Change(NamedTuple):
    """A changed feature, with its old and new value; ``limit`` is the last covered value, or None."""

    feature: Feature
    before: Any
    after: Any
    limit: Any = None

    @property
    def was_missing(self) -> bool:
        """True if the old value is missing."""
        return is_missing(self.before) or self.before in self.feature.missing_codes

    @property
    def stated(self) -> Any:
        """Return the old value as people write it, exact enough for what is said of the change.

        Digits left by a float32 or a division are dropped as long as the difference stays right to three
        digits; so direction and inequality hold for the row, too.

        >>> rate, second = Feature("rate", "continuous"), Feature("second", "continuous")
        >>> Change(rate, 0.517999992370605, 0.4).stated
        0.518
        >>> Change(second, 1_700_019_512.345, 1_700_019_600.0).stated
        1700019512.3
        """
        number = self.feature.is_numeric and not self.was_missing
        if not number or as_written(self.before) == self.before:
            return self.before
        distance = abs(decimal_of(self.after) - decimal_of(self.before))
        rounded = (float(f"{float(self.before):.{digits}g}") for digits in range(7, 17))
        near = (one for one in rounded if abs(decimal_of(one) - decimal_of(self.before)) <= distance / 1000)
        return next(near, self.before)

    @property
    def goes_on(self) -> bool:
        """True if values beyond the new one are covered too."""
        number = self.feature.is_numeric and not self.was_missing
        return number and self.limit is not None and bool(self.limit != self.after)

    @property
    def direction(self) -> Direction:
        """Return the direction of the change."""
        if self.was_missing:
            return "state"
        before, after = self.before, self.after
        if self.feature.kind == "ordinal":
            before, after = (self.feature.categories.index(v) for v in (before, after))
        elif not self.feature.is_numeric:
            return "change"
        return "raise" if after > before else "reduce"


class Move(NamedTuple):
    """Covered drift of a feature, on top of its change.

    ``codes`` are numbers inside the covered range that mean "missing", and are not covered.
    """

    feature: Feature
    drift: Drift
    codes: tuple[Any, ...] = ()


# ------------------------------------------------------------------------------- changes and covered regions


def changes_of(found: Counterfactuals, i: int) -> list[Change]:
    """Return the changes of counterfactual ``i``, in the order of the columns."""
    return changes_between(found.encoding, found.x[i], found.x_cf[i], _cells_of(found, i), _limits(found, i))


def changes_between(
    encoding: Encoding,
    x: Tensor,
    x_cf: Tensor,
    cells: Mapping[str, tuple[Any, Any]],
    limits: Mapping[str, Any],
) -> list[Change]:
    """Return the changes from ``x`` to ``x_cf``, (d,) each, whose old and new values are ``cells``."""
    schema, differs = encoding.schema, encoding.changed(x_cf, x)
    names = {schema.names[k] for k in differs.nonzero().squeeze(-1).tolist()}
    return [Change(schema[name], *cells[name], limits.get(name)) for name in cells if name in names]


def moves_of(found: Counterfactuals, i: int) -> list[Move]:
    """Return the covered drift of counterfactual ``i``; missing cells have none."""
    if not found.proved[i]:
        return []
    drift = {name: _drift(found, name) for name in found.drift}
    return moves_between(found.encoding.schema, _cells_of(found, i), _limits(found, i), drift)


def moves_between(
    schema: Schema,
    cells: Mapping[str, tuple[Any, Any]],
    limits: Mapping[str, Any],
    drift: Mapping[str, Drift],
) -> list[Move]:
    """Return the covered drift around the new values of ``cells``."""
    moves = []
    for name, amount in drift.items():
        ends = covered_ends(schema[name], cells[name][1], limits.get(name), amount) if any(amount) else None
        if ends is not None:
            moves.append(Move(schema[name], amount, codes_within(schema[name], *ends)))
    return moves


def codes_within(feature: Feature, low: Any, high: Any) -> tuple[Any, ...]:
    """Return the codes for missing values between two ends."""
    codes = [code for code in feature.missing_codes if feature.is_numeric and is_number(code)]
    return tuple(code for code in codes if low <= float(code) <= high)


def region_of(found: Counterfactuals, i: int) -> dict[str, tuple[Any, Any]]:
    """Return the two ends of the covered values of each feature of counterfactual ``i``.

    All features may vary at once: changes go further, and values drift from there. Features that are covered
    only as shown are omitted, and all are omitted if nothing is proved. Numbers beyond the fitted range count
    as its end, for every model of the set; a code for missing values is no number.
    """
    if not found.proved[i] or not (found.overshoot > 0 or found.drift):
        return {}
    schema, limits = found.encoding.schema, _limits(found, i)
    ends = {
        name: covered_ends(schema[name], shown, limits.get(name), _drift(found, name))
        for name, (_, shown) in _cells_of(found, i).items()
    }
    return {name: pair for name, pair in ends.items() if pair is not None}


def covered_ends(feature: Feature, shown: Any, limit: Any, drift: Drift) -> tuple[Any, Any] | None:
    """Return the two ends of the covered values of a feature; None if only ``shown`` is covered."""
    if is_missing(shown) or shown in feature.missing_codes or feature.kind == "categorical":
        return None
    if feature.is_numeric:
        on = [shown] if limit is None else [shown, limit]
        pair = _moved(min(on), drift.least), _moved(max(on), drift.most)
    else:
        at, last = feature.categories.index(shown), len(feature.categories) - 1
        low, high = (min(max(at + int(way), 0), last) for way in drift)
        pair = feature.categories[low], feature.categories[high]
    return None if pair == (shown, shown) else pair


def read_cells(encoding: Encoding, original: pd.DataFrame, frame: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    """Return the columns of both tables as arrays, with text read as numbers.

    Reading single cells of a DataFrame would be slow.
    """
    both = widened(encoding, original), widened(encoding, frame)
    features = [encoding.schema[name] for name in frame.columns]
    return {one.name: (_cells(one, both[0][one.name]), _cells(one, both[1][one.name])) for one in features}


def read_limits(found: Counterfactuals) -> dict[str, tuple[Any, NDArray[Any]]]:
    """Return the furthest legal value of each changed number within ``overshoot``, drift excluded.

    The mask beside the values is true where the value, read back, lies inside the certified region.
    """
    if found.overshoot == 0:
        return {}
    encoding, x, x_cf = found.encoding, found.x, found.x_cf
    grown = x_cf > x
    way = torch.where(grown, 1.0, -1.0).to(x_cf)
    far = (x_cf + found.overshoot * way).clamp(0.0, 1.0)
    far = far.where(x_cf != x, x_cf)
    last = encoding.snap(far, x, ~grown)
    shown = encoding.decode(last, original=found.original, start=x)
    # Read back like an application: rounding to the grid or to the column's dtype may leave the region.
    read = encoding.encode(shown, out_of_range="ignore")
    between = (read >= x_cf) & (read <= far + OUTWARDS)
    inside = torch.where(grown, between, (read <= x_cf) & (read >= far - OUTWARDS))
    return {
        block.feature.name: (
            _cells(block.feature, shown[block.feature.name]),
            inside[:, block.start].numpy(),
        )
        for block in encoding.blocks
        if block.feature.is_numeric
    }


def _drift(found: Counterfactuals, name: str) -> Drift:
    """Return the drift of a feature; an ordinal one moves by whole levels."""
    drift = Drift.of(found.drift.get(name, 0.0))
    return drift if found.encoding.schema[name].is_numeric else Drift(*(float(int(way)) for way in drift))


def _limits(found: Counterfactuals, i: int) -> dict[str, Any]:
    """Return the last covered value of each changed number of counterfactual ``i``, if that is proved."""
    limits = found.limits.items() if found.proved[i] else ()
    return {name: to_python(cells[i]) for name, (cells, inside) in limits if inside[i]}


def _cells_of(found: Counterfactuals, i: int) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each feature of counterfactual ``i``."""
    return {name: (to_python(old[i]), to_python(new[i])) for name, (old, new) in found.cells.items()}


def _cells(feature: Feature, column: pd.Series[Any]) -> Any:
    """Return the column's cells, with text read as numbers."""
    texts = feature.is_numeric and not pd.api.types.is_numeric_dtype(column.dtype)
    return Texts.of(feature, empty=()).values(column) if texts else column.array


def _moved(value: Any, by: float) -> Any:
    """Add two numbers in decimal arithmetic, as people would."""
    end = decimal_of(value) + decimal_of(by)
    return int(end) if end == end.to_integral_value() else float(end)


def recorded_facts(found: Counterfactuals, i: int) -> dict[str, Any]:
    """Return the facts about counterfactual ``i`` that a ledger keeps for notices.

    ``reasons`` are the principal reasons as pairs of feature and direction, ``limits`` the last covered value
    of each change, and ``drift`` the covered drift.
    """
    return {
        "sentence": found.sentence(i),
        "reasons": [[reason.feature, reason.direction] for reason in found.principal_reasons(i)],
        "limits": {change.feature.name: change.limit for change in found.changes_of(i) if change.goes_on},
        "drift": {move.feature.name: list(move.drift) for move in found.moves_of(i)},
    }


# -------------------------------------------------------------------------------------------------- sentences


def describe(found: Counterfactuals, i: int, translate: English = ENGLISH) -> str:
    """Describe counterfactual ``i``: the changes, the covered region, and the promise about later models."""
    say = translate.gettext
    outside = [describe_outside(one, i, translate) for one in found.outside.values() if one.beyond[i] > 0]
    if found.status[i] == "none":
        return " ".join([say("No change is proposed: %(reason)s.", reason=found.reason[i]), *outside])
    changes = found.changes_of(i)
    parts = [describe_change(change, translate) for change in changes]
    parts += describe_region(changes, found.moves_of(i), translate)
    return " ".join([*parts, describe_promise(found, i, translate), *outside])


def describe_outside(outside: Outside, i: int, translate: English = ENGLISH, label: str = "") -> str:
    """Describe a number of row ``i`` outside the range of the training rows."""
    low, high = outside.ends
    value = float(outside.value[i])
    return translate.gettext(
        "Our model knows %(name)s from %(low)s to %(high)s: %(value)s counts as %(end)s.",
        name=label or outside.name,
        low=translate.format_value(low),
        high=translate.format_value(high),
        value=translate.format_value(value),
        end=translate.format_value(high if value > high else low),
    )


def describe_change(
    change: Change,
    translate: English = ENGLISH,
    *,
    label: str | None = None,
    value: Callable[[Any], str] | None = None,
) -> str:
    """Write one change as an instruction; ``label`` names the feature, ``value`` writes its values.

    >>> describe_change(Change(Feature("savings", "integer"), 1200, 2400))
    'Raise savings from 1,200 to 2,400.'
    >>> describe_change(Change(Feature("rate", "continuous"), 0.9, 0.6, limit=0.5))
    'Reduce rate from 0.9 to 0.6 or further.'
    """
    value = value or translate.format_value
    words = {
        "label": label or change.feature.name,
        "before": value(change.stated),
        "after": value(change.after),
    }
    say = translate.gettext
    if change.direction == "state":
        return say("State %(label)s: %(after)s.", **words)
    if change.direction == "change":
        return say("Change %(label)s from %(before)s to %(after)s.", **words)
    if change.direction == "raise" and change.goes_on:
        return say("Raise %(label)s from %(before)s to at least %(after)s.", **words)
    if change.direction == "raise":
        return say("Raise %(label)s from %(before)s to %(after)s.", **words)
    if change.goes_on:
        return say("Reduce %(label)s from %(before)s to %(after)s or further.", **words)
    return say("Reduce %(label)s from %(before)s to %(after)s.", **words)


def describe_region(
    changes: Sequence[Change], moves: Sequence[Move], translate: English = ENGLISH
) -> list[str]:
    """Describe the region beyond the shown values; no sentence if only those are covered.

    Everything is covered at once: changes up to the limits that are named here, and drift from there.
    """
    said = []
    for change in changes:
        if change.goes_on:
            words = {"name": change.feature.name, "limit": translate.format_value(change.limit)}
            up = change.after > change.before
            said.append(
                translate.gettext("%(name)s up to %(limit)s", **words)
                if up
                else translate.gettext("%(name)s down to %(limit)s", **words)
            )
    further = translate.join_list(said)
    moving = translate.join_list([f"{move.feature.name} {describe_move(move, translate)}" for move in moves])
    return [
        *([translate.gettext("Going further is covered too: %(further)s.", further=further)] if said else []),
        *([translate.gettext("Meanwhile and unasked, %(moving)s.", moving=moving)] if moves else []),
    ]


def describe_move(
    move: Move, translate: English = ENGLISH, amount: Callable[[Any], str] | None = None
) -> str:
    """Describe the drift of a value, as the end of a sentence; ``amount`` formats numbers.

    >>> savings = Feature("savings", "integer")
    >>> describe_move(Move(savings, Drift(-200, 200))), describe_move(Move(savings, Drift(-50, 200)))
    ('may change by up to 200', 'may grow by up to 200 or fall by up to 50')
    >>> describe_move(Move(savings, Drift(0, 200)))
    'may grow by up to 200, but must not fall'
    """
    feature, (least, most), codes = move
    say = translate.gettext
    if feature.kind == "binary":
        if least < 0 < most:
            return say("may change")
        return say("may become %(value)s", value=str(feature.categories[int(most > 0)]))
    written = (amount or translate.format_value) if feature.is_numeric else partial(_levels, translate)
    words = {"least": written(-least), "most": written(most)}
    if least == 0:
        sentence = say("may grow by up to %(most)s, but must not fall", **words)
    elif most == 0:
        sentence = say("may fall by up to %(least)s, but must not grow", **words)
    elif most == -least:
        sentence = say("may change by up to %(most)s", **words)
    else:
        sentence = say("may grow by up to %(most)s or fall by up to %(least)s", **words)
    if not codes:
        return sentence
    unless = translate.join_list([translate.format_value(code) for code in codes])
    return say("%(moves)s (and must not be %(codes)s)", moves=sentence, codes=unless)


def _levels(translate: English, count: float) -> str:
    return translate.ngettext("%(count)s level", "%(count)s levels", int(count), count=int(count))


def describe_promise(found: Counterfactuals, i: int, translate: English = ENGLISH) -> str:
    """Describe what is proved of counterfactual ``i`` for later models, at the requested kappa or its own."""
    say, holds = translate.gettext, bool(found.certified[i])
    if not holds and found.radius[i] == 0:
        return say("This is valid today; nothing is proved about later versions of the model.")
    models = found.param_set if holds else found.param_set.at(float(found.radius[i]))
    if models.kappa == 0:
        return say("This is valid for today's model; nothing was asked about later versions.")
    words = {"limit": describe_models(models, translate), "condition": ""}
    if found.conditional[i] and found.favourable[i]:
        words["condition"] = say(", as long as the original application would still be accepted")
    elif found.conditional[i]:
        words["condition"] = say(", as long as the original application would still be declined")
    if holds:
        return say(
            "This stays valid for any later version of the model whose %(limit)s%(condition)s.", **words
        )
    return say(
        "This is valid today, but proved only for later versions of the model whose %(limit)s%(condition)s.",
        **words,
    )


def describe_models(models: ParamSet, translate: English = ENGLISH) -> str:
    """Describe the models in a set by how far their weights may move."""
    say, norm = translate.gettext, models.norm
    if models.rule == ABSOLUTE:
        amount = _amounts(models, translate)
        if norm == "linf":
            return say("weights and biases each move by at most %(amount)s", amount=amount)
        return say(
            "weight matrices and bias vectors each move by at most %(amount)s (%(norm)s norm)",
            amount=amount,
            norm=norm,
        )
    rule, share = rule_named(models.rule), translate.format_value(_digits(100 * models.kappa))
    sentence = rule.in_box if norm == "linf" else rule.in_ball
    return say(sentence, share=share, norm=norm)


def _amounts(models: ParamSet, translate: English) -> str:
    """Describe the absolute radii: one number if all are equal, otherwise each of them."""
    radii = {name: translate.format_value(_digits(radius)) for name, radius in models.named_radii.items()}
    if len(set(models.named_radii.values())) <= 1:
        return next(iter(radii.values()), "0")
    each = [translate.gettext("%(radius)s (%(name)s)", radius=radii[name], name=name) for name in radii]
    return translate.join_list(each)


def _digits(number: float) -> Decimal:
    """Round a promised amount down to few digits."""
    return Decimal(round_down(number))


def repeated_changes(encoding: Encoding, x: Tensor, x_cf: Tensor) -> Iterator[str]:
    """Yield a sentence for each feature that most rows (n, d) change most, or move to an end of its range.

    Each counterfactual may be certified, close and plausible; the sentence warns that they all ask for the
    same change.
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
                    f"value; consider --limit {name}=0.3 (limits={{{name!r}: 0.3}}), which keeps each change "
                    "to a share of the person's own value"
                )
