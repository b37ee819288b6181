"""Charts fit into a page, follow its colours, and label lines where nothing is in the way."""

from __future__ import annotations

import re
import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from html_pages import Page
from veritracer.app.report.figures import (
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    WIDTH,
    Bar,
    Interval,
    bar_chart,
    drawing,
    histogram,
    interval_chart,
    line,
    mark,
    name_axes,
    to_figure,
)

STRANGE = "a <b>&\"'</b> $x^2$ 収入 \x00\x1b[31m\nend"


def curve(identity: str = "curve", label: str = "curve") -> str:
    x = np.linspace(0, 1, 50)
    with drawing() as axes:
        name_axes(axes, STRANGE, "share")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        line(axes, x, x**2, BLUE, label)
        line(axes, x, x, GREY, "chance")
        axes.plot([0.5], [0.25], "o", color=ORANGE)
        mark(axes, 0.7, "here")
        return str(to_figure(axes, identity, "title", "caption").picture)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


def test_names_are_text_and_nothing_else() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as for letters that matplotlib's own font lacks
        found = curve(label=STRANGE)
    assert texts(found).count("a <b>&\"'</b> $x^2$ 収入   [31m end") == 2
    assert Page(found).names() <= {"svg", "g", "path", "text", "defs", "use"}


def test_fonts_sizes_and_colours_are_left_to_the_page() -> None:
    found = curve()
    assert "font" not in found
    assert not re.search(r"#[0-9a-f]{3,6}\b(?!\S*-)", re.sub(r'href="[^"]*"', "", found))
    assert {"var(--s0)", "var(--s1)", "var(--s2)", "var(--ink)", "var(--soft)"} <= set(
        re.findall(r"var\(--[\w-]+\)", found)
    )
    assert len(set(PALETTE.values())) == len(PALETTE)
    assert ElementTree.fromstring(found).attrib == {
        "viewBox": "0 0 360 262",
        "role": "img",
        "aria-labelledby": "curve-title",
        "aria-describedby": "curve-caption",
    }


def test_two_charts_of_a_page_share_no_identifier() -> None:
    page = Page(f"<p>{curve('one')}{curve('two')}</p>")  # the parser refuses an identifier that occurs twice
    assert page.unbalanced == []
    used = [str(found["href"]) for tag, found in page.tags if tag == "use"]
    assert {name[1:] for name in used} == set(page.by_id)


def test_settings_of_the_user_change_nothing() -> None:
    plain = curve()
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        assert curve() == plain
        assert dict(matplotlib.rcParams) == before


def test_the_table_of_a_chart_lists_what_was_drawn() -> None:
    with drawing() as axes:
        name_axes(axes, "x", "share")
        line(axes, [0, 1], [0.25, 0.5], BLUE, "one")
        line(axes, [0, 1], [0.0, 1.0], GREY)
        mark(axes, 0.7, "here")
        found = to_figure(axes, "a", "A", "").table
    assert found == [
        {"line": "one", "x": "0", "share": "25\u00a0%"},
        {"line": "one", "x": "1", "share": "50\u00a0%"},
    ]
    with drawing() as axes:
        name_axes(axes, "x", "people", y_format="{:,.0f}".format)
        histogram(axes, np.array([0.0, 1.0, 2.0]), np.array([1200, 3]))
        found = to_figure(axes, "b", "B", "").table
    assert found == [{"from": "0", "to": "1", "people": "1,200"}, {"from": "1", "to": "2", "people": "3"}]


def test_bars_have_their_length_name_and_value() -> None:
    found = bar_chart("bars", [Bar("name", "20 %", ((0.2, BLUE), (0.1, ORANGE))), Bar("x" * 60, "0 %", ())])
    assert texts(found) == ["name", "20 %", "x" * 39 + "…", "0 %"]
    ends = [
        (float(part[0]), float(part[2]))
        for part in re.findall(r'd="M([\d.]+) ([\d.]+)L([\d.]+) [^"]*z"', found)
    ]
    assert ends == [(0.0, 0.2 * WIDTH), (0.2 * WIDTH, pytest.approx(0.3 * WIDTH))]


def test_intervals_are_cut_at_the_edge_of_the_chart() -> None:
    rows = [Interval("name", "0.9", 0.5, 40.0, (0.9,))]
    found = interval_chart("intervals", rows, "ratio", highest=1.0, line_at=(0.8, "four fifths"))
    assert {"name", "0.9", "ratio", "four fifths"} <= set(texts(found))
    ends = [float(x) for x in re.findall(r'd="M[\d.]+ [\d.]+L([\d.]+) [\d.]+"', found)]
    assert max(ends) <= WIDTH
