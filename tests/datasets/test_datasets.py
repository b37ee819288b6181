"""The datasets hold the rows that their README counts, and a download is right or leaves nothing behind."""

from __future__ import annotations

import gzip
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from veritracer import datasets
from veritracer.datasets import loading
from veritracer.encoding import Encoding
from veritracer.errors import DatasetError

FILES = ("ctg", "heloc", "oula", "taiwan_credit", "who")
FOLDER = os.environ.get("VERITRACER_DATA")
needs_files = pytest.mark.skipif(
    FOLDER is None or not all((Path(FOLDER) / f"{name}.csv.gz").is_file() for name in FILES),
    reason="dataset files not found: set VERITRACER_DATA",
)
three_parts = r"(?s)^expected .+, got .+ — .+"


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, str], datasets.Dataset]:
    return {(n, v): datasets.load(n, variant=v) for n in FILES for v in ("default", "paper")}


Loaded = dict[tuple[str, str], datasets.Dataset]


# ---------------------------------------------------------------- what is in them


@needs_files
@pytest.mark.parametrize(
    ("name", "shape", "favourable", "count"),
    [
        ("heloc", (9871, 23), "Good", 4735),
        ("taiwan_credit", (30000, 23), 0, 23364),
        ("oula", (32593, 31), "Pass/Distinction", 15385),
        ("ctg", (2126, 21), "normal", 1655),
        ("who", (2928, 18), "above", 1501),
    ],
)
@pytest.mark.parametrize("variant", ["default", "paper"])
def test_rows_columns_and_labels(
    loaded: Loaded, name: str, shape: tuple[int, int], favourable: object, count: int, variant: str
) -> None:
    dataset = loaded[name, variant]
    assert dataset.X.shape == shape
    assert dataset.schema.favourable == favourable
    assert dataset.schema.labels(dataset.y).sum() == count
    assert list(dataset.X.columns) == list(dataset.schema.names)
    assert dataset.X.index.equals(dataset.y.index)


