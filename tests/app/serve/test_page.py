"""The page in a real browser: a case worker's whole path, compliance, the keyboard, a phone, and axe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_cases import people, served
from veritracer.app.serve.visitors import catalogue, languages

from optional import chromium
from veritracer.app.serve.app import Settings
from veritracer.app.serve.auth import add_key

BROWSER = chromium()
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
SOURCE = Path(__file__).parents[3] / "src" / "veritracer" / "app" / "serve"
SHOTS = os.environ.get("VERITRACER_SCREENSHOTS")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium that starts is installed")


@pytest.fixture(scope="module")
def site(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a service with keys and a ledger of its own, and a key."""
    folder = tmp_path_factory.mktemp("pages")
    key = add_key(folder / "keys.json", "desk", ["admin"])
    with served(replace(settings, keys=folder / "keys.json", ledger=str(folder / "l.db"))) as url:
        yield url, key


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any, site: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of a visitor who is logged in; what a script or the policy complains of fails the test."""
    options: dict[str, Any] = getattr(request, "param", {})
    context = browser.new_context(base_url=site[0], locale="en-GB", **options)
    context.set_default_timeout(15_000)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto("/login")
    opened.fill("#key", site[1])
    opened.press("#key", "Enter")
    opened.wait_for_url("**/")
    yield opened
    context.close()
    assert said == []


def shot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


def check_accessibility(page: Any) -> None:
    """No violation that axe calls serious or critical."""
    # Evaluated by the browser's own debugging channel: the page's policy would not let a script in.
    page.evaluate(AXE)
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    grave = [
        (v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert grave == []


def fill(page: Any, row: dict[str, Any]) -> None:
    for name, value in row.items():
        field = page.locator(f'[id="f.{name}"]')
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option("" if value is None else str(value))
        else:
            field.fill("" if value is None else str(value))


@needs_browser
def test_the_whole_path_of_a_case_worker(page: Any) -> None:
    check_accessibility(page)
    shot(page, "empty")
    fill(page, people()[0])
    page.get_by_role("button", name="Decide and advise").click()
    assert "declined" in page.locator("#decision").inner_text()
    advice = page.locator("article.advice").first
    assert re.search(r"(Raise|Reduce|Change|State) \w+", advice.inner_text())
    assert "proved" in advice.inner_text()
    assert advice.locator("tr.changed").count() >= 1
    check_accessibility(page)
    shot(page, "advice")
    changed = advice.locator("tr.changed th").first.inner_text()
    page.locator("details summary").click()
    page.get_by_label(f"Lock {changed}", exact=True).check()
    page.get_by_role("button", name="Decide and advise").click()
    for line in page.locator("article.advice tr.changed th").all():
        assert line.inner_text() != changed
    page.get_by_label(f"Lock {changed}", exact=True).uncheck()
    page.get_by_role("button", name="Decide and advise").click()
    page.get_by_role("button", name="Choose advice 1").click()
    assert page.locator("h1").inner_text() == "Draft of the letter"
    assert page.locator(".letter").inner_text().startswith("DRAFT")
    assert "We commit" not in page.locator(".letter").inner_text()
    page.emulate_media(media="print")
    assert page.locator(".draft-mark").is_visible()
    page.emulate_media(media="screen")
    check_accessibility(page)
    shot(page, "letter")
    page.fill("#person", "customer-1")
    page.fill("#recipient", "Ms <b>Doe</b>")
    page.get_by_role("button", name="Issue the promise").click()
    said = page.locator("[role=status]").inner_text()
    number = re.search(r"\d+", said)
    assert number
    assert "Dear Ms <b>Doe</b>" in page.locator(".letter").inner_text()
    assert f"Promise number: {number[0]}" in page.locator(".letter").inner_text()
    assert "DRAFT" not in page.locator(".letter").inner_text()
    check_accessibility(page)
    shot(page, "issued")
    page.reload()  # the form is sent again: the same promise
    assert page.locator("[role=status]").inner_text() == said
    page.get_by_role("link", name="Look up a promise").click()
    page.fill("#number", number[0])
    page.keyboard.press("Enter")
    assert "customer-1" in page.locator("dl.facts").inner_text()
    check_accessibility(page)


@needs_browser
def test_compliance(page: Any) -> None:
    page.get_by_role("link", name="Compliance").click()
    check_accessibility(page)
    page.get_by_role("button", name="Verify the chain").click()
    assert "is what was written" in page.locator("[role=status]").inner_text()
    assert "Deployment" in page.locator("table tbody").inner_text()
    shot(page, "compliance")


@needs_browser
def test_the_keyboard_alone(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    for name, value in people()[0].items():
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == f"f.{name}"
        page.keyboard.type("" if value is None else str(value))
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter") if page.evaluate("document.activeElement.tagName") == "INPUT" else None
    for _ in range(12):
        if page.evaluate("document.activeElement.textContent").strip() == "Decide and advise":
            break
        page.keyboard.press("Tab")
    if page.locator("#decision").count() == 0:
        page.keyboard.press("Enter")
    page.wait_for_selector("#decision")
    assert page.evaluate("document.activeElement.id") == "decision"


@needs_browser
@pytest.mark.parametrize(
    "page",
    [{"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "extra_http_headers": {}}],
    indirect=True,
)
def test_a_phone_in_the_dark_and_in_german(page: Any) -> None:
    page.get_by_role("link", name="Deutsch").click()
    assert page.locator("html").get_attribute("lang") == "de"
    fill(page, people()[0])
    page.get_by_role("button", name="Entscheiden und beraten").click()
    assert "abgelehnt" in page.locator("#decision").inner_text()
    assert re.search(r"(Erhöhen|Verringern|Ändern) Sie", page.locator("article.advice").first.inner_text())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check_accessibility(page)
    shot(page, "phone")


# ---------------------------------------------------------------- without a browser


def test_without_scripts_the_forms_do_everything(url: str) -> None:
    """A service without keys, and a client that runs no script."""
    with httpx.Client(base_url=url, follow_redirects=True, timeout=30) as client:
        token = re.search(r'name="token" value="([^"]+)"', client.get("/").text)
        assert token
        row = {f"f.{k}": "" if v is None else str(v) for k, v in people()[0].items()}
        answer = client.post("/case", data={"token": token[1], **row})
        assert answer.status_code == 200
        assert 'id="decision"' in answer.text
        bad = client.post("/case", data={"token": token[1], **row, "f.age": "old"})
        assert bad.status_code == 422
        assert "a number for &#39;age&#39;" in bad.text
        unclear = client.post("/case", data={"token": token[1], **row, "f.savings": "1,500"})
        assert unclear.status_code == 422  # a thousand and a half, or one and a half?
        evil = client.post("/case", data={"token": token[1], **row, "f.job": "<script>x</script>"})
        assert "<script>x" not in evil.text
        assert client.get("/promise", params={"number": "<img>"}).status_code == 422


def test_forms_of_others_are_refused(url: str, site: tuple[str, str]) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        client.get("/")
        assert client.post("/case", data={"token": "guessed"}).status_code == 403
        token = re.search(r'name="token" value="([^"]+)"', client.get("/").text)
        assert token
        forged = client.post("/case", data={"token": token[1]}, headers={"Origin": "http://evil.example"})
        assert forged.status_code == 403
    with httpx.Client(base_url=site[0]) as stranger:
        assert stranger.get("/").headers["location"] == "/login"
        assert stranger.post("/login", data={"key": "vt_desk_wrong"}).status_code == 401
        entered = stranger.post("/login", data={"key": site[1]})
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert site[1] not in cookie
        assert stranger.post("/v1/recourse", json={"rows": []}).status_code == 401  # a cookie is no key


def token_of(client: httpx.Client, path: str = "/") -> str:
    """The token of the session's forms."""
    found = re.search(r'name="token" value="([^"]+)"', client.get(path).text)
    assert found
    return found[1]


