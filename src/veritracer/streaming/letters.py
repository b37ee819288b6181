"""A letter for everybody in a table who was declined, as a folder that appears only when it is whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from veritracer.errors import DataError, message
from veritracer.recourse import Counterfactuals
from veritracer.recourse.letter import Format, Template
from veritracer.recourse.reason_codes import as_codes
from veritracer.streaming.columns import ADDED
from veritracer.streaming.explaining import Also
from veritracer.tablefiles.sinks import writable


@contextmanager
def letter_folder(
    folder: Path,
    *,
    codes: str | os.PathLike[str] | None,
    template: str | os.PathLike[str] | None,
    kind: Format | None,
    fields: Mapping[str, Any],
) -> Iterator[Also]:
    """What writes the letters of each piece, and adds the name of each person's letter as a column.

    A file is named after the row, counted from 1, and holds nothing of any other. People who are favourable
    already get none.
    """
    if folder.exists():
        remedy = "name a new one, so that nobody gets an old letter"
        raise DataError(message("a folder for letters that is not there yet", str(folder), remedy))
    known = as_codes(codes)
    source = Template.of(template, kind)
    ending = "html" if source.format == "html" else "txt"
    partial = folder.with_name(f"{folder.name}.partial")

    def write(found: Counterfactuals, _: pd.DataFrame) -> Mapping[str, pa.Array]:
        names = [None if found.favourable[i] else f"{_row(found, i)}.{ending}" for i in range(len(found))]
        told = [i for i, name in enumerate(names) if name is not None]
        known.reasons([change for i in told for change in found.changes_of(i)])  # all that lack one, at once
        for i, name in enumerate(names):
            if name is not None:
                letter = found.letter(i, template, known, format=source.format, **fields)
                (partial / name).write_text(letter, encoding="utf-8")
        return {f"{ADDED}letter": pa.array(names, pa.string())}

    with writable(partial):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield write
            partial.replace(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _row(found: Counterfactuals, i: int) -> str:
    """The number of the row, and of the alternative where there are several."""
    label = found.frame.index[i]
    if found.n == 1:
        return f"{label:06}"
    return f"{label[0]:06}-{found.alternative[i] + 1}"
