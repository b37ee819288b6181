"""A PostgreSQL server of our own for the tests: started in a temporary folder, reached by a socket."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

NOBODY = "postgres"
"""Who runs the server where we are root, which it refuses."""


def binaries() -> Path | None:
    """Return the folder of the newest server that can be started here; None where there is none."""
    if os.geteuid() == 0 and NOBODY not in {user.pw_name for user in pwd.getpwall()}:
        return None
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    on_path = shutil.which("initdb")
    places = [*found, *([Path(on_path)] if on_path else [])]
    return places[-1].parent if places else None


class Server:
    """A running server; ``new()`` gives the URL of an empty place for a ledger."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self.bin, self.durable = folder, durable  # waiting for the disk matters when the power fails
        self.place = Path(tempfile.mkdtemp(prefix="vt-pg-", dir="/tmp"))
        self.numbers = itertools.count(1)
        self.process: subprocess.Popen[bytes] | None = None
        self.as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.place, NOBODY)
            self.as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        data = self.place / "data"
        command = [self.bin / "initdb", "-D", data, "-U", "vt", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.place, **self.as_user)
        self.start()

    def start(self) -> None:
        """Returns when the server answers."""
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self.place}"]
        options += ["-c", "max_connections=60", "-c", f"fsync={'on' if self.durable else 'off'}"]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", self.place / "data", *options],
                stdout=log,
                stderr=log,
                cwd=self.place,
                **self.as_user,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.place / "log").read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)

    def crash(self) -> None:
        """Every process of the server is gone at once, as if the power had failed; then it starts again."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(self.process.pid, signal.SIGKILL)
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        (self.place / "data" / "postmaster.pid").unlink(missing_ok=True)
        self.start()

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection of the test's own."""
        return psycopg.connect(host=str(self.place), user="vt", dbname=database, autocommit=True)

    def new(self) -> str:
        """The URL of a new, empty schema: a database of its own would be 300 files to make and to delete."""
        name = f"ledger_{os.getpid()}_{next(self.numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"postgresql://vt@/postgres?host={self.place}&options=-csearch_path%3D{name}"

    def stop(self) -> None:
        """Nothing is left of it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # at once: nobody wants the data
            self.process.wait()
        shutil.rmtree(self.place, ignore_errors=True)
