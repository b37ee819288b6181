"""The page for people: a case worker's desk and a compliance officer's, also usable without scripts.

What a form needs to go on stands in the form itself, so that nothing of an applicant is kept between two
requests. Texts come from catalogues; what the library says is English and marked so.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from veritracer.app.serve.api import media_type
from veritracer.app.serve.keys import EVERYBODY, Scope
from veritracer.app.serve.messages import LetterAsked, Options
from veritracer.app.serve.problems import Problem, problem_of, refused
from veritracer.app.serve.rows import Column
from veritracer.app.serve.service import Service
from veritracer.app.serve.visitors import Session, Sessions, check_token, languages, preferred, translator
from veritracer.errors import DataError, ServiceError, VeriTracerError, message
from veritracer.formatting import format_value
from veritracer.options import IssueOptions

HERE = Path(__file__).parent
STATIC = {"page.css": "text/css", "icon.svg": "image/svg+xml"}
MOST_LISTED = 200
LANGUAGE = "veritracer_language"
OUTCOMES = {
    "favourable": "This application is accepted already.",
    "too_close": "Today's decision is within rounding of the other one.",
    "certified": "Proved for later models.",
    "impossible": "It is certain that no change that is open to this person alters today's decision.",
    "out_of_time": "The time ran out before an answer was found.",
    "not_found": "No answer was found; that does not mean that there is none.",
    "unmet": "An answer was found, but it does not meet what was required.",
}
router = APIRouter(include_in_schema=False)
Handler = Callable[..., Awaitable[Response]]


@dataclass
class Visit:
    """One request of a visitor: who they are, their language, and how pages are made for them."""

    request: Request
    service: Service
    session: Session

    def render(self, name: str, status: int = 200, **facts: Any) -> Response:
        """The page."""
        return html(self.request, name, status, session=self.session, **facts)

    async def form(self) -> dict[str, str]:
        """Return the texts of the form that was sent, if it is one of this session."""
        if media_type(self.request) != "application/x-www-form-urlencoded":
            raise refused(415, "media-type", "a form", "something else", "send it from the page")
        async with self.request.form(max_files=0, max_fields=2000) as sent:
            texts = {name: value for name, value in sent.items() if isinstance(value, str)}
            check_token(self.session, texts.get("token"))
            return texts


def visiting(scope: Scope | None) -> Callable[[Handler], Handler]:
    """Give the handler its visit; whoever has no session is sent to log in, what is refused is a page."""

    def decorate(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            sessions: Sessions = request.app.state.sessions
            session, cookie = sessions.of(request), None
            if session is None and service.keys is not None:
                return RedirectResponse("/login", 303)
            if session is None:
                cookie, session = sessions.begin(EVERYBODY)
            request.state.caller = session.caller.name
            try:
                service.check_scope(session.caller, scope)
                response = await handler(Visit(request, service, session))
            except VeriTracerError as error:
                response = problem_page(request, problem_of(error), session)
            if cookie is not None:
                sessions.give(response, cookie)
            return response

        handle.__name__, handle.__doc__ = handler.__name__, handler.__doc__
        return handle

    return decorate


# ---------------------------------------------------------------- coming and going


@router.get("/static/{name}", response_model=None)
async def static(name: str) -> Response:
    """One of the page's own files."""
    if name not in STATIC:
        raise refused(404, "http", "an address of this service", "another", "go to the first page")
    headers = {"Cache-Control": "public, max-age=3600"}
    return Response((HERE / "static" / name).read_bytes(), media_type=STATIC[name], headers=headers)


@router.get("/login", response_model=None)
async def login_form(request: Request) -> Response:
    """Where a key is asked for."""
    return html(request, "login.html", session=None)


@router.post("/login", response_model=None)
async def login(request: Request) -> Response:
    """Begin a session with a key."""
    service: Service = request.app.state.service
    async with request.form(max_files=0, max_fields=4) as form:
        key = str(form.get("key") or "").strip()
    try:
        caller = service.identify(key, request.client.host if request.client else "")
    except ServiceError as error:
        problem = problem_of(error)
        return html(request, "login.html", problem.status, session=None, problem=problem)
    response = RedirectResponse("/", 303)
    sessions: Sessions = request.app.state.sessions
    sessions.give(response, sessions.begin(caller)[0])
    return response


