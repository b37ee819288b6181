"""What a section of the report is made of: pictures as inline SVG, tables, and numbers as people write them.

SVG is text that is safe to put into a page: every attribute and every word is escaped here, once. A canvas is
as wide as a phone (360 units), so that text keeps its size there; on a wide screen it grows a little, and the
style sheet makes the text smaller in turn. Colours are classes (``s1``, ``s2``, ...): the style sheet gives
each one a colour for light and one for dark, and each line a dash pattern of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from veritracer.formatting import format_percent as plain_percent


@dataclass(frozen=True)
class Svg:
    """A piece of SVG whose text is escaped already; templates insert it as it is."""

    text: str

    def __html__(self) -> str:
        return self.text


def element(tag: str, *children: Svg | str, **attributes: object) -> Svg:
    """An element with its children; plain strings are escaped, ``class_`` is ``class``, ``x_y`` is ``x-y``.

    >>> element("text", "a < b", class_="tick", text_anchor="end", x=1.0).text
    '<text class="tick" text-anchor="end" x="1">a &lt; b</text>'
    """
    named = [(name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items()]
    said = "".join(f' {name}="{_attribute(value)}"' for name, value in named if value is not None)
    inside = "".join(c.text if isinstance(c, Svg) else escape(c) for c in children)
    return Svg(f"<{tag}{said}>{inside}</{tag}>")


def joined(pieces: Iterable[Svg]) -> Svg:
    """The pieces, one after the other."""
    return Svg("".join(piece.text for piece in pieces))


def number(value: float) -> str:
    """A coordinate with at most two decimals: a hundredth of a pixel is finer than any screen.

    >>> number(3.0), number(1 / 3), number(-0.001)
    ('3', '0.33', '0')
    """
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def path(points: Iterable[tuple[float, float]], *, closed: bool = False) -> str:
    """The ``d`` of a path through the points.

    >>> path([(0, 1), (2, 3)], closed=True)
    'M0 1L2 3Z'
    """
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + ("Z" if closed else "")


def _attribute(value: object) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return number(float(value))
    return escape(str(value), quote=True)


# ---------------------------------------------------------------- axes, lines, bands and dots


WIDTH, HEIGHT = 360.0, 262.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 14.0, 28.0, 46.0

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """A straight map from numbers to places on the canvas.

    >>> Scale(0, 10, 0, 100)(2.5)
    25.0
    """

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The place of ``value``."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many.

    >>> ticks(0, 1), ticks(0, 37, most=5)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 10.0, 20.0, 30.0])
    """
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10, 20) if power * m >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axis:
    """One side of a chart: its range, its name, and how its ticks are written."""

    low: float
    high: float
    name: str
    write: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    at: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high:  # a single value still needs room to be drawn in
            object.__setattr__(self, "high", self.low + (abs(self.low) or 1.0))

    @property
    def ticks(self) -> list[float]:
        """Where its numbers are."""
        return list(self.at) if self.at is not None else ticks(self.low, self.high)


