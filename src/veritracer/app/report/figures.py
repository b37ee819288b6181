"""Draw the charts of a page with matplotlib, as inline SVG in the fonts and colours of the page.

A canvas is as wide as a phone (360 units), so that text keeps its size there; on a wide screen the picture
grows and the style sheet makes the text smaller in turn. Colours are the style sheet's and are written by
name, so that a picture follows the page into dark mode and onto paper.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from typing import Any, NamedTuple
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform
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

MOST_POINTS = 20
"""Points of a line that the table below a chart lists."""

STYLE: Any = {  # the keys are typed as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "veritracer",
    "text.parse_math": False,  # names of features are not formulas
    "text.color": PALETTE["ink"],
    "font.size": FONT,
    "axes.titlesize": FONT,
    "axes.titlecolor": PALETTE["soft"],
    "axes.titlepad": 10,
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
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "butt",
    "lines.markersize": 7.2,
    "lines.markeredgecolor": PALETTE["sheet"],
    "lines.markeredgewidth": 1.0,
    "lines.scale_dashes": True,
    "patch.linewidth": 0,
}

Table = Sequence[Mapping[str, str]]
"""Rows of text by the names of their columns."""


@dataclass(frozen=True)
class Figure:
    """A picture with its title, a caption, the numbers as a table, and a key where bars need one."""

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
    """Yield axes in the style of the page; draw and call ``to_figure`` inside the ``with`` block.

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
    place = axes.get_position()
    axes.set_title(y, loc="left", x=-place.x0 / place.width)
    axes.xaxis.set_major_formatter(lambda value, _: x_format(value))
    axes.yaxis.set_major_formatter(lambda value, _: y_format(value))


def line(
    axes: Axes, x: ArrayLike, y: ArrayLike, colour: str, label: str = "_", *, marker: str | None = None
) -> None:
    """Draw a line in the dash pattern of its colour."""
    axes.plot(x, y, color=colour, linestyle=DASHES[colour], label=label, marker=marker)


