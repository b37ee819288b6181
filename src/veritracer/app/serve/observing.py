"""What an operator sees: one line of JSON for each request, and numbers for Prometheus. Nobody's data.

A line names the route and never the path, the name of the key and never the key; bodies, query strings and
the messages of unexpected errors (which may quote a value) are left out.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Log:
    """Lines of JSON to a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def line(self, event: str, **facts: Any) -> None:
        """Write one line."""
        stream = sys.stderr if self.stream is None else self.stream
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        stream.write(json.dumps({"time": now, "event": event, **facts}, default=str) + "\n")
        stream.flush()

    def failure(self, error: BaseException, **facts: Any) -> None:
        """Where an unexpected error came from, without its message: that may quote somebody's value."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        self.line("failure", error=type(error).__name__, where=where[-8:], **facts)


def log_failure(error: BaseException) -> None:
    """Write where an unexpected error came from, from a process that has no log of its own."""
    Log().failure(error)


class Metrics:
    """The numbers of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self.requests = Counter("veritracer_requests", "Requests.", labels, registry=registry)
        self.seconds = Histogram(
            "veritracer_request_seconds", "Time to answer.", ["route"], buckets=SECONDS, registry=registry
        )
        self.batch_rows = Histogram(
            "veritracer_batch_rows", "Rows of a batch.", ["operation"], buckets=ROWS, registry=registry
        )
        self.batch_seconds = Histogram(
            "veritracer_batch_seconds",
            "Time for a batch.",
            ["operation"],
            buckets=SECONDS,
            registry=registry,
        )
        self.queued = Gauge("veritracer_queued_rows", "Rows that wait.", registry=registry)
        self.promises = Counter("veritracer_promises_issued", "Promises issued.", registry=registry)
        self.started = Gauge("veritracer_start_time_seconds", "When it started.", registry=registry)
        self.started.set(time.time())

    def batch(self, operation: str, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_rows.labels(operation).observe(rows)
        self.batch_seconds.labels(operation).observe(seconds)
