"""Horizontal bars with their names above them, so that long names have room on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veritracer.report.chart import WIDTH, canvas
from veritracer.report.svg import Svg, element, joined, path

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
