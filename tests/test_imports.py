"""What is imported when: names when they are asked for, and torch after everything that can be refused."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import veritracer
from processes import CLEAN
from veritracer import model_folder

SOURCE = Path(veritracer.__file__).parent
HEAVY = ["torch", "pandas", "sklearn", "scipy", "matplotlib"]

# Runs each command, and prints its exit code and which of the modules are there after it.
COMMANDS = """
import contextlib, io, json, sys
from veritracer.app.cli import main
commands, modules = json.loads(sys.argv[1])
found = []
for command in commands:
    sys.argv = ["veritracer", *command]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append([code, [name for name in modules if name in sys.modules]])
print(json.dumps(found))
"""


def python(program: str, *args: str, cwd: Path | None = None) -> str:
    """What a fresh process prints."""
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def after(commands: list[list[str]], modules: list[str], cwd: Path) -> list[list[object]]:
    """The exit code of each command, and which of the modules were imported by then."""
    found: list[list[object]] = json.loads(python(COMMANDS, json.dumps([commands, modules]), cwd=cwd))
    return found


# ---------------------------------------------------------------- the library


def test_the_library_imports_next_to_nothing() -> None:
    program = "import json, sys, veritracer; print(json.dumps(sorted(sys.modules)))"
    imported = {name.partition(".")[0] for name in json.loads(python(program))}
    assert not imported & {*HEAVY, "numpy", "pydantic", "pyarrow", "rich", "typer"}


def test_names_work_as_if_they_had_been_imported() -> None:
    told = python("""
import sys
import veritracer as vt
assert set(vt.__all__) | {"bounds", "ledger", "metrics"} <= set(dir(vt))
assert "torch" not in sys.modules
assert vt.datasets.names()[0] == "breast_cancer"
assert "torch" not in sys.modules
assert vt.bounds.BOUNDS["ibp"] is vt.bounds.ibp
assert vt.ledger.auditing.audit is vt.ledger.audit
from veritracer import Schema, certify
assert (vt.Schema, vt.certify) == (Schema, certify)
names = {}
exec("from veritracer import *", names)
assert set(vt.__all__) <= set(names)
for package in (vt, vt.encoding):
    try:
        package.nonsense
    except AttributeError as error:
        print(error)
""")
    lines = [f"module {name!r} has no attribute 'nonsense'" for name in ("veritracer", "veritracer.encoding")]
    assert told.splitlines() == lines


def test_a_saved_model_is_loaded_without_what_only_training_and_searching_need() -> None:
    parts = ["ensemble", "linear_model", "metrics", "model_selection", "neighbors"]
    unwanted = [*(f"sklearn.{part}" for part in parts), "matplotlib", "sqlalchemy", "jinja2"]
    program = f"import sys, veritracer.persistence; print([n for n in {unwanted!r} if n in sys.modules])"
    assert python(program) == "[]\n"


def test_type_checkers_see_what_is_imported() -> None:
    """Every public name is the one that type checkers see, and none hides a module."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    choice = next(node for node in tree.body if isinstance(node, ast.If))
    checked = [node for node in choice.body if isinstance(node, ast.ImportFrom)]
    for node in checked:
        for alias in node.names:
            assert getattr(veritracer, alias.name) is getattr(import_module(str(node.module)), alias.name)
    listed = {alias.name for node in checked for alias in node.names}
    modules = {found.stem for found in SOURCE.iterdir()}
    assert listed <= set(veritracer.__all__)
    assert not {name for name in listed if inspect.isfunction(getattr(veritracer, name))} & modules
    eager = {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names} | {"__version__"}
    assert set(veritracer.__all__) <= listed | eager


def test_the_tables_of_commands_need_neither_torch_nor_pandas() -> None:
    heavy = "[name for name in ('torch', 'pandas', 'sklearn') if name in sys.modules]"
    assert python(f"import sys, veritracer.tables; print({heavy})") == "[]\n"


# ---------------------------------------------------------------- the command line

VERBS = [
    "demo",
    "fit",
    "explain",
    "certify",
    "issue",
    "verify",
    "update",
    "audit",
    "calibrate",
    "inspect",
    "report",
    "notices",
    "bench",
    "datasets",
]


