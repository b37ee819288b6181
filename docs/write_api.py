"""Writes docs/reference/api.md: every public name of the library with the first sentence of its docstring.

``python docs/write_api.py``, or ``make docs``; tests/docs/test_docs.py compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import veritracer

PAGE = Path(__file__).with_name("reference") / "api.md"
HEAD = """# Public names

Written by `make docs` from what the library exports; a test compares the two. `import veritracer as vt`.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *_entries(veritracer, "vt")]) + "\n"


def _entries(module: ModuleType, prefix: str) -> Iterator[str]:
    for name in sorted(_public(module), key=str.lower):
        thing, label = getattr(module, name), f"{prefix}.{name}"
        yield f"- `{label}`: {_first_line(thing)}"
        if isinstance(thing, ModuleType):
            yield from ("  " + line for line in _entries(thing, label))
        elif inspect.isclass(thing) and not issubclass(thing, Exception):
            yield from (f"  - `{label}.{method}`: {_first_line(value)}" for method, value in _methods(thing))


def _public(module: ModuleType) -> list[str]:
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", own))


def _methods(cls: type) -> Iterator[tuple[str, object]]:
    for name, value in vars(cls).items():
        described = inspect.isroutine(value) or isinstance(value, property) or hasattr(value, "attrname")
        if not name.startswith("_") and described and _first_line(getattr(cls, name)):
            yield name, getattr(cls, name)


def _first_line(thing: object) -> str:
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")
    return text.replace("``", "`").replace(":meth:", "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
