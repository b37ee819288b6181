"""JSON documents that say what they are: a format's name, its version, and known keys only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from veritracer.errors import SchemaError, listing, message


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
