"""The reference of the command line is the one that the code gives."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_reference_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "write_cli.py"))["page"]()
    assert (DOCS / "reference/cli.md").read_text(encoding="utf-8") == page, "run make docs"


def test_every_verb_has_a_section_and_an_example() -> None:
    text = (DOCS / "reference/cli.md").read_text(encoding="utf-8")
    for verb in (
        "demo",
        "fit",
        "explain",
        "certify",
        "inspect",
        "report",
        "notices",
        "datasets list",
        "datasets write",
    ):
        section = text.partition(f"\n## veritracer {verb}\n")[2].partition("\n## ")[0]
        assert section.count(f"veritracer {verb}") >= 2, verb
        assert "| argument or option |" in section
