"""The page for people: a case, the ledger, and the audits.

It has no scripts, sessions or cookies, and keeps nothing between requests: a form carries what the next
request needs. The API key is the password of HTTP Basic. The browser's language chooses the translation.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from babel import negotiate_locale
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from veritracer.app.i18n import Translator, locales
from veritracer.app.serve.api import Service
from veritracer.app.serve.app import is_same_origin, refusal_of
from veritracer.app.serve.auth import Key, Scope, basic_key
from veritracer.app.serve.models import CHECKSUM, NoticeOptions, Row, refused, row_of
from veritracer.app.serve.operations import Job, PromiseJob
from veritracer.encoding.exact import EMPTY, Texts, as_number
from veritracer.errors import DataError, VeriTracerError, message
from veritracer.formatting import round_down
from veritracer.options import TERM, ExplainOptions

if TYPE_CHECKING:
    from starlette.datastructures import FormData

APP = Path(__file__).parents[1]
ALTERNATIVES = 3
"""Alternatives that a case shows at most."""

LISTED = 200
"""Audits and deployments that are listed."""

NOBODY = Key(name="nobody")
router = APIRouter(include_in_schema=False, routes=[Mount("/static", StaticFiles(directory=APP / "static"))])
Handler = Callable[["Visit"], Awaitable[Response]]


@dataclass
class Visit:
    """One request for a page: who makes it, in which language, and which page answers it."""

    request: Request
    service: Service
    translate: Translator
    key: Key = NOBODY
    template: str = "base.html"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def choose(self, template: str, **facts: Any) -> None:
        """Choose the page, and what it shows whether the request succeeds or is refused."""
        self.template, self.facts = template, facts

    def choose_case(self, texts: Mapping[str, str]) -> None:
        """Choose the page of a case, with these texts in its form."""
        operations = self.service.operations
        self.choose(
            "case.html",
            features=operations.model.schema_.features,
            ranges=operations.ranges,
            texts=_under(texts, "f."),
            prices=_under(texts, "price."),
            locked=list(_under(texts, "lock.")),
            n=_count(texts.get("n"), ALTERNATIVES, ALTERNATIVES),
        )

    def render(self, status: int = 200, **facts: Any) -> Response:
        """Return the page."""
        operations, format_value = self.service.operations, self.translate.format_value
        text = _templates(self.translate.locale).get_template(self.template)
        page = text.render(
            language=self.translate.locale.replace("_", "-"),
            may=self.key.may,
            has_ledger=self.service.settings.ledger is not None,
            here=self.request.url.path,
            digest=operations.digest,
            label=operations.label,
            value_text=lambda value: "–" if value is None else format_value(value),
            radius_text=lambda radius: format_value(round_down(radius, 3)),
            percent=lambda share: f"{format_value(round(100 * share))} %",
            **{**self.facts, **facts},
        )
        return Response(page, status, media_type="text/html; charset=utf-8")

    def refuse(self, error: VeriTracerError) -> Response:
        """Return the page with the reason why the request was refused."""
        refusal = refusal_of(error)
        response = self.render(refusal.status or 500, problem=str(refusal))
        if isinstance(refusal.problem, dict) and "retry_after" in refusal.problem:
            response.headers["Retry-After"] = str(refusal.problem["retry_after"])
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
            visit = Visit(request, request.app.state.service, _translator(request))
            try:
                visit.key = _admit(request, visit.service, scope)
                return await handler(visit)
            except VeriTracerError as error:
                return visit.refuse(error)

        router.add_api_route(path, handle, methods=[method], response_model=None)
        return handler

    return decorate


def _admit(request: Request, service: Service, scope: Scope | None) -> Key:
    """Return the key of the caller; forms come from our own pages."""
    text = basic_key(request) if service.guard.path is not None else None
    if request.method == "POST" and not is_same_origin(request.headers, stated=True):
        remedy = "send it from there"
        raise refused(403, "origin", "a form from this service's own pages", "another one", remedy)
    return service.guard.admit(request, text, scope)


# ---------------------------------------------------------------- the case


@page("/", "decide")
async def empty_case(visit: Visit) -> Response:
    """Show the form of an application."""
    visit.choose_case({})
    return visit.render()


@page("/case", "decide", "POST")
async def case(visit: Visit) -> Response:
    """Show the decision and what would change it, or the draft of a notice of what was chosen."""
    texts = await visit.form()
    visit.choose_case(texts)
    chosen = _count(texts.get("chosen"), -1, ALTERNATIVES - 1)
    notice = None if chosen < 0 else NoticeOptions(recipient=texts.get("recipient") or None)
    job = Job(
        "explain", [_row(visit.service, texts)], _options(texts), notice=notice, translate=visit.translate
    )
    reply = await visit.service.ask(job)
    (answer,) = reply["answers"]
    for one in answer["alternatives"]:
        one["changed"] = {change["feature"] for change in one["changes"]}
    facts = {"row": job.rows[0], "about": reply, "notes": reply["notes"]}
    if 0 <= chosen < len(answer["alternatives"]):
        expires = visit.service.settings.expires
        facts |= {"key": uuid.uuid4().hex, "expires": TERM if expires == "term" else expires}
        return visit.render(draft=answer["alternatives"][chosen], chosen=chosen, **facts)
    why = _why(visit.translate, answer["alternatives"][0]["outcome"])
    return visit.render(answer=answer, why=why, **facts)


@page("/case/issue", "issue", "POST")
async def issue(visit: Visit) -> Response:
    """Issue a promise, and show its number and notice; a form that is sent twice issues once."""
    texts = await visit.form()
    person, key = texts.get("person", "").strip(), texts.get("key", "")
    if not person or len(person) > 200:
        raise DataError(message("the applicant's number", "none", "go back and state it"))
    job = PromiseJob(
        [_row(visit.service, texts)],
        _options(texts),
        notice=NoticeOptions(recipient=texts.get("recipient", "")[:200] or None),
        translate=visit.translate,
        ids=[person],
        key=f"{visit.key.name}:page-{key[:100]}",
        content=json.dumps(texts, sort_keys=True),
        choose=[_count(texts.get("chosen"), 0, ALTERNATIVES - 1)],
        expires=texts.get("expires", "").strip() or None,
        preview=texts.get("preview", ""),
    )
    reply = await visit.service.ask(job)
    if not reply["promises"]:
        why = next((one["reason"] for one in reply["skipped"]), "none for this application")
        raise DataError(message("a counterfactual to promise", why, "see the page of the application"))
    visit.choose_case(texts)
    return visit.render(promise=reply["promises"][0])


# ---------------------------------------------------------------- the ledger and the audits


@page("/ledger", None)
async def ledger(visit: Visit) -> Response:
    """Show the state of the ledger, and one promise by its number."""
    number = visit.request.query_params.get("number", "").strip()
    visit.choose("ledger.html", number=number, **await _state(visit))
    if not number or not visit.key.may("issue"):
        return visit.render()
    if not number.isdecimal() or not 0 < int(number) < 2**63:
        raise DataError(message("the number of a promise", "something else", "it is on the notice"))
    found = await visit.service.read_ledger(visit.service.operations.promise, int(number))
    return visit.render(promise=found)


@page("/ledger/verify", "audit", "POST")
async def verify(visit: Visit) -> Response:
    """Show the state of the ledger after its chain was checked."""
    visit.choose("ledger.html", **await _state(visit))
    checksum = (await visit.form()).get("checksum", "").strip() or None
    if checksum is not None and not re.fullmatch(CHECKSUM, checksum):
        raise DataError(message("a checksum of 64 hexadecimal digits", "something else", "copy all of it"))
    ledger = visit.service.operations.ledger
    return visit.render(verified=await visit.service.read_ledger(ledger.verify, checksum))


@page("/audits", "audit")
async def audits(visit: Visit) -> Response:
    """List the audits and deployments that the ledger records."""
    found = await visit.service.read_ledger(visit.service.operations.audits)
    visit.choose("audits.html", audits=found[:LISTED])
    return visit.render()


async def _state(visit: Visit) -> dict[str, Any]:
    """Return the state of the ledger for those who may see it."""
    if not visit.key.may("audit"):
        return {}
    return {"state": await visit.service.read_ledger(visit.service.operations.state)}


# ---------------------------------------------------------------- forms


def _row(service: Service, texts: Mapping[str, str]) -> Row:
    """Return the row in the fields of a form."""
    given = _under(texts, "f.")
    values = {
        feature.name: Texts.of(feature, empty=(*EMPTY, "n/a", "na")).value(
            given.get(feature.name, "").strip()
        )
        for feature in service.operations.model.schema_.features
    }
    try:
        return row_of(service.row.model_validate(values))
    except ValidationError as error:
        listed = [{**one, "loc": ("form", *one["loc"])} for one in error.errors(include_url=False)]
        raise refusal_of(RequestValidationError(listed)) from None


def _options(texts: Mapping[str, str]) -> ExplainOptions:
    """Return the options of ``explain`` in the fields of a form; other prices than numbers are refused."""
    given = {name: text for name, text in _under(texts, "price.").items() if text.strip()}
    prices: dict[str, Any] = {
        name: text if (price := as_number(text)) is None else price for name, text in given.items()
    }
    n = _count(texts.get("n"), ALTERNATIVES, ALTERNATIVES)
    return ExplainOptions(cost=prices, immutable=tuple(_under(texts, "lock.")), n=max(1, n))


def _under(texts: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): text for name, text in texts.items() if name.startswith(prefix)}


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
    return Translator(negotiate_locale(wanted, locales(), sep="-") or "en")


@cache
def _templates(locale: str) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(APP / "templates"),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    Translator(locale).install(environment)
    return environment
