"""The files of a run, in a folder on this machine or behind a URL."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from veritracer.errors import DataError, message
from veritracer.files import make_folders, write_whole
from veritracer.tables.places import file_system, is_url, local_path, without_password

CONTINUES = "repeat the command when that is mended: it continues"
"""What to do when a file of a run cannot be written: what is done stays done."""


class RunFiles:
    """The files of a run by their names from its folder on, on this machine or behind a URL.

    A local file appears under its name when it is whole. Behind a URL that is so where the service puts
    objects as a whole (S3, GCS, Azure); elsewhere a part counts from its record on, written after it.
    """

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or place
        self.system, path = file_system(self.place)
        self.path = path.rstrip("/")
        self.local = None if is_url(place) else Path(local_path(self.place))

    def __str__(self) -> str:
        return without_password(self.place)

    def names(self) -> set[str] | None:
        """Return what is at the top of the folder; None where there is no folder."""
        self.system.invalidate_cache()
        with self._readable_errors():
            if self.local is not None and self.local.is_file():
                received = f"the file {self.local}"
                raise DataError(message("a folder to write to", received, "name a new folder"))
            found = self.system.ls(self.path, detail=False) if self.system.exists(self.path) else None
        return None if found is None else {str(one).rstrip("/").rpartition("/")[2] for one in found}

    def below(self, folder: str = "") -> set[str]:
        """Return the names of all files in the folder, or in a folder of it, and below."""
        path = self._at(folder)
        self.system.invalidate_cache()
        with self._readable_errors():
            found = self.system.find(path) if self.system.exists(path) else []
        return {str(one).removeprefix(self.path).lstrip("/") for one in found}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None where there is none."""
        with self._readable_errors():
            try:
                found: bytes = self.system.cat_file(self._at(name))
            except FileNotFoundError:
                return None
        return found

    def write(self, name: str, content: str) -> None:
        """Write a whole file."""
        if self.local is not None:
            write_whole(self.local / name, content)
            return
        with self._readable_errors():
            self.system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
            self.system.pipe_file(self._at(name), content.encode())

    @contextmanager
    def written(self, name: str) -> Iterator[str]:
        """Give a path of this machine to write a file to, which gets its name when the block ends well."""
        if self.local is not None:  # whoever writes it makes it appear as a whole
            path = self.local / name
            make_folders(path.parent)
            yield str(path)
            return
        with tempfile.TemporaryDirectory() as folder:
            draft = f"{folder}/{name.rpartition('/')[2]}"
            yield draft
            with self._readable_errors():
                self.system.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
                self.system.put_file(draft, self._at(name))

    def exists(self, name: str) -> bool:
        """Return whether there is such a file now, whatever was listed before."""
        self.system.invalidate_cache()
        with self._readable_errors():
            return bool(self.system.exists(self._at(name)))

    def remove(self, name: str) -> None:
        """Remove a file if it is there; with an empty name the folder if it is empty."""
        with suppress(OSError, NotImplementedError):
            self.system.rm_file(self._at(name)) if name else self.system.rmdir(self.path)

    def lock(self) -> int | None:
        """Make a local folder, and return what keeps other processes out of it until it is closed."""
        if self.local is None or sys.platform == "win32":
            return None
        import fcntl

        make_folders(self.local)
        handle = os.open(self.local, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            remedy = "wait until it has ended, or name another output"
            raise DataError(message(f"{self} for this process alone", "another process", remedy)) from None
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        return handle

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn what a file system elsewhere refuses into one sentence."""
        try:
            yield
        except (OSError, ValueError, NotImplementedError) as error:
            if self.local is not None or isinstance(error, DataError):
                raise
            received = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            remedy = "check the URL, your permissions and the connection; the same command continues"
            raise DataError(message(f"to read and write in {self}", received, remedy)) from error
