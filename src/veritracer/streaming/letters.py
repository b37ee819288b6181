"""Letters for a table of any length: a file for each declined row, in a folder that appears when it is whole.

The letter of a promise is written of what was recorded, with its number: what it says is prepared while the
table is read, and filled in when the promises have their numbers, before they are committed. If a letter can
not be written, nothing is promised. Where nothing is issued, all letters are drafts.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DataError, LetterError, message
from veritracer.files import whole_folder, writable, write_whole
from veritracer.formatting import is_missing
from veritracer.letter import (
    Format,
    Recorded,
    Template,
    check_fields,
    check_recorded,
    facts,
    filled,
    outcome_of,
    page_pdf,
    wanted_codes,
)
from veritracer.reasons import ReasonCodes, as_codes
from veritracer.tables.reading import ADDED
from veritracer.wording import Language, language

Also = Callable[[Counterfactuals, pd.DataFrame], Mapping[str, pa.Array]]
"""Is given each piece's counterfactuals and kept columns; gives columns to add to what is written."""


@dataclass(frozen=True)
class LetterTerms:
    """What is the same for all letters of a folder, and from which columns each person's own fields come.

    ``columns`` says of which column a field is; ``pdf`` also writes each letter as PDF.
    """

    folder: Path
    codes: str | os.PathLike[str] | None = None
    template: str | os.PathLike[str] | None = None
    kind: Format | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    language: str | os.PathLike[str] = "en"
    pdf: bool = False

    def __post_init__(self) -> None:
        if self.folder.exists():
            remedy = "name a new one, so that nobody gets an old letter"
            raise DataError(message("a folder for letters that is not there yet", str(self.folder), remedy))
        check_recorded([*self.fields, *self.columns])
        twice = sorted(set(self.fields) & set(self.columns))
        if twice:
            received = f"{twice[0]!r} as both"
            raise DataError(message("each field as a text or from a column", received, "leave one out"))


@contextmanager
def letter_folder(terms: LetterTerms) -> Iterator[LetterWriter]:
    """What writes the letters, into a folder that appears when all of them are there.

    PDF files are added then, one by one: each takes a while, and the letters are safe by that time.
    """
    with letters_at(terms.folder, terms) as writer:
        yield writer
    if terms.pdf:
        with writable(terms.folder / "page.pdf"):
            add_pages(terms.folder)


@contextmanager
def letters_at(place: Path, terms: LetterTerms) -> Iterator[LetterWriter]:
    """Write the letters into a folder of another name, without PDF files."""
    with LetterWriter(terms) as writer, writable(place), whole_folder(place) as partial:
        writer.place = partial
        yield writer


def add_pages(folder: Path) -> None:
    """Write the PDF file of each letter that has none yet."""
    for letter in sorted(folder.glob("*.html")):
        page = letter.with_suffix(".pdf")
        if not page.exists():
            write_whole(page, page_pdf(letter.read_text(encoding="utf-8")))


