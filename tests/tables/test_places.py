"""Tables that are no single local file: URLs, folders, patterns and answers of databases."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import fsspec
import pandas as pd
import pytest
import sqlalchemy as sa

from veritracer.errors import DataError
from veritracer.schema import Feature, Schema
from veritracer.tables import find_tables, is_many, read_batches, without_password
from veritracer.tables.cells import read_table

FRAME = pd.DataFrame({"id": [3, 1, 2], "name": ["c", None, "ü"], "amount": [0.5, 1e-9, 2.0]})
PEOPLE = "select * from people order by id"


def read(place: str, query: str | None = None) -> list[dict[str, object]]:
    batches = read_batches(place, query, rows=2)
    return [row for batch in batches for row in batch.rows.select(batch.columns).to_pylist()]


WANTED = FRAME.astype(object).where(FRAME.notna(), None).to_dict("records")


# ------------------------------------------------------------ databases


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


def test_the_answer_to_a_query(sql: str) -> None:
    found = read(sql, PEOPLE)
    assert [row["id"] for row in found] == [1, 2, 3]
    assert sorted(found, key=str) == sorted(WANTED, key=str)
    assert read(sql, "select id from people where name like '%c%' or id % 2 = 0 order by id desc") == [
        {"id": 3},
        {"id": 2},
    ]
    known = Schema([Feature("id", "integer"), Feature("amount", "continuous")])
    frame = read_table(sql, PEOPLE, schema=known)
    assert frame["amount"].tolist() == [1e-9, 2.0, 0.5]
    assert frame.index.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("select * from nobody", r"an answer from sqlite:.*people\.sqlite, got no such table"),
        ("selekt", "an answer from"),
        ("select * from people where id > 9", "at least one row"),
        ("select id, id from people", "'id' more than once"),
        ("select 1 as x union all select 2 union all select 'word'", "int64 and then string in 'x' .*cast"),
        ("select x'00ff' as x", "an answer from .*can't decode"),
    ],
)
def test_queries_without_a_table(sql: str, query: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(sql, query)


def test_a_database_without_its_file_or_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a SQLite file, got no file .*nothing\.sqlite"):
        read(f"sqlite:///{tmp_path}/nothing.sqlite", PEOPLE)
    with pytest.raises(DataError, match="a database also needs --query"):
        read(f"sqlite:///{tmp_path}/nothing.sqlite")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(DataError, match="expected the package sqlalchemy, got an install without it"):
        read("sqlite:///people.sqlite", PEOPLE)


def test_gaps_and_types_that_differ_between_batches(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("create table t (id integer primary key, gap integer, age integer)")
        connection.execute("insert into t values (1, null, 5), (2, null, 6), (3, 7, 6.5), (4, null, 8)")
    place, query = f"sqlite:///{tmp_path}/s.sqlite", "select * from t order by id"
    assert [row["age"] for row in read(place, query)] == [5, 6, 6.5, 8]
    known = Schema([Feature("gap", "integer", missing="impute"), Feature("age", "continuous")])
    for frame in (read_table(place, query), read_table(place, query, schema=known)):
        assert frame["age"].tolist() == [5.0, 6.0, 6.5, 8.0]
        assert frame["gap"].isna().tolist() == [True, True, False, True]


# ------------------------------------------------------------ passwords


def names_or_reason(place: str) -> str:
    try:
        return str(list(find_tables(place)))
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("query", [None, PEOPLE])
@pytest.mark.parametrize(
    "place",
    [
        "mysql+fake://scott:SECRET@host/s.db",
        "postgresql://me:SECRET@127.0.0.1:1/none",
        "postgresql://scott:SEC/SECRET@host",
        "postgresql://scott:12/SECRET@host/name",
        "postgresql://scott:SEC?SECRET@host/name",
        "postgresql://host/name?password=SECRET",
        "mssql+pyodbc://?odbc_connect=UID%3Dscott%3BPWD%3DSECRET",
        "ftp://scott:SECRET@127.0.0.1:1/people.csv",
        "ftp://scott:SEC@SECRET@127.0.0.1:1",
        "nowhere://scott:SECRET@host/people/*.csv",
    ],
)
def test_no_place_tells_its_password(place: str, query: str | None) -> None:
    assert "SECRET" not in without_password(place)
    assert "***" in without_password(place)
    with pytest.raises(DataError) as told:
        read(place, query)
    assert "SECRET" not in f"{told.value} {names_or_reason(place)}"


def test_open_tables_are_named_without_passwords(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, plain = "mysql+fake://scott:SECRET@host/s.db", sa.make_url(sql)
    monkeypatch.setattr(sa, "make_url", lambda url: plain)
    assert next(read_batches(place, PEOPLE)).table == "mysql+fake://scott:***@host/s.db"


# ------------------------------------------------------------ URLs, folders and patterns


@pytest.mark.parametrize("name", ["people.csv", "people.parquet", "people.csv.gz"])
def test_urls_are_files(name: str) -> None:
    place = f"memory://tables/{name}"
    with fsspec.open(place, "wb") as file:
        if name.endswith("parquet"):
            FRAME.to_parquet(file, index=False)
        else:
            FRAME.to_csv(file, index=False, compression="gzip" if name.endswith("gz") else None)
    assert [str(row["id"]) for row in read(place)] == ["3", "1", "2"]
    assert place in find_tables("memory://tables/").values()
    with pytest.raises(DataError, match="nothing at"):
        read("memory://tables/nobody.csv")


@pytest.mark.parametrize("start", ["", "file:", "file://", "file://localhost", "FILE:"])
@pytest.mark.parametrize("name", ["people.csv", "w?y/br[1].csv", "a%20b.csv", "with space.csv", "a::b.csv"])
def test_local_names_may_have_any_characters(start: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    FRAME.to_csv(path, index=False)
    place = f"{start}{path}"
    assert not is_many(place)
    assert len(read(place)) == 3
    assert find_tables(place) == {path.name: place}
    if "?" not in name:
        assert is_many(f"{start}{path.parent}")
        assert find_tables(f"{start}{path.parent}/") == {path.name: str(path)}
    with pytest.raises(DataError, match="no file /nowhere"):
        read(f"{start}/nowhere.csv")


def test_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("b.csv", "a/c.parquet", "a/_hidden.csv", "notes.txt", "_own/d.csv", "e.csv.gz", ".f.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with fsspec.open(f"memory://folder/{name}", "wb") as file:
            file.write(b"")
    for folder in (str(tmp_path), f"file:{tmp_path}", "memory://folder"):
        names = {
            "/": ["a/c.parquet", "b.csv", "e.csv.gz"],
            "/*.csv": ["b.csv"],
            "/*": ["b.csv", "e.csv.gz"],
            "/**/*.parquet": ["a/c.parquet"],
            "/a/*": ["c.parquet"],
            "/_own/*": ["d.csv"],
        }
        found = {pattern: list(find_tables(f"{folder}{pattern}")) for pattern in names}
        assert found == names
        with pytest.raises(DataError, match=r"tables in .+, got none"):
            find_tables(f"{folder}/*.txt")
    assert find_tables(str(tmp_path)) == find_tables(f"{tmp_path}/")


def test_a_single_name_is_one_table(sql: str) -> None:
    assert find_tables("people.csv") == {"people.csv": "people.csv"}
    assert find_tables(sql, PEOPLE) == {"people.sqlite": sql}
    database = "postgresql://me:secret@host/name?sslmode=require"
    assert not is_many(database, PEOPLE)
    assert find_tables(database, PEOPLE) == {"name": database}
    assert find_tables("s3://bucket/2027/people.csv") == {"people.csv": "s3://bucket/2027/people.csv"}
    with pytest.raises(DataError, match="expected a file with a table, got the folder"):
        read(str(Path(sql.removeprefix("sqlite:///")).parent))


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (ImportError("Install s3fs to access S3."), r"got Install s3fs to access S3 — install the package"),
        (PermissionError("Forbidden\nand more"), r"got Forbidden — check the URL and your permissions"),
    ],
)
def test_urls_that_can_not_be_read(monkeypatch: pytest.MonkeyPatch, error: Exception, match: str) -> None:
    def refuse(url: str) -> None:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(DataError, match=match):
        read("s3://bucket/people.csv")
