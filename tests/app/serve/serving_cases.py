"""A tiny model, a candidate that keeps its promises and one that does not, and people who are turned down."""

from __future__ import annotations

import copy
import io
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import torch
import uvicorn

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.app.serve.app import JsonLines, create_app, server_config
from veritracer.app.serve.models import Row
from veritracer.app.serve.operations import deploy
from veritracer.app.serve.settings import Settings

CODES = {
    name: {"code": f"R{i}", "text": f"Your {name} stood in the way", "label": f"your {name}"}
    for i, name in enumerate(SCHEMA.names)
}


@cache
def model() -> vt.VeriTraCER:
    """A model that was trained for a second or two."""
    frame, y = applicants(400)
    made = vt.VeriTraCER(schema=SCHEMA, method="standard", hidden=(8,), epochs=40, panel=None, kappa=0.005)
    return made.fit(frame, y)


@cache
def people() -> tuple[Row, ...]:
    """Rows of people whom the model turns down, as they go over the wire; the last one cannot be helped.

    The others can, by proof: to search in vain takes a second each.
    """
    frame, _ = applicants(60, seed=5)
    declined = frame[model().predict(frame) == "no"].reset_index(drop=True)
    status = model().explain(declined).status
    helped, others = (declined[status == "certified"], declined[status == "none"])
    declined = pd.concat([helped, others.head(1)])
    return tuple(
        {name: None if value != value else value for name, value in row.items()}
        for row in declined.astype(object).where(declined.notna(), None).to_dict("records")
    )


def save_all(folder: Path) -> Path:
    """A folder with the model, and candidates: one that is the same in all but name, and one that refuses."""
    model().save(folder / "model")
    model().save(folder / "candidates" / "same")
    harsh = copy.copy(model())
    harsh.classifier_ = copy.deepcopy(harsh.classifier_)
    with torch.no_grad():
        harsh.classifier_[-1].bias -= 1e3
    harsh.save(folder / "candidates" / "harsh")
    return folder


@contextmanager
def logged(log: io.StringIO) -> Iterator[None]:
    """Write the log of the services in this process into ``log``, as well."""
    logger, handler = logging.getLogger("veritracer.serve"), logging.StreamHandler(log)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """The address of one process of a service, in a thread of this process, on a port of its own."""
    settings = replace(settings, port=free_port())
    app = create_app(settings, digest=deploy(settings))
    config = server_config(app, settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the service ended"
        assert time.monotonic() < deadline, "the service does not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{settings.port}"
    finally:
        server.should_exit = True
        thread.join(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_service(
    *args: str, port: int | None = None, log: Path | None = None, env: dict[str, str] | None = None
) -> tuple[int, Any]:
    """The port of ``veritracer serve args``, which is being started, and its process."""
    port = port or free_port()
    command = [sys.executable, "-m", "veritracer", "serve", *args, "--port", str(port)]
    with (log or Path(os.devnull)).open("wb") as out:
        return port, subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(env or {})})


@contextmanager
def running(*args: str, log: Path | None = None) -> Iterator[tuple[str, Any]]:
    """The URL of ``veritracer serve args`` in a process of its own, and the process."""
    port, process = start_service(*args, log=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url, process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(url: str, process: Any, seconds: float = 500.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert process.poll() is None, "the service ended"
        assert time.monotonic() < deadline, "the service does not answer"
        time.sleep(0.1)
