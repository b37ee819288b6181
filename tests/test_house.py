"""``tools/house.py`` and ``tools/walk.py`` count what they say they count."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TOOL = Path(__file__).parents[1] / "tools/house.py"

SAME = "".join(f"{name} = 1\n" for name in "abcdefg")
FILES = {
    "veritracer/__init__.py": '"""Two\nlines."""\n\nfrom veritracer import top\n',
    "veritracer/top.py": "from veritracer.middle import Room  # a comment\n\nSIZE = Room\n",
    "veritracer/middle.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from veritracer import aside\n\n\n"
        'class Room:\n    """A room."""\n\n    def enter(self, who, *, when, why):\n'
        "        from veritracer import aside\n\n        return aside\n\n\ndef _hidden():\n    return 1\n"
    ),
    "veritracer/aside.py": f"# nothing\n{SAME}",
    "veritracer/alone.py": f"def public(a):\n    return a\n{SAME}",
}


def test_the_numbers_of_a_small_house(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(TOOL), str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        str(tmp_path): {
            "modules": 5,
            "physical lines": 41,
            "code lines": 28,
            "code lines a module": 6,
            "longest import chain": 3,
            "modules loaded by `import veritracer`": 3,
            "public names": 2,
            "functions": 3,
            "functions over 30 lines": 0,
            "longest function": "4 (veritracer.middle.enter)",
            "widest signature": "3 (veritracer.middle.enter)",
            "modules with one importer": 3,
            "lines written twice": 14,
        }
    }


def test_a_type_is_crossed_when_one_of_its_objects_holds_everybody() -> None:
    tool = runpy.run_path(str(TOOL.with_name("walk.py")))
    everybody = [0] * tool["PEOPLE"]

    class Named(NamedTuple):
        rows: Any
        note: str = ""

    @dataclass
    class Kept:
        rows: Any

    class Other:
        def __init__(self, rows: Any) -> None:
            self.rows = rows

    for kind in (Named, Kept):
        kind.__module__ = "veritracer.somewhere"

    def life() -> None:
        Named(everybody), Named(everybody), Kept(np.array(everybody)), Other(everybody)
        Named(everybody[1:]), Kept("x" * tool["PEOPLE"])

    found = {name.rpartition(".")[2]: count for name, count in tool["crossed"](life).items()}
    assert found == {"Named": 2, "Kept": 1}
