"""A model where decisions are made: an HTTP service, a page for people, and a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = ["Client", "Settings", "add_key", "create_app"]

if TYPE_CHECKING:
    from veritracer.app.serve.app import create_app
    from veritracer.app.serve.client import Client
    from veritracer.app.serve.keys import add_key
    from veritracer.app.serve.settings import Settings
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "app": ["create_app"],
            "client": ["Client"],
            "keys": ["add_key"],
            "settings": ["Settings"],
        },
    )