@needs_files
@pytest.mark.parametrize("name", FILES)
def test_the_default_variant_fits_its_own_schema_and_comes_back(loaded: Loaded, name: str) -> None:
    dataset = loaded[name, "default"]
    encoding = Encoding.fit(dataset.schema, dataset.X)
    x = encoding.encode(dataset.X, out_of_range="refuse")
    back = encoding.decode(x).set_axis(dataset.X.index)
    for column in dataset.X.columns:
        if (name, column) == ("oula", "weighted_score"):  # means with 17 digits; 14 of them come back
            pd.testing.assert_series_equal(back[column], dataset.X[column], rtol=0, atol=1e-11)
        else:
            pd.testing.assert_series_equal(back[column], dataset.X[column])
    pd.testing.assert_frame_equal(encoding.decode(x, original=dataset.X), dataset.X)
    wanted = torch.rand(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = encoding.project(wanted, x)
    assert torch.equal(encoding.encode(encoding.decode(p, original=dataset.X)), p)


@needs_files
@pytest.mark.parametrize("name", FILES)
def test_the_papers_variant_is_unconstrained_and_complete(loaded: Loaded, name: str) -> None:
    dataset = loaded[name, "paper"]
    assert dataset.schema == dataset.schema.unconstrained()
    assert {feature.missing for feature in dataset.schema.features} == {"refuse"}
    assert not dataset.X.isna().any().any()
    kinds = pd.Series([feature.kind for feature in dataset.schema.features]).value_counts().to_dict()
    wanted = {"heloc": (23, 0), "taiwan_credit": (20, 3), "oula": (23, 8), "ctg": (21, 0), "who": (18, 0)}[
        name
    ]
    assert (kinds["continuous"], kinds.get("categorical", 0)) == wanted


@needs_files
def test_heloc_by_hand(loaded: Loaded) -> None:
    default, paper = loaded["heloc", "default"], loaded["heloc", "paper"]
    first = default.X.iloc[0]
    assert default.y.iloc[0] == "Bad"
    assert (first["ExternalRiskEstimate"], first["MSinceOldestTradeOpen"]) == (55, 144)
    assert first["NetFractionInstallBurden"] == -8
    assert ((default.X == -7) | (default.X == -8) | (default.X == -9)).any(axis=1).sum() == 7369
    assert (default.X["MSinceMostRecentDelq"] == -7).sum() == 4664
    assert default.schema["MSinceMostRecentDelq"].missing_codes == (-7, -8)
    assert default.schema["ExternalRiskEstimate"].missing_codes == (-9,)
    assert default.schema["MSinceOldestTradeOpen"].action == "increase_only"
    assert default.schema["MaxDelqEver"].action == "immutable"
    assert default.schema["MaxDelqEver"].categories == tuple(range(2, 9))
    assert default.schema["NetFractionRevolvingBurden"].action == "free"
    burden = default.X["NetFractionInstallBurden"]
    assert paper.X["NetFractionInstallBurden"].iloc[0] == burden[burden >= 0].median()
    assert (paper.X >= 0).all().all()
    split = paper.split()
    assert (len(split.X_train), len(split.X_test)) == (7896, 1975)
    from sklearn.model_selection import train_test_split

    rows = train_test_split(np.arange(9871), test_size=0.2, random_state=0)[1]
    assert split.X_test.equals(paper.X.iloc[rows])


@needs_files
def test_taiwan_credit_by_hand(loaded: Loaded) -> None:
    default, paper = loaded["taiwan_credit", "default"], loaded["taiwan_credit", "paper"]
    assert default.X.iloc[0].tolist()[:11] == [20000, 2, 2, 1, 24, 2, 2, -1, -1, -2, -2]
    assert list(paper.X.columns)[-3:] == ["SEX", "EDUCATION", "MARRIAGE"]
    assert "ID" not in default.X
    assert default.schema["PAY_0"].categories == tuple(range(-2, 9))
    assert default.schema["PAY_AMT1"].action == "free"
    assert default.schema["AGE"].action == "increase_only"
    assert {default.schema[n].action for n in ("SEX", "LIMIT_BAL", "BILL_AMT1", "PAY_0")} == {"immutable"}
    split = default.split()
    assert (len(split.X_train), len(split.X_test)) == (24000, 6000)
    assert split.y_test.mean() == pytest.approx(default.y.mean(), abs=1e-4)  # stratified


@needs_files
def test_oula_by_hand(loaded: Loaded) -> None:
    default, paper = loaded["oula", "default"], loaded["oula", "paper"]
    assert default.X.iloc[0]["region"] == "Scotland"
    assert (default.X["imd_band"] == "0-10%").sum() == 4422
    assert default.schema["imd_band"].categories[:3] == ("0-10%", "10-20", "20-30%")
    assert default.schema["highest_education"].action == "increase_only"
    assert default.schema["studied_credits"].action == "free"
    split = paper.split()
    assert (len(split.X_train), len(split.X_test)) == (26074, 6519)
    assert split.X_train.index[-1] == 26073
    assert list(paper.split(random_state=1).X_train.index) != list(split.X_train.index)


@needs_files
@pytest.mark.parametrize("variant", ["default", "paper"])
def test_the_shifts(loaded: Loaded, variant: str) -> None:
    ctg, who = loaded["ctg", variant], loaded["who", variant]
    assert (len(ctg.original.X), len(ctg.shifted.X)) == (1950, 2126)
    assert ctg.groups is not None
    assert ctg.groups.value_counts().to_dict() == {"normal": 1655, "suspect": 295, "pathological": 176}
    assert (ctg.original.y == "suspect").sum() == 295
    assert (ctg.shifted.y == "suspect").sum() == 471
    assert (len(who.original.X), len(who.shifted.X)) == (2196, 2928)
    assert (who.original.y == "above").sum() == 1088
    assert (who.y.drop(who.original.y.index) == "above").sum() == 413
    assert who.original.part == "original"
    with pytest.raises(DatasetError, match=three_parts):
        _ = loaded["heloc", variant].original


@needs_files
def test_who_by_hand(loaded: Loaded) -> None:
    default, paper = loaded["who", "default"], loaded["who", "paper"]
    raw = pd.read_csv(Path(FOLDER or "") / "who.csv.gz")
    kept = raw[raw["Life expectancy"].notna()]
    assert kept.loc[kept["Year"] < 2012, "Life expectancy"].median() == 71.8
    assert (kept["Life expectancy"] == 71.8).sum() >= 15
    assert (default.y[kept["Life expectancy"] == 71.8] == "below").all()
    assert default.X["Population"].isna().sum() == 644
    before = default.original.X["Population"]
    assert paper.X["Population"][default.X["Population"].isna()].unique().tolist() == [before.median()]
    assert default.schema["GDP"].action == "immutable"
    assert default.schema["Schooling"].missing == "impute"


def test_breast_cancer_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERITRACER_DATA", raising=False)
    dataset = datasets.load("breast_cancer")
    assert dataset.X.shape == (569, 30)
    assert dataset.schema.labels(dataset.y).sum() == 357
    encoding = Encoding.fit(dataset.schema, dataset.X)
    pd.testing.assert_frame_equal(encoding.decode(encoding.encode(dataset.X)), dataset.X)
    assert [len(part) for part in dataset.split()] == [455, 114, 455, 114]


# ---------------------------------------------------------------- what is refused


def test_unknown_names_and_variants() -> None:
    with pytest.raises(DatasetError, match="did you mean 'heloc'"):
        datasets.load("helok")
    with pytest.raises(DatasetError, match=three_parts):
        datasets.load("breast_cancer", variant="papre")
    with pytest.raises(DatasetError, match=three_parts):
        datasets.load("breast_cancer", variant="paper")


def test_no_folder_no_file_damaged_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VERITRACER_DATA", raising=False)
    with pytest.raises(DatasetError, match=r"got no data_dir, and VERITRACER_DATA is not set — .*fico"):
        datasets.load("heloc")
    with pytest.raises(DatasetError, match=r"expected the file .*who.csv.gz, got no such file — .*kaggle"):
        datasets.load("who", data_dir=tmp_path)
    for content in (b"no gzip at all", gzip.compress(b"a,b\n1,2\n")[:-6], gzip.compress(b"a,b\n1,2\n")):
        (tmp_path / "ctg.csv.gz").write_bytes(content)
        with pytest.raises(DatasetError, match=three_parts):
            datasets.load("ctg", data_dir=tmp_path)


@needs_files
def test_a_recompressed_copy_is_accepted_and_an_altered_one_is_not(tmp_path: Path) -> None:
    text = gzip.decompress((Path(FOLDER or "") / "ctg.csv.gz").read_bytes())
    (tmp_path / "ctg.csv.gz").write_bytes(gzip.compress(text, compresslevel=1))
    assert len(datasets.load("ctg", data_dir=tmp_path).X) == 2126
    (tmp_path / "ctg.csv.gz").write_bytes(gzip.compress(text.replace(b",73,", b",74,", 1)))
    with pytest.raises(DatasetError, match="altered"):
        datasets.load("ctg", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["heloc", "who", "oula", "breast_cancer"])
def test_what_can_not_be_downloaded_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=three_parts):
        datasets.fetch(name, data_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_info(tmp_path: Path) -> None:
    told = datasets.info("ctg", data_dir=tmp_path)
    assert (told.rows, told.downloadable, told.path) == (2126, True, None)
    (tmp_path / "ctg.csv.gz").touch()
    assert datasets.info("ctg", data_dir=tmp_path).path == tmp_path / "ctg.csv.gz"
    assert not datasets.info("heloc").downloadable
    assert datasets.info("breast_cancer").path is None


# ---------------------------------------------------------------- downloads, from a server on this machine

TEXT = b"a,b\n1,2\n3,4\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path: /ok, /crlf, /gz, /other, /short, anything else is a 404."""

    def do_GET(self) -> None:
        body = {
            "/ok": TEXT,
            "/crlf": b"\xef\xbb\xbfx,b\r\n1,2\r\n3,4",
            "/gz": gzip.compress(TEXT),
            "/other": b"a,b\n1,2\n3,5\n",
            "/short": TEXT[:6],
        }.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT) if self.path == "/short" else len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    known = loading.DatasetSource(
        "t", 2, "s", "l", "h", loading.SOURCES["ctg"].build, sha256_text=loading.digest(TEXT), header="a,b"
    )
    monkeypatch.setitem(loading.SOURCES, "ctg", known)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/ok", "/crlf", "/gz"])
