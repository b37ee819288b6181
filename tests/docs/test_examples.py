"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "a_model_you_already_have": "logistic regression",
    "explain_a_portfolio": "a choice for the first applicant",
    "keep_a_promise": "kept by proof",
}


TRAINS = ("a_model_you_already_have", "explain_a_portfolio", "keep_a_promise")
MARKED = [pytest.param(p, id=p.stem, marks=[pytest.mark.long] * (p.stem in TRAINS)) for p in EXAMPLES]


@pytest.mark.parametrize("path", MARKED)
def test_an_example_warns_of_nothing_but_what_most_people_are_told(path: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, check=False)
    told = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    ours = [line for line in told if "AdviceWarning" not in line and "/site-packages/" not in line]
    assert (done.returncode, ours) == (0, [])
    assert SAYS[path.stem] in done.stdout
