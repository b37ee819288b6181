"""Load and download datasets, check their files, and split them.

Files are checked by their SHA-256 before they are read, and downloads before they are written.
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
from veritracer.datasets.loans import ROWS, Do, portfolio
from veritracer.datasets.loans_model import Outcome
from veritracer.datasets.published import Parts
from veritracer.errors import DatasetError, message, unknown_name
from veritracer.files import write_whole
from veritracer.schema import Schema

Variant = Literal["default", "paper"]

VARIABLE = "VERITRACER_DATA"
_TIMEOUT = 30.0
_MOST_BYTES = 64 * 2**20  # ten times the largest of the files


@dataclass(frozen=True)
class DatasetSource:
    """All that the library knows of a dataset.

    Attributes
    ----------
    title, rows, source, licence, how
        What people read: its name in words, its size, where it is from, and how to get the file.
    build
        Function of the raw table, and of whether the paper's variant is wanted. Without a file the table is
        empty.
    in_paper
        Whether there is a variant as in the paper.
    sha256_text, sha256_gz
        SHA-256 of the file's content, unpacked, and of the copy that is best known; empty without a file.
    header, url
        The first line of the file, and a download that needs no login.
    """

    title: str
    rows: int
    source: str
    licence: str
    how: str
    build: Callable[[pd.DataFrame, bool], Parts]
    in_paper: bool = False
    sha256_text: str = ""
    sha256_gz: str = ""
    header: str = ""
    url: str | None = None


@dataclass(frozen=True)
class Info:
    """Description of a dataset; ``path`` is its file, if it is there, and ``how`` explains how to get it."""

    name: str
    title: str
    rows: int
    source: str
    licence: str
    how: str
    downloadable: bool
    path: Path | None


class Split(NamedTuple):
    """Rows for training and rows for testing."""

    X_train: pd.DataFrame
    X_test: pd.DataFrame
    y_train: pd.Series[Any]
    y_test: pd.Series[Any]


@dataclass(frozen=True)
class Dataset:
    """Raw features ``X``, raw labels ``y`` and the schema that describes both.

    ``groups`` distinguishes the original from the shifted part: the three classes of ctg, the year of who;
    None for other datasets.
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
        """Split the rows, stratified; the paper's HELOC and (by default) OULA have the authors' split."""
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
        """The rows after the paper's shift: all of them."""
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


