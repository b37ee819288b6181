"""Encoded rows that a person could have, next to the rows that they do have.

Two versions of one map: the hard one lands on legal rows and is what people read; the relaxed one is
differentiable almost everywhere and is what training uses. Both are pure functions of tensors of the shape
(..., d), without branching on their values, so that they run inside ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from veritracer.encoding.scales import FeatureScale, Grid, finest_grid, stack_grids
from veritracer.schema.feature import Feature


@dataclass(frozen=True)
class Block:
    """The encoded columns of one feature.

    ``values`` is the column of a number or a level, or the slots of the categories; ``flags`` are the
    columns of the missing markers. Of the columns in ``group``, where there is one, exactly one is 1.
    """

    feature: Feature
    start: int
    stop: int
    values: slice
    flags: slice
    group: slice | None

    @property
    def marker_slots(self) -> bool:
        """True where the missing markers are slots of the one-hot group instead of flags beside the value."""
        return self.group is not None and self.group.stop == self.stop and self.feature.missing == "category"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        name, feature = self.feature.name, self.feature
        values = [name] if self.group is None else [f"{name}={value}" for value in feature.categories]
        markers = () if feature.missing == "refuse" else feature.markers
        return values + [f"{name}?{'missing' if marker is None else marker}" for marker in markers]


def blocks_of(features: Iterable[Feature]) -> tuple[Block, ...]:
    """The blocks of these features, one after the other."""
    blocks: list[Block] = []
    for feature in features:
        blocks.append(_block(feature, blocks[-1].stop if blocks else 0))
    return tuple(blocks)


def _block(feature: Feature, start: int) -> Block:
    # A single category says nothing: one column that is always 0, which no uncertain weight can amplify.
    single = feature.kind != "categorical" or (len(feature.categories) == 1 and feature.missing != "category")
    middle = start + (1 if single else len(feature.categories))
    stop = middle + (0 if feature.missing == "refuse" else len(feature.markers))
    group = None if single else slice(start, stop if feature.missing == "category" else middle)
    return Block(feature, start, stop, slice(start, middle), slice(middle, stop), group)


@dataclass(frozen=True)
class Group:
    """One one-hot group: its columns, the first ``categories`` of which are values and the rest markers."""

    columns: slice
    categories: int


@dataclass(frozen=True)
class Rules:
    """What the projection needs to know of each of the d columns, as tensors on one device."""

    scale: Grid  # each (d,): between units and raw values
    shown: Grid  # each (d,): the raw values that may be proposed
    increase: Tensor  # (d,) bool: may only grow
    decrease: Tensor  # (d,) bool: may only shrink
    locked: Tensor  # (d,) bool: stays as it is
    sticky: Tensor  # (d,) bool: a missing cell of this feature stays missing
    flag: Tensor  # (d,) bool: the column says that a cell is missing
    owner: Tensor  # (d,) int: the feature that a column belongs to
    members: Tensor  # (d, n_features) float64: 1 where the column belongs to the feature
    groups: tuple[Group, ...]
    slots: (
        Tensor  # (groups, most columns of one) int: the columns of each group; where it has fewer, its last
    )
    filled: Tensor  # (groups, most columns of one) bool: which of the slots are columns of their own
    grouped: Tensor  # (d,) bool: the column belongs to a group

    def to(self, device: torch.device) -> Rules:
        """The same rules with their tensors on ``device``."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in moved.items():
            if isinstance(value, Tensor):
                moved[name] = value.to(device)
        for name in ("scale", "shown"):
            moved[name] = Grid(*(part.to(device) for part in moved[name]))
        return Rules(**moved)


