"""Check the archives of a release: ``python tools/check_dist.py out/dist`` fails if files are missing."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

SOURCE = Path(__file__).parents[1] / "src"
IN_SDIST = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "pyproject.toml",
    "constraints.txt",
    "constraints-minimum.txt",
    "Makefile",
)


def shipped() -> set[str]:
    """Return every file of the packages in src, modules and data."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE).as_posix() for path in files}


def complaints(folder: Path) -> list[str]:
    """Return what is wrong with the two archives in the folder."""
    wheels, sdists = list(folder.glob("*.whl")), list(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        return [f"expected one wheel and one sdist in {folder}, got {len(wheels)} and {len(sdists)}"]
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = set(wheel.namelist())
    with tarfile.open(sdists[0]) as sdist:
        names = [PurePosixPath(name) for name in sdist.getnames()]
    unpacked = {PurePosixPath(*name.parts[1:]).as_posix() for name in names}
    found = [f"the wheel lacks {name}" for name in sorted(shipped() - inside)]
    strange = {name.split("/")[0] for name in inside} - {path.name for path in SOURCE.iterdir()}
    found += [f"the wheel has {name}" for name in sorted(strange) if not name.endswith(".dist-info")]
    return found + [f"the sdist lacks {name}" for name in IN_SDIST if name not in unpacked]


if __name__ == "__main__":
    wrong = complaints(Path(sys.argv[1]))
    print(*wrong or ["wheel and sdist are complete"], sep="\n")
    sys.exit(bool(wrong))