def filled(row: dict[str, Any]) -> dict[str, str]:
    """The fields of an application."""
    return {f"f.{name}": "" if value is None else str(value) for name, value in row.items()}


def test_coming_and_going(site: tuple[str, str]) -> None:
    with httpx.Client(base_url=site[0]) as client:
        client.post("/login", data={"key": site[1]})
        left = client.post("/logout", data={"token": token_of(client)})
        assert (left.status_code, left.headers["location"]) == (303, "/login")
        assert client.get("/").headers["location"] == "/login"
        assert "set-cookie" not in client.get("/language/xx").headers
        assert "=de;" in client.get("/language/de").headers["set-cookie"]
        assert '<html lang="de"' in client.get("/login").text
    with httpx.Client(base_url=site[0], headers={"Accept-Language": "fr;q=much, de;q=0.5"}) as client:
        assert '<html lang="de"' in client.get("/login").text


def test_prices_of_a_form(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        form = {"token": token_of(client), **filled(people()[0]), "n": "1"}
        priced = client.post("/case", data={**form, "price.income": "1000000", "price.age": " "})
        assert priced.status_code == 200
        assert "Raise income" not in priced.text
        bad = client.post("/case", data={**form, "price.income": "cheap"})
        assert bad.status_code == 422
        assert "a number as the price of &#39;income&#39;" in bad.text


def test_a_promise_needs_a_person_and_advice(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        form = {"token": token_of(client), "n": "1", "key": "page-test"}
        nobody = client.post("/case/issue", data={**form, **filled(people()[0]), "person": " "})
        assert (nobody.status_code, "the number of the applicant" in nobody.text) == (422, True)
        helpless = client.post("/case/issue", data={**form, **filled(people()[-1]), "person": "p"})
        assert (helpless.status_code, "advice to promise" in helpless.text) == (422, True)
        assert client.get("/promise").status_code == 200


def test_compliance_without_scripts(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        token = token_of(client)
        wrong = client.post("/compliance/verify", data={"token": token, "head": "short"})
        assert wrong.status_code == 422
        assert 'role="alert"' in wrong.text
        assert client.post("/compliance/verify", data={"token": token}).status_code == 200


def test_every_text_of_the_page_is_in_every_catalogue() -> None:
    assert languages() == ("en", "de")
    known = catalogue("de")
    texts: set[str] = set()
    for path in (SOURCE / "templates").glob("*.html"):
        found = re.findall(r"""\bt\((?:"([^"]*)"|'([^']*)')""", path.read_text(encoding="utf-8"))
        texts |= {a or b for a, b in found}
    source = (SOURCE / "pages.py").read_text(encoding="utf-8")
    texts |= set(re.findall(r'say\("([^"]*)"', source))
    assert len(texts) > 70
    assert texts - set(known) == set()
    for text, said in known.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", said)), text


def test_pages_hold_no_inline_script_or_style() -> None:
    for path in (SOURCE / "templates").glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<style|style=|\son\w+=|<script(?! src=)|javascript:", text), path
        assert not re.search(r"(src|href)=\"https?:", text), path
