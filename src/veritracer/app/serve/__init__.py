"""Serve a model over HTTP: an API, a page for people, and a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = ["Client", "Settings", "add_key", "create_app"]

if TYPE_CHECKING:
    from veritracer.app.serve.app import Settings, create_app
    from veritracer.app.serve.auth import add_key
    from veritracer.app.serve.client import Client
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "app": ["Settings", "create_app"],
            "auth": ["add_key"],
            "client": ["Client"],
        },
    )