def test_help_and_refused_arguments_need_nothing_heavy(tmp_path: Path) -> None:
    asked = [[], ["--help"], ["--version"], *([verb, "--help"] for verb in VERBS)]
    refused = [
        ["explian"],
        ["explain"],
        ["explain", "model", "people.csv", "--kappa", "much"],
        ["explain", "model", "people.csv", "--cost", "income"],
        ["fit", "people.csv", "--out", "model", "--method", "magic"],
        ["calibrate", "model", "--simulate", "magic"],
        ["demo", "--dataset", "loans"],
        ["certify", "model", "-", "-"],
    ]
    for command, (code, heavy) in zip(asked + refused, after(asked + refused, HEAVY, tmp_path), strict=True):
        assert (code, heavy) == (2 if command in refused else 0, []), command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What names a model's columns, and tables that do not fit it."""
    schema = {"features": [{"name": "age"}, {"name": "income"}], "target": "approved"}
    model_folder.write(tmp_path / "model", {"encoding": {"schema": schema}}, {"a": torch.zeros(1)})
    model_folder.write(tmp_path / "cut", {}, {"a": torch.zeros(1)})
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"")
    tables = {"good": "age,income\n1,2\n", "lacking": "age\n1\n", "header": "age,income\n", "empty": ""}
    tables |= {"ragged": "age,income\n1,2\n1,2,3\n", "quote": 'age,income\n1,"2\n'}
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def test_bad_paths_and_tables_are_refused_without_torch(folder: Path) -> None:
    paths = [
        ["explain", "nobody", "good.csv"],
        ["explain", "cut", "good.csv"],
        ["explain", "model", "nobody.csv"],
        ["explain", "model", "good.csv", "--out", "nowhere/out.csv"],
        ["certify", "model", "good.csv", "nobody.csv"],
        ["issue", "model", "nobody.csv", "--ledger", "l.db", "--id-column", "id"],
        ["report", "model", "nobody.csv"],
        ["notices", "--ledger", "nobody.db", "--out", "new"],
        ["notices", "--model", "nobody", "--table", "good.csv", "--out", "new"],
        ["notices", "--model", "model", "--table", "nobody.csv", "--out", "new"],
        ["update", "nobody", "good.csv", "--out", "new"],
        ["update", "model", "good.csv", "--out", "new", "--keep", "nobody.db"],
        ["audit", "--model", "model", "--ledger", "nobody.db"],
        ["calibrate", "nobody"],
        ["verify", "--ledger", "nobody.db"],
        ["inspect", "nobody"],
        ["fit", "nobody.csv", "--target", "age", "--out", "new"],
        ["fit", "good.csv", "--target", "age", "--out", "good.csv"],
        ["bench", "--out", "good.csv"],
        ["demo", "--out", "good.csv"],
    ]
    bad = ("lacking", "header", "empty", "ragged", "quote")
    tables = [["explain", "model", f"{name}.csv"] for name in bad]
    tables += [["certify", "model", "good.csv", f"{name}.csv"] for name in bad]
    tables += [["issue", "model", "good.csv", "--ledger", "l.db", "--id-column", "id"]]
    tables += [["fit", "good.csv", "--target", "nothing", "--out", "new"]]
    for name in bad[1:]:
        tables += [["fit", f"{name}.csv", "--target", "age", "--out", "new"], ["inspect", f"{name}.csv"]]
    for command, found in zip(paths + tables, after(paths + tables, HEAVY, folder), strict=True):
        assert found == [2, []], command


def test_datasets_are_listed_and_refused_without_torch(tmp_path: Path) -> None:
    commands = [["datasets", "list"], ["datasets", "fetch", "helok"]]
    assert after(commands, ["torch", "sklearn", "matplotlib"], tmp_path) == [[0, []], [2, []]]


def test_a_table_to_learn_from_is_read_without_torch(folder: Path) -> None:
    commands = [["fit", "good.csv", "--target", "age", "--out", "new"], ["inspect", "good.csv"]]
    found = after(commands, ["torch", "sklearn", "scipy"], folder)
    assert found == [[2, []], [0, []]]