@dataclass(frozen=True)
class Chart:
    """Two axes and what was drawn between them; every method gives a chart with one thing more."""

    x: Axis
    y: Axis
    drawn: tuple[Svg, ...] = ()
    height: float = HEIGHT

    @property
    def across(self) -> Scale:
        """Where a value of ``x`` lies on the canvas."""
        return Scale(self.x.low, self.x.high, LEFT, WIDTH - RIGHT)

    @property
    def up(self) -> Scale:
        """Where a value of ``y`` lies on the canvas."""
        return Scale(self.y.low, self.y.high, self.height - BOTTOM, TOP)

    def line(self, points: Points, series: str) -> Chart:
        """With a line through the points; points that are not finite leave a gap."""
        parts: list[list[tuple[float, float]]] = [[]]
        for px, py in points:
            if math.isfinite(px) and math.isfinite(py):
                parts[-1].append((self.across(px), self.up(py)))
            elif parts[-1]:
                parts.append([])
        lines = [element("path", d=path(part), class_=f"line {series}") for part in parts if part]
        return self._with(*lines)

    def band(self, lower: Points, upper: Points, series: str) -> Chart:
        """With the area between two lines."""
        outline = [*lower, *reversed(upper)]
        d = path([(self.across(px), self.up(py)) for px, py in outline], closed=True)
        return self._with(element("path", d=d, class_=f"area {series}"))

    def dots(self, points: Points, series: str, notes: Sequence[str] = ()) -> Chart:
        """With a dot at each point; ``notes`` show when a pointer rests on one."""
        said = [[element("title", note)] for note in notes] or [[] for _ in points]
        dots = [
            element("circle", *title, cx=self.across(px), cy=self.up(py), r=3.6, class_=f"dot {series}")
            for (px, py), title in zip(points, said, strict=True)
        ]
        return self._with(*dots)

    def spans(self, ends: Sequence[tuple[float, float, float]], series: str) -> Chart:
        """With a vertical line for each (x, from, to): what an estimate could also have been."""
        lines = [
            element("path", d=path([(self.across(px), self.up(a)), (self.across(px), self.up(b))]))
            for px, a, b in ends
        ]
        return self._with(element("g", *lines, class_=f"span {series}"))

    def columns(self, edges: Sequence[tuple[float, float, float]], series: str) -> Chart:
        """With a column for each (left, right, height)."""
        bottom = self.up(self.y.low)
        bars = []
        for left, right, top in edges:
            start, stop, high = self.across(left), self.across(right), self.up(top)
            note = element("title", f"{self.x.write(left)} to {self.x.write(right)}: {top:,.0f}")
            place = {"x": start + 0.75, "y": high, "width": stop - start - 1.5, "height": bottom - high}
            bars.append(element("rect", note, **place, class_=f"bar {series}"))
        return self._with(*bars)

    def mark(self, at: float, words: str, *, height: float = 0.93) -> Chart:
        """With a vertical line that has a name, at this share of the height, on the side with more room."""
        place = self.across(at)
        left = place > (LEFT + WIDTH - RIGHT) / 2
        d = path([(place, self.up(self.y.low)), (place, TOP)])
        line = element("path", d=d, class_="mark")
        anchor, shift = ("end", -5) if left else ("start", 5)
        spot = {"x": place + shift, "y": Scale(0, 1, self.height - BOTTOM, TOP)(height)}
        text = element("text", words, **spot, text_anchor=anchor, class_="tick strong halo")
        return self._with(line, text)

    def picture(self, identity: str) -> Svg:
        """The whole chart; its name and its description are the elements around it in the page."""
        inside = joined([self._grid(), *self.drawn, self._names()])
        return canvas(identity, inside, self.height)

    def _with(self, *more: Svg) -> Chart:
        return Chart(self.x, self.y, (*self.drawn, *more), self.height)

    def _grid(self) -> Svg:
        pieces = []
        for value in self.y.ticks:
            place = self.up(value)
            pieces.append(element("path", d=path([(LEFT, place), (WIDTH - RIGHT, place)]), class_="grid"))
            said = self.y.write(value)
            pieces.append(element("text", said, x=LEFT - 6, y=place + 4, text_anchor="end", class_="tick"))
        bottom = self.height - BOTTOM
        for value in self.x.ticks:
            spot = {"x": self.across(value), "y": bottom + 16}
            pieces.append(element("text", self.x.write(value), **spot, text_anchor="middle", class_="tick"))
        floor = element("path", d=path([(LEFT, bottom), (WIDTH - RIGHT, bottom)]), class_="axis")
        return joined([*pieces, floor])

    def _names(self) -> Svg:
        middle = (LEFT + WIDTH - RIGHT) / 2
        below = element(
            "text", self.x.name, x=middle, y=self.height - 10, text_anchor="middle", class_="name"
        )
        # Level and above the numbers: turned text would be hard to read, and on a phone in their way.
        above = element("text", self.y.name, x=0, y=12, class_="name")
        return joined([below, above])


def canvas(identity: str, inside: Svg, height: float) -> Svg:
    """A drawing of this height; ``identity`` names the figure whose heading and caption describe it."""
    return element(
        "svg",
        inside,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{identity}-title",
        aria_describedby=f"{identity}-caption",
    )


# ---------------------------------------------------------------- bars


NAME, BAR, GAP = 16.5, 9.0, 7.0
LONGEST = 40
"""Letters of a name that fit beside its value on a phone."""


@dataclass(frozen=True)
class Bar:
    """A bar: its length as a share of the width, what it says, and in which colour."""

    share: float
    value: str
    series: str = "s1"
    second: float = 0.0
    """A further part, drawn after the first one in the second colour."""


@dataclass(frozen=True)
class Row:
    """A name and the bars below it."""

    name: str
    bars: tuple[Bar, ...]


