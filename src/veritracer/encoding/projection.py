"""Project encoded rows onto the legal rows of a person.

There are two versions: the hard projection returns legal rows, and the relaxed one, for training, is
differentiable almost everywhere. Both are pure functions of tensors of the shape (..., d) without branches on
their values, so that they run inside ``torch.func.vmap``.
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
    """Encoded columns of one feature.

    ``values`` is the column of a number or a level, or the columns of the categories; ``flags`` are the
    columns of the missing markers. Exactly one of the columns in ``group`` is 1, if there is a group.
    """

    feature: Feature
    start: int
    stop: int
    values: slice
    flags: slice
    group: slice | None

    @property
    def marker_slots(self) -> bool:
        """True if missing markers are columns of the one-hot group instead of flags beside the value."""
        return self.group is not None and self.group.stop == self.stop and self.feature.missing == "category"

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        name, feature = self.feature.name, self.feature
        values = [name] if self.group is None else [f"{name}={value}" for value in feature.categories]
        markers = () if feature.missing == "refuse" else feature.markers
        return values + [f"{name}?{'missing' if marker is None else marker}" for marker in markers]


def blocks_of(features: Iterable[Feature]) -> tuple[Block, ...]:
    """Return the consecutive blocks of these features."""
    blocks: list[Block] = []
    for feature in features:
        blocks.append(_block(feature, blocks[-1].stop if blocks else 0))
    return tuple(blocks)


def _block(feature: Feature, start: int) -> Block:
    # A single category is a column that is always 0, so that no uncertain weight can amplify it.
    single = feature.kind != "categorical" or (len(feature.categories) == 1 and feature.missing != "category")
    middle = start + (1 if single else len(feature.categories))
    stop = middle + (0 if feature.missing == "refuse" else len(feature.markers))
    group = None if single else slice(start, stop if feature.missing == "category" else middle)
    return Block(feature, start, stop, slice(start, middle), slice(middle, stop), group)


@dataclass(frozen=True)
class OneHotGroup:
    """A one-hot group: the first ``categories`` of its columns are values, the others missing markers."""

    columns: slice
    categories: int


@dataclass(frozen=True)
class Rules:
    """Constants of the projection for each of the d columns, as tensors on one device."""

    scale: Grid  # (d,) each: between units and raw values
    shown: Grid  # (d,) each: the raw values that may be proposed
    increase: Tensor  # (d,) bool: may only grow
    decrease: Tensor  # (d,) bool: may only shrink
    locked: Tensor  # (d,) bool: cannot change
    sticky: Tensor  # (d,) bool: a missing cell of this feature stays missing
    flag: Tensor  # (d,) bool: flags a missing cell
    owner: Tensor  # (d,) int: feature of the column
    members: Tensor  # (d, n_features) float64: 1 where the column belongs to the feature
    groups: tuple[OneHotGroup, ...]
    slots: Tensor  # (groups, k) int: columns of each group, its last one repeated
    filled: Tensor  # (groups, k) bool: slots that are not repetitions
    grouped: Tensor  # (d,) bool: belongs to a group

    def to(self, device: torch.device) -> Rules:
        """Return the rules with their tensors on ``device``."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in moved.items():
            if isinstance(value, Tensor):
                moved[name] = value.to(device)
        for name in ("scale", "shown"):
            moved[name] = Grid(*(part.to(device) for part in moved[name]))
        return Rules(**moved)


def rules_of(blocks: tuple[Block, ...], fitted: tuple[FeatureScale, ...]) -> Rules:
    """Return the rules of the projection for these blocks and scales."""
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
        groups=tuple(OneHotGroup(b.group, len(b.feature.categories)) for b in blocks if b.group is not None),
        slots=slots,
        filled=ends[:, 0] + most < ends[:, 1],
        grouped=grouped,
    )


