"""The page for people: a case, the ledger, and the audits.

It has no scripts, sessions or cookies, and keeps nothing between requests: a form carries what the next
request needs. The API key is the password of HTTP Basic. The browser's language chooses the translation.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from babel import negotiate_locale
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from veritracer.app.i18n import Translator, locales
from veritracer.app.serve.api import Service, service_of
from veritracer.app.serve.app import is_same_origin, problem_response, refusal_of
from veritracer.app.serve.auth import EVERYBODY, Caller, Scope, basic_key, client_of, is_loopback
from veritracer.app.serve.models import CHECKSUM, NoticeRequest, Refusal, Row, refused, row_of
from veritracer.app.serve.operations import Job, Terms
from veritracer.encoding.exact import EMPTY, Texts
from veritracer.errors import DataError, VeriTracerError, message
from veritracer.formatting import round_down
from veritracer.options import ExplainOptions
from veritracer.schema import Feature

if TYPE_CHECKING:
    from starlette.datastructures import FormData

APP = Path(__file__).parents[1]
STATIC = {"page.css": "text/css", "icon.svg": "image/svg+xml"}
ALTERNATIVES = 3
"""Alternatives that a case shows at most."""

LISTED = 200
"""Audits and deployments that are listed."""

NOBODY = Caller("nobody", frozenset())
router = APIRouter(include_in_schema=False)
Handler = Callable[["Visit"], Awaitable[Response]]


class Field(NamedTuple):
    """One field of the form of an application."""

    name: str
    id: str
    label: str
    options: tuple[Any, ...]
    optional: bool
    changeable: bool
    low: float | None
    high: float | None


@dataclass
class Visit:
    """One request for a page: who asks, and in which language."""

    request: Request
    service: Service
    translate: Translator
    caller: Caller = NOBODY

    def render(self, name: str, status: int = 200, **facts: Any) -> Response:
        """Return a page."""
        operations, format_value = self.service.operations, self.translate.format_value
        text = _template(self.translate, name).render(
            language=self.translate.locale.replace("_", "-"),
            may=self.caller.may,
            has_ledger=self.service.settings.ledger is not None,
            here=self.request.url.path,
            digest=operations.digest,
            label=operations.label,
            value_text=lambda value: "–" if value is None else format_value(value),
            radius_text=lambda radius: format_value(round_down(radius, 3)),
            percent=lambda share: f"{format_value(round(100 * share))} %",
            **facts,
        )
        return Response(text, status, media_type="text/html; charset=utf-8")

    def refuse(self, error: Exception, name: str = "base.html", **facts: Any) -> Response:
        """Return a page that says why something was refused."""
        refusal = refusal_of(error)
        response = self.render(name, refusal.status or 500, problem=str(refusal), **facts)
        if isinstance(refusal.problem, Refusal) and refusal.problem.retry_after is not None:
            response.headers["Retry-After"] = str(refusal.problem.retry_after)
        if refusal.status == 401:
            response.headers["WWW-Authenticate"] = 'Basic realm="veritracer", charset="UTF-8"'
        return response

    async def form(self) -> dict[str, str]:
        """Return the texts of the form that was sent."""
        sent: FormData
        async with self.request.form(max_files=0, max_fields=2000) as sent:
            return {name: value for name, value in sent.items() if isinstance(value, str)}


def page(path: str, scope: Scope | None, method: str = "GET") -> Callable[[Handler], Handler]:
    """Register a handler of a page: it is called for callers with the scope, and its errors are pages."""

    def decorate(handler: Handler) -> Handler:
        async def handle(request: Request) -> Response:
            visit = Visit(request, service_of(request), _translator(request))
            try:
                visit.caller = _admit(request, visit.service, scope)
                return await handler(visit)
            except VeriTracerError as error:
                return visit.refuse(error)

        router.add_api_route(path, handle, methods=[method], response_model=None)
        return handler

    return decorate


def _admit(request: Request, service: Service, scope: Scope | None) -> Caller:
    """Return the caller; keys travel over TLS or a loopback address, forms come from our own pages."""
    secure = request.url.scheme == "https" or is_loopback(client_of(request))
    if service.guard.keys is not None and not secure:
        remedy = "use the address of its proxy, which begins with https"
        raise refused(403, "transport", "a page over TLS", "one without", remedy)
    if request.method == "POST" and not is_same_origin(request.headers, stated=True):
        remedy = "send it from there"
        raise refused(403, "origin", "a form from this service's own pages", "another one", remedy)
    if service.guard.keys is None:
        return EVERYBODY
    return service.guard.admit(request, basic_key(request), scope)


# ---------------------------------------------------------------- the case


@page("/", "decide")
async def empty_case(visit: Visit) -> Response:
    """Show the form of an application."""
    return visit.render("case.html", **_form(visit, {}))


@page("/case", "decide", "POST")
async def case(visit: Visit) -> Response:
    """Show the decision and what would change it, or the draft of a notice of what was chosen."""
    texts = await visit.form()
    chosen = _count(texts.get("chosen"), -1, ALTERNATIVES - 1)
    try:
        row = _row(visit.service, texts)
        notice = None if chosen < 0 else NoticeRequest(recipient=texts.get("recipient") or None)
        job = Job([row], _options(texts), notice=notice, translate=visit.translate)
        told = await visit.service.ask("explain", job)
    except VeriTracerError as error:
        return visit.refuse(error, "case.html", **_form(visit, texts))
    answer = told["answers"][0]
    for one in answer["alternatives"]:
        one["changed"] = {change["feature"] for change in one["changes"]}
    facts = {**_form(visit, texts), "row": row, "about": told, "notes": told["notes"]}
    if 0 <= chosen < len(answer["alternatives"]):
        draft = answer["alternatives"][chosen]
        facts |= {"key": uuid.uuid4().hex, "expires": visit.service.settings.expires}
        return visit.render("case.html", draft=draft, chosen=chosen, **facts)
    why = _why(visit.translate, answer["alternatives"][0]["outcome"])
    return visit.render("case.html", answer=answer, why=why, **facts)


@page("/case/issue", "issue", "POST")
async def issue(visit: Visit) -> Response:
    """Issue a promise, and show its number and notice; a form that is sent twice issues once."""
    texts = await visit.form()
    person, key = texts.get("person", "").strip(), texts.get("key", "")
    if not person or len(person) > 200:
        raise DataError(message("the applicant's number", "none", "go back and state it"))
    chosen = _count(texts.get("chosen"), 0, ALTERNATIVES - 1)
    terms = Terms(
        [person],
        f"{visit.caller.name}:page-{key[:100]}",
        json.dumps(texts, sort_keys=True),
        choose=[chosen],
        expires=texts.get("expires", "").strip() or None,
        preview=texts.get("preview", ""),
    )
    notice = NoticeRequest(recipient=texts.get("recipient", "")[:200] or None)
    row = _row(visit.service, texts)
    job = Job([row], _options(texts), notice=notice, translate=visit.translate, terms=terms)
    told = await visit.service.ask("issue", job)
    if not told["promises"]:
        why = next((one["reason"] for one in told["skipped"]), "none for this application")
        raise DataError(message("a counterfactual to promise", why, "see the page of the application"))
    return visit.render("case.html", promise=told["promises"][0], **_form(visit, texts))


# ---------------------------------------------------------------- the ledger and the audits


@page("/ledger", None)
async def ledger(visit: Visit) -> Response:
    """Show the state of the ledger, and one promise by its number."""
    number = visit.request.query_params.get("number", "").strip()
    facts = await _state(visit)
    if not number or not visit.caller.may("issue"):
        return visit.render("ledger.html", **facts)
    try:
        if not number.isdecimal() or not 0 < int(number) < 2**63:
            raise DataError(message("the number of a promise", "something else", "it is on the notice"))
        operations = visit.service.operations
        found = await visit.service.ledger(operations.promise, int(number), strict=True)
    except VeriTracerError as error:
        return visit.refuse(error, "ledger.html", number=number, **facts)
    return visit.render("ledger.html", number=number, promise=found, **facts)


@page("/ledger/verify", "audit", "POST")
async def verify(visit: Visit) -> Response:
    """Show the state of the ledger after its chain was checked."""
    checksum = (await visit.form()).get("checksum", "").strip() or None
    try:
        if checksum is not None and not re.fullmatch(CHECKSUM, checksum):
            raise DataError(
                message("a checksum of 64 hexadecimal digits", "something else", "copy all of it")
            )
        found = await visit.service.ledger(visit.service.operations.verify, checksum)
    except VeriTracerError as error:
        return visit.refuse(error, "ledger.html", **await _state(visit))
    return visit.render("ledger.html", verified=found, **await _state(visit))


@page("/audits", "audit")
async def audits(visit: Visit) -> Response:
    """List the audits and deployments that the ledger records."""
    found = await visit.service.ledger(visit.service.operations.audits)
    return visit.render("audits.html", audits=found[:LISTED])


async def _state(visit: Visit) -> dict[str, Any]:
    """Return the state of the ledger for those who may see it."""
    if not visit.caller.may("audit"):
        return {}
    return {"state": await visit.service.ledger(visit.service.operations.state)}


@router.get("/static/{name}", response_model=None)
async def static(request: Request, name: str) -> Response:
    """Return the style sheet or the icon."""
    if name not in STATIC:
        error = refused(404, "http", "an address of this service", "another", "go to the first page")
        return problem_response(error, request.state.request_id)
    headers = {"Cache-Control": "public, max-age=3600"}
    return Response((APP / "static" / name).read_bytes(), media_type=STATIC[name], headers=headers)


# ---------------------------------------------------------------- forms


def _form(visit: Visit, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return what the form of an application needs."""
    return {
        "features": _fields(visit.service),
        "texts": _under(texts, "f."),
        "prices": _under(texts, "price."),
        "locked": list(_under(texts, "lock.")),
        "n": _count(texts.get("n"), ALTERNATIVES, ALTERNATIVES),
    }


