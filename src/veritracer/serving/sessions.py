"""Who uses the page: sessions in memory, cookies for this site alone, forms with a token.

A session belongs to a key, and has its scopes; without keys there is one for every visitor. The cookie is
random and kept hashed here; a form without the session's own token is refused, whatever the browser says.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from veritracer.serving.keys import Caller
from veritracer.serving.problems import refused

COOKIE = "veritracer_session"
LASTS = 8 * 3600.0
MOST = 10_000


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
        while len(self.open) > MOST:
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