def bar_picture(identity: str, rows: Sequence[Row]) -> Svg:
    """The rows, one below the other; lengths are shares of the whole width."""
    pieces, y = [], 0.0
    for row in rows:
        single = len(row.bars) == 1
        pieces.append(element("text", shortened(row.name), x=0, y=y + 11.5, class_="label"))
        if single:
            said = row.bars[0].value
            pieces.append(element("text", said, x=WIDTH, y=y + 11.5, text_anchor="end", class_="value"))
        y += NAME
        for bar in row.bars:
            pieces.append(_bar(bar, y, beside=not single))
            y += BAR + (0 if single else 5)
        y += GAP
    return canvas(identity, joined(pieces), y)


def shortened(name: str, longest: int = LONGEST) -> str:
    """The name, cut where it would run into the value beside it.

    >>> shortened("income"), shortened("a very long name of a column", 12)
    ('income', 'a very long…')
    """
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"


def _bar(bar: Bar, y: float, *, beside: bool) -> Svg:
    """One bar on its track, with the value at its right end where several share a name."""
    room = WIDTH - (58 if beside else 0)
    middle = y + BAR / 2
    first, second = room * min(bar.share, 1.0), room * min(bar.second, 1.0)
    track = element("path", d=path([(0, middle), (room, middle)]), class_="track")
    pieces = [track, element("rect", x=0, y=y, width=first, height=BAR, class_=f"bar {bar.series}")]
    if second > 0:
        place = {"x": first, "y": y, "width": second, "height": BAR}
        pieces.append(element("rect", **place, class_="bar s2"))
    if beside:
        pieces.append(element("text", bar.value, x=WIDTH, y=y + 8.5, text_anchor="end", class_="value"))
    return joined(pieces)


# ---------------------------------------------------------------- ranges


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


@dataclass(frozen=True)
class Span:
    """A name, a remark beside it, a value with the ends of its interval, and its colour."""

    name: str
    remark: str
    value: float
    low: float
    high: float
    series: str = "s1"


def span_picture(identity: str, rows: Sequence[Span], axis: str, line: float, words: str) -> Svg:
    """The values with their intervals on one scale from 0 to a little above 1, and a line across all."""
    highest = max(1.0, *(min(row.high, 2.0) for row in rows))
    scale = Scale(0, highest * 1.04, SIDE, WIDTH - SIDE)
    height = ROW * len(rows)
    marks = ticks(scale.low, scale.high, most=5)
    pieces = [element("path", d=path([(scale(t), 0), (scale(t), height)]), class_="grid") for t in marks]
    pieces.append(element("path", d=path([(scale(line), 0), (scale(line), height)]), class_="mark"))
    for k, row in enumerate(rows):
        y, top = k * ROW + 30, k * ROW
        ends = [(scale(max(end, 0.0)), y) for end in (row.low, min(row.high, scale.high))]
        note = element("title", row.remark)
        pieces += [
            element("text", shortened(row.name, 30), x=0, y=top + 15, class_="label halo"),
            element("text", row.remark, x=WIDTH, y=top + 15, text_anchor="end", class_="value halo"),
            element("path", d=path(ends), class_="link"),
            element("circle", note, cx=scale(row.value), cy=y, r=4.2, class_=f"dot {row.series}"),
        ]
    pieces += [
        element("text", f"{t:g}", x=scale(t), y=height + 12, text_anchor="middle", class_="tick")
        for t in marks
        if abs(t - line) > 1e-9
    ]
    place = {"x": scale(line), "y": height + 12, "text_anchor": "middle"}
    pieces.append(element("text", words, **place, class_="tick strong"))
    pieces.append(element("text", axis, x=WIDTH / 2, y=height + 29, text_anchor="middle", class_="name"))
    return canvas(identity, joined(pieces), height + FOOT)


def _series(values: Sequence[float]) -> list[str]:
    """The colour of each dot: the ends stand out from what lies between."""
    low, high = min(values), max(values)
    return ["s1" if v == low else "s2" if v == high else "s0" for v in values]


# ---------------------------------------------------------------- figures and tables


@dataclass(frozen=True)
class Table:
    """Words in rows; ``numeric`` says which columns are set flush right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> Table:
        """A table whose first ``words`` columns are words and the others numbers."""
        numeric = tuple(k >= words for k in range(len(header)))
        return cls(tuple(header), tuple(tuple(row) for row in rows), numeric)


@dataclass(frozen=True)
class Figure:
    """A picture with its heading, the conclusion that its numbers allow, a legend and the numbers."""

    identity: str
    title: str
    picture: Svg
    caption: str
    table: Table
    legend: tuple[tuple[str, str], ...] = ()


def percent(share: float) -> str:
    """A share as a percentage that no line breaks in two."""
    return plain_percent(share).replace(" ", "\u00a0")
