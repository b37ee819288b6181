"""Entries that say something else: rewritten with all links made anew, or added behind the end."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from benchmarks.adversary.forging import APART, RECORDS, Forgery, added, append, forget, release, rewritten
from benchmarks.adversary.victims import (
    DAY,
    HASH,
    Content,
    Row,
    as_header,
    header,
    numbers,
    one,
    recommitted,
)


def said(**changes: Any) -> Callable[[bytes], bytes]:
    """A header with other values."""
    return lambda h: as_header({**json.loads(h), **changes})


def without(name: str) -> Callable[[bytes], bytes]:
    """A header without a field."""
    return lambda h: as_header({key: value for key, value in json.loads(h).items() if key != name})


def turned(name: str) -> Callable[[bytes], bytes]:
    """A header with the opposite truth value."""
    return lambda h: as_header({**json.loads(h), name: not json.loads(h)[name]})


def headers() -> dict[str, Callable[[bytes], bytes]]:
    """Changes to the header of a promise."""
    now, nan = time.time(), math.nan
    return {
        "kappa 10": said(kappa=10.0),
        "kappa 0": said(kappa=0.0),
        "kappa nan": said(kappa=nan),
        "kappa negative": said(kappa=-1.0),
        "kappa infinite": said(kappa=math.inf),
        "kappa a text": said(kappa="0.02"),
        "radius 10": said(radius=10.0),
        "radius nan": said(radius=nan),
        "worst logit -100": said(worst_logit=-100.0),
        "worst logit a list": said(worst_logit=[-1.0]),
        "expired yesterday": said(expires=now - DAY),
        "never expires": said(expires=None),
        "expires at infinity": said(expires=math.inf),
        "expires nan": said(expires=nan),
        "issued in 1971": said(time=4e7),
        "issued tomorrow": said(time=now + DAY),
        "issued nan": said(time=nan),
        "issued at infinity": said(time=math.inf),
        "conditional turned": turned("conditional"),
        "favourable turned": turned("favourable"),
        "region turned": turned("region"),
        "certified turned": turned("certified"),
        "all of them a number": said(conditional=7, favourable=7, region=7, certified=7),
        "another method": said(method="ouija"),
        "kept in another way": said(original="in a drawer"),
        "said to be encrypted": said(original="encrypted"),
        "said to be committed to": said(original="commitment"),
        "one field more": said(layout=99),
        "without kappa": without("kappa"),
        "without a time": without("time"),
        "shorter": lambda h: h[:-1],
        "longer": lambda h: h + b"\x00",
        "other spaces": lambda h: h.replace(b": ", b":"),
        "empty": lambda h: b"",
    }


def parts() -> dict[str, tuple[str, Callable[[bytes], bytes]]]:
    """Changes to the parts of a promise's record."""
    nan = struct.pack("<d", math.nan)
    return {
        "another person": ("id", lambda b: b + b"2"),
        "a person who is no text": ("id", lambda b: b"\xff\xfe"),
        "nobody": ("id", lambda b: b""),
        "other numbers": ("x_cf", lambda b: struct.pack("<d", 0.123) + b[8:]),
        "numbers beyond the range": ("x_cf", lambda b: struct.pack("<d", 1e300) + b[8:]),
        "nan among the numbers": ("x_cf", lambda b: nan + b[8:]),
        "fewer numbers": ("x_cf", lambda b: b[:-8]),
        "half a number": ("x_cf", lambda b: b[:-3]),
        "no numbers": ("x_cf", lambda b: b""),
        "other values shown": ("public", lambda b: b.replace(b'"savings": ', b'"savings": 1')),
        "unreadable values shown": ("public", lambda b: b"not JSON"),
        "a list shown": ("public", lambda b: b"[1, 2]"),
        "nothing shown": ("public", lambda b: b"{}"),
        "a category that is none": ("public", lambda b: b.replace(b'"job": "', b'"job": "astro')),
        "another original row": ("x", lambda b: struct.pack("<d", 0.321) + b[8:]),
        "a shorter original row": ("x", lambda b: b[:-8]),
        "another sentence": ("private", lambda b: b.replace(b"e", b"a")),
        "an unreadable sentence": ("private", lambda b: b"\x80not JSON"),
    }


