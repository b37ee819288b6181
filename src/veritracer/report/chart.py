"""Axes, lines, bands and dots on one small canvas.

A canvas is as wide as a phone (360 units), so that text keeps its size there; on a wide screen it grows a
little, and the style sheet makes the text smaller in turn. Colours are classes (``s1``, ``s2``, ...): the
style sheet gives each one a colour for light and one for dark, and each line a dash pattern of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from veritracer.report.svg import Svg, element, joined, path

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
