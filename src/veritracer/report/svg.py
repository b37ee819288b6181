"""SVG as text that is safe to put into a page: every attribute and every word is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape


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
