"""Let no one in: keys, scopes, limits, and a hostile list; each is refused and the service lives on."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_cases import logged, people, served

from veritracer.app.serve import auth
from veritracer.app.serve.auth import Guard, add_key
from veritracer.app.serve.settings import Settings
from veritracer.errors import ServiceError

PARTS = ("expected", "received", "remedy")
LIMIT = 20_000
ROW = dict(people()[0])
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Keys by their scope, and the file of their hashes."""
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {
        scope: add_key(path, f"the-{scope}", [scope])
        for scope in ("decide", "issue", "audit", "erase", "admin")
    }
    return {**made, "file": str(path)}


@pytest.fixture(scope="module")
def log_lines() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def guarded(
    settings: Settings, keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory, log_lines: io.StringIO
) -> Iterator[str]:
    """The address of a service with keys and tight limits."""
    tight = replace(
        settings,
        keys=Path(keys["file"]),
        ledger=str(tmp_path_factory.mktemp("guarded") / "l.db"),
        most_bytes=LIMIT,
        most_rows=20,
        body_timeout=0.6,
    )
    with logged(log_lines), served(tight) as address:
        yield address


@pytest.fixture
def client(guarded: str, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded, headers={"Authorization": f"Bearer {keys['admin']}"}) as made:
        yield made
        assert made.get("/readyz").status_code == 200, "the service is still alive"


def refused(answer: httpx.Response, *codes: int) -> dict[str, Any]:
    assert answer.status_code in codes, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert all(problem[part] for part in PARTS)
    assert problem["request_id"] == answer.headers["x-request-id"]
    return dict(problem)


SCOPES = [
    ("POST", "/v1/decisions", "decide"),
    ("POST", "/v1/recourse", "decide"),
    ("POST", "/v1/certificates", "decide"),
    ("POST", "/v1/promises", "issue"),
    ("GET", "/v1/promises/1", "issue"),
    ("DELETE", "/v1/promises/1", "erase"),
    ("POST", "/v1/erasures", "erase"),
    ("GET", "/v1/ledger", "audit"),
    ("POST", "/v1/ledger/verify", "audit"),
    ("GET", "/v1/audits", "audit"),
]


@pytest.mark.parametrize(("method", "path", "scope"), SCOPES)
def test_each_endpoint_asks_for_its_scope(
    guarded: str, keys: dict[str, str], method: str, path: str, scope: str
) -> None:
    with httpx.Client(base_url=guarded) as client:
        refused(client.request(method, path), 401)
        other = "decide" if scope != "decide" else "erase"
        refused(client.request(method, path, headers={"X-API-Key": keys[other]}), 403)
        for held in {scope, "admin"}:
            answer = client.request(method, path, headers={"Authorization": f"Bearer {keys[held]}"})
            assert answer.status_code not in (401, 403)


@pytest.mark.parametrize("path", ["/v1/model", "/metrics", "/openapi.json"])
def test_any_key_will_do_where_nobody_is_spoken_of(guarded: str, keys: dict[str, str], path: str) -> None:
    refused(httpx.get(guarded + path), 401)
    assert httpx.get(guarded + path, headers={"X-API-Key": keys["erase"]}).status_code == 200


def test_forged_keys(
    settings: Settings, keys: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "PAUSE", 600.0)
    guard = Guard(Path(keys["file"]))
    good = keys["decide"]
    assert guard.find(good) is not None
    other = add_key(tmp_path / "other.json", "the-decide", ["decide"])
    forged = [
        good[:-1],
        good + "x",
        good.replace("the-decide", "the-admin"),
        other,
        "",
        "vt__",
        "vt_the-decide_",
        "\ud800",
    ]
    assert [guard.find(key) for key in forged] == [None] * len(forged)
    text = Path(keys["file"]).read_text()
    assert good not in text
    assert good.rpartition("_")[2] not in text
    assert Path(keys["file"]).stat().st_mode & 0o077 == 0
    guarded = replace(settings, keys=Path(keys["file"]), ledger=None)
    with served(guarded) as url:
        codes = [httpx.get(f"{url}/v1/model", headers={"X-API-Key": "vt_a_b"}).status_code for _ in range(25)]
        known_key = httpx.get(f"{url}/v1/model", headers={"X-API-Key": good}).status_code
    assert codes == [401] * 20 + [429] * 5
    assert known_key == 200  # whatever others tried from the same address