@router.post("/logout", response_model=None)
@visiting(None)
async def logout(visit: Visit) -> Response:
    """End the session."""
    await visit.form()
    response = RedirectResponse("/login", 303)
    visit.request.app.state.sessions.end(visit.request, response)
    return response


@router.get("/language/{name}", response_model=None)
async def language(name: str) -> Response:
    """Remember the language; it changes nothing else."""
    response = RedirectResponse("/", 303)
    if name in languages():
        response.set_cookie(LANGUAGE, name, max_age=31_536_000, samesite="lax", httponly=True)
    return response


# ---------------------------------------------------------------- the case worker


@router.get("/", response_model=None)
@visiting("decide")
async def empty_case(visit: Visit) -> Response:
    """An empty application."""
    return visit.render("case.html", **_case(visit, {}))


@router.post("/case", response_model=None)
@visiting("decide")
async def case(visit: Visit) -> Response:
    """The decision about an application, the advice, and what else could be tried."""
    texts = await visit.form()
    try:
        row = visit.service.columns.from_texts(_fields(texts, "f."))
        asked = _options(texts)
        told = json.loads(await visit.service.recourse([row], asked))
        facts = {**_case(visit, texts), "row": row, "answer": told["answers"][0], "about": told}
        facts["notes"] = told["notes"]
    except VeriTracerError as error:
        problem = problem_of(error)
        return visit.render("case.html", problem.status, **_case(visit, texts), problem=problem)
    return visit.render("case.html", **facts)


@router.post("/case/letter", response_model=None)
@visiting("decide")
async def letter(visit: Visit) -> Response:
    """The letter as it would be sent, to read, print and, with the scope for it, to issue."""
    texts = await visit.form()
    row = visit.service.columns.from_texts(_fields(texts, "f."))
    asked = LetterAsked(recipient=texts.get("recipient") or None)
    told = json.loads(await visit.service.recourse([row], _options(texts), asked))
    answer = told["answers"][0]
    chosen = _chosen(texts, answer)
    facts = {**_case(visit, texts), "row": row, "one": answer["alternatives"][chosen], "chosen": chosen}
    return visit.render("letter.html", **facts, key=uuid.uuid4().hex, expires=visit.service.settings.expires)


@router.post("/case/issue", response_model=None)
@visiting("issue")
async def issue(visit: Visit) -> Response:
    """The promise that was issued, with its number and its letter; sent twice it is issued once."""
    texts = await visit.form()
    person = texts.get("person", "").strip()
    if not person or len(person) > 200:
        raise DataError(message("the number of the applicant", "none", "go back and state it"))
    asked = {
        "rows": [visit.service.columns.from_texts(_fields(texts, "f."))],
        "ids": [person],
        "options": _options(texts).model_dump(),
        "choose": [int(texts.get("chosen", "0"))] if texts.get("chosen", "0").isdecimal() else [0],
        "expires": texts.get("expires", "").strip() or None,
        "letter": LetterAsked(recipient=texts.get("recipient") or None).model_dump(),
        "allow_duplicate": IssueOptions.allow_duplicate,
    }
    told = json.loads(await visit.service.issue(visit.session.caller, f"page-{texts.get('key', '')}", asked))
    if not told["promises"]:
        why = next((one["reason"] for one in told["skipped"]), "none for this application")
        raise DataError(message("advice to promise", why, "see the page of the application"))
    return visit.render("promise.html", promise=told["promises"][0], issued=True, head=told["head"])


@router.get("/promise", response_model=None)
@visiting("issue")
async def promise(visit: Visit) -> Response:
    """One promise by its number."""
    text = visit.request.query_params.get("number", "").strip()
    if not text:
        return visit.render("promise.html", promise=None)
    try:
        if not text.isdecimal() or not 0 < int(text) < 2**63:
            raise DataError(message("the number of a promise", "something else", "it is on the letter"))
        found = await visit.service.promise(int(text))
    except VeriTracerError as error:
        problem = problem_of(error)
        return visit.render("promise.html", problem.status, promise=None, problem=problem, number=text)
    return visit.render("promise.html", promise=found)


# ---------------------------------------------------------------- compliance


@router.get("/compliance", response_model=None)
@visiting("audit")
async def compliance(visit: Visit) -> Response:
    """Promises by state, the chain's head, audits."""
    return visit.render("compliance.html", **await _standing(visit))


