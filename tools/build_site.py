"""The documentation as a site: stages what it is made of, builds it, and fails where a link leads nowhere.

``python tools/build_site.py`` writes ``out/site``. Pages keep the places that they have in the repository, so
that a link works on both; what they link to outside of ``docs`` (stored results, pictures, a catalogue) is
staged with them.
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
    """Every page with all that it links to, transitively; the files that were staged."""
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
