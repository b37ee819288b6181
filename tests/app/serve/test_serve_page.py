"""The page in a real browser: a whole case, ledger and audits, the keyboard, a phone, and axe."""

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

from optional import chromium
from veritracer.app.serve.auth import add_key
from veritracer.app.serve.settings import Settings

BROWSER = chromium()
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
TEMPLATES = Path(__file__).parents[3] / "src" / "veritracer" / "app" / "templates"
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
    """A page of somebody with a key; what the policy complains of fails the test."""
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB"}
    options |= getattr(request, "param", {})
    login = {"username": "desk", "password": site[1]}
    context = browser.new_context(base_url=site[0], http_credentials=login, **options)
    context.set_default_timeout(60_000)
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto("/")
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


def fits(page: Any) -> bool:
    """Return whether everything is on one screen."""
    return bool(page.evaluate("document.documentElement.scrollHeight <= window.innerHeight"))


@needs_browser
def test_the_whole_path_of_a_case(page: Any) -> None:
    assert fits(page)
    check_accessibility(page)
    shot(page, "empty")
    fill(page, people()[0])
    page.get_by_role("button", name="Decide and explain").click()
    assert "declined" in page.locator("#decision").inner_text()
    assert re.search(r"(Raise|Reduce|Change|State) \w+", page.locator(".choices li").first.inner_text())
    assert "proved" in page.locator("table.alternatives").inner_text()
    assert page.locator("td.changed").count() >= 1
    check_accessibility(page)
    shot(page, "result")
    row = page.locator("table.alternatives tr", has=page.locator("td.changed")).first
    changed = row.locator("th").text_content()
    page.locator("details summary").click()
    page.get_by_label(f"Lock {changed}", exact=True).check()
    page.get_by_role("button", name="Decide and explain").click()
    for line in page.locator("table.alternatives tr", has=page.locator("td.changed")).all():
        assert line.locator("th").text_content() != changed
    page.get_by_label(f"Lock {changed}", exact=True).uncheck()
    page.get_by_role("button", name="Decide and explain").click()
    page.get_by_role("button", name="Notice of alternative 1").click()
    assert page.locator("#draft").inner_text() == "Draft of the notice"
    assert page.locator(".notice").inner_text().startswith("DRAFT")
    assert "We commit" not in page.locator(".notice").inner_text()
    page.emulate_media(media="print")
    assert page.locator(".draft-mark").is_visible()
    page.emulate_media(media="screen")
    check_accessibility(page)
    shot(page, "notice")
    assert fits(page)
    page.fill("#person", "customer-1")
    page.fill("#recipient", "Ms <b>Doe</b>")
    page.get_by_role("button", name="Issue the promise").click()
    said = page.locator("[role=status]").inner_text()
    number = re.search(r"\d+", said)
    assert number
    assert "Dear Ms <b>Doe</b>" in page.locator(".notice").inner_text()
    assert f"Promise number: {number[0]}" in page.locator(".notice").inner_text()
    assert "DRAFT" not in page.locator(".notice").inner_text()
    check_accessibility(page)
    shot(page, "issued")
    page.reload()  # the form is sent again: the same promise
    assert page.locator("[role=status]").inner_text() == said
    page.get_by_role("link", name="Ledger", exact=True).click()
    page.fill("#number", number[0])
    page.keyboard.press("Enter")
    assert "customer-1" in page.locator("#lookup ~ dl.facts").inner_text()
    check_accessibility(page)
    shot(page, "promise")
    assert fits(page)


@needs_browser
def test_the_ledger_and_the_audits(page: Any) -> None:
    page.get_by_role("link", name="Ledger", exact=True).click()
    assert fits(page)
    page.get_by_role("button", name="Verify").click()
    assert "The ledger is unchanged" in page.locator("[role=status]").inner_text()
    check_accessibility(page)
    shot(page, "ledger")
    page.get_by_role("link", name="Audits").click()
    assert "Deployment" in page.locator("table tbody").inner_text()
    check_accessibility(page)
    shot(page, "audits")


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
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip() == "Decide and explain":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#decision")
    page.wait_for_function("document.activeElement.id == 'decision'")  # autofocus follows the first paint


