"""Draw the charts of a page with matplotlib, as inline SVG in the fonts and colours of the page.

A canvas is as wide as a phone (360 units), so that text keeps its size there; on a wide screen the picture
grows and the style sheet makes the text smaller in turn. Colours are the style sheet's and are written by
name, so that a picture follows the page into dark mode and onto paper. Lines are labelled directly.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from itertools import pairwise
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform, Transform
from numpy.typing import ArrayLike, NDArray

from veritracer.formatting import format_percent

SHEET = (files("veritracer.app.report") / "templates" / "report.css").read_text(encoding="utf-8")
PALETTE: dict[str, str] = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", SHEET.partition("@media")[0]))
"""The light colours of the style sheet by name; each of them has one name."""

GREY, BLUE, ORANGE, BLACK = (PALETTE[name] for name in ("s0", "s1", "s2", "s3"))
DASHES = {BLUE: "-", ORANGE: (0, (3.5, 1.5)), BLACK: (0, (1, 1.5)), GREY: (0, (1, 1.5))}
"""The dash pattern of each colour, for readers and printers that do not see colours."""

WIDTH, HEIGHT = 360.0, 262.0
FONT = 12.5
LETTER = 0.53 * FONT
"""Width of a letter, on average."""

STYLE: Any = {  # the keys are typed as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "veritracer",
    "text.parse_math": False,  # names of features are not formulas
    "text.color": PALETTE["ink"],
    "font.size": FONT,
    "axes.labelcolor": PALETTE["soft"],
    "axes.edgecolor": PALETTE["soft"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 1.0,
    "xtick.color": PALETTE["soft"],
    "ytick.color": PALETTE["soft"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 8,
    "ytick.major.pad": 6,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "butt",
    "lines.markersize": 7.2,
    "lines.markeredgecolor": PALETTE["sheet"],
    "lines.markeredgewidth": 1.0,
    "lines.scale_dashes": True,
    "patch.linewidth": 0,
}


# ---------------------------------------------------------------- figures and tables


@dataclass(frozen=True)
class Table:
    """Rows of text; ``numeric`` tells which columns are aligned to the right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> Table:
        """Make a table whose first ``words`` columns are text and the others numbers."""
        numeric = tuple(k >= words for k in range(len(header)))
        return cls(tuple(header), tuple(tuple(row) for row in rows), numeric)


@dataclass(frozen=True)
class Figure:
    """A picture with its title, a caption, the numbers as a table, and a key where colours need one."""

    identity: str
    title: str
    picture: Markup
    caption: str
    table: Table
    legend: tuple[tuple[str, str], ...] = ()


def percent(share: float) -> str:
    """Format a share as a percentage that no line break splits."""
    return format_percent(share).replace(" ", "\u00a0")


def shortened(name: str, longest: int = 40) -> str:
    """Cut a name that would run into the value beside it on a phone.

    >>> shortened("income"), shortened("a very long name of a column", 12)
    ('income', 'a very long…')
    """
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"


# ---------------------------------------------------------------- charts with two axes


@contextmanager
def drawing(
    height: float = HEIGHT, *, left: float = 46, right: float = 14, top: float = 28, bottom: float = 46
) -> Iterator[Axes]:
    """Yield axes in the style of the page; draw and call ``to_svg`` inside the ``with`` block.

    Settings of the user, such as a matplotlibrc file, have no effect. Margins are in units of the canvas.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        canvas = Canvas(figsize=(WIDTH / 72, height / 72), dpi=72)
        inner = (WIDTH - left - right) / WIDTH, (height - top - bottom) / height
        axes = canvas.add_axes((left / WIDTH, bottom / height, *inner))
        axes.locator_params(nbins=6)
        yield axes


def name_axes(
    axes: Axes,
    x: str,
    y: str,
    *,
    x_format: Callable[[float], str] = "{:g}".format,
    y_format: Callable[[float], str] = percent,
) -> None:
    """Name both axes and format their ticks; the name of ``y`` stands level above its numbers."""
    axes.set_xlabel(x, labelpad=6)
    corner: dict[str, Any] = {
        "xytext": (0, -12),
        "xycoords": "figure fraction",
        "textcoords": "offset points",
    }
    axes.annotate(y, (0, 1), color=PALETTE["soft"], **corner)
    axes.xaxis.set_major_formatter(lambda value, _: x_format(value))
    axes.yaxis.set_major_formatter(lambda value, _: y_format(value))


def line(
    axes: Axes, x: ArrayLike, y: ArrayLike, colour: str, label: str = "", *, marker: str | None = None
) -> None:
    """Draw a line in the dash pattern of its colour; ``label_lines`` writes its label."""
    axes.plot(x, y, color=colour, linestyle=DASHES[colour], label=label or "_", marker=marker)


def histogram(axes: Axes, edges: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Draw a column for each bin, with a small gap between them."""
    gap = 0.75 * (axes.get_xlim()[1] - axes.get_xlim()[0]) / (axes.bbox.width)
    axes.bar(edges[:-1] + gap, counts, np.diff(edges) - 2 * gap, align="edge", color=BLUE)


