"""Measure source trees: sizes, names, imports and docstrings.

    python tools/house.py                             # src, with all of its packages
    python tools/house.py src/veritracer ../peer/src  # trees side by side
    python tools/house.py --modules                   # also modules, repeated class names, the chain

Everything is read from the source, except the number of modules that importing the package loads, which is
counted in a fresh process.

- Code lines hold a token other than a comment or a docstring.
- The import graph has the imports that run with a module: not those in functions or for type checkers. A
  lazy package, which lists its names for type checkers, imports nothing itself.
- Public names are functions and classes at the top of a module without a leading underscore; exported names
  are those in the ``__all__`` of the outermost package.
- A class name is repeated if classes of that name are defined more than once in the tree.
- A question docstring opens with What, Whether, Which, How, Who, Where, When or Why instead of a verb.
- Repeated lines are in a run of six lines, blank ones apart, that occurs again in the tree.

tools/walk.py counts the value types that a row crosses.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

QUESTIONS = ("What", "Whether", "Which", "How", "Who", "Where", "When", "Why")
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
Function = ast.FunctionDef | ast.AsyncFunctionDef
RUN = 6


@dataclass(frozen=True)
class Module:
    """A file of the tree."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """Return the source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Return the syntax tree."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def code_lines(self) -> int:
        """Count the lines that are neither blank, nor comments, nor docstrings."""
        strings = {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        used = {
            line
            for token in tokens
            if token.type not in NOT_CODE and token.string
            for line in range(token.start[0], token.end[0] + 1)
        }
        return len(used - strings)

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Yield every function and method, with its name."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield f"{self.name}.{node.name}", node

    def classes(self) -> list[str]:
        """Return the names of all classes, nested ones too."""
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    def docstrings(self) -> Iterator[str]:
        """Yield the docstring of the module and of every class and function that has one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node)
                if text:
                    yield text

    def exported(self) -> list[str]:
        """Return the names in ``__all__``."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return []

    def public_names(self) -> list[str]:
        """Return the public functions and classes at the top of the module."""
        named = [node.name for node in self.tree.body if isinstance(node, Function | ast.ClassDef)]
        return [name for name in named if not name.startswith("_")]


@dataclass(frozen=True)
class House:
    """The modules of a source tree by name, and their imports of each other."""

    root: Path

    @property
    def base(self) -> Path:
        """Return the folder that module names are relative to: the tree may be a package or hold packages."""
        root = self.root.resolve()
        return root.parent if (root / "__init__.py").exists() else root

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Return every module, by its name."""
        found = {}
        for path in sorted(self.root.rglob("*.py")):
            parts = path.resolve().relative_to(self.base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path)
        return found

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Return the modules of the tree that each module imports when it is imported itself."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    @cached_property
    def _lazy(self) -> dict[str, dict[str, str]]:
        """Return the module of each name of each lazy package."""
        packages = {n: module for n, module in self.modules.items() if module.path.name == "__init__.py"}
        return {name: dict(_listed(module.tree)) for name, module in packages.items()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in _at_import(module.tree.body):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.modules)
            else:
                base = module.package.split(".")[: -node.level + 1 or None] if node.level else []
                yield from self._from(".".join([*base, *([node.module] if node.module else [])]), node)

    def _from(self, source: str, node: ast.ImportFrom) -> Iterator[str]:
        for alias in node.names:
            listed = self._lazy.get(source, {}).get(alias.name)
            if listed in self.modules:
                yield listed
            elif f"{source}.{alias.name}" in self.modules:
                yield f"{source}.{alias.name}"
            elif source in self.modules:
                yield source

    def longest_chain(self) -> list[str]:
        """Return the longest chain of imports; modules that import each other count as one step."""
        best: dict[str, list[str]] = {}

        def chain(name: str, above: frozenset[str]) -> list[str]:
            if name not in best:
                below = (chain(n, above | {name}) for n in self.imports[name] if n not in above | {name})
                best[name] = [name, *max(below, key=len, default=[])]
            return best[name]

        return max((chain(name, frozenset()) for name in self.modules), key=len)

    def single_importer(self) -> list[str]:
        """Return the modules, packages apart, that exactly one other module imports, at any time."""
        users: dict[str, set[str]] = {name: set() for name in self.modules}
        for name, module in self.modules.items():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for used in self._from(node.module, node):
                        users[used].add(name)
        plain = [name for name, module in self.modules.items() if module.path.name != "__init__.py"]
        return [name for name in plain if len(users[name] - {name}) == 1]

    def repeated_classes(self) -> dict[str, list[str]]:
        """Return each class name that is defined more than once, with the modules that define it."""
        places = defaultdict[str, list[str]](list)
        for name, module in self.modules.items():
            for each in module.classes():
                places[each].append(name)
        return {name: found for name, found in sorted(places.items()) if len(found) > 1}

    def packages(self) -> list[str]:
        """Return the outermost packages."""
        if (self.root / "__init__.py").exists():
            return [self.root.resolve().name]
        return sorted(path.parent.name for path in self.root.glob("*/__init__.py"))

    def exported(self) -> int:
        """Count the names that the outermost packages export."""
        return sum(len(self.modules[name].exported()) for name in self.packages())

    def repeated_lines(self) -> int:
        """Count the lines in a run of ``RUN`` lines of code that occurs in the tree once more."""
        lines = {
            name: [line for text in module.text.splitlines() if (line := text.strip())]
            for name, module in self.modules.items()
        }
        places = defaultdict[tuple[str, ...], list[tuple[str, int]]](list)
        for name, stripped in lines.items():
            for start in range(len(stripped) - RUN + 1):
                places[tuple(stripped[start : start + RUN])].append((name, start))
        repeated = [place for repeated_at in places.values() if len(repeated_at) > 1 for place in repeated_at]
        return len({(name, start + i) for name, start in repeated for i in range(RUN)})

    def loaded(self) -> int | str:
        """Count the modules that a fresh import of the first package loads; "–" if it cannot be imported."""
        package = next(iter(self.packages()), None)
        if package is None:
            return "–"
        program = f"import sys, {package}; print(*(n for n in sys.modules if n.split('.')[0] == '{package}'))"
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(self.base)},
        )
        return len(done.stdout.split()) if done.returncode == 0 else "–"


def _at_import(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run with the module: not those in functions or for type checkers."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            yield from _at_import(node.orelse if _is_checking(node) else [*node.body, *node.orelse])
        elif isinstance(node, ast.Try | ast.With):
            yield from _at_import(node.body)


def _is_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _listed(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a lazy package lists for type checkers, each with its module."""
    for block in filter(_is_checking, tree.body):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((alias.name, node.module) for alias in node.names)


def _width(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([each for each in named if each.arg not in ("self", "cls")])


def measure(root: Path) -> dict[str, int | float | str]:
    """Return the numbers of a tree, by name, in the order in which they are printed."""
    house = House(root)
    code = {name: module.code_lines() for name, module in house.modules.items()}
    functions = [each for module in house.modules.values() for each in module.functions()]
    lengths = [((node.end_lineno or node.lineno) - node.lineno + 1, name) for name, node in functions]
    widest, longest = max((_width(node), name) for name, node in functions), max(lengths)
    public = [name for module in house.modules.values() for name in module.public_names()]
    classes = [name for module in house.modules.values() for name in module.classes()]
    docstrings = [text for module in house.modules.values() for text in module.docstrings()]
    questions = sum(text.split()[0].rstrip(",:") in QUESTIONS for text in docstrings if text.split())
    return {
        "modules": len(house.modules),
        "physical lines": sum(len(module.text.splitlines()) for module in house.modules.values()),
        "code lines": sum(code.values()),
        "code lines a module": round(sum(code.values()) / len(code)),
        "longest import chain": len(house.longest_chain()),
        "modules loaded by importing the package": house.loaded(),
        "classes": len(classes),
        "class names defined more than once": len(house.repeated_classes()),
        "public names": len(public),
        "exported names": house.exported(),
        "functions": len(functions),
        "functions over 30 lines": sum(length > 30 for length, _ in lengths),
        "longest function": f"{longest[0]} ({longest[1]})",
        "widest signature": f"{widest[0]} ({widest[1]})",
        "modules with one importer": len(house.single_importer()),
        "repeated lines": house.repeated_lines(),
        "docstrings": len(docstrings),
        "question docstrings": f"{questions:,} ({questions / max(len(docstrings), 1):.1%})",
    }


def main() -> None:
    """Print the numbers of the given trees, side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path(__file__).parents[1] / "src"])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument(
        "--modules", action="store_true", help="also list modules, repeated class names, the chain"
    )
    options = parser.parse_args()
    measured = {str(root): measure(root) for root in options.roots}
    if options.json:
        print(json.dumps(measured, indent=1))
        return
    print("| |", " | ".join(measured), "|")
    print("|---" * (len(measured) + 1) + "|")
    for name in next(iter(measured.values())):
        print(f"| {name} |", " | ".join(_text(numbers[name]) for numbers in measured.values()), "|")
    if options.modules:
        for house in map(House, options.roots):
            sizes = sorted((module.code_lines(), name) for name, module in house.modules.items())
            print("", *(f"{size:5} {name}" for size, name in sizes), sep="\n")
            print(
                "",
                *(f"{name}: {', '.join(places)}" for name, places in house.repeated_classes().items()),
                sep="\n",
            )
            print("", " -> ".join(house.longest_chain()), "", *house.single_importer(), sep="\n")


def _text(value: int | float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


if __name__ == "__main__":
    main()