def project_hard(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return the legal row nearest to ``x_cf`` for a person with the row ``x``, (..., d) in its dtype.

    A column of ``x_cf`` that equals ``x`` stays so even off the grid, except where it was imputed: nobody is
    asked to change a value in order to reach the grid.
    """
    wanted = torch.where(torch.isnan(x_cf), x, x_cf.to(x.dtype)).clamp(0.0, 1.0)
    row = _legal_numbers(wanted, x, rules)
    row = _with_groups(row, [_choose(wanted, x, group) for group in rules.groups], rules.groups)
    return _with_what_stays(row, wanted, x, rules)


def _legal_numbers(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return the row with the legal numbers nearest to ``wanted``; groups are left open."""
    # float64 throughout: the nearest grid point must be the one that encoding the raw value gives.
    legal = rules.scale.to_unit(rules.shown.nearest(rules.scale.at(wanted.double()))).to(x.dtype)
    back = (rules.increase & (legal < x)) | (rules.decrease & (legal > x))
    row = torch.where(back | ((wanted == x) & ~missing(x, rules)), x, legal)
    return torch.where(rules.flag, torch.zeros_like(row), row)


def _with_what_stays(row: Tensor, wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return the row with the columns of ``x`` where a cell stays missing or is locked."""
    return torch.where(_stays_missing(wanted, x, rules) | rules.locked, x, row)


def snap(x_cf: Tensor, x: Tensor, up: Tensor, rules: Rules) -> Tensor:
    """Return the legal row next to ``x_cf``, with numbers rounded up where ``up`` is true, else down.

    Categories must be legal already and stay the same.
    """
    raw = rules.shown.beyond(rules.scale.at(x_cf.double()), up)
    unchanged = (x_cf == x) | rules.flag | rules.grouped
    return _with_numbers(torch.where(unchanged, x_cf, rules.scale.to_unit(raw).to(x.dtype)), x, rules)


def _with_numbers(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return the legal row nearest to a row with legal categories."""
    wanted = wanted.clamp(0.0, 1.0)
    row = torch.where(rules.grouped, wanted, _legal_numbers(wanted, x, rules))
    return _with_what_stays(row, wanted, x, rules)


def step_back(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return the row with every changed number one display step closer to ``x``, at most up to ``x``.

    Categories must be legal already, as for ``snap``.
    """
    raw = rules.scale.at(x_cf.double())
    step = rules.shown.stride / rules.shown.scale
    target = rules.scale.to_unit(rules.shown.nearest(torch.where(x_cf > x, raw - step, raw + step))).to(
        x.dtype
    )
    passed = torch.where(x_cf > x, target < x, target > x)
    unchanged = rules.flag | rules.grouped | (x_cf == x)
    return _with_numbers(torch.where(unchanged, x_cf, torch.where(passed, x, target)), x, rules)


def limits(x: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each column over the legal rows of the person ``x``."""
    lower = torch.where(rules.increase, x, torch.zeros_like(x))
    upper = torch.where(rules.decrease | rules.flag, x, torch.ones_like(x))
    markers = [torch.where(_allowed(x[..., g.columns], g), 1.0, 0.0).to(x.dtype) for g in rules.groups]
    upper = _with_groups(upper, markers, rules.groups)
    fixed = rules.locked | (missing(x, rules) & rules.sticky)
    return torch.where(fixed, x, lower), torch.where(fixed, x, upper)


def project_relaxed(x_cf: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Project without grid and with fractional categories, differentiably in ``x_cf``."""
    row = x_cf.clamp(0.0, 1.0)
    # `where` instead of max and min: at ties (a generator that starts from x) x_cf gets the whole gradient.
    row = torch.where((rules.increase & (row < x)) | (rules.decrease & (row > x)), x, row)
    row = torch.where(rules.flag & (row > x), x, row)
    row = _with_groups(row, [_normalised(x_cf, x, group) for group in rules.groups], rules.groups)
    return torch.where(rules.locked | (missing(x, rules) & rules.sticky), x, row)


def changed(x_cf: Tensor, x: Tensor, rules: Rules, tol: float) -> Tensor:
    """Return a mask (..., n_features) of the features that differ by more than ``tol`` in some column."""
    differs = ~((x_cf - x).abs() <= tol)  # so that a NaN counts as a change
    return (differs.double() @ rules.members) > 0


def missing(x: Tensor, rules: Rules) -> Tensor:
    """Return a mask (..., d) of the columns of cells that are flagged as missing."""
    return _per_feature(rules.flag & (x >= 0.5), rules)


def _per_feature(holds: Tensor, rules: Rules) -> Tensor:
    """Return a mask (..., d) of the columns of features for which ``holds`` is true in some column."""
    return ((holds.double() @ rules.members) > 0)[..., rules.owner]


def _stays_missing(wanted: Tensor, x: Tensor, rules: Rules) -> Tensor:
    """Return a mask (..., d) of the columns of cells that stay missing."""
    missing = rules.flag & (x >= 0.5)
    return _per_feature(missing & (rules.sticky | (wanted >= 0.5)), rules)


def _allowed(block: Tensor, group: OneHotGroup) -> Tensor:
    """Return a mask of the categories, and of the missing marker that the person has."""
    value = torch.arange(block.shape[-1], device=block.device) < group.categories
    return value | (block >= 0.5)


def _choose(wanted: Tensor, x: Tensor, group: OneHotGroup) -> Tensor:
    """Return the one-hot block of the largest allowed entry; ties go to the person's own, then the first."""
    block, present = wanted[..., group.columns], x[..., group.columns]
    score = torch.where(_allowed(present, group), block, -torch.ones_like(block))
    present = present.expand_as(score)
    best = score == score.amax(-1, keepdim=True)
    # Among the best entries the person's own counts 2, the others 1; argmax takes the first of equals.
    rank = best.to(present.dtype) * (1.0 + (present >= 0.5).to(present.dtype))
    position = rank.argmax(-1, keepdim=True)
    chosen = (torch.arange(present.shape[-1], device=present.device) == position).to(present.dtype)
    return torch.where((block == present).all(-1, keepdim=True), present, chosen)


def _normalised(x_cf: Tensor, x: Tensor, group: OneHotGroup) -> Tensor:
    """Return the block with non-negative entries that sum to 1; the block of ``x`` if all are zero."""
    present = x[..., group.columns]
    block = torch.where(
        _allowed(present, group), x_cf[..., group.columns].clamp(min=0.0), torch.zeros_like(present)
    )
    total = block.sum(-1, keepdim=True)
    empty = total <= 0
    return torch.where(empty, present, block / torch.where(empty, torch.ones_like(total), total))


def _with_groups(row: Tensor, blocks: list[Tensor], groups: tuple[OneHotGroup, ...]) -> Tensor:
    """Replace the columns of each group, by concatenation because vmap forbids writing in place."""
    if not groups:
        return row
    pieces, end = [], 0
    for block, group in zip(blocks, groups, strict=True):
        pieces += [row[..., end : group.columns.start], block]
        end = group.columns.stop
    return torch.cat([*pieces, row[..., end:]], dim=-1)
