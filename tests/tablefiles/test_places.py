"""Tables that are no local file: DuckDB, SQL databases, URLs; and folders of many."""

from __future__ import annotations

import sqlite3
import sys
import warnings
from pathlib import Path

import fsspec
import pandas as pd
import pytest
import sqlalchemy as sa

from veritracer.errors import DataError
from veritracer.tablefiles import is_many, open_table, read_table, tables_in
from veritracer.tablefiles.places import without_password

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


def test_decimals_of_duckdb_are_numbers(duck: str) -> None:
    asked = "select id::hugeint as id, amount::decimal(12, 9) as amount, sum(id) over () as s from people"
    frame = read_table(f"{duck}?query={asked}")
    assert frame.to_dict("list") == {"id": [3, 1, 2], "amount": [0.5, 1e-9, 2.0], "s": [6, 6, 6]}
    assert frame.dtypes.astype(str).tolist() == ["int64", "float64", "int64"]


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


def names_or_reason(place: str) -> str:
    try:
        return str([found.name for found in tables_in(place)])
    except DataError as error:
        return str(error)


@pytest.mark.parametrize(
    "place",
    [
        "mysql+fake://scott:SECRET@host/s.db?table=people",
        "postgresql://scott:SEC/SECRET@host?table=people",
        "postgresql://scott:12/SECRET@host/name?table=people",
        "postgresql://scott:SEC?SECRET@host/name?table=people",
        "postgresql://host/name?password=SECRET&table=people",
        "mssql+pyodbc://?odbc_connect=UID%3Dscott%3BPWD%3DSECRET&table=people",
        "ftp://scott:SECRET@127.0.0.1:1/people.csv",
        "ftp://scott:SEC@SECRET@127.0.0.1:1",
        "nowhere://scott:SECRET@host/people/*.csv",
    ],
)
def test_no_place_tells_its_password(place: str) -> None:
    assert "SECRET" not in without_password(place)
    assert "***" in without_password(place)
    with pytest.raises(DataError) as told:
        read(place)
    assert "SECRET" not in f"{told.value} {names_or_reason(place)}"


def test_tables_are_named_without_passwords(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is opened: the name of the table is what later messages use."""
    place = "mysql+fake://scott:SECRET@host/s.db?query=select * from people"
    plain = sa.make_url(sql)
    monkeypatch.setattr(sa, "make_url", lambda url: plain)
    with open_table(place) as table:
        assert table.name == "mysql+fake://scott:***@host/s.db?query=select * from people"
    with pytest.raises(DataError, match=r"no row in mysql\+fake://scott:\*\*\*@host"):
        read(f"{place} where id > 9")
    with pytest.raises(DataError, match=r"an answer from s\.db"):
        read(place.replace("people", "nobody"))


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


def test_a_single_name_is_one_table(sql: str, tmp_path: Path) -> None:
    assert tables_in(f"{sql}?table=people") == [("people.sqlite.people", f"{sql}?table=people")]
    assert not is_many(f"{sql}?query=select * from people")  # a star, and no pattern
    assert tables_in("s3://bucket/2027/people.csv") == [("people.csv", "s3://bucket/2027/people.csv")]
    FRAME.to_csv(tmp_path / "people.csv", index=False)
    ((name, path),) = tables_in(f"file://{tmp_path}/")
    assert (name, len(read(path))) == ("people.csv", 3)


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (
            ImportError("Install s3fs to access S3."),
            r"got Install s3fs to access S3 — pip install the package",
        ),
        (PermissionError("Forbidden\nand more"), r"which can not be read \(Forbidden\) — check the URL"),
    ],
)
def test_urls_that_can_not_be_read(monkeypatch: pytest.MonkeyPatch, error: Exception, match: str) -> None:
    def refuse(url: str) -> None:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(DataError, match=match):
        read("s3://bucket/people.csv")


@pytest.mark.parametrize(
    ("package", "place"),
    [("duckdb", "duckdb:people.db?people"), ("sqlalchemy", "sqlite:///people.sqlite?table=people")],
)
def test_installs_without_a_database(monkeypatch: pytest.MonkeyPatch, package: str, place: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=f"expected the package {package}, got an install without it"):
        read(place)


def test_databases_that_have_no_answer(duck: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a SQLite file, got no file .*nothing\.sqlite"):
        read(f"sqlite:///{tmp_path}/nothing.sqlite?table=people")
    with pytest.raises(DataError, match="expected a query with an answer, got '-- nothing'"):
        read(f"{duck}?query=-- nothing")


def test_sql_types_that_do_not_say_what_they_hold(tmp_path: Path) -> None:
    """SQLite keeps any value in any column; a type that nobody knows lets the values speak."""
    with sqlite3.connect(tmp_path / "odd.sqlite") as connection:
        connection.execute("create table odd (id integer primary key, whole integer, thing geometry)")
        connection.execute("insert into odd values (1, 5, 0.5), (2, 'five', null)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)  # of the type that it does not know
        found = read(f"sqlite:///{tmp_path}/odd.sqlite?table=odd")
    assert found == [{"id": 1, "whole": "5", "thing": 0.5}, {"id": 2, "whole": "five", "thing": None}]
