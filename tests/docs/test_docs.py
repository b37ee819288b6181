"""The documented interface is the exported one."""

from __future__ import annotations

import runpy
from pathlib import Path

import veritracer

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_of_public_names_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "write_api.py"))["page"]()
    assert (DOCS / "reference/api.md").read_text(encoding="utf-8") == page, "run make docs"


def test_every_public_name_has_a_sentence() -> None:
    lines = (DOCS / "reference/api.md").read_text(encoding="utf-8").splitlines()
    for name in veritracer.__all__:
        assert any(line.startswith(f"- `vt.{name}`: ") and len(line.split()) > 4 for line in lines), name


def test_every_module_has_its_place_in_the_architecture() -> None:
    text = (DOCS / "explanation/architecture.md").read_text(encoding="utf-8")
    source = Path(veritracer.__file__).parent
    for path in source.iterdir():
        if path.name in ("__init__.py", "py.typed", "__pycache__"):
            continue
        name = f"{path.name}/" if path.is_dir() else path.stem
        assert f"`{name}`" in text, f"{name} is not in docs/explanation/architecture.md"
