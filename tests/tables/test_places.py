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
from veritracer.schema import Feature, Schema
from veritracer.tables import is_many, open_table, places, read_table, tables_in, typed, without_password

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
        (PermissionError("Forbidden\nand more"), r"which cannot be read \(Forbidden\) — check the URL"),
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


@pytest.mark.parametrize("asked", ["table=bad", "query=select * from bad order by id;"])
def test_a_word_among_many_numbers_is_named(asked: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("create table bad (id integer primary key, income real, age numeric)")
        rows = [(i, 100.0 * i, "abc" if i == 6 else None if i < 4 else i) for i in range(1, 9)]
        connection.executemany("insert into bad values (?, ?, ?)", rows)
        connection.execute("update bad set income = 'abc' where id = 6")
    place = f"sqlite:///{tmp_path}/s.sqlite?{asked}"
    with open_table(place, rows=3) as table:
        chunks = list(table.chunks)
    assert [chunk.num_rows for chunk in chunks] == [3, 3, 2]
    assert all(chunk.schema.equals(chunks[0].schema, check_metadata=True) for chunk in chunks)
    known = Schema([Feature("income", "continuous"), Feature("age", "integer", missing="impute")])
    frames = [typed(chunk, known, is_text=False, start=i * 3) for i, chunk in enumerate(chunks)]
    frame = pd.concat(frames)
    assert frame["income"].tolist() == [100.0, 200.0, 300.0, 400.0, 500.0, "abc", 700.0, 800.0]
    assert [number for number in frame["age"] if number is not None] == [4, 5, "abc", 7, 8]
    assert read_table(place)["income"].tolist()[4:6] == ["500.0", "abc"]


def test_sqlite_answers_that_no_query_can_look_through(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("create table t (id integer primary key, day date default 5)")
        connection.execute("insert into t values (1, 'never')")
    place = f"sqlite:///{tmp_path}/s.sqlite"
    assert [row["name"] for row in read(f"{place}?query=pragma table_info(t)")] == ["id", "day"]
    with pytest.raises(DataError, match=r"expected cells of their columns' types .*'never'"):
        read(f"{place}?table=t")


@pytest.mark.parametrize("asked", ["table=t", "query=select * from t order by id"])
def test_fractions_in_a_column_of_whole_numbers(asked: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.sqlite") as connection:
        connection.execute("create table t (id integer primary key, age integer)")
        connection.execute("insert into t values (1, 5), (2, 6), (3, 6.5)")
    place = f"sqlite:///{tmp_path}/s.sqlite?{asked}"
    assert [row["age"] for row in read(place)] == [5.0, 6.0, 6.5]
    assert read_table(place)["age"].tolist() == [5.0, 6.0, 6.5]


def test_types_that_change_on_the_way() -> None:
    """Where nobody can tell before: what goes together goes on, and a word among numbers is named."""
    parts = [[(None, 1)], [(1, 2)], [(2, 0.5)]]
    found = [batch.to_pylist()[0] for batch in places._batches(iter(parts), ("a", "b"), {}, "t")]
    assert found == [{"a": None, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 0.5}]
    with pytest.raises(DataError, match="expected numbers in the column 'b', got 'x' in row 3"):
        list(places._batches(iter([[(1, 1)], [(1, 2), (2, "x")]]), ("a", "b"), {}, "t"))


@pytest.mark.parametrize("start", ["file:", "file://", "file://localhost", "FILE:"])
@pytest.mark.parametrize("name", ["people.csv", "w?y/br[1].csv", "a%20b.csv", "with space.csv"])
def test_file_urls_are_local_files(start: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    FRAME.to_csv(path, index=False)
    for place in (str(path), f"{start}{path}"):
        assert not is_many(place)
        assert len(read(place)) == 3
        assert tables_in(place) == [(path.name, str(path))]
    assert is_many(f"{start}{path.parent}")
    assert tables_in(f"{start}{path.parent}/") == [(path.name, str(path))]
    assert len(read(f"{start}{str(path).replace(' ', '%20')}")) == 3
    with pytest.raises(DataError, match="no file /nowhere"):
        read(f"{start}/nowhere.csv")


def test_patterns_leave_out_what_folders_leave_out(tmp_path: Path) -> None:
    for name in ("a.csv", "_old.csv", ".b.csv", "notes.txt", "_own/c.csv", "d/e.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        FRAME.to_csv(tmp_path / name, index=False)
    wanted = {
        "*.csv": ["a.csv"],
        "*": ["a.csv"],
        "_*.csv": ["_old.csv"],
        ".*": [".b.csv"],
        "*.txt": ["notes.txt"],
        "**/*.csv": ["a.csv", "d/e.csv"],
        "_own/*": ["c.csv"],
        "_*/*.csv": ["c.csv"],
    }
    for start in (f"{tmp_path}", f"file:{tmp_path}"):
        found = {pattern: [one.name for one in tables_in(f"{start}/{pattern}")] for pattern in wanted}
        assert found == wanted
    for name in ("a.csv", "_old.csv", "notes.txt"):
        with fsspec.open(f"memory://pat/{name}", "wb") as file:
            FRAME.to_csv(file, index=False)
    assert [one.name for one in tables_in("memory://pat/*")] == ["a.csv"]
    assert [one.name for one in tables_in("memory://pat/_*.csv")] == ["_old.csv"]


def test_duckdb_tables_of_other_schemas(duck: str) -> None:
    import duckdb

    with duckdb.connect(duck.removeprefix("duckdb:")) as connection:
        connection.execute("create schema other; create table other.people as select 7 as x")
        connection.execute('create view "o""dd" as select 8 as x; create table "a.b" as select 9 as x')
    for asked, value in (("other.people", 7), ("table=other.people", 7), ("o%22dd", 8), ("a.b", 9)):
        assert read(f"{duck}?{asked}") == [{"x": value}]
    assert read(f"{duck}?people") == WANTED
    assert tables_in(f"{duck}?other.people")[0].name == "people.db.other.people"
    with pytest.raises(DataError, match=r"no 'other\.nobody', but .*'other\.people'"):
        read(f"{duck}?other.nobody")