def _fields(service: Service) -> list[Field]:
    operations, features = service.operations, service.operations.model.schema_.features
    return [
        Field(
            one.name,
            one.name.replace(" ", "_"),
            operations.label(one.name),
            () if one.is_numeric else (*one.categories, *one.missing_codes),
            one.missing != "refuse",
            one.action != "immutable",
            known["lower"],
            known["upper"],
        )
        for one, known in zip(features, operations.description["features"], strict=True)
    ]


def _row(service: Service, texts: Mapping[str, str]) -> Row:
    """Return the row in the fields of a form."""
    given = _under(texts, "f.")
    values = {one.name: _value(one, given) for one in service.operations.model.schema_.features}
    try:
        return row_of(service.row.model_validate(values))
    except ValidationError as error:
        listed = [{**one, "loc": ("form", *one["loc"])} for one in error.errors(include_url=False)]
        raise refusal_of(RequestValidationError(listed)) from None


def _value(feature: Feature, given: Mapping[str, str]) -> Any:
    texts = Texts.of(feature, empty=(*EMPTY, "n/a", "na"))
    return texts.value(given.get(feature.name, "").strip())


def _under(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)}


def _options(texts: Mapping[str, str]) -> ExplainOptions:
    """Return what a form asks of ``explain``."""
    prices: dict[str, float] = {}
    for name, text in _under(texts, "price.").items():
        if not text.strip():
            continue
        try:
            prices[name] = float(text)
        except ValueError:
            raise DataError(message(f"a number as the price of {name!r}", "text", "give one")) from None
    n = _count(texts.get("n"), ALTERNATIVES, ALTERNATIVES)
    return ExplainOptions(cost=prices, immutable=tuple(_under(texts, "lock.")), n=max(1, n))