def rules_of(blocks: tuple[Block, ...], fitted: tuple[FeatureScale, ...]) -> Rules:
    """What the projection must obey in each column."""
    sizes = torch.tensor([block.stop - block.start for block in blocks])
    owner = torch.arange(len(blocks)).repeat_interleave(sizes)

    def each(holds: list[bool]) -> Tensor:
        return torch.tensor(holds)[owner]

    unit = finest_grid(0.0, 1.0)
    scales, shown = [unit] * blocks[-1].stop, [unit] * blocks[-1].stop
    flag = torch.zeros(blocks[-1].stop, dtype=torch.bool)
    for block, scale in zip(blocks, fitted, strict=True):
        if block.group is None:
            scales[block.start], shown[block.start] = scale.grid(block.feature), scale.shown(block.feature)
        if not block.marker_slots:
            flag[block.flags] = True
    groups = [block.group for block in blocks if block.group is not None]
    most = torch.arange(max((group.stop - group.start for group in groups), default=0))
    ends = torch.tensor([[group.start, group.stop] for group in groups], dtype=torch.long).reshape(-1, 2, 1)
    slots = torch.minimum(ends[:, 0] + most, ends[:, 1] - 1)
    grouped = torch.zeros_like(flag).index_fill(0, slots.flatten(), True)
    actions = [block.feature.action for block in blocks]
    increase, decrease = (each([a == way for a in actions]) for way in ("increase_only", "decrease_only"))
    frozen = [a == "immutable" or f.constant for a, f in zip(actions, fitted, strict=True)]
    return Rules(
        scale=stack_grids(scales),
        shown=stack_grids(shown),
        increase=increase,
        decrease=decrease,
        locked=each(frozen),
        sticky=increase | decrease | each(frozen),
        flag=flag,
        owner=owner,
        members=torch.nn.functional.one_hot(owner, len(blocks)).double(),
        groups=tuple(Group(b.group, len(b.feature.categories)) for b in blocks if b.group is not None),
        slots=slots,
        filled=ends[:, 0] + most < ends[:, 1],
        grouped=grouped,
    )


