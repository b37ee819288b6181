"""The tutorials run as written, from an empty folder, and print what they show."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = runpy.run_path(str(DOCS / "write_outputs.py"))


@pytest.mark.parametrize("page", PAGES["TUTORIALS"], ids=lambda page: page.stem)
def test_a_tutorial_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    steps = PAGES["examples"](page)
    assert sum(step.output is not None for step in steps) > 4
    for step, printed in zip(steps, PAGES["run"](page, tmp_path), strict=True):
        assert step.agrees(printed), f"after {step.code.text}:\n{printed}"


@pytest.mark.parametrize(
    ("note", "printed", "agrees"),
    [
        ("", "kept: 12 of 12\n", True),
        ("", "kept: 11 of 12\n", False),
        ("numbers vary", "kept: 9   of 9\n", True),
        ("numbers vary", "broken: 12 of 12\n", False),
        ("lines vary", "kept: 1 of 1\nanything\n", True),
        ("lines vary", "broken\n", False),
    ],
)
def test_an_output_may_vary_as_far_as_its_note_says(note: str, printed: str, agrees: bool) -> None:
    shown = PAGES["Block"]("text", "kept: 12 of 12\n", note, 0, 0)
    assert PAGES["Example"](shown, shown).agrees(printed) is agrees