def mark(axes: Axes, x: float, label: str = "_") -> None:
    """Draw a thin dotted line across the chart at ``x``; ``label_lines`` writes its label."""
    axes.axvline(x, color=PALETTE["ink"], linewidth=1, linestyle=(0, (2, 3)), label=label)


def label_lines(axes: Axes) -> None:
    """Write the label of each line beside it, where it is far from the other lines, bars and labels."""
    low, high = axes.bbox.get_points()
    lines = [(each, _points(np.column_stack(each.get_data()), each.get_transform())) for each in axes.lines]
    taken = [_points(np.asarray(bar.get_path().vertices), bar.get_transform()) for bar in axes.patches]
    for each, own in lines:
        label = str(each.get_label())
        if label.startswith("_"):
            continue
        half = np.array([LETTER * len(label) / 2 + 2, FONT / 2])
        centres = (own[:: -max(len(own) // 60, 1), None, :] + BESIDE * (half + 3)).reshape(-1, 2)
        fits = (centres - half >= low - 1) & (centres + half <= high + 1)
        others = np.concatenate([*(points for other, points in lines if other is not each), *taken])
        gap = _gap(centres, half, others)
        # Nothing may cross the label; then the more room around it the better.
        score = 100 * np.minimum(np.minimum(gap, _gap(centres, half, own)), 2) + np.minimum(gap, 25)
        best = centres[int(np.where(fits.all(axis=1), score, -1.0).argmax())]
        taken.append(best + half * np.mgrid[-1:1:9j, -1:1:3j].reshape(2, -1).T)
        _write(axes, best, label, _text_colour(each))


BESIDE = np.array([[0, 1], [0, -1], [1, 0], [-1, 0], [1, -1], [-1, 1], [1, 1], [-1, -1]])
"""Positions of a label beside a point of its line, in units of its half width and height."""


def _points(corners: NDArray[np.float64], transform: Transform) -> NDArray[np.float64]:
    """Return points along a path on the canvas, at most two units apart, (n, 2)."""
    places = transform.transform(corners.astype(np.float64))
    places = places[np.isfinite(places).all(axis=1)]
    parts = [
        np.linspace(a, b, max(int(np.hypot(*(b - a)) / 2), 1), endpoint=False) for a, b in pairwise(places)
    ]
    return np.concatenate([*parts, places[-1:]])


def _gap(
    centres: NDArray[np.float64], half: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how far the box around each centre is from the nearest of the points, (n,)."""
    outside = np.maximum(np.abs(centres[:, None, :] - points) - half, 0)
    return np.asarray(np.hypot(outside[..., 0], outside[..., 1]).min(axis=1, initial=np.inf))


def _text_colour(drawn: Line2D) -> str:
    colour = str(drawn.get_color())
    return PALETTE["soft"] if colour == GREY else colour  # grey is too pale for text


def _write(
    axes: Axes, place: ArrayLike, text: str, colour: str = PALETTE["ink"], *, ha: str = "center"
) -> None:
    """Write text at a height around ``place`` on the canvas."""
    x, y = np.asarray(place) - (0, 0.36 * FONT)
    axes.text(x, y, text, color=colour, ha=ha, transform=IdentityTransform())


# ---------------------------------------------------------------- bars and intervals


class Bar(NamedTuple):
    """A name, the value on its right, and the parts of the bar below: shares of the width and colours."""

    name: str
    value: str
    parts: tuple[tuple[float, str], ...]


def bar_chart(identity: str, rows: Sequence[Bar]) -> Markup:
    """Draw the bars one below the other, each under its name and value."""
    step, thick = 32.5, 9.0
    height = step * len(rows)
    with drawing(height, left=0, right=0, top=0, bottom=0) as axes:
        axes.set(xlim=(0, 1), ylim=(height, 0))
        axes.set_axis_off()
        for k, row in enumerate(rows):
            _headings(axes, k * step + 11.5, shortened(row.name), row.value)
            middle, start = k * step + 21, 0.0
            axes.plot([0, 1], [middle, middle], color=PALETTE["grid"], linewidth=1, zorder=0)
            for share, colour in row.parts:
                axes.barh(middle, share, thick, left=start, color=colour)
                start += share
        return to_svg(axes, identity)


class Interval(NamedTuple):
    """A name, a remark on its right, the ends of a line, the dots on it and a label for each end."""

    name: str
    remark: str
    low: float
    high: float
    dots: tuple[float, ...]
    colour: str = BLUE
    labels: tuple[str, str] = ("", "")


def interval_chart(
    identity: str,
    rows: Sequence[Interval],
    axis: str,
    *,
    tick_format: Callable[[float], str] = "{:g}".format,
    highest: float | None = None,
    line_at: tuple[float, str] | None = None,
) -> Markup:
    """Draw the rows on one scale from 0 to ``highest``, with a line across all of them if it is given."""
    step, side = 44.0, 10.0
    top = 0.0 if line_at is None else 16.0
    limit = 1.04 * (highest or max(row.high for row in rows) or 1.0)
    if any(row.labels[1] for row in rows):  # leave room for them
        limit *= 1 / (1 - LETTER * max(len(row.labels[1]) for row in rows) / WIDTH)
    height = step * len(rows) + top + 40
    with drawing(height, left=side, right=side, top=top, bottom=40) as axes:
        axes.set(xlim=(0, limit), ylim=(len(rows), 0), yticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(axis)
        axes.xaxis.set_major_formatter(lambda value, _: tick_format(value))
        if line_at is not None:
            mark(axes, line_at[0])
            _write(axes, (axes.transData.transform((line_at[0], 0))[0], height - 7), line_at[1])
        for k, row in enumerate(rows):
            _headings(axes, k + 15 / step, shortened(row.name, 30), row.remark)
            ends = [min(max(end, 0.0), limit) for end in (row.low, row.high)]
            axes.plot(ends, [k + 30 / step] * 2, color=GREY)
            axes.plot(row.dots, [k + 30 / step] * len(row.dots), "o", color=row.colour, markersize=8.4)
            _label_ends(axes, ends, k + 30 / step, row.labels)
        return to_svg(axes, identity)


def _label_ends(axes: Axes, ends: Sequence[float], y: float, labels: tuple[str, str]) -> None:
    """Write a label on the left of the low end, where it has room, and one on the right of the high end."""
    low, high = (axes.transData.transform((end, y)) for end in ends)
    if labels[0] and low[0] - 8 >= LETTER * len(labels[0]):
        _write(axes, (low[0] - 8, low[1]), labels[0], PALETTE["soft"], ha="right")
    _write(axes, (high[0] + 8, high[1]), labels[1], PALETTE["soft"], ha="left")


def _headings(axes: Axes, y: float, name: str, remark: str) -> None:
    """Write the name of a row at the left edge of the canvas, and the remark at the right edge."""
    place = axes.transData.transform((0, y))[1]
    axes.text(0, place, name, transform=IdentityTransform())
    axes.text(WIDTH, place, remark, ha="right", color=PALETTE["soft"], transform=IdentityTransform())


# ---------------------------------------------------------------- SVG for the page


def to_svg(axes: Axes, identity: str) -> Markup:
    """Return the drawing as an ``<svg>`` element for a page; the same drawing gives the same text.

    The figure ``identity`` has the title and the caption that describe the picture. What would reach beyond
    the picture is left out: style sheets, metadata, fonts, sizes, and names that other pictures have too.
    """
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    for patch in (axes.patch, canvas.patch):
        patch.set_visible(False)
    for text in axes.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(_printable(text.get_text()))
    output = StringIO()
    with warnings.catch_warnings():
        # The browser's fonts are used, so that letters missing from matplotlib's do not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        canvas.savefig(
            output,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    root = ElementTree.fromstring(output.getvalue())
    _clean(root, identity)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    described = {
        "role": "img",
        "aria-labelledby": f"{identity}-title",
        "aria-describedby": f"{identity}-caption",
    }
    root.attrib.update(described)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _printable(text: str) -> str:
    """Replace line breaks and characters that XML does not allow."""
    return "".join(letter if letter.isprintable() or letter == "\u00a0" else " " for letter in text)


def _clean(element: ElementTree.Element, identity: str) -> None:
    """Make an element of matplotlib's SVG, and all within it, fit into a page."""
    element.tag = _local(element.tag)
    element.tail = None
    attributes = {_local(name): value for name, value in element.attrib.items()}
    attributes.pop("clip-path", None)  # everything is drawn within the axes
    if element.tag in {"g", "text"}:
        attributes.pop("id", None)
    if "id" in attributes:  # a shape that is used by reference
        attributes["id"] = f"{identity}-{attributes['id']}"
    if "href" in attributes:
        attributes["href"] = f"#{identity}-{attributes['href'].removeprefix('#')}"
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        attributes["style"] = _style(attributes["style"])
    element.attrib = {name: _short(name, value) for name, value in attributes.items() if value}
    kept: list[ElementTree.Element] = []
    for child in element:
        _clean(child, identity)
        if child.tag == "g" and not child.attrib:
            kept += child
        elif child.tag not in {"metadata", "style", "clipPath"} and (len(child) or child.attrib):
            kept.append(child)
    element[:] = kept
    if element.tag != "text":
        element.text = None


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]


def _style(style: str) -> str:
    """Name the colours as the style sheet does, and leave fonts to it."""
    names = {colour: f"var(--{name})" for name, colour in PALETTE.items()}
    kept = ";".join(part.strip() for part in style.split(";") if not part.strip().startswith("font"))
    return re.sub(r"#[0-9a-f]{6}", lambda found: names.get(found[0], found[0]), kept)


def _short(name: str, value: str) -> str:
    """Round coordinates to hundredths of a unit, which is finer than any screen."""
    if name not in {"d", "x", "y", "style"}:
        return value
    value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", value).strip()