def test_wrong_keys_of_one_client_harm_no_other_behind_a_proxy(
    settings: Settings, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy on this machine is trusted to name its clients; without that trust they are one."""
    monkeypatch.setattr(auth, "PAUSE", 600.0)
    guarded = replace(settings, keys=Path(keys["file"]), ledger=None)

    def status(url: str, client: str, key: str = "vt_a_b") -> int:
        headers = {"X-API-Key": key, "X-Forwarded-For": client}
        return httpx.get(f"{url}/v1/model", headers=headers, timeout=30).status_code

    for trusted, of_another in [("127.0.0.1", 401), ("192.0.2.99", 429)]:
        with served(replace(guarded, forwarded_allow_ips=trusted)) as url:
            assert [status(url, "192.0.2.1") for _ in range(21)] == [401] * 20 + [429]
            assert status(url, "192.0.2.2") == of_another
            assert [status(url, f"192.0.2.{i}", keys["decide"]) for i in (1, 2)] == [200, 200]


def test_alternatives_count_as_rows(client: httpx.Client) -> None:
    """Twenty counterfactuals are the limit of this service, however they are asked for."""
    for rows, n in [(11, 2), (1, 21)]:
        body = {"rows": [ROW] * rows, "options": {"n": n, "time_budget": 0.01}}
        problem = refused(client.post("/v1/recourse", json=body), 413)
        assert problem["received"] == str(rows * n)
    body = {"rows": [ROW] * 10, "options": {"n": 2, "time_budget": 0.01}}
    assert client.post("/v1/recourse", json=body, timeout=60).status_code == 200


@pytest.mark.parametrize("cell", ['"' + "x" * 900_000 + '"', "9" * 900_000, "[" * 900_000])
def test_a_huge_cell_is_a_mistake_of_the_client(url: str, cell: str) -> None:
    for name in ("job", "income"):
        row = json.dumps({**ROW, name: "CELL"}).replace('"CELL"', cell)
        answer = httpx.post(f"{url}/v1/recourse", content=f'{{"rows": [{row}]}}', headers=JSON, timeout=60)
        assert len(refused(answer, 400, 422)["received"]) < 200
        form = {**{f"f.{k}": str(v) for k, v in ROW.items()}, f"f.{name}": cell, "n": "1"}
        page = httpx.post(f"{url}/case", data=form, headers={"Origin": url}, timeout=60)
        assert page.status_code in (413, 422)


def test_browsers_stay_with_tls(client: httpx.Client) -> None:
    proxied = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
    for path in ("/healthz", "/", "/nowhere"):
        told = client.get(path, headers=proxied).headers
        assert told["strict-transport-security"] == "max-age=31536000"
        assert "strict-transport-security" not in client.get(path).headers


def test_a_public_address_needs_keys(saved: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(ServiceError, match="expected API keys"):
            Settings(model=saved / "model", host=host).checked()
    for host in ("127.0.0.1", "::1", "localhost"):
        Settings(model=saved / "model", host=host).checked()


DEEP = "[" * 100_000
HOSTILE: list[tuple[str, str, Any, dict[str, str], tuple[int, ...]]] = [
    ("oversize", "/v1/recourse", b"x" * (LIMIT + 1), {}, (413,)),
    ("deep lists", "/v1/recourse", DEEP[: LIMIT - 10].encode(), {}, (400, 422)),
    ("deep objects", "/v1/recourse", b'{"a":' * 3000, {}, (400, 422)),
    ("not JSON", "/v1/recourse", b"\xff\xfe", {}, (400, 422)),
    ("NaN", "/v1/recourse", json.dumps({"rows": [{**ROW, "income": float("nan")}]}).encode(), {}, (422,)),
    ("infinity", "/v1/recourse", b'{"rows": [{"income": 1e999}]}', {}, (422,)),
    (
        "a huge number",
        "/v1/recourse",
        json.dumps({"rows": [{**ROW, "income": 10**400}]}).encode(),
        {},
        (422,),
    ),
    (
        "half a character",
        "/v1/recourse",
        json.dumps({"rows": [{**ROW, "job": "\ud800"}]}).encode(),
        {},
        (422,),
    ),
    (
        "a text for a number",
        "/v1/recourse",
        json.dumps({"rows": [{**ROW, "income": "1"}]}).encode(),
        {},
        (422,),
    ),
    ("true for a number", "/v1/recourse", json.dumps({"rows": [{**ROW, "age": True}]}).encode(), {}, (422,)),
    ("a list for a cell", "/v1/recourse", json.dumps({"rows": [{**ROW, "age": [1]}]}).encode(), {}, (422,)),
    ("no rows", "/v1/recourse", b'{"rows": []}', {}, (422,)),
    ("too many rows", "/v1/recourse", json.dumps({"rows": [ROW] * 21}).encode(), {}, (413,)),
    ("a column too few", "/v1/recourse", json.dumps({"rows": [{"age": 3}]}).encode(), {}, (422,)),
    ("a column too many", "/v1/recourse", json.dumps({"rows": [{**ROW, "x": 1}]}).encode(), {}, (422,)),
    (
        "an unknown option",
        "/v1/recourse",
        json.dumps({"rows": [ROW], "options": {"x": 1}}).encode(),
        {},
        (422,),
    ),
    (
        "an unknown feature",
        "/v1/recourse",
        json.dumps({"rows": [ROW], "options": {"immutable": ["x"]}}).encode(),
        {},
        (422,),
    ),
    (
        "a negative kappa",
        "/v1/recourse",
        json.dumps({"rows": [ROW], "options": {"kappa": -1}}).encode(),
        {},
        (422,),
    ),
    (
        "form instead of JSON",
        "/v1/recourse",
        b"a=1",
        {"Content-Type": "application/x-www-form-urlencoded"},
        (422,),
    ),
    ("text instead of JSON", "/v1/recourse", b"{}", {"Content-Type": "text/plain"}, (422,)),
    ("another page's request", "/v1/recourse", b"{}", {"Origin": "https://evil.example"}, (403,)),
    ("another site's request", "/v1/recourse", b"{}", {"Sec-Fetch-Site": "cross-site"}, (403,)),
    ("another name", "/v1/recourse", b"{}", {"Host": "evil.example"}, (421,)),
    ("no key of its own", "/v1/promises", b"{}", {}, (422,)),
    ("a strange key", "/v1/promises", b"{}", {"Idempotency-Key": "a b"}, (422,)),
    ("not a checksum", "/v1/ledger/verify", b'{"checksum": "../../x"}', {}, (422,)),
]


@pytest.mark.parametrize(
    ("path", "body", "headers", "codes"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_hostile_requests(
    client: httpx.Client, path: str, body: bytes, headers: dict[str, str], codes: tuple[int, ...]
) -> None:
    given = {"Content-Type": "application/json", **headers}
    refused(client.post(path, content=body, headers=given), *codes)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/promises/..%2f..%2fetc%2fpasswd",
        "/v1/promises/-1",
        "/v1/promises/99999999999999999999999999",
        "/v1/promises/1e3",
        "/v1/audits/..%2f..%2fmodel",
        "/static/..%2f..%2fi18n.py",
        "/static/../i18n.py",
    ],
)
def test_ids_that_lead_elsewhere(client: httpx.Client, path: str) -> None:
    refused(client.get(path), 404, 422)


def exchange(url: str, data: bytes, more: bytes = b"", *, patience: float = 3.0) -> bytes:
    """What the service says to these very bytes, until it closes or the patience is over.

    ``more`` is sent when the first of them were answered.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=patience) as connection:
        connection.sendall(data)
        said = connection.recv(65_536) if more else b""
        connection.sendall(more)
        try:
            while piece := connection.recv(65_536):
                said += piece
        except TimeoutError:
            said += b"<still open>"
        return said


