"""Write docs/reference/cli.md: every verb of the command line with its arguments, from the code.

``python docs/write_cli.py``, or ``make docs``; tests/app/cli/test_reference.py compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from veritracer.app.cli.app import app

PAGE = Path(__file__).with_name("reference") / "cli.md"
HEAD = """# The command line

Written by `make docs` from the code; a test compares the two. `veritracer VERB --help` says the same.

Tables are CSV or Parquet: a file, a URL, the answer of a database, or `-` for standard input. How they are
read and written is described in [tables.md](tables.md). Large tables are read and written in
batches; an output appears under its name only when it is complete (until then it is `NAME.partial`). Commands
that learn from a table (`fit`, `update`, `calibrate`, `report`, `inspect`) read it as a whole and need
memory for it. On a terminal there are colours and a progress bar, in a pipe plain text; `--json` prints one
document, `--quiet` nothing.

Exit codes:

- 0: done.
- 1: done, but something was not achieved: `certify` with a pair that has no proof, `verify` with a
  changed ledger, `audit` with a broken promise.
- 2: bad input. One sentence on stderr says what was expected, what was found and what to do; nothing was
  written, unless work is done in batches: those that were done stay, and the same command continues.
- 130: interrupted (Ctrl-C); nothing was written, with the same exception.

No `--out` replaces an existing file or model unless `--force` is given; a run that was stopped is continued
by the same command. `update` never replaces a model that issued promises.

Completion for your shell: `veritracer --install-completion`.
"""


def page() -> str:
    """Return the text of the page."""
    return HEAD + "".join(_verbs(typer.main.get_command(app), "veritracer"))


def _verbs(group: Any, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        label = f"{prefix} {name}"
        if hasattr(command, "commands"):
            yield from _verbs(command, label)
        else:
            yield _verb(command, label)


def _verb(command: Any, label: str) -> str:
    told = " ".join((command.help or "").split("\n\n")[0].split())
    more = [" ".join(part.split()) for part in (command.help or "").split("\n\n")[1:]]
    rows = [_row(param) for param in command.params if param.name != "help"]
    example = (command.epilog or "").removeprefix("Example: ")
    usage = " ".join([label, *(_metavar(p) for p in command.params if p.param_type_name == "argument")])
    parts = [f"\n## {label}\n", told, *more, f"```\n{usage} [OPTIONS]\n{example}\n```"]
    table = ["| argument or option | what it is | default |", "|---|---|---|", *rows]
    return "\n\n".join([*parts, "\n".join(table)]) + "\n"


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{_metavar(param)}`"
    else:
        flags = [*param.opts, *param.secondary_opts]
        metavar = "" if param.is_flag else f" {param.metavar or _kind(param)}"
        names = ", ".join(f"`{flag}{metavar}`" for flag in flags)
    help_text = " ".join((param.help or "").split()).replace("|", "\\|")
    return f"| {names} | {help_text} | {_default(param)} |"


def _kind(param: Any) -> str:
    return {"float": "NUMBER", "int": "NUMBER", "Path": "PATH"}.get(param.bare_type(), "TEXT")


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default is None or param.default == "" or param.default == []:
        return ""
    if isinstance(param.default, bool):
        flags = param.opts if param.default else param.secondary_opts
        return f"`{flags[0]}`" if flags else ""
    return f"`{param.default}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
