"""The README's example runs as written, and its commands and numbers are those of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "default::UserWarning", "-c", blocks("python")[0]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == blocks("text")[0], done.stderr
    told = [line for line in done.stderr.splitlines() if line[:1] not in ("", " ")]
    assert all("AdviceWarning" in line for line in told), done.stderr


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", README, flags=re.M)) <= targets


def test_every_number_of_the_benchmarks_is_in_their_results() -> None:
    section = README.partition("## How good")[2].partition("\n## ")[0]
    section = re.sub(r"\*[^*|\n]+\*", "", section)  # in italics: the paper's own numbers
    pages = [ROOT / "docs/RESULTS.md", *(ROOT / "benchmarks/results").glob("*.md")]
    results = "".join(path.read_text(encoding="utf-8") for path in pages)
    quoted = re.findall(r"([\d.]+)×", section) + re.findall(r"([\d,]+)/s", section)
    quoted += re.findall(r"\d\.\d{3}", section)
    assert len(quoted) > 15
    assert [number for number in quoted if number not in re.findall(r"[\d.,]+\d|\d", results)] == []


def test_nothing_points_outside_of_the_repository() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert len(pages) >= 6
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "shared/" not in text, page
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
