"""The command ``veritracer``: what it exits with, and the one sentence that it says when it can not go on.

Exit codes: 0 done, 2 bad input (one sentence on stderr, nothing half-written), 130 interrupted. A bug in
the library is a traceback: it must not look like a mistake of the user.

The verbs are in ``commands``, which needs the extra ``cli``; this module does not, so that it can say so.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from veritracer.errors import VeriTracerError, message

BAD_INPUT, INTERRUPTED = 2, 130

EXTRAS = {"typer": "cli", "rich": "cli", "matplotlib": "report"}
"""Which extra brings a package that the base install does not have."""


def main() -> NoReturn:
    """Run the command line, and exit."""
    try:
        from veritracer.cli.commands import run

        code = run()
    except VeriTracerError as error:
        code = _say(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        remedy = f"pip install 'veritracer[{EXTRAS[package]}]'"
        code = _say(message(f"the package {package}", "an install without it", remedy), BAD_INPUT)
    if code == INTERRUPTED:
        _say("interrupted", code)
    sys.exit(code)


def _say(sentence: str, code: int) -> int:
    """``code``, after the sentence was written to stderr, on one line."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return code
