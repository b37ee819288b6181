"""Let mkdocstrings show the signatures that functions have at run time.

A griffe extension, named in mkdocs.yml. Pages are made from the source without importing it; a method that
takes its keywords from an options type (``@takes``) has them only at run time, so these methods are imported.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe


class RuntimeSignatures(griffe.Extension):
    """Replace parameters and docstring of each function that is decorated with ``takes``."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take what the imported function says of itself."""
        if not any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            return
        made: Any = import_module(func.module.path)
        for name in func.path.removeprefix(f"{func.module.path}.").split("."):
            made = getattr(made, name)
        func.parameters = griffe.Parameters(
            *(_parameter(each) for each in inspect.signature(made).parameters.values())
        )
        if func.docstring is not None:
            func.docstring.value = inspect.getdoc(made) or func.docstring.value


def _parameter(each: inspect.Parameter) -> griffe.Parameter:
    empty = inspect.Parameter.empty
    return griffe.Parameter(
        each.name,
        annotation=None if each.annotation is empty else inspect.formatannotation(each.annotation),
        kind=griffe.ParameterKind(each.kind.description),
        default=None if each.default is empty else repr(each.default),
    )
