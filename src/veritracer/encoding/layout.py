"""Where each feature lives in an encoded row, and what the projection must obey there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.encoding.fitting import FeatureScale
from veritracer.encoding.grid import fine, stack
from veritracer.encoding.projection import Group, Rules
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


def rules_of(blocks: tuple[Block, ...], fitted: tuple[FeatureScale, ...]) -> Rules:
    """What the projection must obey in each column."""
    sizes = torch.tensor([block.stop - block.start for block in blocks])
    owner = torch.arange(len(blocks)).repeat_interleave(sizes)

    def each(holds: list[bool]) -> Tensor:
        return torch.tensor(holds)[owner]

    unit = fine(0.0, 1.0)
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
        scale=stack(scales),
        shown=stack(shown),
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
