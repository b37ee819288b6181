"""What a ledger's bytes are read as, and what is said of bytes that nobody wrote so."""

from __future__ import annotations

import math
import sys
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from veritracer.errors import DataError, LedgerError
from veritracer.ledger.chain import BEGINNING, stored_link
from veritracer.ledger.records import (
    canonical,
    from_json,
    headers,
    joined,
    make_cipher,
    numbers_of,
    separated,
    table_of,
    to_json,
)
from veritracer.times import parse_expiry

GOOD = {
    "certified": True,
    "conditional": False,
    "expires": None,
    "favourable": False,
    "kappa": 0.1,
    "method": "ibp",
    "original": "encrypted",
    "radius": 0.2,
    "region": True,
    "time": 5.0,
    "worst_logit": -1.0,
}


def test_headers_are_read_as_one_array() -> None:
    found = headers([canonical(GOOD), canonical({**GOOD, "expires": 7.0, "original": "plain"})])
    assert found["expires"].tolist() == [math.inf, 7.0]
    assert found["encrypted"].tolist() == [True, False]
    assert (found["radius"].tolist(), found["region"].tolist()) == ([0.2, 0.2], [True, True])
    assert len(headers([])) == 0


@pytest.mark.parametrize("wrong", [b"", b"[]", b"{}", b"x" * 44, canonical({**GOOD, "kappa": "much"})])
def test_headers_that_no_writer_writes_are_refused(wrong: bytes) -> None:
    for blobs in ([wrong], [canonical(GOOD), wrong]):
        with pytest.raises(LedgerError, match=r"expected headers of promises, got others — .*run veritracer"):
            headers(blobs)


def test_parts_are_separated_as_they_were_joined() -> None:
    for numbers, text in ((b"", b"{}"), (b"12\n45678", b""), (b"\x00" * 16, b'{"a": 1}')):
        assert separated(joined(numbers, text)) == (numbers, text)
    assert joined(b"1", b"2") != joined(b"12", b"")


def test_numbers_come_in_whole_rows() -> None:
    row = np.arange(3.0).tobytes()
    assert numbers_of([row, row], 3).tolist() == [[0.0, 1.0, 2.0]] * 2
    assert numbers_of([], 3).shape == torch.Size([0, 3])
    with pytest.raises(LedgerError, match="expected 3 numbers in each row, got 40 bytes in all"):
        numbers_of([row, row[:-8]], 3)


def test_rows_are_tables_again() -> None:
    pd.testing.assert_frame_equal(table_of([{"a": 1, "b": "x"}], ["b"]), pd.DataFrame({"b": ["x"]}))
    with pytest.raises(LedgerError, match="expected values of a, b, got rows without some of them"):
        table_of([{"a": 1}], ["a", "b"])
    with pytest.raises(LedgerError, match="rows without some of them"):
        table_of([None], ["a"])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [float("nan"), "half \ud800", datetime(2027, 1, 1), {1}])
def test_what_json_has_no_word_for_is_not_written(value: object) -> None:
    assert from_json(to_json({"a": "ü", "b": None})) == {"a": "ü", "b": None}
    with pytest.raises(DataError, match="expected rows that can be written as JSON"):
        to_json({"a": value})


@pytest.mark.parametrize("text", [b"[1]", b"{", b"\xff", b"[" * 100_000, None])
def test_what_is_no_row_is_not_read(text: bytes) -> None:
    with pytest.raises(LedgerError, match="expected a row as JSON"):
        from_json(text)


def test_a_link_has_its_length() -> None:
    assert stored_link(None) == BEGINNING
    assert stored_link(memoryview(b"a" * 32)) == b"a" * 32
    for wrong in (b"short", "a" * 32):
        with pytest.raises(LedgerError, match=r"expected a link of 32 bytes.*run veritracer verify"):
            stored_link(wrong)


def test_an_install_that_can_not_encrypt_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(LedgerError, match=r"expected the package cryptography.*veritracer\[encryption\]"):
        make_cipher(b"key")


def test_a_promise_may_never_end() -> None:
    assert parse_expiry(" never ") is None