def _count(text: str | None, default: int, most: int) -> int:
    return min(int(text), most) if text and text.isascii() and text.isdecimal() else default


# ---------------------------------------------------------------- words


def _why(translate: Translator, outcome: str) -> str:
    """Return why there is no counterfactual."""
    say = translate.gettext
    if outcome == "impossible":
        return say("It is certain that no change open to this person alters today's decision.")
    if outcome == "too_close":
        return say("The application is so close to the border of the decision that rounding decides.")
    if outcome == "out_of_time":
        return say("The time ran out before a change was found.")
    if outcome == "unmet":
        return say("A change was found, but it does not meet what was required.")
    return say("No change was found; that does not mean that there is none.")


def _translator(request: Request) -> Translator:
    """Return the translator for the first language of the browser that there is."""
    header = request.headers.get("accept-language", "")[:200]
    wanted = [part.partition(";")[0].strip() for part in header.split(",")]
    return _translator_of(negotiate_locale(wanted, locales(), sep="-") or "en")


@cache
def _translator_of(locale: str) -> Translator:
    return Translator(locale)


def _template(translate: Translator, name: str) -> jinja2.Template:
    return _templates(translate.locale).get_template(name)


@cache
def _templates(locale: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(APP / "templates"),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    _translator_of(locale).install(environment)
    return environment
