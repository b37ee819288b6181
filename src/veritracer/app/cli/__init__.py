"""The command ``veritracer``: its exit codes, and its one-line errors.

Exit codes: 0 done, 1 done but something was not achieved, 2 bad input (one sentence on stderr, nothing
half-written), 130 interrupted. A bug in the library is a traceback: it must not look like a mistake of the
user.

The verbs are in ``app``, which needs the extra ``cli``; this module does not, so that it can say so.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

from veritracer.errors import VeriTracerError, message

BAD_INPUT, INTERRUPTED = 2, 130

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors when there is no space left."""

EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "pyarrow": "cli",
    "fsspec": "cli",
    "joblib": "cli",
    "matplotlib": "report",
    "veritracer_bench": "bench",
    "jinja2": "report",
    "babel": "report",
    "markupsafe": "report",
    "sqlalchemy": "ledger",
    "psycopg": "postgres",
    "cryptography": "encryption",
    **dict.fromkeys(("fastapi", "httpx", "multipart", "prometheus_client", "starlette", "uvicorn"), "serve"),
}
"""The extra that brings each package that the base install lacks."""


def main() -> NoReturn:
    """Run the command line, and exit."""
    pressed = _listen()
    try:
        code = _obeyed()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        if not pressed:  # an import that Ctrl-C cut short fails in many ways
            raise
        code = INTERRUPTED
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say("interrupted", code)
    sys.exit(code)


def _listen() -> list[int]:
    """Return a list that is filled when Ctrl-C is pressed; a caller's own handler stays."""
    pressed: list[int] = []

    def listen(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    alone = threading.current_thread() is threading.main_thread()
    if alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, listen)
    return pressed


def _obeyed() -> int:
    """Run the command line; print its error, if any, and return the exit code."""
    try:
        from veritracer.app.cli.app import run

        return run()
    except VeriTracerError as error:
        return _say(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough: say nothing more, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        remedy = "free some space, or write elsewhere"
        return _say(message("room for the output", os.strerror(error.errno or 0), remedy), BAD_INPUT)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        remedy = f"pip install 'veritracer[{EXTRAS[package]}]'"
        return _say(message(f"the package {package}", "an install without it", remedy), BAD_INPUT)


def _say(sentence: str, code: int) -> int:
    """Write the sentence to stderr on one line, and return ``code``."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return code
