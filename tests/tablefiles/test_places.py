"""Tables that are no local file: DuckDB, SQL databases, URLs; and folders of many."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pandas as pd
import pytest
import sqlalchemy as sa

from veritracer.errors import DataError
from veritracer.tablefiles import open_table, tables_in

FRAME = pd.DataFrame({"id": [3, 1, 2], "name": ["c", None, "ü"], "amount": [0.5, 1e-9, 2.0]})


def read(place: str) -> list[dict[str, object]]:
    with open_table(place, rows=2) as table:
        rows = [row for chunk in table.chunks for row in chunk.to_pylist()]
        assert all(tuple(row) == table.names for row in rows)
        return rows


WANTED = FRAME.astype(object).where(FRAME.notna(), None).to_dict("records")


@pytest.fixture
def duck(tmp_path: Path) -> str:
    duckdb = pytest.importorskip("duckdb", reason="the extra duckdb is not installed")
    with duckdb.connect(str(tmp_path / "people.db")) as connection:
        connection.register("given", FRAME)
        connection.execute("create table people as select * from given")
    return f"duckdb:{tmp_path}/people.db"


@pytest.mark.parametrize("asked", ["people", "table=people", "query=select * from people where 1+1 = 2"])
def test_duckdb(duck: str, asked: str) -> None:
    assert read(f"{duck}?{asked}") == WANTED


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ("?nobody", r"got no 'nobody', but 'people'"),
        ("", "a table or a query in .*, got neither"),
        ("?query=selekt", "an answer from .*, got "),
    ],
)
def test_duckdb_says_what_is_wrong(duck: str, asked: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(f"{duck}{asked}")
    with pytest.raises(DataError, match="no file"):
        read("duckdb:nowhere.db?people")


@pytest.fixture
def sql(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/people.sqlite"
    engine = sa.create_engine(url)
    columns = [sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text)]
    table = sa.Table("people", sa.MetaData(), *columns, sa.Column("amount", sa.Numeric(asdecimal=True)))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), WANTED)
    engine.dispose()
    return url


def test_sql_tables_come_in_the_order_of_their_key(sql: str) -> None:
    found = read(f"{sql}?table=people")
    assert [row["id"] for row in found] == [1, 2, 3]
    assert sorted(found, key=str) == sorted(WANTED, key=str)
    assert read(f"{sql}?query=select id from people order by id desc")[0] == {"id": 3}


@pytest.mark.parametrize(
    ("asked", "match"),
    [("?table=nobody", "no 'nobody'"), ("", "neither"), ("?query=selekt", "an answer from people.sqlite")],
)
def test_sql_says_what_is_wrong(sql: str, asked: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(f"{sql}{asked}")


def test_a_password_is_not_told() -> None:
    with pytest.raises(DataError) as told:
        read("postgresql://me:secret@127.0.0.1:1/none?table=people")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("name", ["people.csv", "people.parquet", "people.csv.gz"])
def test_urls_are_files(name: str) -> None:
    place = f"memory://tables/{name}"
    with fsspec.open(place, "wb") as file:
        if name.endswith("parquet"):
            FRAME.to_parquet(file, index=False)
        else:
            FRAME.to_csv(file, index=False, compression="gzip" if name.endswith("gz") else None)
    assert [str(row["id"]) for row in read(place)] == ["3", "1", "2"]
    assert place in [found.path for found in tables_in("memory://tables/")]
    with pytest.raises(DataError, match="nothing at"):
        read("memory://tables/nobody.csv")


def test_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.csv", "a/c.parquet", "a/_hidden.csv", "notes.txt", "_own/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [found.name for found in tables_in(str(tmp_path))] == ["a/c.parquet", "b.csv"]
    assert [found.name for found in tables_in(f"{tmp_path}/*.csv")] == ["b.csv"]
    assert [found.name for found in tables_in(f"{tmp_path}/**/*.parquet")] == ["c.parquet"]
    assert tables_in("people.csv") == [("people.csv", "people.csv")]
    with pytest.raises(DataError, match=r"tables in .+, got none"):
        tables_in(f"{tmp_path}/*.parquet")
