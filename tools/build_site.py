"""Build the documentation as a site in ``out/site``, and fail if a link is broken.

Pages keep their paths in the repository, so the same links work in both places. Files that they link to
outside of ``docs``, such as stored results and pictures, are copied too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "out" / "site-source"
LINK = re.compile(r"\]\(([^)#\s]+)")


def stage() -> list[Path]:
    """Copy every page and every file that it links to, transitively; return the copied files."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    waiting = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    staged: list[Path] = []
    while waiting:
        page = waiting.pop(0)
        if page in staged:
            continue
        staged.append(page)
        target = SOURCE / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
        if page.suffix == ".md":
            links = [page.parent / link for link in LINK.findall(page.read_text(encoding="utf-8"))]
            waiting += [link.resolve() for link in links if link.is_file()]
    return staged


if __name__ == "__main__":
    stage()
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=ROOT, check=False
    )
    sys.exit(built.returncode)