def promises_of_each_kind(content: Content) -> dict[str, int]:
    """A promise of each way in which a row can be kept and of each model, whose record is there."""
    entries = {row["seq"]: row for row in content["entries"]}
    found = {}
    for row in content["records"]:
        entry = entries[row["seq"]]
        found.setdefault(f"model {entry['model']}, {header(entry)['original']}", row["seq"])
    return found


def rewritten_promises(content: Content) -> Iterator[Forgery]:
    """Headers and records of promises changed, with commitments and links made anew."""
    for which, seq in promises_of_each_kind(content).items():
        for name, edit in headers().items():

            def change(c: Content, seq: int = seq, edit: Any = edit) -> None:
                row = one(c, "entries", seq)
                row["header"] = edit(row["header"])

            yield rewritten(f"promise {seq} ({which}): {name}", change)
        for name, (part, edit) in parts().items():
            old = one(content, "records", seq)[part]
            new = old if old is None else edit(old)
            if new != old:
                yield rewritten(
                    f"promise {seq} ({which}): {name}",
                    lambda c, s=seq, p=part, n=new: recommitted(c, s, p, n),
                )


def rewritten_chains(content: Content, rng: np.random.Generator) -> Iterator[Forgery]:
    """Entries left out, exchanged, moved and told otherwise, all links made anew."""
    last = content["entries"][-1]["seq"]
    for seq in range(2, last + 1):
        if one(content, "entries", seq)["kind"] in ("promise", "release", "erasure", "request"):
            yield rewritten(f"entry {seq} left out, the rest renumbered", lambda c, s=seq: _renumbered(c, s))
    promises = numbers(content, "promise")
    for _ in range(8):
        a, b = sorted(rng.choice(promises, 2, replace=False).tolist())
        yield rewritten(f"promises {a} and {b} exchanged", lambda c, a=a, b=b: _exchanged(c, a, b))
    models = numbers(content, "model")
    for seq in promises[::5]:
        model = one(content, "entries", seq)["model"]
        elsewhere = next(m for m in models if m != model)
        for to in (elsewhere, 0, 1, seq, 999):
            yield rewritten(
                f"promise {seq} moved to model {to}",
                lambda c, s=seq, to=to: one(c, "entries", s).update(model=to),
            )
    for kind, changes in events().items():
        for seq in numbers(content, kind):
            for name, edit in changes.items():

                def change(c: Content, seq: int = seq, edit: Any = edit) -> None:
                    row = one(c, "entries", seq)
                    row["header"] = as_header(edit(header(row)))

                yield rewritten(f"{kind} {seq}: {name}", change)
    for seq in models:
        for name, edit in documents().items():
            yield rewritten(f"model {seq}: {name}", lambda c, s=seq, e=edit: _other_model(c, s, e))


def events() -> dict[str, dict[str, Callable[[dict[str, Any]], Any]]]:
    """Changes to what events say."""
    return {
        "release": {
            "of another promise": lambda h: {**h, "sequence": [h["sequence"][0] + 5]},
            "of no promise": lambda h: {**h, "sequence": []},
            "another reason": lambda h: {**h, "reason": "a favour"},
            "a year earlier": lambda h: {**h, "time": h["time"] - 365 * DAY},
            "a year later": lambda h: {**h, "time": h["time"] + 365 * DAY},
            "without a time": lambda h: {k: v for k, v in h.items() if k != "time"},
            "without numbers": lambda h: {k: v for k, v in h.items() if k != "sequence"},
        },
        "erasure": {
            "of one more": lambda h: {**h, "sequence": [*h["sequence"], h["sequence"][0] + 1]},
            "of none": lambda h: {**h, "sequence": []},
            "a year earlier": lambda h: {**h, "time": h["time"] - 365 * DAY},
            "without numbers": lambda h: {k: v for k, v in h.items() if k != "sequence"},
        },
        "ledger": {
            "another ledger": lambda h: {**h, "ledger": "00" * 16},
            "another format": lambda h: {**h, "format": "other"},
            "another version": lambda h: {**h, "version": 77},
            "a year earlier": lambda h: {**h, "time": h["time"] - 365 * DAY},
        },
        "model": {
            "another digest": lambda h: {**h, "digest": "0" * 64},
            "a year later": lambda h: {**h, "time": h["time"] + 365 * DAY},
            "without a digest": lambda h: {k: v for k, v in h.items() if k != "digest"},
        },
        "request": {
            "another key": lambda h: {**h, "key": "0" * 64},
            "no key": lambda h: {**h, "key": ""},
            "one promise fewer": lambda h: {**h, "first": h["first"] + 1, "count": h["count"] - 1},
            "one promise more": lambda h: {**h, "first": h["first"] - 1, "count": h["count"] + 1},
            "other promises": lambda h: {**h, "first": 4},
            "no promises": lambda h: {**h, "first": h["first"] + h["count"], "count": 0},
            "another expiry": lambda h: {**h, "expires": h["time"] + DAY},
            "a year later": lambda h: {**h, "time": h["time"] + 365 * DAY},
        },
    }


