"""Three raw tables that nobody prepared for us, each from inspect to audit through the command line.

The tables are bundled with the package statsmodels (its wheel, unpacked, is enough; nothing of it is
imported). Nothing is said about their columns but which of them is the decision, and which of its labels
people are taken to want. The transcript is
docs/strangers-tables.md:

    pip download --no-deps statsmodels==0.14.5 && unzip statsmodels-*.whl 'statsmodels/datasets/*'
    python tools/strangers_tables.py statsmodels/datasets
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "strangers-tables.md"
MOST_LINES = 60


class Table(NamedTuple):
    """A bundled table, what is said about it, and what was learned from trying it."""

    path: str
    about: str
    said: list[str]
    favourable: str
    asked: str
    wrong: str


TABLES = [
    Table(
        "anes96/anes96.csv",
        "944 voters of the American National Election Study of 1996; `vote` is 1 for Dole.",
        ["--separator", "tab", "--target", "'vote'"],
        "1",
        "The separator (the message names it), the target and its favourable label. The header has its names "
        "in apostrophes, which are part of the names then. `issue` asks for a column that says whose each "
        "row is; there is none, so one is added.",
        "Nothing was misread. The scales from 1 to 7 are taken for whole numbers, which they are, and"
        " `'age'` is protected by its name. Most advice is to change `'PID'`, the party that somebody"
        " identifies with: the notes say so, and only the user can know that it is no lever "
        "(`--immutable`).",
    ),
    Table(
        "modechoice/modechoice.csv",
        "840 rows, four ways to travel for each of 210 people; `choice` is 1 for the way that was taken.",
        ["--separator", "semicolon", "--target", "choice"],
        "1",
        "The separator, the target and its favourable label.",
        "`individual` says whose each row is, and has four rows each: it is not recognised as an "
        "identifier and learned from unless `--ignore individual` (or `--id-column`) is said. `mode` "
        "is a code from 1 to 4 and taken for a whole number; the schema can call it categorical. "
        "Gradient boosting ranks far better here, and the screen warns of it.",
    ),
    Table(
        "ccard/ccard.csv",
        "72 people with a credit card and what they spend; `OWNRENT` is 1 for those who own their home.",
        ["--target", "OWNRENT"],
        "1",
        "The target and its favourable label.",
        "72 rows are few: 14 would be held out, too few to say what the model is worth, and fit says "
        "so. `INCOMESQ` is the square of `INCOME`; nobody notices, so the advice to change one "
        "without the other can not be followed exactly (`--ignore INCOMESQ`).",
    ),
]


def main() -> None:
    """Write the page."""
    bundled = Path(sys.argv[1])
    parts = [
        "# Strangers' tables",
        "Three raw tables that come with the package statsmodels, each from `inspect` to `audit` with "
        "nothing but the schema's defaults. `python tools/strangers_tables.py` writes this page.",
    ]
    for table in TABLES:
        with tempfile.TemporaryDirectory() as folder:
            parts += _life(bundled / table.path, table, Path(folder))
    PAGE.write_text("\n\n".join(parts) + "\n")


def _life(source: Path, table: Table, folder: Path) -> list[str]:
    """The life cycle of one table, as text."""
    name = source.name
    lines = source.read_text().strip().splitlines()
    (folder / name).write_text("\n".join(lines) + "\n")
    separator = {"tab": "\t", "semicolon": ";"}.get(
        dict(zip(table.said, table.said[1:], strict=False)).get("--separator", ""), ","
    )
    numbered = [
        f"person{separator}{lines[0]}",
        *(f"p{i}{separator}{line}" for i, line in enumerate(lines[1:])),
    ]
    (folder / "people.csv").write_text("\n".join(numbered) + "\n")
    apart = table.said[:2] if "--separator" in table.said else []
    commands = [
        ["inspect", name, *table.said],
        ["fit", name, *table.said, "--favourable", table.favourable, "--out", "model"],
        ["predict", "model", name, *apart, "--out", "decisions.csv"],
        ["explain", "model", name, *apart, "--out", "recourse.csv"],
        ["certify", "model", name, "recourse.csv", *apart],
        ["report", "model", name, *apart, "--out", "report.html"],
        ["issue", "model", "people.csv", *apart, "--id-column", "person", "--ledger", "promises.db"],
        ["verify", "--ledger", "promises.db"],
        ["audit", "--ledger", "promises.db", "--model", "model"],
    ]
    told = [_told(command, folder) for command in commands]
    return [
        f"## {name}",
        table.about,
        f"**What was asked of the user.** {table.asked}",
        f"**What was wrong.** {table.wrong}",
        "```\n" + "\n\n".join(told) + "\n```",
    ]


def _told(command: list[str], folder: Path) -> str:
    """What a command said, and its exit code where it is not 0."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "veritracer", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    said = (done.stdout + done.stderr).strip().splitlines()
    cut = [*said[:MOST_LINES], "…"] if len(said) > MOST_LINES else said
    code = f"\n(exit code {done.returncode})" if done.returncode else ""
    print(f"{seconds:6.1f} s  {done.returncode}  {shlex.join(command)}", file=sys.stderr)
    return f"$ {shlex.join(['veritracer', *command])}\n" + "\n".join(line.rstrip() for line in cut) + code


if __name__ == "__main__":
    main()