class LetterWriter:
    """Writes letters into ``place``: at once, or when promises have their numbers."""

    def __init__(self, terms: LetterTerms) -> None:
        self.terms, self.place = terms, terms.folder
        self.codes: ReasonCodes = as_codes(terms.codes)
        self.words: Language = language(terms.language)
        self.template = Template.of(terms.template, terms.kind or ("html" if terms.pdf else None))
        if terms.template is None:
            check_fields([*terms.fields, *terms.columns])
        if terms.pdf:
            if self.template.format != "html":
                remedy = "leave --letter-format out, or give a template in HTML"
                raise LetterError(message("letters in HTML for --pdf", "letters as text", remedy))
            page_pdf("<p></p>")  # what is missing for it is better known now
        self._waiting: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # see __exit__

    def __enter__(self) -> LetterWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.close()

    @property
    def columns(self) -> list[str]:
        """The columns that people's own fields come from."""
        return list(dict.fromkeys(self.terms.columns.values()))

    def write(self, found: Counterfactuals, kept: pd.DataFrame) -> Mapping[str, pa.Array]:
        """The name of each declined person's letter, after it was written: drafts, for nothing was issued."""
        names = self._names(found)
        self._check_codes(found, names)
        for i, name in enumerate(names):
            if name is not None:
                said = facts(found, i, self.codes, self.words)
                self._put(name, said, self._own(found, i, kept), draft=True)
        return self._column(names)

    def prepare(
        self, found: Counterfactuals, kept: pd.DataFrame, promised: NDArray[np.intp], first: int
    ) -> Mapping[str, pa.Array]:
        """The same where some rows become promises, the ``first`` of them being that one of its batch.

        Their letters wait for their numbers. A row that has a promise already gets no second letter.
        """
        names, order = self._names(found), {i: first + k for k, i in enumerate(promised.tolist())}
        for i in range(len(names)):
            if outcome_of(found, i) == "certified" and i not in order:
                names[i] = None
        self._check_codes(found, names)
        for i, name in enumerate(names):
            if name is None:
                continue
            said, own = facts(found, i, self.codes, self.words), self._own(found, i, kept)
            if said["outcome"] == "certified":
                self._render(said, own, Recorded(order[i], np.inf))  # refused before anything is promised
                self._waiting.write(json.dumps([order[i], name, said, own]) + "\n")
            else:
                self._put(name, said, own)
        return self._column(names)

    def number(self, sequence: NDArray[np.int64], issued: float, expires: float) -> None:
        """Write the letters of promises, which have these numbers and end then."""
        self._waiting.seek(0)
        for line in self._waiting:
            k, name, said, own = json.loads(line)
            self._put(name, said, own, Recorded(int(sequence[k]), expires))

    def _check_codes(self, found: Counterfactuals, names: Sequence[str | None]) -> None:
        """Refuse a piece with the names of all codes that it lacks, at once."""
        wanted = [pair for i, name in enumerate(names) if name is not None for pair in wanted_codes(found, i)]
        self.codes.named(list(dict.fromkeys(wanted)), "every changed feature and every principal reason")

    def _names(self, found: Counterfactuals) -> list[str | None]:
        """The file of each letter: the number of the row, and of the alternative where there are several."""
        ending = "html" if self.template.format == "html" else "txt"
        return [None if found.favourable[i] else f"{_row(found, i)}.{ending}" for i in range(len(found))]

    def _column(self, names: Sequence[str | None]) -> Mapping[str, pa.Array]:
        last = [name and name.replace(".html", ".pdf") for name in names] if self.terms.pdf else names
        return {f"{ADDED}letter": pa.array(list(last), pa.string())}

    def _own(self, found: Counterfactuals, i: int, kept: pd.DataFrame) -> dict[str, Any]:
        """The fields of one person, as texts."""
        row = int(found.person[i])
        cells = {name: kept[column].iloc[row] for name, column in self.terms.columns.items()}
        return {name: None if is_missing(cell) else str(cell) for name, cell in cells.items()}

    def _put(
        self,
        name: str,
        said: Mapping[str, Any],
        own: Mapping[str, Any],
        recorded: Recorded | None = None,
        *,
        draft: bool = False,
    ) -> None:
        text = self._render(said, own, recorded, draft=draft)
        (self.place / name).write_text(text, encoding="utf-8")

    def _render(
        self,
        said: Mapping[str, Any],
        own: Mapping[str, Any],
        recorded: Recorded | None = None,
        *,
        draft: bool = False,
    ) -> str:
        date = {"date": _day(own["date"])} if isinstance(own.get("date"), str) else {}
        fields = {**self.terms.fields, **own, **date}
        return self.template.render(filled(said, fields, self.words, recorded, draft=draft))


def _row(found: Counterfactuals, i: int) -> str:
    label = found.frame.index[i]
    if found.n == 1:
        return f"{label:06}"
    return f"{label[0]:06}-{found.alternative[i] + 1}"


def _day(text: str) -> datetime.date | str:
    """The day that a cell names, to be written out; any other text as it is."""
    try:
        return datetime.date.fromisoformat(text.strip()[:10])
    except ValueError:
        return text
