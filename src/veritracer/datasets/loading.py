"""A dataset as one value: its rows, its labels, its schema, and the parts that the paper speaks of.

Its file is read if it is the file that it should be, and downloaded where that needs no login; content is
checked before anything is written.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.datasets import published
from veritracer.datasets.catalogue import Source, file_name, folder_of, source_of
from veritracer.datasets.loans_model import Outcome
from veritracer.datasets.loans_tables import ROWS, Do, portfolio
from veritracer.datasets.published import Parts
from veritracer.errors import DatasetError, message
from veritracer.files import write_whole
from veritracer.schema import Schema

Variant = Literal["default", "paper"]

_TIMEOUT = 30.0
_MOST_BYTES = 64 * 2**20  # ten times the largest of the files


class Split(NamedTuple):
    """Rows to learn from and rows to test on."""

    X_train: pd.DataFrame
    X_test: pd.DataFrame
    y_train: pd.Series[Any]
    y_test: pd.Series[Any]


@dataclass(frozen=True)
class Dataset:
    """Raw features ``X``, raw labels ``y`` and the schema that describes both.

    ``groups`` holds what the original and the shifted part are told apart by: the three classes of ctg,
    the year of who; None elsewhere.
    """

    name: str
    variant: Variant
    X: pd.DataFrame
    y: pd.Series[Any]
    schema: Schema
    title: str
    source: str
    licence: str
    description: str
    groups: pd.Series[Any] | None = None
    part: Literal["all", "original", "shifted"] = "all"

    def split(self, test_size: float = 0.2, random_state: int = 0) -> Split:
        """A stratified split; the authors' own one for the paper's HELOC and (by default) OULA."""
        paper = self.variant == "paper"
        if paper and self.name == "oula" and (test_size, random_state) == (0.2, 0):
            cut = published.AUTHORS_TRAINING_ROWS
            return Split(self.X.iloc[:cut], self.X.iloc[cut:], self.y.iloc[:cut], self.y.iloc[cut:])
        from sklearn.model_selection import train_test_split

        stratify = None if paper and self.name == "heloc" else self.y
        parts = train_test_split(
            self.X, self.y, test_size=test_size, random_state=random_state, stratify=stratify
        )
        return Split(*parts)

    @property
    def original(self) -> Dataset:
        """The rows before the paper's shift: normal and suspect (ctg), before 2012 (who)."""
        groups = self._shift_groups()
        kept = groups != "pathological" if self.name == "ctg" else groups < published.SHIFT_YEAR
        return self._restricted(kept.to_numpy(dtype=bool), "original")

    @property
    def shifted(self) -> Dataset:
        """The rows after the paper's shift, which are all of them."""
        return self._restricted(np.ones(len(self._shift_groups()), dtype=bool), "shifted")

    def _shift_groups(self) -> pd.Series[Any]:
        if self.groups is None:
            raise DatasetError(
                message("a dataset with a shift (ctg or who)", repr(self.name), "use split() for the others")
            )
        return self.groups

    def _restricted(self, rows: NDArray[np.bool_], part: Literal["original", "shifted"]) -> Dataset:
        groups = self._shift_groups()[rows]
        return dataclasses.replace(self, X=self.X[rows], y=self.y[rows], groups=groups, part=part)


_BUILDERS: dict[str, Callable[[pd.DataFrame, bool], Parts]] = {
    "ctg": published.ctg,
    "heloc": published.heloc,
    "oula": published.oula,
    "taiwan_credit": published.taiwan_credit,
    "who": published.who,
}


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, variant: Variant = "default"
) -> Dataset:
    """The dataset: as a user would want it, or with the authors' rows, columns and treatment.

    The file comes from ``data_dir``, else from the folder in the environment variable ``VERITRACER_DATA``.
    """
    source_of(name)  # refuses an unknown name
    if variant not in ("default", "paper"):
        raise DatasetError(message("variant='default' or 'paper'", repr(variant), "choose one of them"))
    if name in ("breast_cancer", "loans"):
        if variant == "paper":
            remedy = "load it without variant"
            raise DatasetError(message("a dataset of the paper for variant='paper'", repr(name), remedy))
        return loans() if name == "loans" else _dataset(name, variant, published.breast_cancer())
    parts = _BUILDERS[name](read(name, folder_of(name, data_dir)), variant == "paper")
    return _dataset(name, variant, parts)


