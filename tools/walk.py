"""Count the value types and the modules that rows cross: from a file to an audit, and through the service.

    python tools/walk.py                   # the package in src
    python tools/walk.py ../before/src     # another tree

``veritracer issue`` reads 37 declined applicants from a CSV file and promises them counterfactuals in a
ledger; ``veritracer audit`` reads the promises. The service answers one request for the recourse of the same
people, in this process. A value type is a class of the package that was instantiated
with a field that has one entry for each applicant: an array, a tensor, a list or a table. It is public if the
library exports it, or its name and that of its module have no leading underscore and its package lists it in
``__all__``. A module is crossed if one of its functions received or returned such a value, alone or as a
field.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
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
    types: Counter[str] = Counter()
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
            types[name] += 1

    sys.setprofile(watch)
    threading.setprofile(watch)  # the service computes in a thread
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return types, modules


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


def prepare() -> None:
    """Fit a model in this folder, and write applicants whom it can help."""
    command("datasets", "write", "loans", "--rows", "4000", "--out", "people.csv")
    target = ["--target", "approved", "--favourable", "yes"]
    command("fit", "people.csv", *target, "--epochs", "20", "--seed", "0", "--out", "model")
    command("explain", "model", "people.csv", "--out", "recourse.csv")
    recourse, people = (
        Path(f"{name}.csv").read_text("utf-8").splitlines() for name in ("recourse", "people")
    )
    proved = [line["recourse.status"] == "certified" for line in csv.DictReader(recourse)]
    head, *rows = list(csv.reader(people))
    chosen = [row for row, yes in zip(rows, proved, strict=True) if yes][:PEOPLE]
    with Path("some.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", *head], *([f"p{i}", *row] for i, row in enumerate(chosen))])


def promise_and_audit() -> None:
    """Promise recourse to the applicants, and audit the promises."""
    options = ("--id-column", "id", "--ledger", "promises.db", "--out", "issued.csv")
    command("issue", "model", "some.csv", *options)
    command("audit", "--ledger", "promises.db", "--model", "model")


def ask_the_service() -> None:
    """Ask the service for the recourse of the applicants, in one request."""
    import httpx
    import pandas as pd

    from veritracer.app.serve.app import create_app
    from veritracer.app.serve.settings import Settings

    people = pd.read_csv("some.csv").drop(columns=["id", "approved"])
    rows = json.loads(people.to_json(orient="records"))
    app = create_app(Settings(model=Path("model")))

    async def ask() -> httpx.Response:
        way = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=way, base_url="http://localhost") as client,
        ):
            return await client.post("/v1/recourse", json={"rows": rows}, timeout=60.0)

    answer = asyncio.run(ask())
    if answer.status_code != 200:
        raise RuntimeError(f"expected an answer of the service, got {answer.text}")


def main() -> None:
    """Print the types, public and private, and the modules of both ways."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "src").resolve()
    if os.environ.get("PYTHONPATH") != str(root):  # another tree takes another process
        again = [sys.executable, __file__, str(root)]
        sys.exit(subprocess.run(again, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare()
        ways = {"From a file to an audit": promise_and_audit, "One request to the service": ask_the_service}
        for title, run in ways.items():
            report(title, *crossed(run))


def report(title: str, types: Counter[str], modules: set[str]) -> None:
    """Print the types and the modules of one way."""
    public = sorted(filter(is_public, types))
    private = sorted(set(types) - set(public))
    print(f"# {title}")
    print(f"{len(public)} public value types", *(f"  {name}" for name in public), sep="\n")
    print(f"{len(private)} private value types", *(f"  {name}" for name in private), sep="\n")
    print(f"{len(modules)} modules", *(f"  {name}" for name in sorted(modules)), sep="\n")


if __name__ == "__main__":
    main()
