"""The reference covers what is exported, and the architecture page what the source tree has."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import veritracer

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^::: veritracer\.(\S+)$", text, flags=re.M))
    assert set(veritracer.__all__) - {"__version__"} <= entries


def test_the_tables_of_modules_are_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "write_architecture.py"))["page"]()
    assert (DOCS / "explanation/architecture.md").read_text(encoding="utf-8") == page, "run make docs"


def test_the_page_on_adding_a_bound_works() -> None:
    """Its Python runs as written, and the bound certifies under its own name."""
    text = (DOCS / "how-to/add-a-bound.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^    ```python\n(.*?)^    ```", text, flags=re.M | re.S)
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            exec("\n".join(line.removeprefix("    ") for line in block.splitlines()), names)
        assert "halved" in veritracer.bounds.BOUNDS
        assert len(names["found"]) == 1
    finally:
        veritracer.bounds.BOUNDS.pop("halved", None)
