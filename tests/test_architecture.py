"""A row flows one way, and so do the imports: nothing lower imports anything higher."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import veritracer
import veritracer_bench
from processes import CLEAN

SOURCE = Path(veritracer.__file__).parent
RESEARCH = sorted(Path(veritracer_bench.__file__).parent.rglob("*.py"))

# Levels from low to high. Inside one of the first seven a module imports only those named before it; the
# groups above them are still to be divided.
ORDER = [
    ["errors", "formatting", "identities", "files", "model_folder", "threads", "times", "engines"],
    ["schema", "encoding", "options"],
    ["models"],
    ["bounds", "proving", "certificate"],
    ["training"],
    ["search"],
    [
        "changes",
        "principal_reasons",
        "counterfactuals",
        "explaining",
        "recourse",
        "estimator",
        "persistence",
        "metrics",
        "evaluation",
    ],
    ["datasets", "ledger"],
    ["tables"],
    ["app", "mlflow"],
    ["__main__"],
]
ORDERED = 7
PLACE = {
    name: (level, position if level < ORDERED else 0)
    for level, names in enumerate(ORDER)
    for position, name in enumerate(names)
}
# ``VeriTraCER.save``, ``.issue`` and ``.update`` import these inside the method.
UPWARD = {"estimator": {"persistence", "ledger"}}
# Inside a room too a module imports only those named before it.
ROOMS = {
    "schema": ["number_formats", "feature", "labels", "inference", "tables", "schema", "inspection"],
    "encoding": ["cells", "scales", "projection", "encoding", "exact"],
    "datasets": ["published", "loans_distributions", "loans_model", "loans", "loading"],
    "models": ["network", "balls", "param_sets", "intersection"],
    "bounds": [
        "affine",
        "ibp",
        "crown_ibp",
        "support",
        "dual",
        "rounding",
        "methods",
        "attack",
        "relaxation",
        "branching",
    ],
    "training": [
        "config",
        "data",
        "checkpoints",
        "losses",
        "objective",
        "recipes",
        "generator",
        "panel_members",
        "panel",
        "distillation",
        "algorithm",
        "fine_tuning",
    ],
    "search": [
        "problem",
        "linearised",
        "polish",
        "exact",
        "solve",
        "reference",
        "prototypes",
        "outcomes",
    ],
    "ledger": [
        "promises",
        "records",
        "chain",
        "requests",
        "connections",
        "database",
        "verification",
        "snapshot",
        "issuing",
        "verdicts",
        "auditing",
        "ledger",
        "constraints",
        "update",
        "displacement",
        "calibration",
    ],
    "tables": [
        "jobs",
        "columns",
        "csv_blocks",
        "places",
        "reading",
        "pairs",
        "writing",
        "cells",
        "exact_columns",
        "run_files",
        "outputs",
        "batches",
        "partitions",
        "runs",
        "issuing",
    ],
}
MODULES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path, *, for_types: bool = True) -> set[str]:
    """First-level names of this library that a file imports; also those that only type checkers import."""
    tree = ast.parse(path.read_text())
    if not for_types:
        tree.body = [node for node in tree.body if not is_for_types(node)]
    return named_in(ast.walk(tree))


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported_at_once(path: Path) -> set[str]:
    """First-level names of this library that a file imports outside its functions."""
    return named_in(ast.parse(path.read_text()).body)


def named_in(nodes: Iterable[ast.AST]) -> set[str]:
    """First-level names of this library that import statements name."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "veritracer":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names} - {"__version__"}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("veritracer.")}
    return found


def imported_inside(path: Path, room: str) -> set[str]:
    """Modules of its own room that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[:2] == ["veritracer", room]:
                found |= {parts[2]} if len(parts) > 2 else {alias.name for alias in node.names}
    return found


def modules_of(node: ast.ImportFrom | ast.Import) -> list[str]:
    """Names of the modules that a statement imports."""
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    own = package_of(path)
    assert own in PLACE, f"{own} has no place in the order of modules"
    upward = UPWARD.get(own, set())
    assert not imported_at_once(path) & upward
    for name in imported(path) - {own} - upward:
        assert PLACE[name][0] <= PLACE[own][0], f"{own} imports {name}, which stands above it"
    for name in imported(path, for_types=False) - {own} - upward:
        assert PLACE[name] <= PLACE[own], f"{own} imports {name}, which stands above it"


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_import_those_named_before_them(room: str) -> None:
    paths = {path.stem: path for path in (SOURCE / room).glob("*.py") if path.name != "__init__.py"}
    assert set(ROOMS[room]) == set(paths)
    for position, name in enumerate(ROOMS[room]):
        found = imported_inside(paths[name], room)
        assert found <= set(ROOMS[room][:position]), f"{room}/{name} imports {found}"


def test_the_library_does_not_need_its_evaluation() -> None:
    """The command line hands ``bench`` over to it; of the command line it uses only what prints."""
    users = {
        str(path.relative_to(SOURCE))
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        and any(name.startswith("veritracer_bench") for name in modules_of(node))
    }
    assert users == {"app/cli/app.py"}
    assert [path.name for path in RESEARCH if "app" in imported(path)] == ["cli.py"]


def test_the_estimator_does_not_import_the_ledger() -> None:
    program = (
        "import sys, veritracer.estimator, veritracer.persistence;"
        "print([name for name in sys.modules if name.startswith('veritracer.ledger')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=CLEAN)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_all_exceptions_stand_in_one_tree() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                assert not any(base.endswith(("Error", "Warning", "Exception")) for base in bases), path


def test_every_public_name_is_documented() -> None:
    for name in veritracer.__all__:
        assert getattr(veritracer, name).__doc__, name


def test_no_test_imports_another() -> None:
    """What tests share is in modules of their own (``*_cases.py`` and the like)."""
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.rpartition(".")[2].startswith("test_")], path