def project_hard(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The legal row next to ``x_cf`` for a person whose row is ``x``; shape (..., d), the dtype of ``x``.

    Where ``x_cf`` has a column exactly as ``x`` has it, so has the result, whatever the grid says:
    nobody is asked to change what they already have. (What stood in for a missing value, nobody has.)
    """
    wanted = torch.where(torch.isnan(x_cf), x, x_cf.to(x.dtype)).clamp(0.0, 1.0)
    row = _legal_numbers(wanted, x, rules)
    row = _with_groups(row, [_choose(wanted, x, group) for group in rules.groups], rules.groups)
    return _with_what_stays(row, wanted, x, rules)


def _legal_numbers(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The row whose numbers are the legal ones next to ``wanted``; its groups are not."""
    # float64 throughout: the nearest grid point must be the one that encoding the raw value gives.
    legal = rules.scale.to_unit(rules.shown.nearest(rules.scale.at(wanted.double()))).to(x.dtype)
    back = (rules.increase & (legal < x)) | (rules.decrease & (legal > x))
    row = torch.where(back | ((wanted == x) & ~missing(x, rules)), x, legal)
    return torch.where(rules.flag, torch.zeros_like(row), row)


def _with_what_stays(row: Tensor, wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The row, in which cells that stay missing and columns that are locked are those of ``x``."""
    return torch.where(_stays_missing(wanted, x, rules) | rules.locked, x, row)


def snap(x_cf: Tensor, x: Tensor, up: Tensor, rules: Rules) -> Tensor:
    """The legal row next to ``x_cf``, with numbers rounded up where ``up`` holds, and down elsewhere.

    Its categories have to be whole ones that the person may have: they are left as they are.
    """
    raw = rules.shown.beyond(rules.scale.at(x_cf.double()), up)
    kept = (x_cf == x) | rules.flag | rules.grouped
    return _with_numbers(torch.where(kept, x_cf, rules.scale.to_unit(raw).to(x.dtype)), x, rules)


def _with_numbers(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The legal row next to one whose categories are legal."""
    wanted = wanted.clamp(0.0, 1.0)
    row = torch.where(rules.grouped, wanted, _legal_numbers(wanted, x, rules))
    return _with_what_stays(row, wanted, x, rules)


def step_back(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The row with every changed number one step of what may be shown closer to ``x``, and not past it.

    As for ``snap`` its categories have to be legal.
    """
    raw = rules.scale.at(x_cf.double())
    step = rules.shown.stride / rules.shown.scale
    target = rules.scale.to_unit(rules.shown.nearest(torch.where(x_cf > x, raw - step, raw + step))).to(
        x.dtype
    )
    passed = torch.where(x_cf > x, target < x, target > x)
    kept = rules.flag | rules.grouped | (x_cf == x)
    return _with_numbers(torch.where(kept, x_cf, torch.where(passed, x, target)), x, rules)


def limits(x: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value that each column of a legal row of the person ``x`` can have."""
    lower = torch.where(rules.increase, x, torch.zeros_like(x))
    upper = torch.where(rules.decrease | rules.flag, x, torch.ones_like(x))
    markers = [torch.where(_allowed(x[..., g.columns], g), 1.0, 0.0).to(x.dtype) for g in rules.groups]
    upper = _with_groups(upper, markers, rules.groups)
    fixed = rules.locked | (missing(x, rules) & rules.sticky)
    return torch.where(fixed, x, lower), torch.where(fixed, x, upper)


def project_relaxed(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """The hard projection without grid and with fractional categories, differentiable in ``x_cf``."""
    row = x_cf.clamp(0.0, 1.0)
    # `where` instead of max/min: at a tie (a generator that starts from x) the whole gradient goes to x_cf.
    row = torch.where((rules.increase & (row < x)) | (rules.decrease & (row > x)), x, row)
    row = torch.where(rules.flag & (row > x), x, row)
    row = _with_groups(row, [_normalised(x_cf, x, group) for group in rules.groups], rules.groups)
    return torch.where(rules.locked | (missing(x, rules) & rules.sticky), x, row)


def changed(x_cf: Tensor, x: Tensor, rules: Rules, tol: float) -> Tensor:
    """Which features differ by more than ``tol`` in some column, bool of the shape (..., n_features)."""
    differs = ~((x_cf - x).abs() <= tol)  # so that a NaN counts as a change
    return (differs.double() @ rules.members) > 0


def missing(x: Tensor, rules: Rules) -> Tensor:
    """(..., d): the columns of the cells that are flagged as missing."""
    return _per_feature(rules.flag & (x >= 0.5), rules)


def _per_feature(holds: Tensor, rules: Rules) -> Tensor:
    """(..., d): for each column whether ``holds`` is true in some column of the same feature."""
    return ((holds.double() @ rules.members) > 0)[..., rules.owner]


def _stays_missing(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """(..., d): the columns of the cells that were missing and are left so."""
    missing = rules.flag & (x >= 0.5)
    return _per_feature(missing & (rules.sticky | (wanted >= 0.5)), rules)


def _allowed(block: Tensor, group: Group) -> Tensor:
    """Bool: every category, and of the markers only the one that the person has."""
    value = torch.arange(block.shape[-1], device=block.device) < group.categories
    return value | (block >= 0.5)


def _choose(wanted: Tensor, x: Tensor, group: Group) -> Tensor:
    """The one-hot block of the greatest allowed entry; of equal ones the person's own, then the first."""
    block, own = wanted[..., group.columns], x[..., group.columns]
    score = torch.where(_allowed(own, group), block, -torch.ones_like(block))
    own = own.expand_as(score)
    best = score == score.amax(-1, keepdim=True)
    # Among the best the person's own entry counts 2, any other one 1; argmax takes the first of equals.
    rank = best.to(own.dtype) * (1.0 + (own >= 0.5).to(own.dtype))
    position = rank.argmax(-1, keepdim=True)
    chosen = (torch.arange(own.shape[-1], device=own.device) == position).to(own.dtype)
    return torch.where((block == own).all(-1, keepdim=True), own, chosen)


def _normalised(x_cf: Tensor, x: Tensor, group: Group) -> Tensor:
    """The block with non-negative entries that sum to 1; that of ``x`` where nothing is left to divide."""
    own = x[..., group.columns]
    block = torch.where(_allowed(own, group), x_cf[..., group.columns].clamp(min=0.0), torch.zeros_like(own))
    total = block.sum(-1, keepdim=True)
    empty = total <= 0
    return torch.where(empty, own, block / torch.where(empty, torch.ones_like(total), total))


def _with_groups(row: Tensor, blocks: list[Tensor], groups: tuple[Group, ...]) -> Tensor:
    """``row`` with the columns of each group replaced (by concatenation: vmap knows no writing in place)."""
    if not groups:
        return row
    pieces, end = [], 0
    for block, group in zip(blocks, groups, strict=True):
        pieces += [row[..., end : group.columns.start], block]
        end = group.columns.stop
    return torch.cat([*pieces, row[..., end:]], dim=-1)