@router.post("/compliance/verify", response_model=None)
@visiting("audit")
async def verify(visit: Visit) -> Response:
    """The same, after the chain was checked."""
    head = (await visit.form()).get("head", "").strip() or None
    try:
        found = await visit.service.verify(head)
    except VeriTracerError as error:
        problem = problem_of(error)
        return visit.render("compliance.html", 422, **await _standing(visit), problem=problem)
    return visit.render("compliance.html", **await _standing(visit), verified=found)


async def _standing(visit: Visit) -> dict[str, Any]:
    recorded = await visit.service.recorded_audits()
    return {"standing": await visit.service.standing(), "audits": recorded[:MOST_LISTED]}


# ---------------------------------------------------------------- how pages are made


def _case(visit: Visit, texts: Mapping[str, str]) -> dict[str, Any]:
    """What the form of an application needs."""
    locked = [key.removeprefix("lock.") for key in texts if key.startswith("lock.")]
    return {
        "columns": visit.service.columns.listed,
        "texts": _fields(texts, "f."),
        "prices": _fields(texts, "price."),
        "locked": locked,
        "n": texts.get("n", "3"),
        "card": visit.service.host.description,
    }


def _fields(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): text for key, text in texts.items() if key.startswith(prefix)}


def _options(texts: Mapping[str, str]) -> Options:
    """What a form asks of ``explain``."""
    prices: dict[str, float] = {}
    for name, text in _fields(texts, "price.").items():
        if not text.strip():
            continue
        try:
            prices[name] = float(text)
        except ValueError:
            raise DataError(message(f"a number as the price of {name!r}", "text", "give one")) from None
    locked = list(_fields(texts, "lock."))
    n = int(texts["n"]) if texts.get("n", "").isdecimal() else 3
    return Options.model_validate({"cost": prices or None, "lock": locked or None, "n": max(1, min(n, 5))})


def _chosen(texts: Mapping[str, str], answer: Mapping[str, Any]) -> int:
    text = texts.get("chosen", "0")
    return min(int(text) if text.isdecimal() else 0, len(answer["alternatives"]) - 1)


def html(request: Request, name: str, status: int = 200, **facts: Any) -> Response:
    """A page in the visitor's language."""
    chosen = request.cookies.get(LANGUAGE, "")
    language = chosen if chosen in languages() else preferred(request.headers.get("accept-language", ""))
    say, words = translator(language), partial(_words, language)
    session: Session | None = facts.get("session")
    text = (
        _templates()
        .get_template(name)
        .render(
            t=say,
            language=language,
            languages=languages(),
            token="" if session is None else session.token,
            may=(lambda scope: False) if session is None else session.caller.may,
            has_keys=request.app.state.service.keys is not None,
            here=request.url.path,
            words=words,
            advice=lambda change, columns: _advice(say, words, change, columns),
            outcomes=OUTCOMES,
            **facts,
        )
    )
    return Response(text, status, media_type="text/html; charset=utf-8")


def problem_page(request: Request, problem: Problem, session: Session | None) -> Response:
    """A refusal as a page."""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if "application/json" in request.headers.get("accept", ""):
        return problem.response(request.state.request_id)
    response = html(request, "problem.html", problem.status, session=session, problem=problem)
    response.headers.update(headers)
    return response


def _words(language: str, value: Any) -> str:
    """A value as people write it: in German a comma stands before the decimals.

    >>> _words("en", 1234.5), _words("de", 1234.5), _words("de", "a, b")
    ('1,234.5', '1.234,5', 'a, b')
    """
    if value is None:
        return "–"
    text = format_value(value)
    if language == "de" and not isinstance(value, str):
        return text.translate(str.maketrans(",.", ".,"))
    return text


def _advice(
    say: Callable[..., str],
    words: Callable[[Any], str],
    change: Mapping[str, Any],
    columns: tuple[Column, ...],
) -> str:
    """One change as an instruction in the visitor's language."""
    column = next(one for one in columns if one.name == change["feature"])
    before, after = change["from"], change["to"]
    fields = {"feature": column.name, "before": words(before), "after": words(after)}
    if before is None or before in column.missing_codes:
        return say("State {feature} as {after}.", **fields)
    if not column.is_numeric:
        return say("Change {feature} from {before} to {after}.", **fields)
    if after > before:
        return say("Raise {feature} from {before} to {after}.", **fields)
    return say("Reduce {feature} from {before} to {after}.", **fields)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