def loans(
    rows: int = ROWS,
    *,
    year: int = 1,
    drift: float = 1.0,
    random_state: int = 0,
    outcome: Outcome = "approved",
    do: Do | None = None,
) -> Dataset:
    """A synthetic lending portfolio: ``rows`` applications of one year, from a documented causal model.

    Years differ in the economy, in who applies and in what the lender looks at; ``drift`` says how
    strongly (0: not at all). Year 1 is the same whatever the drift. More rows begin with the same ones.

    Parameters
    ----------
    outcome : ``"approved"``, what the underwriter decides, or ``"repaid"``, whether the loan, if it were
        granted, would be repaid.
    do : what the same people do before they apply: a value (or one for each row) for each column that is
        set, as a mapping or as a table whose index has row numbers; or a function that makes one of the
        rows. An empty cell sets nothing. Rows and labels are those after the action and its effects
        (docs/loans.md), hidden traits and noise as they were.

    >>> loans(rows=3).y.tolist()
    ['yes', 'yes', 'yes']
    >>> loans(rows=3, do={"employment": "out of work"}).X["years_employed"].tolist()
    [0, 0, 0]
    """
    return _dataset("loans", "default", portfolio(rows, year, drift, random_state, outcome, do))


def _dataset(name: str, variant: Variant, parts: Parts) -> Dataset:
    source = source_of(name)
    return Dataset(
        name=name,
        variant=variant,
        X=parts.X,
        y=parts.y,
        schema=parts.schema,
        title=source.title,
        source=source.source,
        licence=source.licence,
        description=parts.description,
        groups=parts.groups,
    )


def read(name: str, folder: Path) -> pd.DataFrame:
    """The raw table of ``name``; refuses a file that is absent, damaged or altered."""
    source = source_of(name)
    path = folder / file_name(name)
    if not path.is_file():
        raise DatasetError(
            message(
                f"the file {path}", "nothing there", f"{source.how}, and store it gzipped under this name"
            )
        )
    packed = path.read_bytes()
    try:
        text = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        remedy = f"get it again: {source.how}"
        raise DatasetError(message(f"{path} in gzip format", f"a damaged file ({error})", remedy)) from None
    if digest(packed) != source.sha256_gz and digest(text) != source.sha256_text:
        raise DatasetError(
            message(
                f"{path} with the sha256 {source.sha256_text[:12]}… (unpacked)",
                f"{digest(text)[:12]}…: its content was altered or is another version",
                f"get it again: {source.how}",
            )
        )
    return pd.read_csv(io.BytesIO(text))


def digest(content: bytes) -> str:
    """The sha256 in hex."""
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- downloads


def fetch(name: str, *, data_dir: str | os.PathLike[str], url: str | None = None) -> Path:
    """The path of the dataset's file in ``data_dir``, after it was downloaded and its checksum was right.

    ``url`` names a mirror (http or https). Nothing is written unless the content is the known one.
    """
    source = source_of(name)
    if not source.sha256_text:
        raise DatasetError(message("a dataset that has a file", repr(name), source.how))
    address = url if url is not None else source.url
    if address is None:
        remedy = f"{source.how}, store it as {file_name(name)} in the data folder, or pass url= of a mirror"
        raise DatasetError(message("a dataset with a download that needs no login", repr(name), remedy))
    text = _normalised(_download(address), source)
    if digest(text) != source.sha256_text:
        raise DatasetError(
            message(
                f"content with the sha256 {source.sha256_text[:12]}…",
                f"{digest(text)[:12]}… from {address}",
                "it is cut, altered or another version; nothing was written: try again or use a mirror",
            )
        )
    return _write(Path(data_dir), file_name(name), gzip.compress(text, mtime=0))


def _download(address: str) -> bytes:
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise DatasetError(message("an http or https address", repr(address), "download the file yourself"))
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            content = answer.read(_MOST_BYTES + 1)
            promised = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        error.close()
        raise _no_answer(address, f"HTTP {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # timeouts and refusals are OSError
        raise _no_answer(address, str(error) or type(error).__name__) from None
    if len(content) > _MOST_BYTES:
        raise DatasetError(
            message("a file of at most 64 MiB", f"more from {address}", "is this the right address?")
        )
    if promised is not None and promised.isdigit() and len(content) != int(promised):
        got = f"{len(content):,} of {int(promised):,} bytes from {address}"
        raise DatasetError(message("the whole file", got, "the connection broke off: try again"))
    return bytes(content)


def _no_answer(address: str, reason: str) -> DatasetError:
    remedy = "check the connection, or pass url= of a mirror"
    return DatasetError(message(f"an answer from {address}", reason, remedy))


def _normalised(content: bytes, source: Source) -> bytes:
    """The text as our checksums know it: no byte order mark, LF, a final newline, the known header."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return content  # its checksum will be wrong, and the message says so
    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    first, _, rest = text.partition(b"\n")
    header = source.header.encode()
    return header + b"\n" + rest if first.count(b",") == header.count(b",") else text


def _write(folder: Path, name: str, content: bytes) -> Path:
    try:
        return write_whole(folder / name, content)
    except OSError as error:
        raise DatasetError(
            message(f"a folder that can be written, {folder}", str(error), "pass another one")
        ) from None