_RAW = "https://raw.githubusercontent.com"
SOURCES: dict[str, DatasetSource] = {
    "breast_cancer": DatasetSource(
        title="Breast cancer Wisconsin (diagnostic)",
        rows=569,
        source="bundled with scikit-learn (UCI id 17)",
        licence="CC BY 4.0",
        how="it comes with scikit-learn: just load it",
        build=lambda raw, paper: published.breast_cancer(),
    ),
    "ctg": DatasetSource(
        title="Cardiotocography (fetal health)",
        rows=2126,
        source="https://archive.ics.uci.edu/dataset/193 (doi 10.24432/C51S4N)",
        licence="CC BY 4.0",
        how="run `veritracer datasets fetch ctg`, or take Kaggle's fetal_health.csv",
        build=published.ctg,
        in_paper=True,
        sha256_gz="e85ed5bf3f10aa957fe49790938c8a639cf6b542cfa1c0935609b6eb75d8e2ef",
        sha256_text="55b4dcf2b15d34289fb958024a9d3075c1e25cab908ef151ff8a0840b8643b17",
        header=(
            "baseline value,accelerations,fetal_movement,uterine_contractions,light_decelerations,"
            "severe_decelerations,prolongued_decelerations,abnormal_short_term_variability,"
            "mean_value_of_short_term_variability,percentage_of_time_with_abnormal_long_term_variability,"
            "mean_value_of_long_term_variability,histogram_width,histogram_min,histogram_max,"
            "histogram_number_of_peaks,histogram_number_of_zeroes,histogram_mode,histogram_mean,"
            "histogram_median,histogram_variance,histogram_tendency,fetal_health"
        ),
        url=f"{_RAW}/KhushiiAgarwal/Fetal_Health_Prediction/116db592590520f923161b9fbcaa1b4193c2a707/fetal_health.csv",
    ),
    "heloc": DatasetSource(
        title="FICO home equity line of credit (HELOC)",
        rows=10459,
        source="https://community.fico.com/s/explainable-machine-learning-challenge",
        licence="FICO's own terms of use",
        how="accept FICO's terms at https://community.fico.com/s/explainable-machine-learning-challenge",
        build=published.heloc,
        in_paper=True,
        sha256_gz="e74c24c2810396313f41f430e849e92d299308008bc128dea20f8add4a958f6b",
        sha256_text="f66d77f4e4e27c11205ba6258008f5e071f1f09724f4893e9ff2840a4e99f259",
        header=(
            "RiskPerformance,ExternalRiskEstimate,MSinceOldestTradeOpen,MSinceMostRecentTradeOpen,"
            "AverageMInFile,NumSatisfactoryTrades,NumTrades60Ever2DerogPubRec,NumTrades90Ever2DerogPubRec,"
            "PercentTradesNeverDelq,MSinceMostRecentDelq,MaxDelq2PublicRecLast12M,MaxDelqEver,NumTotalTrades,"
            "NumTradesOpeninLast12M,PercentInstallTrades,MSinceMostRecentInqexcl7days,NumInqLast6M,"
            "NumInqLast6Mexcl7days,NetFractionRevolvingBurden,NetFractionInstallBurden,"
            "NumRevolvingTradesWBalance,NumInstallTradesWBalance,NumBank2NatlTradesWHighUtilization,"
            "PercentTradesWBalance"
        ),
    ),
    "loans": DatasetSource(
        title="A synthetic lending portfolio, with years that drift",
        rows=10000,
        source="bundled: generated by a causal model (docs/explanation/loans.md)",
        licence="Apache-2.0",
        how="bundled, no file needed: just load it",
        build=lambda raw, paper: portfolio(ROWS, 1, 1.0, 0, "approved", None),
    ),
    "oula": DatasetSource(
        title="Open University Learning Analytics, one row for each student and presentation",
        rows=32593,
        source="https://analyse.kmi.open.ac.uk/open_dataset (doi 10.1038/sdata.2017.171)",
        licence="CC BY 4.0",
        how="the merged table is not published in this form: ask the maintainers for a copy of the file",
        build=published.oula,
        in_paper=True,
        sha256_gz="172ab25d73f110c6abebac37e89a7ebcb17f3ef473dfd8ad11e85423756a4e16",
        sha256_text="9830563addcbaca1263fd3e18d73bc4a16c439bc5987904b4f51f909deca982c",
        header=(
            "num_of_prev_attempts,weight,weighted_score,forumng_click,homepage_click,oucontent_click,"
            "resource_click,subpage_click,url_click,dataplus_click,glossary_click,oucollaborate_click,"
            "quiz_click,ouelluminate_click,sharedsubpage_click,questionnaire_click,page_click,externalquiz_click,"
            "ouwiki_click,dualpane_click,folder_click,repeatactivity_click,htmlactivity_click,"
            "code_module,gender,region,highest_education,imd_band,age_band,studied_credits,disability,final_result"
        ),
    ),
    "taiwan_credit": DatasetSource(
        title="Default of credit card clients (Taiwan, 2005)",
        rows=30000,
        source="https://archive.ics.uci.edu/dataset/350 (doi 10.24432/C55S3H)",
        licence="CC BY 4.0",
        how="run `veritracer datasets fetch taiwan_credit`, or take Kaggle's UCI_Credit_Card.csv",
        build=published.taiwan_credit,
        in_paper=True,
        sha256_gz="86ea40d2c9cb7138c68d94a1c24e2f61955e14fffe09ef179bacf50672f62ff7",
        sha256_text="f7b7d22d1f8dd27dadb25d4b78d8a4ae7c441ab6cc12d1ea58c0efc54d4d1788",
        header=(
            "ID,LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE,PAY_0,PAY_2,PAY_3,PAY_4,PAY_5,PAY_6,BILL_AMT1,BILL_AMT2,"
            "BILL_AMT3,BILL_AMT4,BILL_AMT5,BILL_AMT6,PAY_AMT1,PAY_AMT2,PAY_AMT3,PAY_AMT4,PAY_AMT5,PAY_AMT6,"
            "default.payment.next.month"
        ),
        url=f"{_RAW}/nbgraham/SL-Loan-Default/594b9af682b5fd052f65a87dc08315ecb347b513/UCI_Credit_Card.csv",
    ),
    "who": DatasetSource(
        title="Life expectancy (WHO), one row for each country and year",
        rows=2938,
        source="https://www.kaggle.com/datasets/kumarajarshi/life-expectancy-who",
        licence="the WHO's terms: reuse with attribution",
        how="log in at https://www.kaggle.com/datasets/kumarajarshi/life-expectancy-who",
        build=published.who,
        in_paper=True,
        sha256_gz="5767ac6dbb57cdbf35cca29b1bcf835c07d43525802fd83e931ba8995eb1bc01",
        sha256_text="ed6c132d86790e0e71d3d0444a0db4c94f8d27baefda0271e9f9bd75f0fec3b0",
        header=(
            "Country,Year,Status,Life expectancy,Adult Mortality,infant deaths,Alcohol,"
            "percentage expenditure,Hepatitis B,"
            "Measles,BMI,under-five deaths,Polio,Total expenditure,Diphtheria,HIV/AIDS,GDP,"
            "Population,thinness 1-19 years,thinness 5-9 years,Income composition of resources,Schooling"
        ),
    ),
}


def register(name: str, source: DatasetSource) -> None:
    """Add a dataset; its name must be new."""
    if name in SOURCES:
        raise DatasetError(message("the name of no known dataset", repr(name), "choose another one"))
    SOURCES[name] = source


def names() -> tuple[str, ...]:
    """Return the names of the datasets."""
    return tuple(SOURCES)


