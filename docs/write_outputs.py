"""Run the examples of README.md and of the tutorials, and write their outputs into the pages.

``make outputs`` does this after a change to what commands print; a test runs the same examples and compares.
In a page, a ``text`` block holds the output of the ``python`` or ``sh`` block before it. All blocks of a page
run in order in one folder, which is empty at first, and its Python blocks share their variables.

Training rounds differently on another processor, so a comment in front of a ``text`` block may say how far
its output is fixed: ``<!-- numbers vary -->``, or ``<!-- lines vary -->`` where only the first line is fixed,
and this too only up to its numbers.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TUTORIALS = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.M | re.S)
NUMBER = re.compile(r"\b[0-9a-f]{12,}\b|(?:(?<=\s)[+-])?\d[\d,.]*(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where its text lies, and what the comment before it says."""

    language: str
    text: str
    note: str
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """A block that is run, and the block with its output; None if the page does not show it."""

    code: Block
    output: Block | None

    def agrees(self, printed: str) -> bool:
        """Return whether the page shows what was printed, up to what may vary."""
        if self.output is None:
            return True
        shown = self.output.text
        if self.output.note == "lines vary":
            shown, printed = shown.partition("\n")[0], printed.partition("\n")[0]
        if self.output.note:
            shown, printed = without_numbers(shown), without_numbers(printed)
        return shown == printed


def without_numbers(text: str) -> str:
    """Replace numbers and digests by #, and runs of spaces, which align them, by one."""
    return re.sub(r" +", " ", NUMBER.sub("#", text))


def examples(page: Path) -> list[Example]:
    """Return what is run of a page: its Python, and in tutorials its commands too."""
    languages = ("python",) if page == README else ("python", "sh")
    found = [
        Block(each["language"], each["text"], each["note"] or "", each.start("text"), each.end("text"))
        for each in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
    pairs = zip(found, [*found[1:], None], strict=True)
    return [
        Example(code, after if after is not None and after.language == "text" else None)
        for code, after in pairs
        if code.language in languages
    ]


def run(page: Path, folder: Path) -> list[str]:
    """Return what each example of a page prints, run in order in ``folder`` by a new interpreter."""
    # Of warnings only those of the library itself pass: they are addressed to whoever gives the advice.
    command = [sys.executable, "-W", "error", "-W", "default::UserWarning", str(Path(__file__).resolve())]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--print", str(page)],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    printed: list[str] = json.loads(done.stdout)
    return printed


def outputs(page: Path) -> Iterator[str]:
    """Yield what each example of a page prints, run in this process and this folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for example in examples(page):
        if example.code.language == "python":
            caught = io.StringIO()
            with contextlib.redirect_stdout(caught):
                exec(compile(example.code.text, str(page), "exec"), names)
            yield caught.getvalue()
        else:
            shell = ["sh", "-e", "-c", example.code.text]
            yield subprocess.run(shell, stdout=subprocess.PIPE, text=True, check=True).stdout


def rewritten(page: Path, printed: list[str]) -> str:
    """Return the page with all outputs of this run, or as it is if they differ in numbers alone."""
    text = page.read_text(encoding="utf-8")
    pairs = list(zip(examples(page), printed, strict=True))
    shown = [(example.output.text, new) for example, new in pairs if example.output is not None]
    if all(without_numbers(old) == without_numbers(new) for old, new in shown):
        return text
    for example, new in reversed(pairs):
        if example.output is not None:
            text = text[: example.output.start] + new + text[example.output.end :]
    return text


def main() -> None:
    """Print the outputs of one page as JSON, or write those of all pages."""
    if sys.argv[1:2] == ["--print"]:
        json.dump(list(outputs(Path(sys.argv[2]))), sys.stdout)
        return
    for page in [README, *TUTORIALS]:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(rewritten(page, run(page, Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
