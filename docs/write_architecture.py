"""Write the tables of modules in docs/explanation/architecture.md from the source tree.

``python docs/write_architecture.py``, or ``make docs``; tests/docs/test_docs.py compares. A line is a module
and the first sentence of its docstring. The levels and the order inside of rooms are those that
tests/test_architecture.py enforces.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCE = ROOT / "src" / "veritracer"
BENCH = ROOT / "src" / "veritracer_bench"
ENFORCED = ROOT / "tests" / "test_architecture.py"
BLOCK = re.compile(r"(<!-- written by write_architecture.py -->\n).*?(<!-- end -->)", re.S)


def page() -> str:
    """Return the page with its tables as the source tree has them now."""
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}\n{tables()}\n{found[2]}", text)


def tables() -> str:
    """Return one table for each level, and one for the evaluation."""
    parts = [_table(f"Level {level}", names) for level, names in enumerate(_constant("ORDER"))]
    lines = [_line(path, BENCH) for path in _modules(BENCH, [])]
    return "\n".join([*parts, _heading("`veritracer_bench`"), *lines, ""])


def _table(title: str, names: list[str]) -> str:
    rooms = _constant("ROOMS")
    lines = []
    for name in names:
        room = SOURCE / name
        paths = _modules(room, rooms.get(name, [])) if room.is_dir() else [SOURCE / f"{name}.py"]
        lines += [_line(path, SOURCE) for path in paths]
    return "\n".join([_heading(title), *lines, ""])


def _heading(title: str) -> str:
    return f"### {title}\n\n| module | responsibility |\n|---|---|"


def _modules(room: Path, order: list[str]) -> list[Path]:
    """Return the modules of a room: its ``__init__`` first, then in the given order, then by name."""

    def key(path: Path) -> tuple[Any, ...]:
        inner = path.relative_to(room)
        parts = tuple("" if part == "__init__" else part for part in inner.with_suffix("").parts)
        at = order.index(inner.stem) if len(parts) == 1 and inner.stem in order else -1
        return (at, parts)

    return sorted(room.rglob("*.py"), key=key)


def _line(path: Path, root: Path) -> str:
    name = str(path.relative_to(root).with_suffix("")).removesuffix("__init__")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    sentence = text.partition("\n\n")[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")
    return f"| `{name or root.name}` | {sentence.removesuffix('.')} |"


def _constant(name: str) -> Any:
    """Return a constant of the test that enforces the order of imports."""
    for node in ast.parse(ENFORCED.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise LookupError(name)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
