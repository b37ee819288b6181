"""One batch function for pandas, polars and Arrow, and for whoever maps it over partitions: Dask, Spark."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from ledger_cases import undecided
from run_cases import QUICK, REFINED, assert_same, explained, model, people, written

import veritracer as vt
from optional import java
from veritracer.encoding import Encoding
from veritracer.errors import DataError
from veritracer.schema import Feature, Schema
from veritracer.tables.partitions import explain_batches


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    out = tmp_path_factory.mktemp("alone") / "out"
    explained(folder, out, rows=1000)
    return written(out)


def test_batches_come_back_in_their_own_type(folder: Path, alone: pd.DataFrame) -> None:
    whole = pa.Table.from_pandas(people(), preserve_index=False)
    (batch,) = whole.slice(30, 10).combine_chunks().to_batches()
    given = [people().head(20), pl.DataFrame(whole.slice(20, 10)), batch, whole.slice(40)]
    found = list(explain_batches(given, folder / "model", keep=["id"], **QUICK))
    assert [type(one) for one in found] == [pd.DataFrame, pl.DataFrame, pa.RecordBatch, pa.Table]
    frames = [one if isinstance(one, pd.DataFrame) else pa.table(one).to_pandas() for one in found[:2]]
    frames += [one.to_pandas() for one in found[2:]]
    assert_same(pd.concat(frames, ignore_index=True), alone)


def test_an_empty_batch_has_the_columns_of_all(folder: Path, alone: pd.DataFrame) -> None:
    (found,) = explain_batches([people().head(0)], folder / "model", keep=["id"], **QUICK)
    assert (len(found), list(found.columns)) == (0, list(alone.columns))


def test_what_is_no_table_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="tables of pandas, polars or Arrow, got a dict"):
        next(explain_batches([{}], folder / "model"))
    for column in (people()["age"], people()["id"], pl.Series([1]), pa.chunked_array([[1]])):
        with pytest.raises(DataError, match=f"polars or Arrow, got a {type(column).__name__} — convert"):
            next(explain_batches([column], folder / "model"))
    mixed = people().assign(age=["old", *people()["age"][1:]])
    with pytest.raises(DataError, match=r"of one type, got others \(Conversion failed for column age"):
        next(explain_batches([mixed], folder / "model"))


def test_dask_maps_it_over_partitions(folder: Path, alone: pd.DataFrame) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="the extra dask is not installed")

    def explain(part: pd.DataFrame) -> pd.DataFrame:
        return next(explain_batches([part], folder / "model", keep=["id"], **QUICK))

    table = dd.from_pandas(people(), npartitions=3)
    found = table.map_partitions(explain, meta=explain(people().head(0)))
    assert_same(found.compute(scheduler="synchronous").reset_index(drop=True), alone)


def test_dask_finds_people_by_their_labels(folder: Path) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="the extra dask is not installed")

    def explain(part: pd.DataFrame) -> pd.DataFrame:
        return next(explain_batches([part], folder / "model", keep=["id"], **QUICK))

    frame = people().set_axis(np.arange(60) * 7 + 1000).iloc[1:]
    table = dd.from_pandas(frame, npartitions=3)
    found = table.map_partitions(explain, meta=explain(frame.head(0)))
    assert found.known_divisions
    for label in (1007, 1140, 1413):
        assert found.loc[label].compute(scheduler="synchronous")["id"].tolist() == [frame.loc[label, "id"]]
    joined = table[["id"]].join(found[["id"]], rsuffix="_found").compute(scheduler="synchronous")
    assert (joined["id"] == joined["id_found"]).all()


@pytest.mark.parametrize("n", [1, 3])
def test_answers_have_the_index_of_a_pandas_batch(n: int) -> None:
    index = pd.MultiIndex.from_product([["b", "a"], [3, 1, 2]], names=["branch", "number"])
    frame = people().head(6).set_axis(index)
    batches = [frame, frame.head(0), frame.set_axis([5, 5, 1, 0, 9, -1])]
    found = list(explain_batches(batches, model().recourse(), keep=["id"], n=n, **REFINED))
    for one, given in zip(found, batches, strict=True):
        assert one.index.names == given.index.names
        own = dict(zip(frame["id"], given.index, strict=False))
        assert one.index.tolist() == [own[name] for name in one["id"]]
    assert len(found[1]) == 0
    assert list(found[1].columns) == list(found[0].columns)
    assert (len(found[0]) > 6) == (n > 1)


def test_types_do_not_depend_on_what_is_missing() -> None:
    features = [
        Feature("age", "integer", lower=18, upper=90, missing="impute"),
        Feature("owner", "binary", categories=[False, True], missing="category"),
        Feature("debts", "integer", lower=0, upper=20),
    ]
    ages, owner = [30, 40, 50, 60], [True, False, True, False]
    whole = pd.DataFrame({"age": ages, "owner": owner, "debts": [1, 2, 3, 4], "branch": ages})
    whole["branch"] = whole["branch"].astype("Int64")
    gaps = whole.assign(age=[30.0, None, 50, 60], owner=np.array([True, None, False, True], dtype=object))
    gaps.loc[2, "branch"] = pd.NA
    rows = whole.drop(columns="branch")
    encoding = Encoding.fit(Schema(features, "y", "yes", "no"), rows)
    asked = vt.Recourse(undecided(encoding, encoding.encode(rows), 0), encoding=encoding)
    found = list(explain_batches([whole, gaps, whole.head(0)], asked, keep=["branch"], **QUICK))
    kinds = {"age": "Int64", "owner": "boolean", "debts": "int64", "branch": "Int64"}
    for one in found:
        assert {name: str(one[name].dtype) for name in kinds} == kinds
        assert one.dtypes.equals(found[0].dtypes)


@pytest.mark.parametrize("rows", [0, 5])
def test_a_batch_without_a_column_is_refused(folder: Path, rows: int) -> None:
    frame = people().head(rows)
    for batch in (frame, pa.Table.from_pandas(frame, preserve_index=False)):
        with pytest.raises(DataError, match="columns to keep that exist, got no 'number' in the batch"):
            next(explain_batches([batch], folder / "model", keep=["id", "number"]))
    with pytest.raises(DataError, match="the 9 columns of the model in the batch, got no 'age'"):
        next(explain_batches([frame.drop(columns="age")], folder / "model", keep=["id"]))


@pytest.mark.long  # a minute on a busy machine: Java starts, and each of its workers imports torch
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.skipif(not java(), reason="no Java 17 or newer is installed")
def test_spark_maps_it_in_pandas(folder: Path, alone: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="the extra spark is not installed")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    from pyspark.sql.pandas.types import from_arrow_schema

    explain = partial(explain_batches, model=str(folder / "model"), keep=["id"], **QUICK)
    (empty,) = explain([pa.Table.from_pandas(people().head(0), preserve_index=False)])
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        table = session.read.parquet(str(folder / "people.parquet")).repartition(2)
        found = table.mapInPandas(explain, from_arrow_schema(empty.schema)).toArrow().to_pandas()
    finally:
        session.stop()
    assert_same(found, alone)


# ---------------------------------------------------------------- tables of other libraries, in and out


def test_polars_and_arrow_go_in_and_out(folder: Path) -> None:
    rows = people().drop(columns="id")
    arrow = pa.Table.from_pandas(rows, preserve_index=False)
    plain = model().explain(rows, **QUICK)
    for given in (
        arrow,
        pl.DataFrame(arrow),
        pl.DataFrame(arrow).with_columns(pl.col("job").cast(pl.Categorical)),
    ):
        found = model().explain(given, **QUICK)
        assert np.array_equal(found.x_cf, plain.x_cf)
        assert np.array_equal(model().predict(given), model().predict(rows))
    shown = pl.DataFrame(plain)
    assert shown["recourse.status"].to_list() == plain.status.tolist()
    assert pa.table(plain).num_rows == len(rows)


def test_a_model_learns_from_polars(folder: Path) -> None:
    frame = people().drop(columns="id")
    labels = np.where(frame["income"] > frame["income"].median(), "yes", "no")
    table = pl.DataFrame(pa.Table.from_pandas(frame, preserve_index=False))
    params = {"favourable": "yes", "method": "standard", "panel": None, "hidden": (4,), "epochs": 1}
    learned = [vt.VeriTraCER(**params).fit(X, y) for X, y in ((frame, labels), (table, pl.Series(labels)))]
    assert learned[0].encoding_.schema.names == learned[1].encoding_.schema.names
    assert np.allclose(*(one.predict_proba(frame) for one in learned))
