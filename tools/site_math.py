"""Show the formulas of the site as MathML, which needs no scripts: a hook, named in mkdocs.yml.

Formulas are written as on GitHub: between dollar signs, or two of them for a line of its own.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

CODE = r"```.*?```|`[^`\n]*`"
FORMULA = re.compile(
    rf"{CODE}|\$\$(?P<block>.+?)\$\$|(?<![\\\w$])\$(?=\S)(?P<inline>[^$\n]+?)(?<=\S)\$(?![\w$])", re.S
)
TAG = re.compile(r"\\tag\{(\w+)\}")

formulas: list[str] = []


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace each formula by a placeholder that Markdown leaves alone."""
    formulas.clear()
    return FORMULA.sub(_placeholder, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Put the formulas in their places."""
    return re.sub(r"@@formula(\d+)@@", lambda found: formulas[int(found[1])], html)


def _placeholder(found: re.Match[str]) -> str:
    block, inline = found["block"], found["inline"]
    if block is None and inline is None:
        return found[0]  # code
    numbers = TAG.findall(block or "")
    source = TAG.sub("", block or inline).strip() + "".join(rf"\qquad \text{{({n})}}" for n in numbers)
    formulas.append(convert(source, display="inline" if block is None else "block"))
    return f"@@formula{len(formulas) - 1}@@"
