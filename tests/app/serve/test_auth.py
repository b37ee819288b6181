"""Files of keys, and clients that fail to log in."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from veritracer.app.serve import auth
from veritracer.app.serve.auth import FAILURES, Guard, KeyFile, add_key
from veritracer.errors import ServiceError


def written(folder: Path, **changed: Any) -> Path:
    """A file with one key, altered."""
    path = folder / "keys.json"
    add_key(path, "desk", ["decide"])
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return path


ENTRY = {"name": "desk", "sha256": "00" * 32, "scopes": ["decide"]}


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "other"},
        {"version": 99},
        {"keys": [{**ENTRY, "sha256": "00"}]},
        {"keys": [{**ENTRY, "scopes": ["fly"]}]},
        {"keys": [{**ENTRY, "expires": "tomorrow"}]},
        {"keys": [{"name": "desk", "scopes": ["decide"], "secret": "x"}]},
        {"keys": {}},
    ],
)
def test_a_file_that_is_none_of_keys(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = written(tmp_path, **changed)
    with pytest.raises(
        ServiceError, match=r"expected a file of API keys, got .*\(not as add-key .* make one"
    ):
        KeyFile.read(path)
    with pytest.raises(ServiceError, match="expected a file of API keys"):
        add_key(path, "other", ["decide"])


def test_a_file_without_keys(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="expected an API key in the file, got none"):
        Guard(written(tmp_path, keys=[]))
    with pytest.raises(ServiceError, match=r"\(No such file or directory\)"):
        Guard(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("name", "scopes", "said"),
    [
        ("My Desk", ["decide"], "expected a name of lower-case letters, digits and hyphens, got 'My Desk'"),
        ("desk", ["decode"], "expected a scope of API keys, got 'decode' — did you mean 'decide'"),
        ("desk", [], "expected scopes for the key, got none"),
    ],
)
def test_a_key_that_can_not_be_made(tmp_path: Path, name: str, scopes: list[str], said: str) -> None:
    with pytest.raises(ServiceError, match=said):
        add_key(tmp_path / "keys.json", name, scopes)
    assert not (tmp_path / "keys.json").exists()


def test_a_key_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old, other, new = (add_key(path, name, ["decide"]) for name in ("desk", "night", "desk"))
    guard = Guard(path)
    assert [key for key in (old, other, new) if guard.find(key)] == [other, new]


def test_keys_expire(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    ended = add_key(path, "ended", ["decide"], timedelta(seconds=-1))
    lasts = add_key(path, "lasts", ["decide"], timedelta(days=1))
    guard = Guard(path)
    assert guard.find(ended) is None
    found = guard.find(lasts)
    assert found is not None
    assert found.expires is not None


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = add_key(path, "desk", ["decide"])
    guard = Guard(path)
    assert guard.find(old) is not None
    new, other = add_key(path, "desk", ["decide"]), add_key(path, "night", ["audit"])
    assert [guard.find(key) is not None for key in (old, new, other)] == [False, True, True]
    for content in ("{", None):  # keys that may have been revoked admit nobody
        path.write_text(content) if content else path.unlink()
        with pytest.raises(ServiceError, match="a service that can read its keys") as refused:
            guard.find(new)
        assert refused.value.status == 503
    again = add_key(path, "desk", ["decide"])
    assert guard.find(again) is not None


def test_wrong_keys_are_counted_for_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(None)
    assert [guard.count_failure("a", now=0.0) for _ in range(FAILURES)] == [0.0] * FAILURES
    assert guard.count_failure("a", now=0.0) == 6.0
    assert guard.count_failure("b", now=0.0) == 0.0
    assert guard.count_failure("a", now=6.0) == 0.0
    monkeypatch.setattr(auth, "MOST_CLIENTS", 2)
    guard.count_failure("c", now=6.0)
    assert list(guard._failures) == ["a", "c"]