def test_a_download_is_normalised_checked_and_stored(server: str, path: str, tmp_path: Path) -> None:
    stored = datasets.fetch("ctg", data_dir=tmp_path / "new", url=server + path)
    assert stored == tmp_path / "new" / "ctg.csv.gz"
    assert gzip.decompress(stored.read_bytes()) == TEXT
    assert stored.read_bytes() == gzip.compress(TEXT, mtime=0)
    assert [p.name for p in stored.parent.iterdir()] == ["ctg.csv.gz"]


@pytest.mark.parametrize(
    ("path", "says"), [("/other", "sha256"), ("/short", "bytes|sha256"), ("/gone", "HTTP 404")]
)
def test_a_bad_download_leaves_nothing(server: str, path: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=says) as caught:
        datasets.fetch("ctg", data_dir=tmp_path, url=server + path)
    assert str(caught.value).startswith("expected ")
    assert not list(tmp_path.iterdir())


def test_a_bad_download_keeps_the_file_that_was_there(server: str, tmp_path: Path) -> None:
    stored = datasets.fetch("ctg", data_dir=tmp_path, url=server + "/ok")
    before = stored.read_bytes()
    with pytest.raises(DatasetError):
        datasets.fetch("ctg", data_dir=tmp_path, url=server + "/other")
    assert stored.read_bytes() == before


def test_nobody_answers(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(DatasetError, match=three_parts):
        datasets.fetch("ctg", data_dir=tmp_path, url=f"http://127.0.0.1:{port}/x")
    for url in ("file:///etc/hostname", "ftp://127.0.0.1/x", "nonsense"):
        with pytest.raises(DatasetError, match="http or https"):
            datasets.fetch("ctg", data_dir=tmp_path, url=url)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_can_not_be_written(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match="a writable folder"):
        datasets.fetch("ctg", data_dir=tmp_path / "file", url=server + "/ok")