def histogram(axes: Axes, edges: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
    """Draw a column for each bin, with a small gap between them."""
    axes.bar(
        edges[:-1],
        counts,
        np.diff(edges),
        align="edge",
        color=BLUE,
        edgecolor=PALETTE["sheet"],
        linewidth=1.5,
    )


def mark(axes: Axes, x: float, label: str = "_") -> None:
    """Draw a thin dotted line across the chart at ``x``."""
    axes.axvline(x, color=PALETTE["ink"], linewidth=1, linestyle=(0, (2, 3)), label=label)


def to_figure(axes: Axes, identity: str, title: str, caption: str, table: Table | None = None) -> Figure:
    """Return the drawing with its legend; the table lists what was drawn unless another one is given."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", labelcolor="linecolor")
    return Figure(
        identity, title, to_svg(axes, identity), caption, _numbers(axes) if table is None else table
    )


def _numbers(axes: Axes) -> Table:
    """Return the bars and the labelled lines of a chart as rows of text."""
    x_name, y_name = axes.get_xlabel(), axes.get_title(loc="left")
    x_text, y_text = (axis.get_major_formatter() for axis in (axes.xaxis, axes.yaxis))
    bars = [
        {
            "from": x_text(bar.get_x()),
            "to": x_text(bar.get_x() + bar.get_width()),
            y_name: y_text(bar.get_height()),
        }
        for container in axes.containers
        for bar in container
    ]
    rows = []
    for each in axes.lines:
        if each.get_transform() is not axes.transData or str(each.get_label()).startswith("_"):
            continue
        x, y = (np.asarray(values, dtype=float) for values in each.get_data())
        some = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).round().astype(int))
        name, points = {"line": str(each.get_label())}, zip(x[some], y[some], strict=True)
        rows += [{**name, x_name: x_text(a), y_name: y_text(b)} for a, b in points]
    return bars or rows


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
    """A name, a remark on its right, the ends of a line and the dots on it."""

    name: str
    remark: str
    low: float
    high: float
    dots: tuple[float, ...]
    colour: str = BLUE


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
    height = step * len(rows) + top + 40
    with drawing(height, left=side, right=side, top=top, bottom=40) as axes:
        axes.set(xlim=(0, limit), ylim=(len(rows), 0), yticks=[])
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(axis)
        axes.xaxis.set_major_formatter(lambda value, _: tick_format(value))
        if line_at is not None:
            mark(axes, line_at[0])
            place = axes.transData.transform((line_at[0], 0))[0]
            axes.text(place, height - 11.5, line_at[1], ha="center", transform=IdentityTransform())
        for k, row in enumerate(rows):
            _headings(axes, k + 15 / step, shortened(row.name, 30), row.remark)
            ends = [min(max(end, 0.0), limit) for end in (row.low, row.high)]
            axes.plot(ends, [k + 30 / step] * 2, color=GREY)
            axes.plot(row.dots, [k + 30 / step] * len(row.dots), "o", color=row.colour, markersize=8.4)
        return to_svg(axes, identity)


def _headings(axes: Axes, y: float, name: str, remark: str) -> None:
    """Write the name of a row at the left edge of the canvas, and the remark at the right edge."""
    place = axes.transData.transform((0, y))[1]
    axes.text(0, place, name, transform=IdentityTransform())
    axes.text(WIDTH, place, remark, ha="right", color=PALETTE["soft"], transform=IdentityTransform())


# ---------------------------------------------------------------- SVG for the page

LEFT_OUT = {"metadata", "style", "clipPath", "title"}
"""Elements of matplotlib's SVG that would reach beyond the picture."""


def to_svg(axes: Axes, identity: str) -> Markup:
    """Return the drawing as an ``<svg>`` element for a page; the same drawing gives the same text.

    The figure ``identity`` has the title and the caption that describe the picture. Fonts are left to the
    page, colours have the names of its style sheet, and no name is one that another picture has too.
    """
    canvas = axes.get_figure(root=True)
    assert canvas is not None
    for patch in (axes.patch, canvas.patch):
        patch.set_visible(False)
    for text in axes.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(
            "".join(one if one.isprintable() or one == "\u00a0" else " " for one in text.get_text())
        )
    output = StringIO()
    with warnings.catch_warnings():
        # The browser's fonts are used, so that letters missing from matplotlib's do not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        canvas.savefig(output, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(output.getvalue())
    for element in list(root.iter()):
        element[:] = [child for child in element if _local(child.tag) not in LEFT_OUT]
    for element in root.iter():
        _clean(element, identity)
    kept = {name: value for name, value in root.attrib.items() if name not in {"width", "height", "version"}}
    names = {"aria-labelledby": f"{identity}-title", "aria-describedby": f"{identity}-caption"}
    root.attrib = {**kept, "role": "img", **names}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(element: ElementTree.Element, identity: str) -> None:
    """Make an element of matplotlib's SVG fit into a page."""
    element.tag, element.tail = _local(element.tag), None
    if element.tag != "text":
        element.text = None
    attributes = {_local(name): value for name, value in element.attrib.items()}
    attributes.pop("clip-path", None)  # everything is drawn within the axes
    if element.tag in {"g", "text"}:
        attributes.pop("id", None)
    for name, value in attributes.items():
        if name == "id":  # a shape that is used by reference
            attributes[name] = f"{identity}-{value}"
        elif name == "href":
            attributes[name] = f"#{identity}-{value.removeprefix('#')}"
        elif name == "style":
            attributes[name] = _style(value)
        elif name in {"d", "x", "y"}:
            attributes[name] = _rounded(value)
    element.attrib = {name: value for name, value in attributes.items() if value}


def _local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition("}")[2]


def _style(style: str) -> str:
    """Name the colours as the style sheet does, and leave fonts to it."""
    names = {colour: f"var(--{name})" for name, colour in PALETTE.items()}
    kept = ";".join(part.strip() for part in style.split(";") if not part.strip().startswith("font"))
    return _rounded(re.sub(r"#[0-9a-f]{6}", lambda found: names.get(found[0], found[0]), kept))


def _rounded(value: str) -> str:
    """Round coordinates to hundredths of a unit, which is finer than any screen."""
    value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
    return re.sub(r"\s*([MLCQz])\s*", r"\1", value).strip()
