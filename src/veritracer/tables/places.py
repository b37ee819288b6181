"""Tables that are no local file: DuckDB, SQL databases, URLs of file systems; and folders of many tables.

::

    duckdb:people.db?applicants                      a table (or view) of a DuckDB file
    duckdb:people.db?other.applicants                one of another schema
    duckdb:people.db?query=select * from applicants  what a query gives
    sqlite:///people.db?table=applicants             any database that SQLAlchemy knows, by its URL
    postgresql://user@host/name?query=select ...
    s3://bucket/people.parquet                       any file system that fsspec knows, by its URL
    file:///data/people.csv, file:/data/people.csv   a local file, by its URL

Messages, and the names of results, never tell the password of a URL: ``without_password``.

A table of an SQL database is read in the order of its primary key. A query decides its order itself: without
``order by`` a database may answer in another one each time, and a run that goes on then finds other rows than
before, and says so.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from veritracer.errors import DataError, listing, message

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

DUCKDB = "duckdb:"
DATABASES = ("sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql", "snowflake", "bigquery")
"""Schemes of URLs that are databases; all others are file systems."""

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")
"""How the names of tables end that are looked for in a folder."""

MARKS = "*?["
"""What makes a name a pattern."""

FILE = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
"""How the URL of a file of this machine begins."""

OWN = ("table", "query")
"""What a URL says to us, and not to the database."""

MIXED = b"veritracer.mixed"
"""Metadata of a field of text in which a database has numbers too: what looks like one is one."""

REMEDY = "write duckdb:FILE?TABLE, or a database's URL with ?table=NAME or ?query=SQL"

_USER = r"://[^/?#@:\n]*:"

PASSWORDS = (
    re.compile(rf"((?:{'|'.join(DATABASES)})(?:\+\w+)?{_USER})[^?\n]*@"),
    re.compile(rf"({_USER})[^/?#\n]*@"),
    re.compile(rf"({_USER})(?!\*\*\*@|\d*(?:[/?#\s]|$)).*@"),  # with a mark in it; and no port
    re.compile(r"([?&](?:[\w.-]*(?:passw(?:or)?d|pwd|secret|token|signature)|odbc_connect)=)[^&\n]*", re.I),
)
"""Where the passwords of URLs are, after what stays of each."""


def without_password(text: str) -> str:
    """A place, or a text about one, as people may read it.

    >>> without_password("mysql://scott:tiger@host/people?table=a"), without_password("ftp://host:21/a@b.csv")
    ('mysql://scott:***@host/people?table=a', 'ftp://host:21/a@b.csv')
    >>> without_password("postgresql://host/people?user=scott&password=tiger&table=a")
    'postgresql://host/people?user=scott&password=***&table=a'
    """
    for pattern in PASSWORDS:
        text = pattern.sub(lambda found: f"{found[1]}***{'@' if found[0].endswith('@') else ''}", text)
    return text


# ---------------------------------------------------------------- many tables


class Found(NamedTuple):
    """A table in a folder: its name from there on, and where it is."""

    name: str
    path: str


def tables_in(place: str) -> list[Found]:
    """The tables that a folder, a pattern or a single name stands for, in the order of their names."""
    if is_database(place):
        return [Found(_short(place), place)]
    place = local_path(place)
    if "://" in place:
        return _remote_tables(place)
    if Path(place).is_dir():
        found = [p for p in Path(place).rglob("*") if p.is_file() and _is_table(p.relative_to(place).parts)]
        named = [Found(p.relative_to(place).as_posix(), str(p)) for p in found]
    elif is_many(place) and not Path(place).exists():
        paths = [p for p in glob.glob(place, recursive=True) if Path(p).is_file()]  # noqa: PTH207  # absolute
        paths = [p for p in paths if _is_meant(p, place)]
        above = Path(os.path.commonpath([str(Path(p).parent) for p in paths])) if paths else Path()
        named = [Found(Path(p).relative_to(above).as_posix(), p) for p in paths]
    else:
        return [Found(Path(place).name, place)]
    return _some(named, place)


def is_many(place: str) -> bool:
    """Whether a name stands for several tables: a folder, or a pattern such as ``2027/*.parquet``.

    >>> is_many("people.csv"), is_many("2027/*.parquet"), is_many("s3://bucket/2027/")
    (False, True, True)
    >>> is_many("https://host/people.csv?year=2027")
    False
    """
    if is_database(place):
        return False
    place = local_path(place)
    pattern = any(mark in place for mark in MARKS)
    if place.startswith(("http://", "https://")):
        return "*" in place or place.endswith("/")  # a question mark begins what the server is asked
    if "://" in place:
        return pattern or place.endswith("/")
    return Path(place).is_dir() or (pattern and not Path(place).exists())


def _remote_tables(place: str) -> list[Found]:
    if not is_many(place):
        return [Found(without_password(place).rstrip("/").rpartition("/")[2].rpartition("***@")[2], place)]
    files, path = file_system(place)
    scheme = place.partition("://")[0]
    paths = files.find(path) if place.endswith("/") else files.glob(path)
    above = os.path.commonpath([os.path.dirname(p) for p in paths]) if paths else ""  # noqa: PTH120
    above = path.rstrip("/") if place.endswith("/") else above
    named = [Found(p.removeprefix(above).lstrip("/"), f"{scheme}://{p.lstrip('/')}") for p in paths]
    if place.endswith("/"):
        return _some([one for one in named if _is_table(one.name.split("/"))], place)
    meant = [one for one, p in zip(named, paths, strict=True) if _is_meant(p, path)]
    return _some([one for one in meant if one.name.casefold().endswith(ENDINGS)], place)


def _some(found: list[Found], place: str) -> list[Found]:
    if not found:
        remedy = f"name a folder or a pattern with files that end in {', '.join(ENDINGS)}"
        raise DataError(message(f"tables in {without_password(place)}", "none", remedy))
    return sorted(found)


def _is_table(parts: Sequence[str]) -> bool:
    """Whether a file is one: what begins with a dot or a line is somebody's own bookkeeping."""
    return parts[-1].casefold().endswith(ENDINGS) and not any(part[:1] in (".", "_") for part in parts)


def _is_meant(path: str, pattern: str) -> bool:
    """Whether a pattern that finds this file means it: bookkeeping only if it says so, and ``*`` only tables.

    >>> [_is_meant(f"2027/{name}", "2027/*") for name in ("a.csv", "_a.csv", "notes.txt")]
    [True, False, False]
    >>> _is_meant("_own/a.csv", "_own/*.csv"), _is_meant("2027/_a.csv", "2027/_*.csv")
    (True, True)
    """
    asked, parts = Path(pattern).parts, Path(path).parts
    plain = next((i for i, part in enumerate(asked) if any(mark in part for mark in MARKS)), len(asked))
    folders = {part[:1] for part in asked[plain:-1]}
    if any(part[:1] in (".", "_") and part[:1] not in folders for part in parts[plain:-1]):
        return False
    if parts[-1][:1] in (".", "_") and parts[-1][:1] != asked[-1][:1]:
        return False
    return asked[-1].strip("*") != "" or parts[-1].casefold().endswith(ENDINGS)


# ---------------------------------------------------------------- bytes from a URL


def local_path(place: str) -> str:
    """The path that a ``file:`` URL stands for (RFC 8089); any other place as it is.

    A file that is there by the very name is meant; else ``%20`` is a space.

    >>> [local_path(f"file:{start}/tmp/x") for start in ("", "//", "//localhost")]
    ['/tmp/x', '/tmp/x', '/tmp/x']
    >>> local_path("people.csv"), local_path("s3://bucket/people.csv")
    ('people.csv', 's3://bucket/people.csv')
    """
    found = FILE.match(place)
    if found is None:
        return place
    path = place[found.end() :]
    if os.name == "nt":
        path = re.sub(r"^/(?=[A-Za-z]:)", "", path)
    decoded = unquote(path)
    return decoded if not Path(path).exists() and Path(decoded).exists() else path


def open_url(url: str) -> tuple[BinaryIO, int | None]:
    """The file behind a URL of a file system, and its size where that is known."""
    files, path = file_system(url)
    shown = without_password(url)
    try:
        return files.open(path, "rb"), files.size(path)
    except FileNotFoundError:
        remedy = "check the URL"
        raise DataError(message("a file with a table", f"nothing at {shown}", remedy)) from None
    except (OSError, ValueError) as error:
        received = f"{shown}, which cannot be read ({_first_line(error)})"
        raise DataError(message("a file with a table", received, "check the URL and your rights")) from None


def file_system(url: str) -> tuple[Any, str]:
    """The file system that a URL is of, and the path in it."""
    import fsspec

    shown = without_password(url)
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        remedy = f"pip install the package for {url.partition('://')[0]}:// that fsspec asks for"
        raise DataError(message(f"a way to reach {shown}", str(error).strip("."), remedy)) from None
    except (OSError, ValueError) as error:
        received = f"{shown}, which cannot be read ({_first_line(error)})"
        remedy = "check the URL and your rights"
        raise DataError(message("the URL of a file system", received, remedy)) from None
    return found


def _first_line(error: object) -> str:
    """What an error says, as far as it goes on one line, and without a password."""
    lines = without_password(str(error)).splitlines()
    return lines[0] if lines else type(error).__name__


# ---------------------------------------------------------------- databases


class Answer(NamedTuple):
    """The columns of a database's answer, and its rows piece by piece."""

    names: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]


def is_database(place: str) -> bool:
    """Whether a name is that of a table in a database.

    >>> is_database("duckdb:people.db?applicants"), is_database("postgresql+psycopg://host/name?table=people")
    (True, True)
    >>> is_database("people.db"), is_database("s3://bucket/people.csv")
    (False, False)
    """
    scheme, there, _ = place.partition("://")
    return place.startswith(DUCKDB) or (bool(there) and scheme.partition("+")[0] in DATABASES)


@contextmanager
def open_database(place: str, rows: int) -> Iterator[Answer]:
    """What the database that ``place`` names answers, in pieces of at most so many rows."""
    address, asked = _asked(place)
    opener = _duckdb if place.startswith(DUCKDB) else _sql
    with opener(address, asked, rows) as answer:
        yield answer


class _Asked(NamedTuple):
    table: str | None
    query: str | None


def _asked(place: str) -> tuple[str, _Asked]:
    """The address of the database, and which table or query is asked for."""
    address, _, text = place.partition("?")
    before, _, query = text.partition("query=")  # the last one: a query may hold any character
    pairs = parse_qsl(before, keep_blank_values=True)
    own = {name: value for name, value in [*pairs, ("query", unquote(query))] if value and name in OWN}
    others = [(name, value) for name, value in pairs if name not in OWN]
    if place.startswith(DUCKDB):
        if not own and len(others) == 1 and not others[0][1]:
            own, others = {"table": unquote(others[0][0])}, []
        address = address.removeprefix(DUCKDB)
    if len(own) != 1 or (others and place.startswith(DUCKDB)):
        received = "both" if len(own) > 1 else "neither"
        raise DataError(message(f"a table or a query in {_short(place)}", received, REMEDY))
    whole = f"{address}?{urlencode(others)}" if others else address
    return whole, _Asked(own.get("table"), own.get("query"))


def _short(place: str) -> str:
    """What a database's table is called where people, or files, read it; never with a password."""
    address, _, text = without_password(place).partition("?")
    name = address.rpartition("/")[2].rpartition("***@")[2].removeprefix(DUCKDB) or "database"
    own = dict(parse_qsl(text, keep_blank_values=True))
    plain = place.startswith(DUCKDB) and text and "=" not in text
    table = own.get("table") or (unquote(text) if plain else "query")
    return f"{name}.{table}".replace("/", ".")


DUCKDB_TABLES = """
    select if(table_schema = current_schema(), table_name, concat(table_schema, '.', table_name)),
        concat('"', replace(table_schema, '"', '""'), '"."', replace(table_name, '"', '""'), '"')
    from information_schema.tables where table_catalog = current_database()
    order by table_schema <> current_schema() desc, table_schema, table_name
"""
"""What the tables and views of a DuckDB file are called, and how that is quoted; its own schema's last, as
``a.b`` may also be the name of one of these."""


@contextmanager
def _duckdb(address: str, asked: _Asked, rows: int) -> Iterator[Answer]:
    try:
        import duckdb
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[duckdb]'"
        raise DataError(message("the package duckdb", "an install without it", remedy)) from None
    if not Path(address).is_file():
        raise DataError(message("a DuckDB file", f"no file {address}", "check its name"))
    try:
        with duckdb.connect(address, read_only=True) as connection:
            if asked.table is not None:
                names = dict(connection.execute(DUCKDB_TABLES).fetchall())
                _check_known(asked.table, list(names), address)
                found = connection.table(names[asked.table])
            else:
                found = connection.sql(str(asked.query))
            if found is None:
                raise DataError(message("a query with an answer", repr(asked.query), "write select ..."))
            reader = found.to_arrow_reader(rows)
            yield Answer(tuple(reader.schema.names), iter(reader))
    except duckdb.Error as error:
        received = f"{str(error).splitlines()[0]}"
        raise DataError(message(f"an answer from {address}", received, REMEDY)) from None


def _check_known(table: str, names: Sequence[str], address: str) -> None:
    if table not in names:
        received = f"no {table!r}, but {listing(names)}" if names else "no table at all"
        raise DataError(message(f"the table in {address}", received, "check its name"))


@contextmanager
def _sql(address: str, asked: _Asked, rows: int) -> Iterator[Answer]:
    try:
        import sqlalchemy as sa
        from sqlalchemy.exc import SQLAlchemyError
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[ledger]'"
        raise DataError(message("the package sqlalchemy", "an install without it", remedy)) from None
    shown = _short(address)
    try:
        url = sa.make_url(address)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
            raise DataError(message("a SQLite file", f"no file {url.database}", "check its name"))
        engine = sa.create_engine(url)
        try:
            with engine.connect() as connection:
                statement, types = _statement(connection, asked, shown)
                result = connection.execution_options(yield_per=rows).execute(statement)
                names = tuple(result.keys())
                yield Answer(names, _batches(result.partitions(rows), names, types, shown))
        finally:
            engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        received = _first_line(getattr(error, "orig", None) or error)
        remedy = "check the URL, the query, and that the database's driver is installed"
        raise DataError(message(f"an answer from {shown}", received, remedy)) from None


def _statement(
    connection: sa.Connection, asked: _Asked, shown: str
) -> tuple[sa.Executable, Mapping[str, pa.Field]]:
    """What is asked of an SQL database, and the types that it declares, or in SQLite keeps."""
    import pyarrow as pa
    import sqlalchemy as sa

    if asked.table is None:
        return sa.text(str(asked.query)), _kept_types(connection, _columns_of(connection, str(asked.query)))
    schema, _, name = asked.table.rpartition(".")
    known = sa.inspect(connection)
    _check_known(name, [*known.get_table_names(schema or None), *known.get_view_names(schema or None)], shown)
    table = sa.Table(name, sa.MetaData(), autoload_with=connection, schema=schema or None)
    kinds = {column.name: kind for column in table.columns if (kind := _arrow_type(column)) is not None}
    types = {name: pa.field(name, kind) for name, kind in kinds.items()}
    numbers = [column for column in table.columns if _is_number(kinds.get(column.name))]
    kept = _kept_types(connection, numbers)
    wider = {name: field for name, field in kept.items() if field.type not in (kinds[name], pa.int64())}
    read = [sa.type_coerce(c, sa.types.NullType()) if c.name in wider else c for c in table.columns]
    return sa.select(*read).order_by(*table.primary_key.columns), types | wider


def _arrow_type(column: sa.Column[Any]) -> pa.DataType | None:
    """The Arrow type of a declared column; None lets the values speak."""
    import pyarrow as pa

    try:
        python = column.type.python_type
    except NotImplementedError:
        return None
    known: list[tuple[type, pa.DataType]] = [
        (bool, pa.bool_()),
        (int, pa.int64()),
        (float, pa.float64()),
        (Decimal, pa.float64()),
        (str, pa.string()),
        (datetime.datetime, pa.timestamp("us")),
        (datetime.date, pa.date32()),
    ]
    return next((arrow for kind, arrow in known if issubclass(python, kind)), None)


def _columns_of(connection: sa.Connection, query: str) -> list[sa.ColumnElement[Any]]:
    """The columns of a query of SQLite; none where it is no part of another query."""
    import sqlalchemy as sa

    if connection.dialect.name != "sqlite":
        return []
    inner = query.strip().rstrip(";")
    try:
        names = list(connection.execute(sa.text(f"select * from ({inner}\n) limit 0")).keys())
    except sa.exc.SQLAlchemyError:
        return []
    answer = sa.text(f"{inner}\n").columns(*(sa.column(name) for name in names)).subquery()
    return list(answer.columns)


def _kept_types(connection: sa.Connection, columns: Sequence[sa.ColumnElement[Any]]) -> dict[str, pa.Field]:
    """What SQLite, where any cell may be of any type, has in all rows; text where that is among it.

    One chunk does not tell: the first word may stand in the last row.
    """
    import pyarrow as pa
    import sqlalchemy as sa

    if connection.dialect.name != "sqlite" or not columns:
        return {}
    kinds = {"integer": 1, "real": 2, "text": 4}
    flags = [
        [sa.case((sa.func.typeof(c) == kind, bit), else_=0) for kind, bit in kinds.items()] for c in columns
    ]
    has = [sa.func.max(whole) + sa.func.max(real) + sa.func.max(text) for whole, real, text in flags]
    try:
        found = connection.execute(sa.select(*has)).one()
    except sa.exc.SQLAlchemyError:
        return {}
    types = {1: pa.int64(), 2: pa.float64(), 3: pa.float64()}
    return {
        str(column.name): pa.field(
            column.name, types.get(bits, pa.string()), metadata={MIXED: b"true"} if bits > 4 else None
        )
        for column, bits in zip(columns, found, strict=True)
        if bits
    }


def _batches(
    parts: Iterator[Sequence[Any]], names: Sequence[str], types: Mapping[str, pa.Field], shown: str
) -> Iterator[pa.RecordBatch]:
    """The rows, whose columns are of the same types from the first to the last."""
    import pyarrow as pa

    known, start = dict(types), 0
    for part in _sound(parts, shown):
        columns, fields = [], []
        for name, cells in zip(names, zip(*part, strict=True), strict=True):
            kind = known[name].type if name in known else None
            column = _column(cells, kind)
            if start and column.type == pa.string() and _is_number(kind):
                raise _no_number(name, cells, start)
            field = known[name] if column.type == kind else pa.field(name, column.type)
            if not pa.types.is_null(column.type):
                known.setdefault(name, field)
            columns.append(column)
            fields.append(field)
        start += len(part)
        yield pa.record_batch(columns, schema=pa.schema(fields))


def _sound(parts: Iterator[Sequence[Any]], shown: str) -> Iterator[Sequence[Any]]:
    """The same parts; SQLAlchemy itself fails at a date that is none."""
    try:
        yield from parts
    except (TypeError, ValueError) as error:
        remedy = "correct it, or cast the column in a query"
        raise DataError(message(f"cells of their columns' types in {shown}", str(error), remedy)) from None


def _column(cells: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """The cells in this type if they allow it, else in one of their own; numbers among words as text."""
    import pyarrow as pa

    plain = [float(cell) if isinstance(cell, Decimal) else cell for cell in cells]
    if kind == pa.float64():
        plain = [float(cell) if isinstance(cell, int) else cell for cell in plain]
    if kind == pa.int64() and any(isinstance(cell, float) for cell in plain):
        kind = None  # Arrow would cut off the fractions
    if kind == pa.string():
        plain = [str(cell) if isinstance(cell, int | float) else cell for cell in plain]
    for wanted in (kind, None):
        try:
            return pa.array(plain, wanted)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
    return pa.array([None if cell is None else str(cell) for cell in plain], pa.string())


def _is_number(kind: pa.DataType | None) -> bool:
    import pyarrow as pa

    return kind is not None and (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _no_number(name: str, cells: Sequence[Any], start: int) -> DataError:
    at, cell = next((i, cell) for i, cell in enumerate(cells) if isinstance(cell, str | bytes))
    received = f"{cell!r} in row {start + at + 1}"
    return DataError(message(f"numbers in the column {name!r}", received, "correct it, or cast the column"))
