"""Files and folders that appear only when they are whole, and JSON documents that say what they are.

A document has its format's name, its version, and known keys only.
"""

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


@contextmanager
def whole_file(place: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """A file to write that takes its place only when the block ends well.

    It is written as ``NAME.partial`` and renamed once the disk has it; the new name is on the disk too when
    the block is left. If anything goes wrong it disappears, and what was there before stays. With ``shared``
    several processes may write the same file at once: each has a partial one of its own. A device or a pipe,
    which cannot be renamed, is written as it is.
    """
    if is_special(place):
        with place.open("wb") as file:
            yield file
        return
    partial = _own_partial(place) if shared else place.with_name(f"{place.name}.partial")
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
    """The place, after the content (a text as UTF-8) is there as a whole; folders on the way are made."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(place, shared=shared) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return place


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """A folder to fill that takes its place, where nothing may be yet, only when the block ends well.

    Its files, its name and theirs are on the disk when the block is left.
    """
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        for inside in (*partial.rglob("*"), partial):
            _sync(inside)
        rename(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def rename(place: Path, other: Path) -> None:
    """Rename a file or a folder, over a file that is there; on return the disk knows it."""
    place.replace(other)
    _sync(other.parent)


def remove(place: Path) -> None:
    """Remove a file or a folder, if it is there; on return the disk knows it."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if place.parent.exists():
        _sync(place.parent)


def _sync(place: Path) -> None:
    """Wait until the disk has the content of a file, or the names in a folder if the system can do that."""
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
def writable(place: Path) -> Iterator[None]:
    """Turn what the file system refuses into one sentence, before and while the block writes."""
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
        received = os.strerror(error.errno)
        remedy = "nothing was kept: free some space, or choose another place"
        raise DataError(message(f"{place} to be written", received, remedy)) from None


@contextmanager
def output_folder(out: Path) -> Iterator[None]:
    """Make the folder ``out`` for files that the block writes; if the block fails, remove it again.

    A folder that was there before stays, and so does one that something else has been written into.
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
    """Whether this is a device or a pipe, which cannot be renamed."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def envelope(kind: str, version: int) -> dict[str, Any]:
    """The first fields of a document of ours: what it is, and in which version.

    >>> envelope("veritracer-audit", 1)
    {'format': 'veritracer-audit', 'version': 1}
    """
    return {"format": kind, "version": version}


def document_text(content: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> str:
    """The content as JSON text, also written to ``path`` if there is one; refuses nan and infinity.

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
    handle, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=place.parent)
    os.close(handle)
    Path(name).chmod(0o644)
    return Path(name)


def read_json(text: str, kind: str, version: int) -> dict[str, Any]:
    """The JSON object in ``text`` without its format and version, after these were checked."""
    try:
        content = json.loads(text)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            message(f"{kind} as JSON", f"text that is not ({error})", "write it with to_json()")
        ) from None
    if not isinstance(content, dict) or content.pop("format", None) != kind:
        raise SchemaError(
            message(f"JSON of the format {kind!r}", "something else", "write it with to_json()")
        )
    found = content.pop("version", None)
    if found != version or isinstance(found, bool):
        remedy = "read it with the release that wrote it"
        raise SchemaError(message(f"version {version} of {kind!r}", f"version {found!r}", remedy))
    return content


def check_keys(entry: Any, allowed: set[str], needed: set[str], what: str) -> None:
    """Refuse keys that are unknown and keys that are absent."""
    if not isinstance(entry, Mapping):
        raise SchemaError(message(f"the fields of {what}", repr(entry)[:40], "write it with to_json()"))
    unknown, absent = sorted(set(entry) - allowed), sorted(needed - set(entry))
    if unknown or absent:
        got = f"unknown {listing(unknown)}" if unknown else f"no {listing(absent)}"
        raise SchemaError(
            message(f"the fields of {what}", got, "write it with to_json(), or correct the name")
        )