@needs_browser
@pytest.mark.parametrize(
    "page",
    [{"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "locale": "de-AT"}],
    indirect=True,
)
def test_a_phone_in_the_dark_and_in_german(page: Any) -> None:
    assert page.locator("html").get_attribute("lang") == "de"
    fill(page, people()[0])
    page.get_by_role("button", name="Entscheiden und erklären").click()
    assert "abgelehnt" in page.locator("#decision").inner_text()
    assert re.search(r"(Erhöhen|Verringern|Ändern|Angeben):", page.locator(".choices li").first.inner_text())
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check_accessibility(page)
    shot(page, "phone")


# ---------------------------------------------------------------- without a browser


@pytest.fixture
def visitor(url: str) -> Iterator[httpx.Client]:
    """A client that sends forms as the page's own, to a service without keys."""
    with httpx.Client(base_url=url, headers={"Origin": url}, timeout=60) as client:
        yield client


def filled(row: dict[str, Any]) -> dict[str, str]:
    """Return the fields of an application."""
    return {f"f.{name}": "" if value is None else str(value) for name, value in row.items()}


def test_a_form_says_what_is_wrong_with_it(visitor: httpx.Client) -> None:
    row = filled(people()[0])
    answer = visitor.post("/case", data=row)
    assert answer.status_code == 200
    assert 'id="decision"' in answer.text
    bad = visitor.post("/case", data={**row, "f.age": "old"})
    assert bad.status_code == 422
    assert "expected a finite number, got &#39;old&#39; at /age" in bad.text
    unclear = visitor.post("/case", data={**row, "f.savings": "1,500"})
    assert unclear.status_code == 422  # a thousand and a half, or one and a half?
    evil = visitor.post("/case", data={**row, "f.job": "<script>x</script>"})
    assert (evil.status_code, "<script>x" in evil.text) == (422, False)
    assert visitor.get("/ledger", params={"number": "<img>"}).status_code == 422


def test_forms_of_other_sites_are_refused(visitor: httpx.Client, url: str) -> None:
    row = filled(people()[0])
    assert visitor.post("/case", data=row, headers={"Origin": "http://evil.example"}).status_code == 403
    assert visitor.post("/case", data=row, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    unstated = httpx.post(f"{url}/case", data=row)
    assert unstated.status_code == 403
    assert httpx.post(
        f"{url}/case", data=row, headers={"Sec-Fetch-Site": "same-origin"}, timeout=60
    ).is_success


def test_keys_are_passwords(site: tuple[str, str], tmp_path: Path) -> None:
    with httpx.Client(base_url=site[0]) as stranger:
        asked = stranger.get("/")
        assert asked.status_code == 401
        assert asked.headers["www-authenticate"].startswith("Basic realm=")
        assert stranger.get("/", auth=("desk", "vt_desk_wrong")).status_code == 401
        assert stranger.get("/", auth=("anybody", site[1])).status_code == 200
        assert stranger.get("/", headers={"Authorization": f"Bearer {site[1]}"}).status_code == 401
        assert stranger.get("/v1/model", auth=("desk", site[1])).status_code == 401  # a password is no token
        assert "set-cookie" not in stranger.get("/", auth=("desk", site[1])).headers


def test_keys_do_not_travel_in_the_clear(site: tuple[str, str]) -> None:
    """As a proxy on the same machine says it: a client elsewhere, with and without TLS."""
    with httpx.Client(base_url=site[0], auth=("desk", site[1])) as client:
        far = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "http"}
        refused = client.get("/", headers=far)
        assert (refused.status_code, "a page over TLS" in refused.text) == (403, True)
        assert client.get("/", headers={**far, "X-Forwarded-Proto": "https"}).status_code == 200


def test_prices_of_a_form(visitor: httpx.Client) -> None:
    form = {**filled(people()[0]), "n": "1"}
    priced = visitor.post("/case", data={**form, "price.income": "1000000", "price.age": " "})
    assert priced.status_code == 200
    assert "Raise income" not in priced.text
    bad = visitor.post("/case", data={**form, "price.income": "cheap"})
    assert bad.status_code == 422
    assert "&#39;income&#39; in cost to be a valid number" in bad.text


def test_a_promise_needs_a_person_and_a_counterfactual(visitor: httpx.Client) -> None:
    form = {"n": "1", "key": "page-test"}
    nobody = visitor.post("/case/issue", data={**form, **filled(people()[0]), "person": " "})
    assert (nobody.status_code, "the applicant&#39;s number" in nobody.text) == (422, True)
    changed = visitor.post("/case/issue", data={**form, **filled(people()[0]), "person": "p", "preview": "0"})
    assert (changed.status_code, "the result that was shown" in changed.text) == (409, True)


def test_verifying_without_a_browser(visitor: httpx.Client) -> None:
    wrong = visitor.post("/ledger/verify", data={"checksum": "short"})
    assert wrong.status_code == 422
    assert 'role="alert"' in wrong.text
    assert visitor.post("/ledger/verify", data={}).status_code == 200


def test_the_language_of_the_browser(visitor: httpx.Client) -> None:
    for header, language in [("fr;q=much, de-AT;q=0.5", "de"), ("", "en"), ("xx", "en"), ("en-GB,de", "en")]:
        assert f'<html lang="{language}"' in visitor.get("/", headers={"Accept-Language": header}).text


def test_pages_hold_no_script_and_no_inline_style() -> None:
    names = ["base.html", "case.html", "ledger.html", "audits.html"]
    for path in [TEMPLATES / name for name in names]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<style|style=|\son\w+=|<script|javascript:", text), path
        assert not re.search(r"(src|href)=\"https?:", text), path
