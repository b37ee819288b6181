"""Ways in which ``veritracer issue`` ends early, installed in its process before it begins."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

OUT = "recourse.csv"
KILLED = 77
PART, DRAFT, RECORD = "people.csv.000000.csv", "people.csv.000000.", "people.csv.000000.json"


def install(way: str) -> None:
    """Let the process end in this way."""
    WAYS[way]()


def _exit(*_: object) -> None:
    os._exit(KILLED)


def _nothing(*_: object) -> None:
    pass


def _lost() -> None:
    raise sa.exc.OperationalError("COMMIT", None, sqlite3.OperationalError("disk I/O error"))


def _at_commit(before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing) -> None:
    """Do something around the first commit of promises; other transactions are left alone."""
    real: Any = sa.engine.Connection._commit_impl

    def commit(self: Any) -> None:
        promises = "SELECT count(*) FROM veritracer_entries WHERE kind = 'promise'"
        ours = self.get_execution_options().get("writing")
        ours = ours and self.exec_driver_sql(promises).scalar() > 0
        if ours:
            before()
        real(self)
        if ours:
            after()

    sa.engine.Connection._commit_impl = commit  # type: ignore[method-assign]


def _at_rename(named: Callable[[Path], bool], *, before: bool = False) -> None:
    """End the process before or after the first file gets such a name."""
    real = Path.replace

    def replace(self: Path, target: Any) -> Path:
        if before and named(Path(target)):
            _exit()
        found = real(self, target)
        if named(Path(target)):
            _exit()
        return found

    Path.replace = replace  # type: ignore[method-assign, assignment]


def _draft(place: Path) -> bool:
    return place.parent.name == "_prepared"


def _named(name: str, place: Path) -> bool:
    return place.name == name


def _at_removal(named: Callable[[Path], bool]) -> None:
    """End the process before the first such file is removed."""
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if named(self):
            _exit()
        real(self, missing_ok)

    Path.unlink = unlink  # type: ignore[method-assign]


def _while_proving() -> None:
    from veritracer.tables import issuing

    issuing.prepare = _exit  # type: ignore[attr-defined, assignment]


def _full_disk(part: str) -> None:
    """Leave no room for such a file; the ledger is on another disk."""
    real = os.fsync

    def fsync(file: int) -> None:
        if part in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    os.fsync = fsync


WAYS: dict[str, Callable[[], None]] = {
    "killed before the first step": _while_proving,
    "killed before the draft": partial(_at_rename, _draft, before=True),
    "killed after the draft": partial(_at_rename, _draft),
    "no room for the draft": partial(_full_disk, "_prepared"),
    "killed before the commit": partial(_at_commit, before=_exit),
    "the commit fails": partial(_at_commit, before=_lost),
    "the commit is kept and its answer lost": partial(_at_commit, after=_lost),
    "killed after the commit": partial(_at_commit, after=_exit),
    "no room for the part": partial(_full_disk, PART),
    "killed before the part": partial(_at_rename, partial(_named, PART), before=True),
    "killed after the part": partial(_at_rename, partial(_named, PART)),
    "killed after the record": partial(_at_rename, partial(_named, RECORD)),
    "killed before the draft is removed": partial(_at_removal, _draft),
    "killed before the file": partial(_at_rename, partial(_named, OUT), before=True),
    "no room for the file": partial(_full_disk, f"{OUT}.partial"),
    "killed after the file": partial(_at_rename, partial(_named, OUT)),
}
