"""Packages whose names are imported when somebody first asks for them.

Torch, pandas and scikit-learn take seconds to import, and most of what people type needs none of them. So a
package lists its names and where they are, and PEP 562 does the rest: ``package.name`` and
``from package import name`` import the one module that has it. (SPEC 1 of the scientific Python projects is
the same idea.) For type checkers and editors the package also says ``if TYPE_CHECKING: from ... import ...``;
a test compares the two lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any


def attach(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package: ``names`` has the public ones of each of its modules.

    Its modules are attributes too, imported or not. A name must not be that of a module: whoever imports the
    module would find the module under it.

    >>> get, names = attach("veritracer", {"errors": ["message"]})
    >>> get("message") is get("errors").message
    True
    >>> "bounds" in names()
    True
    """
    module_of = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name in module_of:
            value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        elif not name.startswith("_") and find_spec(f"{package}.{name}"):
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        here = vars(sys.modules[package])
        modules = {found.name for found in iter_modules(here["__path__"]) if not found.name.startswith("_")}
        return sorted({*here, *module_of, *modules})

    return get, listed
