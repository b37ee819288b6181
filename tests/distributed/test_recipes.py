"""One batch function for pandas, polars and Arrow, and for whoever maps it over partitions: Dask, Spark."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from distributed_cases import QUICK, assert_same, explained, model, people, written

import veritracer as vt
from veritracer.distributed import explain_batches
from veritracer.errors import DataError


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


def test_dask_maps_it_over_partitions(folder: Path, alone: pd.DataFrame) -> None:
    dd = pytest.importorskip("dask.dataframe", reason="the extra dask is not installed")

    def explain(part: pd.DataFrame) -> pd.DataFrame:
        return next(explain_batches([part], folder / "model", keep=["id"], **QUICK))

    table = dd.from_pandas(people(), npartitions=3)
    found = table.map_partitions(explain, meta=explain(people().head(0)))
    assert_same(found.compute(scheduler="synchronous").reset_index(drop=True), alone)


@pytest.mark.long  # a minute on a busy machine: Java starts, and each of its workers imports torch
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java is installed")
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
    learned = [
        vt.VeriTraCER(method="standard", panel=None, hidden=(4,), epochs=1).fit(X, y)
        for X, y in ((frame, labels), (table, pl.Series(labels)))
    ]
    assert learned[0].encoding_.schema.names == learned[1].encoding_.schema.names
    assert np.allclose(*(one.predict_proba(frame) for one in learned))
