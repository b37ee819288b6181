"""Count the value types that rows cross between their file and the audit of what they were promised.

    python tools/walk.py                   # the package in src
    python tools/walk.py ../before/src     # another tree

Some people who are declined are taken by ``veritracer issue`` from a CSV file into a ledger, and by
``veritracer audit`` out of it. A value type is a class of the package with fields (a dataclass, a named
tuple, whatever has attributes) of which an object was made that holds something of each of them: an array,
a tensor, a list or a table of as many rows.
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

PEOPLE = 37  # a number that nothing else has
MAKERS = ("__init__", "__new__", "__post_init__", "<lambda>")
"""Functions that make an object; the one of a named tuple is a lambda."""


def holds_all(value: Any) -> bool:
    """Whether the value has a row, an element or an entry for each of the people."""
    if isinstance(value, str | bytes | dict | tuple):
        return False
    try:
        return len(value) == PEOPLE
    except TypeError:
        return False


def fields_of(made: Any) -> Iterator[Any]:
    """What an object consists of."""
    yield from getattr(made, "__dict__", {}).values()
    for name in (*getattr(made, "_fields", ()), *getattr(type(made), "__slots__", ())):
        yield getattr(made, name, None)


def crossed(run: Any) -> Counter[str]:
    """Classes of the package of which objects that hold everybody were made, and how often."""
    found: Counter[str] = Counter()

    def watch(frame: FrameType, event: str, result: Any) -> None:
        if event != "return" or frame.f_code.co_name not in MAKERS:
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
    return found


def command(*args: str) -> None:
    """``veritracer args`` in this process."""
    from veritracer.app.cli import main

    sys.argv = ["veritracer", *args]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def walk(folder: Path) -> Counter[str]:
    """What people cross from their file to the audit; everything that takes place is in the folder."""
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
    """Print the types and their number."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    if os.environ.get("PYTHONPATH") != str(root):  # another tree takes another process
        again = [sys.executable, __file__, str(root)]
        sys.exit(subprocess.run(again, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        found = walk(Path(folder))
    print(*sorted(found), f"{len(found)} value types", sep="\n")


if __name__ == "__main__":
    main()