def documents() -> dict[str, Callable[[bytes, bytes], tuple[bytes, bytes]]]:
    """Changes to an issuing model, of which digest and commitments are made anew."""
    return {
        "larger radii": lambda d, t: (d.replace(b'"units": [', b'"units": [9'), t),
        "another norm": lambda d, t: (d.replace(b'"linf"', b'"l1"'), t),
        "a norm that is none": lambda d, t: (d.replace(b'"linf"', b'"l7"'), t),
        "another threshold": lambda d, t: (d.replace(b'"threshold": 0.5', b'"threshold": 0.1'), t),
        "another version": lambda d, t: (d.replace(b'"version": 1', b'"version": 9'), t),
        "a document that is none": lambda d, t: (b"not JSON", t),
        "an empty document": lambda d, t: (b"{}", t),
        "a list": lambda d, t: (b"[]", t),
        "other weights": lambda d, t: (d, t[:-1] + bytes([t[-1] ^ 1])),
        "no weights": lambda d, t: (d, b""),
        "garbage for weights": lambda d, t: (d, b"\x00" * len(t)),
    }


def _other_model(content: Content, seq: int, edit: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
    row, entry = one(content, "models", seq), one(content, "entries", seq)
    row["document"], row["tensors"] = edit(row["document"], row["tensors"])
    entry["commitments"] = sha256(row["document"]).digest() + sha256(row["tensors"]).digest()
    entry["header"] = as_header({**header(entry), "digest": sha256(row["document"]).hexdigest()})


def _renumbered(content: Content, gone: int) -> None:
    """Without an entry, everything behind it one number earlier, in all tables and headers."""

    def new(n: int) -> int:
        return n - 1 if n > gone else n

    for table in ("entries", *APART):
        content[table] = [{**row, "seq": new(row["seq"])} for row in content[table] if row["seq"] != gone]
    for row in content["entries"]:
        row["model"] = new(row["model"])
        if row["kind"] in ("release", "erasure"):
            about = header(row)
            row["header"] = as_header({**about, "sequence": [new(n) for n in about["sequence"] if n != gone]})
        if row["kind"] == "request":
            about = header(row)
            inside = about["first"] <= gone < about["first"] + about["count"]
            count = about["count"] - inside
            row["header"] = as_header({**about, "first": new(about["first"]), "count": count})


def _exchanged(content: Content, a: int, b: int) -> None:
    """Two promises with each other's numbers, in all tables."""
    for table in ("entries", *RECORDS):
        for row in content[table]:
            row["seq"] = {a: b, b: a}.get(row["seq"], row["seq"])
        content[table].sort(key=lambda row: row["seq"])


def dated_events(content: Content) -> Iterator[Forgery]:
    """Releases and erasures behind the head, of today and tomorrow, and of days before the last entry."""
    promise, last = numbers(content, "promise")[-1], max(_times(content))
    good = {"a release that anybody could make": {}, "a release a day later": {"time": time.time() + DAY}}
    for name, changes in good.items():
        yield added(name, lambda c, ch=changes: append(c, "release", release(c, **ch)), must=False)
    back = {"the second before": last - 1, "the day before": last - DAY, "in 1971": 4e7, "before 1970": -1e9}
    for name, moment in back.items():
        yield added(
            f"a release dated {name}",
            lambda c, t=moment: append(c, "release", release(c, time=t)),
            must=True,
        )
        yield added(
            f"an erasure dated {name}",
            lambda c, t=moment, p=promise: (forget(c, {p}, RECORDS), _erase(c, p, t)),
            must=True,
        )


def odd_events(content: Content) -> Iterator[Forgery]:
    """Releases and erasures behind the head that say what they should not, or in no way that can be read."""
    model, promise = numbers(content, "model")[0], numbers(content, "promise")[-1]
    for name, changes in odd_releases(promise).items():
        timeless = "time" in changes  # without a time there is no order of entries
        yield added(
            f"a release {name}", lambda c, ch=changes: append(c, "release", release(c, **ch)), must=timeless
        )
    for number in (model, promise, 999, -1):
        yield added(
            f"a release with the model {number}",
            lambda c, n=number: append(c, "release", release(c), n),
            must=False,
        )
        yield added(
            f"an erasure with the model {number}",
            lambda c, n=number, p=promise: (forget(c, {p}, RECORDS), _erase(c, p, time.time(), n)),
            must=False,
        )
    headers_ = {"no JSON": b"{", "a list": b"[]", "a number": b"7", "empty": b"", "no text": b"\xff"}
    for name, raw in headers_.items():
        for kind in ("release", "erasure", "ledger", "model", "gift"):
            yield added(
                f"a {kind} whose header is {name}", lambda c, k=kind, r=raw: append(c, k, r), must=True
            )


def misplaced_events(content: Content) -> Iterator[Forgery]:
    """Entries behind the head that contradict what is before them."""
    model, promise = numbers(content, "model")[0], numbers(content, "promise")[-1]
    changes: dict[str, tuple[Callable[[Content], Any], bool]] = {
        "a release with commitments": (lambda c: append(c, "release", release(c), 0, bytes(HASH)), False),
        "an erasure of a record that is there": (lambda c: _erase(c, promise, time.time()), True),
        "an erasure of what never was": (lambda c: _erase(c, 999_999, time.time()), False),
        "an entry of another kind": (lambda c: append(c, "gift", as_header({"time": time.time()})), True),
        "a second beginning": (lambda c: _again(c, c["entries"][0]), True),
        "a model that is there already": (lambda c: _again(c, one(c, "entries", model), ("models",)), False),
        "a model without its content": (lambda c: _again(c, one(c, "entries", model)), True),
    }
    for name, (change, must) in changes.items():
        yield added(name, change, must=must)


def odd_releases(promise: int) -> dict[str, dict[str, Any]]:
    """What a release should not say."""
    return {
        "of what never was": {"sequence": [999_999]},
        "of a negative number": {"sequence": [-5]},
        "of a huge number": {"sequence": [10**30]},
        "of a text": {"sequence": ["three"]},
        "of a number in a text": {"sequence": str(promise)},
        "of half a promise": {"sequence": [promise + 0.5]},
        "of nothing": {"sequence": []},
        "of None": {"sequence": None},
        "of an entry that is no promise": {"sequence": [1]},
        "of lists": {"sequence": [[promise]]},
        "of true": {"sequence": [True]},
        "at no time": {"time": None},
        "at nan": {"time": math.nan},
        "at infinity": {"time": math.inf},
        "at a text": {"time": "now"},
        "at a list": {"time": [1]},
        "without a reason": {"reason": ""},
        "with a number for a reason": {"reason": 7},
    }


def added_promises(content: Content) -> Iterator[Forgery]:
    """Promises behind the head: replayed, and with every header and part that makes no sense."""
    kinds = promises_of_each_kind(content)
    for which, seq in kinds.items():
        yield added(
            f"promise {seq} ({which}) replayed",
            lambda c, s=seq: _again(c, one(c, "entries", s), RECORDS),
            must=False,
        )
        yield added(
            f"promise {seq} ({which}) without its record",
            lambda c, s=seq: _again(c, one(c, "entries", s)),
            must=True,
        )
    seq = next(iter(kinds.values()))
    for name, edit in headers().items():
        timeless = name in ("issued in 1971", "issued nan", "issued at infinity")
        yield added(f"a promise, {name}", lambda c, e=edit, s=seq: _new_promise(c, s, e, {}), must=timeless)
    for name, (part, edit) in parts().items():
        yield added(
            f"a promise, {name}",
            lambda c, p=part, e=edit, s=seq: _new_promise(c, s, bytes, {p: e}),
            must=False,
        )
    for model in (0, 1, seq, 999, -1):
        yield added(
            f"a promise of model {model}",
            lambda c, m=model, s=seq: one(c, "entries", _again(c, one(c, "entries", s), RECORDS)).update(
                model=m
            ),
            must=True,
        )
    for model in numbers(content, "model")[:1]:
        for name, change in documents().items():
            yield added(f"a model, {name}", lambda c, m=model, e=change: _new_model(c, m, e), must=False)


def added_requests(content: Content) -> Iterator[Forgery]:
    """Requests behind the head: for promises of others, under used keys, and without what belongs to them."""
    promises = numbers(content, "promise")
    for place, row in enumerate(content["requests"]):
        entry = one(content, "entries", row["seq"])
        yield added(
            f"request {place} replayed",
            lambda c, e=entry: _again(c, one(c, "entries", e["seq"]), ("requests",)),
            must=True,
        )
        yield added(
            f"request {place} replayed without its row",
            lambda c, e=entry: _again(c, one(c, "entries", e["seq"])),
            must=True,
        )
    odd: dict[str, tuple[dict[str, Any], bool]] = {
        "for nothing": ({}, False),
        "for a promise of others": ({"first": promises[0], "count": 1}, True),
        "for the last promise": ({"first": promises[-1], "count": 1}, True),
        "for more than there are": ({"first": 2, "count": 10_000}, True),
        "for less than none": ({"count": -1}, True),
        "under no key": ({"key": ""}, True),
        "under a list": ({"key": []}, True),
        "dated back": ({"time": 4e7}, True),
        "that ends at a text": ({"expires": "never"}, True),
    }
    for name, (changes, must) in odd.items():
        yield added(f"a request {name}", lambda c, ch=changes: _new_request(c, **ch), must=must)
    yield added(
        "a request cleared by nobody",
        lambda c: one(c, "requests", _new_request(c)).update(salt=b"", digest=b""),
        must=True,
    )
    for response in (b"", b"[]", b"7", b"{", b"\xff"):
        yield added(
            f"a request whose response is {response!r}",
            lambda c, r=response: _new_request(c, response=r),
            must=True,
        )


def _new_request(content: Content, *, response: bytes = b"null", **changes: Any) -> int:
    """The number of a request for nothing behind the end, under a key that nobody used."""
    row = {"salt": bytes(16), "digest": bytes(HASH), "response": response}
    seen = sha256(row["salt"] + row["digest"]).digest() + sha256(response).digest()
    seq = content["entries"][-1]["seq"] + 1
    about = {"first": seq, "count": 0, "key": "ab" * HASH, "time": time.time(), "expires": None}
    append(content, "request", as_header({**about, **changes}), 0, seen)
    content["requests"].append({"seq": seq, **row})
    return int(seq)


def _times(content: Content) -> list[float]:
    """When each entry was made that is not a promise; the last one is not."""
    return [header(row)["time"] for row in content["entries"] if row["kind"] != "promise"]


def _erase(content: Content, seq: int, moment: float, model: int = 0) -> int:
    example = header(one(content, "entries", numbers(content, "erasure")[0]))
    return append(content, "erasure", as_header({**example, "time": moment, "sequence": [seq]}), model)


def _again(content: Content, row: Row, tables: Sequence[str] = ()) -> int:
    """The number of a copy of an entry behind the end, with copies of what belongs to it."""
    seq = append(content, row["kind"], row["header"], row["model"], row["commitments"])
    for table in tables:
        content[table].append({**one(content, table, row["seq"]), "seq": seq})
    return seq


def _new_promise(
    content: Content, seq: int, edit: Callable[[bytes], bytes], changes: dict[str, Callable[[bytes], bytes]]
) -> None:
    new = _again(content, one(content, "entries", seq), RECORDS)
    entry = one(content, "entries", new)
    entry["header"] = edit(said(time=time.time())(entry["header"]))
    for part, change in changes.items():
        recommitted(content, new, part, change(one(content, "records", new)[part]))


def _new_model(content: Content, seq: int, edit: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> None:
    new = _again(content, one(content, "entries", seq), ("models",))
    _other_model(content, new, edit)
