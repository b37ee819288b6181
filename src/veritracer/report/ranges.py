"""Several values on one scale for each name: a line from the lowest to the highest, and a dot at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from veritracer.report.bars import shortened
from veritracer.report.chart import WIDTH, Scale, canvas, ticks
from veritracer.report.svg import Svg, element, joined, path

ROW, SIDE, FOOT = 44.0, 10.0, 34.0


@dataclass(frozen=True)
class Range:
    """A name, a remark beside it, and its values with what each of them is."""

    name: str
    remark: str
    values: tuple[tuple[float, str], ...]


def range_picture(identity: str, rows: Sequence[Range], axis: str, write: Callable[[float], str]) -> Svg:
    """The rows on one common scale from 0, with its ticks below."""
    highest = max(value for row in rows for value, _ in row.values)
    scale = Scale(0, highest * 1.04 or 1.0, SIDE, WIDTH - SIDE)
    height = ROW * len(rows)
    marks = ticks(scale.low, scale.high, most=5)
    pieces = [element("path", d=path([(scale(t), 0), (scale(t), height)]), class_="grid") for t in marks]
    pieces += [_row(row, k * ROW, scale) for k, row in enumerate(rows)]
    pieces += [
        element("text", write(t), x=scale(t), y=height + 12, text_anchor="middle", class_="tick")
        for t in marks
    ]
    pieces.append(element("text", axis, x=WIDTH / 2, y=height + 29, text_anchor="middle", class_="name"))
    return canvas(identity, joined(pieces), height + FOOT)


def _row(row: Range, top: float, scale: Scale) -> Svg:
    y = top + 30
    values = [value for value, _ in row.values]
    line = path([(scale(min(values)), y), (scale(max(values)), y)])
    dots = [
        element("circle", element("title", note), cx=scale(value), cy=y, r=4.2, class_=f"dot {series}")
        for (value, note), series in zip(row.values, _series(values), strict=True)
    ]
    return joined(
        [
            element("text", shortened(row.name, 24), x=0, y=top + 15, class_="label halo"),
            element("text", row.remark, x=WIDTH, y=top + 15, text_anchor="end", class_="value halo"),
            element("path", d=line, class_="link"),
            *dots,
        ]
    )


def _series(values: Sequence[float]) -> list[str]:
    """The colour of each dot: the ends stand out from what lies between."""
    low, high = min(values), max(values)
    return ["s1" if v == low else "s2" if v == high else "s0" for v in values]
