"""Write files and folders atomically and durably, and read and write versioned JSON documents."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from veritracer.errors import DataError, SchemaError, listing, message

NOTHING_WRITTEN = "nothing was written: free some space, or choose another place"

PARTIAL = ".partial"
"""The end of the name of a file or folder that is being written."""


@contextmanager
def whole_file(place: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only if the block succeeds.

    It is written as ``NAME.partial``, synchronised and renamed; the folder is synchronised too. If the block
    fails, the partial file is removed and an earlier file stays. With ``shared``, several processes can write
    the same file at once: each has a partial file of its own. A device or a pipe, which cannot be renamed, is
    written directly.
    """
    if is_special(place):
        with place.open("wb") as file:
            yield file
        return
    partial = _own_partial(place) if shared else place.with_name(f"{place.name}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        rename(partial, place)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def write_whole(place: Path, content: bytes | str, *, shared: bool = False) -> Path:
    """Write a file atomically (text as UTF-8), create its folders, and return the path."""
    make_folders(place.parent)
    with whole_file(place, shared=shared) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return place


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """Create a folder that gets its name only if the block succeeds; nothing may have that name yet.

    Its files, their names and its own name are on the disk when the block ends.
    """
    partial = place.with_name(f"{place.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for inside in (*partial.rglob("*"), partial):
            _sync(inside)
        rename(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def make_folders(place: Path) -> None:
    """Make a folder and those above it, if they are not there; on return the disk knows them."""
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    place.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync(folder.parent)


def rename(place: Path, other: Path) -> None:
    """Rename a file or a folder durably, replacing an existing file."""
    place.replace(other)
    _sync(other.parent)


def remove(place: Path) -> None:
    """Remove a file or a folder durably, if it exists."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if place.parent.exists():
        _sync(place.parent)


def _sync(place: Path) -> None:
    """Synchronise a file, or the names in a folder if the system supports that."""
    folder = place.is_dir()
    writing = os.name == "nt" and not folder  # Windows syncs only what is open for writing
    try:
        handle = os.open(place, os.O_RDWR if writing else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not folder or error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise


@contextmanager
def writable(place: Path, remedy: str = NOTHING_WRITTEN) -> Iterator[None]:
    """Raise ``DataError`` for errors of the file system, before and while the block writes."""
    if place.is_dir():
        raise DataError(message("a file to write", f"the folder {place}", "name a file in it"))
    if not place.parent.is_dir():
        received = f"no folder {place.parent}"
        raise DataError(message(f"a folder for {place.name}", received, "create it first"))
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.errno:
            raise
        raise DataError(message(f"{place} to be written", os.strerror(error.errno), remedy)) from None


@contextmanager
def output_folder(out: Path) -> Iterator[None]:
    """Create the folder ``out`` for the files of the block; if the block fails, remove it again.

    A folder that existed before stays, and so does one that contains other files.
    """
    if out.exists() and not out.is_dir():
        raise DataError(message("a folder for --out", f"the file {out}", "choose another name"))
    made = [place for place in (out, *out.absolute().parents) if not place.exists()]
    with writable((made[-1] if made else out / "file").absolute()):
        out.mkdir(parents=True, exist_ok=True)
        try:
            yield
        except BaseException:
            for place in made:
                with suppress(OSError):  # it is not empty
                    place.rmdir()
            raise


def is_special(place: Path) -> bool:
    """Return True for a device or a pipe, which cannot be renamed."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def envelope(kind: str, version: int) -> dict[str, Any]:
    """Return the first fields of a document: its format and version.

    >>> envelope("veritracer-audit", 1)
    {'format': 'veritracer-audit', 'version': 1}
    """
    return {"format": kind, "version": version}


def document_text(content: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> str:
    """Return the content as JSON text, and also write it to ``path`` if given; refuse NaN and infinity.

    >>> print(document_text({"κ": 0.2}))
    {
     "κ": 0.2
    }
    """
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
    if path is not None:
        with whole_file(Path(path)) as file:
            file.write(f"{text}\n".encode())
    return text


def _own_partial(place: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=".", suffix=PARTIAL, dir=place.parent)
    os.close(handle)
    Path(name).chmod(0o644)
    return Path(name)


def read_json(text: str, kind: str, version: int) -> dict[str, Any]:
    """Parse a JSON document, and return its fields without format and version, which are checked."""
    try:
        content = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            message(f"{kind} as JSON", f"other text ({error})", "write it with to_json()")
        ) from None
    if not isinstance(content, dict) or content.pop("format", None) != kind:
        raise SchemaError(
            message(f"JSON of the format {kind!r}", "another document", "write it with to_json()")
        )
    found = content.pop("version", None)
    if found != version or isinstance(found, bool):
        remedy = "read it with the release that wrote it"
        raise SchemaError(message(f"version {version} of {kind!r}", f"version {found!r}", remedy))
    return content


def check_keys(entry: Any, allowed: set[str], needed: set[str], what: str) -> None:
    """Refuse unknown and missing keys."""
    if not isinstance(entry, Mapping):
        raise SchemaError(message(f"the fields of {what}", repr(entry)[:40], "write it with to_json()"))
    unknown, absent = sorted(set(entry) - allowed), sorted(needed - set(entry))
    if unknown or absent:
        got = f"unknown {listing(unknown)}" if unknown else f"no {listing(absent)}"
        raise SchemaError(
            message(f"the fields of {what}", got, "write it with to_json(), or correct the name")
        )
