"""Who uses the page, and in which language they read it.

Sessions are in memory, cookies for this site alone, forms with a token. A session belongs to a key, and has
its scopes; without keys there is one for every visitor. The cookie is random and kept hashed here; a form
without the session's own token is refused, whatever the browser says.

Languages are gettext catalogues, read from their .po files. English is the language of the source. A
catalogue is ``locale/LANGUAGE.po``; a text that it lacks is told in English. What the library itself says
(sentences, reasons, letters) is English, and is marked as such.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from veritracer.app.serve.keys import Caller
from veritracer.app.serve.problems import refused

COOKIE = "veritracer_session"
LASTS = 8 * 3600.0
MOST_SESSIONS = 10_000

PLACE = Path(__file__).parent / "locale"
SOURCE = "en"


@dataclass(frozen=True)
class Session:
    """A visitor: who they are, and the token of their forms."""

    caller: Caller
    token: str
    ends: float


@dataclass
class Sessions:
    """All visitors of the page."""

    secure: bool
    open: OrderedDict[bytes, Session] = field(default_factory=OrderedDict)

    def of(self, request: Request) -> Session | None:
        """The session of a request, if it has one that lasts."""
        found = self.open.get(_hashed(request.cookies.get(COOKIE, "")))
        return found if found is not None and found.ends > time.time() else None

    def begin(self, caller: Caller) -> tuple[str, Session]:
        """A new session, and the cookie that it is known by."""
        cookie = secrets.token_urlsafe(32)
        session = Session(caller, secrets.token_urlsafe(32), time.time() + LASTS)
        self.open[_hashed(cookie)] = session
        while len(self.open) > MOST_SESSIONS:
            self.open.popitem(last=False)
        return cookie, session

    def give(self, response: Response, cookie: str) -> None:
        """Set the cookie: for this site alone, and for no script."""
        response.set_cookie(
            COOKIE, cookie, max_age=int(LASTS), httponly=True, secure=self.secure, samesite="strict", path="/"
        )

    def end(self, request: Request, response: Response) -> None:
        """Forget the session."""
        self.open.pop(_hashed(request.cookies.get(COOKIE, "")), None)
        response.delete_cookie(COOKIE, path="/")


def check_token(session: Session, given: object) -> None:
    """Refuse a form that was not made for this session."""
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), session.token.encode()):
        remedy = "load the page again, and send it from there"
        raise refused(403, "form", "a form of this session", "another", remedy)


def _hashed(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).digest()


def languages() -> tuple[str, ...]:
    """The languages that there are, English first."""
    return (SOURCE, *sorted(path.stem for path in PLACE.glob("*.po")))


@cache
def catalogue(language: str) -> dict[str, str]:
    """The texts of a language by the English ones."""
    if language not in languages() or language == SOURCE:
        return {}
    return read_po((PLACE / f"{language}.po").read_text(encoding="utf-8"))


def translator(language: str) -> Callable[..., str]:
    """What gives a text in this language, with its fields filled in."""
    known = catalogue(language)

    def say(text: str, **fields: object) -> str:
        said = known.get(text) or text
        return said.format(**fields) if fields else said

    return say


def preferred(header: str) -> str:
    """The first language of an Accept-Language header that there is.

    >>> preferred("fr, de-AT;q=0.8, en;q=0.5"), preferred("")
    ('de', 'en')
    """
    wanted = []
    for i, part in enumerate(header.split(",")[:20]):
        name, _, weight = part.strip().partition(";q=")
        try:
            wanted.append((-float(weight or 1), i, name.partition("-")[0].casefold()))
        except ValueError:
            continue
    return next((name for _, _, name in sorted(wanted) if name in languages()), SOURCE)


def read_po(text: str) -> dict[str, str]:
    r"""The translations in the text of a .po file: no plurals, no contexts.

    >>> read_po('msgid "yes"\nmsgstr ""\n"j"\n"a"\n')
    {'yes': 'ja'}
    """
    found: dict[str, str] = {}
    entry: dict[str, str] = {}
    field = ""
    for raw in [*text.splitlines(), 'msgid ""']:
        line = raw.strip()
        for name in ("msgid", "msgstr"):
            if line.startswith(f"{name} "):
                if name == "msgid" and entry.get("msgid") and entry.get("msgstr"):
                    found[entry["msgid"]] = entry["msgstr"]
                entry = {} if name == "msgid" else entry
                field, line = name, line.removeprefix(f"{name} ")
        if line.startswith('"'):
            entry[field] = entry.get(field, "") + str(ast.literal_eval(line))
    return found
