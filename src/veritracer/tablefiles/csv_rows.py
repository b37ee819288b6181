"""Where the rows of a CSV text end, and which quotes can not be meant: a grammar, read from left to right.

A cell is quoted if its first character is a quote; inside, a quote is written twice, and separators and ends
of lines are text. A quote further inside of a cell is an ordinary character. That is RFC 4180 as pyarrow
reads it.

All patterns are possessive: they never go back over what they have passed, so that the work grows with the
text and not with its square, whatever the text is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LEAST = 4
"""Columns from which on a cell is refused for reading like rows; with fewer, text does so by chance."""


class Suspect(NamedTuple):
    """A quoted cell over several lines that can not be meant: its ends, and what gave it away.

    ``rows`` counts the rows that it reads like, if it does; 0 means that text follows its closing quote.
    """

    start: int
    end: int
    rows: int


class Rows:
    r"""How rows are written with a separator.

    >>> Rows(",").end(b'1,"a,\n2"\n3,"b')
    9
    >>> Rows(",").open_quote(b'3,"b')
    2
    """

    def __init__(self, separator: str) -> None:
        self.separator = separator.encode()
        self.blank = b" \t".replace(self.separator, b"")
        mark = re.escape(self.separator)
        inner = rb"[^" + mark + rb"\r\n]*+"
        quoted = rb'"(?:[^"]++|"")*+"'
        other = rb'[^"' + mark + rb"\r\n]" + inner
        cell = rb"(?:" + quoted + inner + rb"|" + other + rb")?+"
        row = rb"(?:" + cell + mark + rb")*+" + cell + rb"(?:\r\n?|\n)"
        self._quoted = re.compile(quoted)
        self._cell = re.compile(rb"(" + cell + rb")(?:" + mark + rb"|\r\n?|\n)")
        self._before = re.compile(rb"(?:" + cell + mark + rb")*+")
        self._row = re.compile(row)
        # Rows in which a quoted cell over several lines has nothing but blanks after its closing quote.
        line = rb'"(?:[^"\n]++|"")*+"'
        closed = rb"(?:" + line + inner + rb"|" + quoted + rb"[" + self.blank + rb"]*+|" + other + rb")?+"
        ended = rb"(?:" + closed + mark + rb")*+" + closed + rb"(?:\r\n?|\n)"
        self._plain = re.compile(rb"(?:" + ended + rb")*+")
        self._rows = re.compile(rb"(?:" + row + rb")*+")

    def end(self, text: bytes) -> int:
        """Where the last whole row of ``text`` ends, which begins with a row; 0 if there is none."""
        if b'"' not in text:
            return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        found = self._rows.match(text)
        assert found is not None  # it matches the empty text
        return found.end()

    def first_end(self, text: bytes) -> int:
        """Where the first row ends; 0 if it does not."""
        found = self._row.match(text)
        return 0 if found is None else found.end()

    def open_quote(self, text: bytes) -> int | None:
        """Where the quote is that the unfinished row ``text`` leaves open; None if it leaves none open."""
        found = self._before.match(text)
        assert found is not None
        at = found.end()
        return at if text[at : at + 1] == b'"' and self._quoted.match(text, at) is None else None

    def cells(self, row: bytes) -> list[bytes]:
        """The cells of a row, without their quotes."""
        return [self._bare(found[1]) for found in self._cell.finditer(row)]

    def suspect(self, text: bytes, columns: int) -> Suspect | None:
        """The first cell in whole rows of ``text`` that a forgotten quote seems to have filled with rows.

        That is one over several lines that goes on after its closing quote, or that reads like rows itself:
        the tail of one, whole ones, the head of another, each with the columns of the table.
        """
        plain = self._plain.match(text)
        assert plain is not None
        found = None
        if plain.end() < len(text):
            row = self._row.match(text, plain.end())
            found = None if row is None else self._suspect_in(row[0], row.start(), columns)
        for row in self._row.finditer(text, 0, plain.end()) if columns >= LEAST else ():
            lines = row[0].rstrip(b"\r\n").count(b"\n") + 1
            if lines > 1 and row[0].count(self.separator) >= (columns - 1) * lines:
                earlier = self._suspect_in(row[0], row.start(), columns)
                if earlier is not None:
                    return earlier
        return found

    def _suspect_in(self, row: bytes, start: int, columns: int) -> Suspect | None:
        for place, found in enumerate(self._cell.finditer(row)):
            quoted = self._quoted.match(found[1])
            if quoted is None or b"\n" not in quoted[0]:
                continue
            begin, end = start + found.start(), start + found.start() + quoted.end()
            if found[1][quoted.end() :].strip(self.blank):
                return Suspect(begin, end, 0)
            if columns >= LEAST and self._reads_like_rows(quoted[0], place, columns):
                return Suspect(begin, end, quoted[0].count(b"\n") + 1)
        return None

    def _reads_like_rows(self, cell: bytes, place: int, columns: int) -> bool:
        """Whether the cell in this place is the tail of one row, any whole rows, and the head of another."""
        counts = [line.count(self.separator) for line in cell.split(b"\n")]
        return counts == [columns - 1 - place, *[columns - 1] * (len(counts) - 2), place]

    def _bare(self, cell: bytes) -> bytes:
        quoted = self._quoted.match(cell)
        if quoted is None:
            return cell
        return quoted[0][1:-1].replace(b'""', b'"') + cell[quoted.end() :]
