"""What a section of the report is made of: figures, tables, and numbers as people write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veritracer.report.svg import Svg


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
    r"""A share as a percentage that never rounds up to all or down to none.

    >>> percent(1.0), percent(0.9998), percent(0.4567), percent(0.0002)
    ('100\xa0%', '>99.9\xa0%', '45.7\xa0%', '<0.1\xa0%')
    """
    if share != share:
        return "–"
    if 0.9995 <= share < 1:
        return ">99.9\u00a0%"
    if 0 < share < 0.0005:
        return "<0.1\u00a0%"
    return f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"


def count(many: int, one: str, several: str | None = None) -> str:
    """A number with its noun.

    >>> count(1, "person", "people"), count(1200, "row")
    ('1 person', '1,200 rows')
    """
    return f"{many:,} {one if many == 1 else several or one + 's'}"


def short(value: float) -> str:
    """A number with three significant digits, and all of its digits before the point.

    >>> short(12345.6), short(0.012345), short(3.0), short(float("nan"))
    ('12,346', '0.0123', '3', '–')
    """
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"