def test_slow_and_large_bodies_are_given_up(guarded: str, keys: dict[str, str]) -> None:
    start = time.monotonic()
    head = f"POST /v1/recourse HTTP/1.1\r\nHost: {guarded[7:]}\r\nX-API-Key: {keys['decide']}\r\n"
    slow = exchange(guarded, f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode())
    assert slow.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < 5
    unfinished = (
        b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n" + b"5000\r\n" + b"a" * 0x5000
    )
    large = exchange(guarded, head.encode() + unfinished)
    assert large.startswith(b"HTTP/1.1 413")
    assert httpx.get(f"{guarded}/healthz").status_code == 200


def test_headers_can_not_be_injected(client: httpx.Client, guarded: str) -> None:
    answer = client.get("/healthz", headers={"X-Request-ID": "a" * 65})
    assert answer.headers["x-request-id"] != "a" * 65
    assert client.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    said = exchange(guarded, head + b"X-Request-ID: a\x0d\x0aX-Evil: 1\r\n\r\n")
    assert b"X-Evil" not in said
    assert exchange(guarded, b"GET /\x00 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_what_every_answer_carries(client: httpx.Client) -> None:
    for path in ("/healthz", "/nowhere", "/"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_logs_hold_nobodys_data(client: httpx.Client, keys: dict[str, str], log_lines: io.StringIO) -> None:
    body = {"rows": [ROW], "ids": ["somebody-4711"]}
    client.post("/v1/promises", json=body, headers={"Idempotency-Key": "secret-key-1"})
    client.post("/v1/recourse", json={"rows": [{**ROW, "job": "somebody-4711"}]})
    client.post("/v1/erasures", json={"id": "somebody-4711"})
    client.get("/v1/promises/1?name=somebody-4711")
    lines = log_lines.getvalue()
    assert [json.loads(line)["event"] for line in lines.splitlines()]
    for told in (
        "somebody-4711",
        str(ROW["income"]),
        "secret-key-1",
        *(k for n, k in keys.items() if n != "file"),
    ):
        assert told not in lines
    assert '"route": "/v1/promises/{number}"' in lines
    assert '"key": "the-admin"' in lines