def source_of(name: str) -> DatasetSource:
    """Return the source of a dataset, and refuse an unknown name."""
    if name not in SOURCES:
        raise DatasetError(unknown_name("the name of a dataset", name, SOURCES))
    return SOURCES[name]


def info(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Info:
    """Describe a dataset, with the path of its file if it is in the data folder."""
    source = source_of(name)
    folder = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    path = Path(folder) / file_name(name) if folder and source.sha256_text else None
    found = path if path is not None and path.is_file() else None
    return Info(
        name=name,
        title=source.title,
        rows=source.rows,
        source=source.source,
        licence=source.licence,
        how=source.how,
        downloadable=source.url is not None,
        path=found,
    )


def file_name(name: str) -> str:
    """Return the name of the dataset's file in a data folder."""
    return f"{name}.csv.gz"


def folder_of(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the data folder: the argument, or else the environment variable."""
    folder = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not folder:
        raise DatasetError(
            message(
                f"a data folder with {file_name(name)}",
                f"no data_dir, and {VARIABLE} is not set",
                f"set {VARIABLE} to the folder; the file: {source_of(name).how}",
            )
        )
    return Path(folder)


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, variant: Variant = "default"
) -> Dataset:
    """Load a dataset as a user would want it, or with the rows, columns and treatment of the authors.

    The file is in ``data_dir``, or else in the folder of the environment variable ``VERITRACER_DATA``.
    """
    source = source_of(name)
    if variant not in ("default", "paper"):
        raise DatasetError(message("variant='default' or 'paper'", repr(variant), "choose one of them"))
    if variant == "paper" and not source.in_paper:
        remedy = "load it without variant"
        raise DatasetError(message("a dataset of the paper for variant='paper'", repr(name), remedy))
    raw = read(name, folder_of(name, data_dir)) if source.sha256_text else pd.DataFrame()
    return _dataset(name, variant, source.build(raw, variant == "paper"))


def loans(
    rows: int = ROWS,
    *,
    year: int = 1,
    drift: float = 1.0,
    random_state: int = 0,
    outcome: Outcome = "approved",
    do: Do | None = None,
) -> Dataset:
    """Generate a synthetic lending portfolio: ``rows`` applications of one year, from a causal model.

    Years differ in the economy, in the applicants and in the lender's criteria; ``drift`` scales the
    difference (0: none). Year 1 is the same for every drift. A larger table begins with the same rows.

    Parameters
    ----------
    outcome : the label: ``"approved"`` is the underwriter's decision, ``"repaid"`` the repayment of the loan
        if it were granted.
    do : actions of the same people before they apply: a value (or one for each row) for each column that is
        set, as a mapping or as a table whose index has row numbers; or a function from rows to these. An
        empty cell sets nothing. The result has the rows and labels after the actions and their effects
        (docs/explanation/loans.md), with the same hidden traits and noise.

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
    """Read the raw table of a dataset, and refuse a file that is missing, damaged or altered."""
    source = source_of(name)
    path = folder / file_name(name)
    if not path.is_file():
        raise DatasetError(
            message(f"the file {path}", "no such file", f"{source.how}, and store it gzipped under this name")
        )
    packed = path.read_bytes()
    try:
        text = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        remedy = f"download it again: {source.how}"
        raise DatasetError(message(f"{path} in gzip format", f"a damaged file ({error})", remedy)) from None
    if digest(packed) != source.sha256_gz and digest(text) != source.sha256_text:
        raise DatasetError(
            message(
                f"{path} with the sha256 {source.sha256_text[:12]}… (unpacked)",
                f"{digest(text)[:12]}…: its content was altered or is another version",
                f"download it again: {source.how}",
            )
        )
    return pd.read_csv(io.BytesIO(text))


def digest(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- downloads


def fetch(name: str, *, data_dir: str | os.PathLike[str], url: str | None = None) -> Path:
    """Download a dataset's file to ``data_dir``, check its content, and return its path.

    ``url`` names a mirror (http or https). Nothing is written if the checksum is wrong.
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
        raise DatasetError(message("a file of at most 64 MiB", f"more from {address}", "check the address"))
    if promised is not None and promised.isdigit() and len(content) != int(promised):
        got = f"{len(content):,} of {int(promised):,} bytes from {address}"
        raise DatasetError(message("the whole file", got, "the connection was lost: try again"))
    return bytes(content)


def _no_answer(address: str, reason: str) -> DatasetError:
    remedy = "check the connection, or pass url= of a mirror"
    return DatasetError(message(f"an answer from {address}", reason, remedy))


def _normalised(content: bytes, source: DatasetSource) -> bytes:
    """Normalise a text for its checksum: no byte order mark, LF, a final newline, the known header."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return content  # the checksum will be wrong
    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    first, _, rest = text.partition(b"\n")
    header = source.header.encode()
    return header + b"\n" + rest if first.count(b",") == header.count(b",") else text


def _write(folder: Path, name: str, content: bytes) -> Path:
    try:
        return write_whole(folder / name, content)
    except OSError as error:
        raise DatasetError(message(f"a writable folder {folder}", str(error), "pass another one")) from None
