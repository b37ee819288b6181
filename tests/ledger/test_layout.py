"""What a ledger's bytes are read as, and what is said of bytes that nobody wrote so."""

from __future__ import annotations

import sys
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from veritracer.errors import DataError, LedgerError
from veritracer.ledger.chain import BEGINNING, stored_link
from veritracer.ledger.records import HEADER, from_json, headers, make_cipher, numbers_of, table_of, to_json
from veritracer.times import parse_expiry


def test_headers_of_another_layout_are_refused() -> None:
    whole = np.zeros(2, HEADER)
    whole["layout"] = 1
    blobs = [whole[i : i + 1].tobytes() for i in range(2)]
    assert headers(blobs)["layout"].tolist() == [1, 1]
    whole["layout"] = 200
    for wrong in ([blobs[0][:-1], blobs[1]], [whole[:1].tobytes()]):
        with pytest.raises(LedgerError, match=r"expected headers of layout .*, got others — run veritracer"):
            headers(wrong)


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
