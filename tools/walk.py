"""Count the value types and the modules that rows cross between their file and an audit of their promises.

    python tools/walk.py                   # the package in src
    python tools/walk.py ../before/src     # another tree

``veritracer issue`` reads 37 declined applicants from a CSV file and promises them counterfactuals in a
ledger; ``veritracer audit`` reads the promises. A value type is a class of the package that was instantiated
with a field that has one entry for each applicant: an array, a tensor, a list or a table. It is public if the
library exports it, or its name and that of its module have no leading underscore and its package lists it in
``__all__``. A module is crossed if one of its functions received or returned such a value, alone or as a
field.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

PEOPLE = 37  # no other length in the run is 37
MAKERS = ("__init__", "__new__", "__post_init__", "<lambda>")
"""Functions that make an object; the one of a named tuple is a lambda."""


def holds_all(value: Any) -> bool:
    """Return True if the value has a row, an element or an entry for each applicant."""
    if isinstance(value, str | bytes | dict | tuple):
        return False
    try:
        return len(value) == PEOPLE
    except TypeError:
        return False


def fields_of(made: Any) -> Iterator[Any]:
    """Yield the values of an object's fields."""
    yield from getattr(made, "__dict__", {}).values()
    for name in (*getattr(made, "_fields", ()), *getattr(type(made), "__slots__", ())):
        yield getattr(made, name, None)


def crossed(run: Any) -> tuple[Counter[str], set[str]]:
    """Return the value types that were instantiated, how often, and the modules that they crossed."""
    found: Counter[str] = Counter()
    modules: set[str] = set()

    def watch(frame: FrameType, event: str, result: Any) -> None:
        if event != "return":
            return
        module = frame.f_globals.get("__name__", "")
        if module.startswith("veritracer.") and module not in modules:
            values = [result, *frame.f_locals.values()]
            if any(holds_all(value) for value in values):
                modules.add(module)
        if frame.f_code.co_name not in MAKERS:
            return
        new = frame.f_code.co_name in ("__new__", "<lambda>")
        made = result if new else next(iter(frame.f_locals.values()), None)
        name = f"{type(made).__module__}.{type(made).__qualname__}"
        if name.startswith("veritracer.") and any(holds_all(value) for value in fields_of(made)):
            found[name] += 1

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found, modules


def is_public(name: str) -> bool:
    """Return True if the package of a class, or the library, lists it in ``__all__``."""
    module, _, kind = name.rpartition(".")
    packages = ["veritracer", module, module.rpartition(".")[0]]
    listed = {each for place in packages for each in getattr(sys.modules.get(place), "__all__", ())}
    return not kind.startswith("_") and kind in listed


def command(*args: str) -> None:
    """Run ``veritracer`` with these arguments in this process."""
    from veritracer.app.cli import main

    sys.argv = ["veritracer", *args]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def walk(folder: Path) -> tuple[Counter[str], set[str]]:
    """Return the types and modules between the applicants' file and the audit; use the folder for files."""
    os.chdir(folder)
    command("datasets", "write", "loans", "--rows", "4000", "--out", "people.csv")
    said = ["--target", "approved", "--favourable", "yes"]
    command("fit", "people.csv", *said, "--epochs", "20", "--seed", "0", "--out", "model")
    command("explain", "model", "people.csv", "--out", "found.csv")
    found, people = (Path(f"{name}.csv").read_text("utf-8").splitlines() for name in ("found", "people"))
    proved = [line["recourse.status"] == "certified" for line in csv.DictReader(found)]
    head, *rows = list(csv.reader(people))
    chosen = [row for row, yes in zip(rows, proved, strict=True) if yes][:PEOPLE]
    with Path("some.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", *head], *([f"p{i}", *row] for i, row in enumerate(chosen))])

    def life() -> None:
        asked = ("issue", "model", "some.csv", "--id-column", "id", "--ledger", "promises.db")
        command(*asked, "--out", "issued.csv")
        command("audit", "--ledger", "promises.db", "--model", "model")

    return crossed(life)


def main() -> None:
    """Print the types, public and private, and the modules."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    if os.environ.get("PYTHONPATH") != str(root):  # another tree takes another process
        again = [sys.executable, __file__, str(root)]
        sys.exit(subprocess.run(again, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        found, modules = walk(Path(folder))
    public = sorted(filter(is_public, found))
    private = sorted(set(found) - set(public))
    print(f"{len(public)} public value types", *(f"  {name}" for name in public), sep="\n")
    print(f"{len(private)} private value types", *(f"  {name}" for name in private), sep="\n")
    print(f"{len(modules)} modules", *(f"  {name}" for name in sorted(modules)), sep="\n")


if __name__ == "__main__":
    main()
