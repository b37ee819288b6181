"""Places of tables: files, folders, glob patterns and fsspec URLs, and their names in messages.

A local name may have any characters; only a name with ``://`` (or ``file:``) is a URL.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veritracer.errors import DataError, message

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

STANDARD = "-"
"""The name that stands for standard input, or for standard output."""

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
"""How the names of the tables in a folder end, before the suffix of a compression."""

PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")

WILDCARDS = "*?["

FILE_URL = re.compile(r"file:(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
"""How the URL of a local file begins."""

DATABASES = "sqlite|postgresql|mysql|mariadb|oracle|mssql|snowflake|bigquery"

_USER = r"://[^/?#@:\n]*:"

PASSWORDS = (
    re.compile(rf"((?:{DATABASES})(?:\+\w+)?{_USER})[^?\n]*@"),
    re.compile(rf"({_USER})[^/?#\n]*@"),
    re.compile(rf"({_USER})(?!\*\*\*@|\d*(?:[/?#\s]|$)).*@"),  # a slash or question mark in it, and no port
    re.compile(r"([?&](?:[\w.-]*(?:passw(?:or)?d|pwd|secret|token|signature)|odbc_connect)=)[^&\n]*", re.I),
)
"""Where a URL has its password. The first group is what comes before it."""


def without_password(text: str) -> str:
    """Replace the passwords of all URLs in a text by ``***``.

    >>> without_password("mysql://scott:tiger@host/people"), without_password("ftp://host:21/a@b.csv")
    ('mysql://scott:***@host/people', 'ftp://host:21/a@b.csv')
    >>> without_password("postgresql://host/people?user=scott&password=tiger")
    'postgresql://host/people?user=scott&password=***'
    """
    for pattern in PASSWORDS:
        text = pattern.sub(lambda found: f"{found[1]}***{'@' if found[0].endswith('@') else ''}", text)
    return text


def first_line(error: object) -> str:
    """Return the first line of an error's text, at most 200 characters and without passwords."""
    lines = without_password(str(error)).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def local_path(place: str) -> str:
    """Return the path that a ``file:`` URL stands for, and every other place as it is.

    >>> [local_path(f"file:{start}/tmp/x") for start in ("", "//", "//localhost")]
    ['/tmp/x', '/tmp/x', '/tmp/x']
    >>> local_path("people.csv"), local_path("s3://bucket/people.csv")
    ('people.csv', 's3://bucket/people.csv')
    """
    return FILE_URL.sub("", place, count=1) if FILE_URL.match(place) else place


def is_url(place: str) -> bool:
    """Return whether a place is elsewhere than in the local file system."""
    return "://" in local_path(place)


def file_system(place: str) -> tuple[AbstractFileSystem, str]:
    """Return the fsspec file system of a path or URL, and the path in it."""
    if not is_url(place):
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem(), str(Path(local_path(place)).absolute())
    from fsspec.core import url_to_fs

    shown = without_password(place)
    try:
        found: tuple[Any, str] = url_to_fs(place)
    except ImportError as error:
        remedy = f"install the package that fsspec needs for {place.partition('://')[0]}://"
        raise DataError(message(f"a way to read {shown}", str(error).strip("."), remedy)) from None
    except (OSError, ValueError) as error:
        remedy = "check the URL and your permissions; a database also needs --query"
        raise DataError(message(f"a URL that fsspec can open: {shown}", first_line(error), remedy)) from None
    return found


# ---------------------------------------------------------------- folders and patterns


def is_many(place: str, query: str | None = None) -> bool:
    """Return whether a place is a folder or a pattern; the URL of a folder ends in a slash.

    A database, which has a query, is neither.

    >>> is_many("people.csv"), is_many("2027/*.parquet"), is_many("s3://bucket/2027/")
    (False, True, True)
    >>> is_many("https://host/people.csv?year=2027")
    False
    """
    if query is not None:
        return False
    if is_url(place):
        wildcards = "*" if place.startswith("http") else WILDCARDS  # a question mark begins a server's query
        return place.endswith("/") or any(mark in place for mark in wildcards)
    path = Path(local_path(place))
    return path.is_dir() or (any(mark in str(path) for mark in WILDCARDS) and not path.exists())


def find_tables(place: str, query: str | None = None) -> dict[str, str]:
    """Return the paths or URLs of the tables of a folder or pattern, or of a single table, by their names.

    Names are relative to the folder, and sorted.
    Files that do not look like tables are left out, and so is everything whose name, or whose folder below
    ``place``, begins with a dot or an underscore.
    """
    if not is_many(place, query):
        shown = without_password(local_path(place)).partition("?" if query else "\0")[0].rstrip("/")
        return {shown.rpartition("/")[2].rpartition("***@")[2]: place}
    files, path = file_system(place)
    if place.endswith("/") or files.isdir(path):
        folder, found = path.rstrip("/"), files.find(path)
    else:
        folder = path[: min(path.index(mark) for mark in WILDCARDS if mark in path)].rpartition("/")[0]
        found = files.glob(path)
    named = sorted((str(one).removeprefix(folder).lstrip("/"), str(one)) for one in found)
    tables = {name: _with_scheme(one, place) for name, one in named if _is_table(name)}
    if not tables:
        remedy = f"name a folder or a pattern with files that end in {', '.join(SUFFIXES)}"
        raise DataError(message(f"tables in {without_password(place)}", "none", remedy))
    return tables


def _with_scheme(path: str, place: str) -> str:
    """Return a path in the file system of ``place`` as a place."""
    return path if not is_url(place) or "://" in path else f"{place.partition('://')[0]}://{path.lstrip('/')}"


def _is_table(name: str) -> bool:
    """Return whether a file in a folder, named from there on, is one of its tables."""
    parts = name.casefold().split("/")
    stem = next((parts[-1].removesuffix(s) for s in PACKED if parts[-1].endswith(s)), parts[-1])
    return stem.endswith(SUFFIXES) and not any(part.startswith((".", "_")) for part in parts)
