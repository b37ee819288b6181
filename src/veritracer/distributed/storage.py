"""Where the files of a run are: a folder of this machine, or one behind a URL that fsspec knows.

A file of this machine appears under its name only when it is whole. Behind a URL that is so where the service
puts objects as a whole (S3, GCS, Azure); elsewhere a file counts from its record on, written after it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from veritracer.errors import DataError, message
from veritracer.files import rename, write_whole
from veritracer.tables.places import file_system, is_url, local_path, without_password


class Storage(Protocol):
    """The files of a run, by their names from its folder on; a name may have folders in it."""

    def names(self) -> set[str] | None:
        """What is at the top of the folder; None where there is no folder."""
        ...

    def files(self, folder: str = "") -> set[str]:
        """Return the names of all files in it, or in a folder of it, and below."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        ...

    def write(self, name: str, content: str) -> None:
        """Write a whole file."""
        ...

    def digest(self, name: str) -> str:
        """SHA-256 of a file; empty where there is none."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; with an empty name the folder, if it is empty."""
        ...

    def move(self, name: str, other: str) -> None:
        """Give a file another name, over whatever has it."""
        ...

    def draft(self, name: str) -> Path:
        """Where on this machine to write what becomes a file by ``publish``."""
        ...

    def publish(self, draft: Path, name: str) -> None:
        """Make a whole draft the file of that name."""
        ...

    def written(self, name: str) -> Any:
        """A context in which a path of this machine is written as a whole, and which makes it that file."""
        ...


def storage_at(place: str | os.PathLike[str]) -> Storage:
    """Return the storage that a folder's name or URL stands for."""
    name = os.fspath(place)
    return RemoteFolder(name.rstrip("/")) if is_url(name) else LocalFolder(Path(local_path(name)))


@dataclass(frozen=True)
class LocalFolder:
    """A folder of this machine, or of one that it has mounted."""

    place: Path

    def __str__(self) -> str:
        return str(self.place)

    def names(self) -> set[str] | None:
        """What is in the folder; a file instead of it is refused."""
        if self.place.exists() and not self.place.is_dir():
            raise DataError(message("a folder to write to", f"the file {self.place}", "name a new folder"))
        return {path.name for path in self.place.iterdir()} if self.place.exists() else None

    def files(self, folder: str = "") -> set[str]:
        """Return the names of all files in it, or in a folder of it, and below."""
        found = (path for path in (self.place / folder).rglob("*") if path.is_file())
        return {path.relative_to(self.place).as_posix() for path in found}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        try:
            return (self.place / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: str) -> None:
        """Write a whole file, with the folders on the way."""
        write_whole(self.place / name, content, shared=True)

    def digest(self, name: str) -> str:
        """SHA-256 of a file; empty where there is none."""
        path = self.place / name
        return digest_of(path) if path.exists() else ""

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return (self.place / name).exists()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; with an empty name the folder, if it is empty."""
        if name:
            (self.place / name).unlink(missing_ok=True)
        else:
            with suppress(OSError):
                self.place.rmdir()

    def move(self, name: str, other: str) -> None:
        """Give a file another name, over whatever has it."""
        self._above(other)
        rename(self.place / name, self.place / other)

    def draft(self, name: str) -> Path:
        """A path in the folder itself, so that publishing is a renaming."""
        return self._above(f"{name}.{os.urandom(8).hex()}")

    def publish(self, draft: Path, name: str) -> None:
        """Make a whole draft the file of that name."""
        rename(draft, self._above(name))

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """The file's own path: whoever writes it makes it appear as a whole."""
        yield self._above(name)

    def _above(self, name: str) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class RemoteFolder:
    """A folder behind a URL: files are written here first, and then put there."""

    url: str

    def __str__(self) -> str:
        return without_password(self.url)

    def names(self) -> set[str] | None:
        """What is in the folder; None where there is nothing of that name."""
        files, path = self._at("")
        files.invalidate_cache()
        with _told(self.url):
            found = files.ls(path, detail=False) if files.exists(path) else None
        return None if found is None else {str(one).rstrip("/").rpartition("/")[2] for one in found}

    def files(self, folder: str = "") -> set[str]:
        """Return the names of all files in it, or in a folder of it, and below."""
        files, path = self._at(folder)
        above = self._at("")[1].rstrip("/")
        files.invalidate_cache()
        with _told(self.url):
            found = files.find(path) if files.exists(path) else []
        return {str(one).removeprefix(above).lstrip("/") for one in found}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None where there is none."""
        files, path = self._at(name)
        with _told(self.url):
            try:
                found: bytes = files.cat_file(path)
            except FileNotFoundError:
                return None
        return found

    def write(self, name: str, content: str) -> None:
        """Put a whole file."""
        files, path = self._at(name)
        with _told(self.url):
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.pipe_file(path, content.encode())

    def digest(self, name: str) -> str:
        """SHA-256 of a file; empty where there is none."""
        files, path = self._at(name)
        with _told(self.url):
            try:
                with files.open(path, "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                return ""

    def exists(self, name: str) -> bool:
        """Whether there is such a file now, whatever was listed before."""
        files, path = self._at(name)
        files.invalidate_cache()
        with _told(self.url):
            return bool(files.exists(path))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there; with an empty name the folder, where there are folders."""
        files, path = self._at(name)
        with suppress(OSError, NotImplementedError):
            files.rm_file(path) if name else files.rmdir(path)

    def move(self, name: str, other: str) -> None:
        """Copy a file to another name, then remove it: where there are objects nothing can be renamed."""
        files, path = self._at(name)
        with _told(self.url):
            files.cp_file(path, self._at(other)[1])
            files.rm_file(path)

    def draft(self, name: str) -> Path:
        """A new path of this machine."""
        return _drafts(os.getpid()) / f"{os.urandom(8).hex()}.{name.rpartition('/')[2]}"

    def publish(self, draft: Path, name: str) -> None:
        """Put the draft, and remove it here."""
        files, path = self._at(name)
        with _told(self.url):
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.put_file(str(draft), path)
        draft.unlink()

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """A path of this machine, which is put under that name when the block ends well."""
        draft = self.draft(name)
        try:
            yield draft
            self.publish(draft, name)
        finally:
            draft.unlink(missing_ok=True)

    def _at(self, name: str) -> tuple[Any, str]:
        """The file system, and a file's path in it."""
        files, path = file_system(self.url)
        return files, f"{path.rstrip('/')}/{name}" if name else path


@cache
def _drafts(process: int) -> Path:
    """A folder of this process that nobody else can read, removed when it ends."""
    folder = tempfile.mkdtemp(prefix=f"veritracer-{process}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turns what a file system refuses into one sentence."""
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:
        received = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        remedy = "check the URL, your rights and the connection; the same command goes on"
        raise DataError(message(f"to read and write in {without_password(url)}", received, remedy)) from error


def digest_of(path: Path) -> str:
    """SHA-256 of a file of this machine."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
