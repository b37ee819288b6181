"""Ways in which ``veritracer issue`` ends early, installed in its process before it begins."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

OUT = "recourse.csv"
KILLED = 77


def install(way: str) -> None:
    """Nothing; from here on the process ends in this way."""
    WAYS[way]()


def _exit(*_: object) -> None:
    os._exit(KILLED)


def _nothing(*_: object) -> None:
    pass


def _lost() -> None:
    raise sa.exc.OperationalError("COMMIT", None, sqlite3.OperationalError("disk I/O error"))


def _at_commit(before: Callable[[], None] = _nothing, after: Callable[[], None] = _nothing) -> None:
    """Around the commit of the promises; other transactions are left alone."""
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


def _at_rename(*, named: Callable[[str], bool], before: bool) -> None:
    """Before or after the first file gets such a name."""
    real = Path.replace

    def replace(self: Path, target: Any) -> Path:
        if before and named(Path(target).name):
            _exit()
        found = real(self, target)
        if named(Path(target).name):
            _exit()
        return found

    Path.replace = replace  # type: ignore[method-assign, assignment]


def _full_disk() -> None:
    """No room for the output; the ledger is on another disk."""
    real = os.fsync

    def fsync(file: int) -> None:
        if OUT in str(Path(f"/proc/self/fd/{file}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    os.fsync = fsync


WAYS: dict[str, Callable[[], None]] = {
    "the disk is full": _full_disk,
    "killed while the output is written": lambda: _at_rename(named=lambda n: n.startswith(OUT), before=True),
    "killed when the output is written": lambda: _at_rename(named=lambda n: n.startswith(OUT), before=False),
    "killed before the commit": lambda: _at_commit(before=_exit),
    "the commit fails": lambda: _at_commit(before=_lost),
    "the commit is kept and its answer lost": lambda: _at_commit(after=_lost),
    "killed after the commit": lambda: _at_commit(after=_exit),
    "killed after the first renaming": lambda: _at_rename(named=lambda n: n == OUT, before=False),
}
