"""What is said is what was proved: every statement, read by an independent reader, held against the model.

A statement is one thing that somebody can rely on: a value, the end of a region, a promise, a bound, or a
verdict. Each is checked against rows and models drawn from what it says (``said``); the models include those
that push hardest against it. 2,000 in ``make test``, 20,000 in ``make long``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from said import (
    TONGUES,
    Claim,
    Column,
    Models,
    Row,
    draw_models,
    draw_row,
    exact,
    held,
    is_empty,
    logit,
    read_notice,
    read_sentence,
    told_row,
)
from torch import nn
from worlds import World, answers, elsewhere, encoded, later, plain_row, world

import veritracer as vt
from veritracer.app.notices import NoticeForm, promise_notices, render_notice, write_notices
from veritracer.errors import VeriTracerWarning
from veritracer.ledger import audit
from veritracer.tables import open_sink, read_batches
from veritracer.tables.batches import typed_rows
from veritracer.tables.exact_columns import counterfactual_table

QUICK, LONG = 2_000, 20_000
ROWS = 6
"""Rows that are drawn from what one promise says."""

FEWEST = 2
"""Worlds that each of the four parts sees at least."""

NEAR = 1e-4
"""A logit that close to 0 may be within rounding, and count as broken."""

CODES = dict.fromkeys(("income", "savings", "age", "job", "grade", "home", "debt"), ("R", "A reason"))


class Witness:
    """Checks statements about one world, and counts them."""

    def __init__(self, place: World, seed: int) -> None:
        self.place, self.rng, self.seen = place, np.random.default_rng(seed), Counter[str]()
        self.found = answers(place)

    def note(self, what: str, holds: bool, said: object = "") -> None:
        """Nothing; a statement was checked."""
        assert holds, (what, said)
        self.seen[what] += 1

    # ------------------------------------------------------------------------------------------- one claim

    def claim(
        self, where: str, claim: Claim, own: Row, shown: Row, *, favourable: bool, text: object
    ) -> None:
        """Nothing; the claim leads from what somebody has to what is shown, and holds there and around."""
        columns, encode = self.place.columns, self.place.encode
        for name, before in claim.before.items():
            same = columns[name].same(before, own[name])
            self.note(f"{where}: from", same or own[name] in columns[name].codes, (text, own))
        for name in claim.after:
            self.note(f"{where}: to", columns[name].same(claim.after[name], shown[name]), (text, shown))
        told = told_row(claim, own)
        self.note(
            f"{where}: leads there", bool((encode([told]) == encode([shown])).all()), (text, told, shown)
        )
        self.promise(where, claim, own, favourable=favourable, text=text)

    def promise(self, where: str, claim: Claim, own: Row, *, favourable: bool, text: object) -> None:
        """Nothing; rows drawn from the claim are decided as it says, under models that it speaks of."""
        towards = -1.0 if favourable else 1.0
        rows = [told_row(claim, own)]
        if claim.models is not None or claim.further or claim.moves or claim.ranges:
            rows += [draw_row(claim, own, self.place.columns, self.rng) for _ in range(ROWS)]
        start = self.place.encode([own])[0]
        said = held(claim, rows, start, self.place.encode, self.place.theta, towards, self.rng)
        self.note(f"{where}: promise", said[0], (said[1], text, rows))
        for kind in ("further", "moves", "ranges"):
            self.seen[f"{where}: {kind}"] += len(getattr(claim, kind))  # all were drawn from

    # ---------------------------------------------------------------------------------------- what was told

    def answers_as_they_are(self) -> None:
        """``frame``, ``status``, ``reason`` and ``sentence`` of every row, and its notice."""
        found, place = self.found, self.place
        for i in range(len(found)):
            own, shown = place.own(int(found.row[i])), plain_row(found.frame, i)
            favourable = logit(place.theta, place.encode([own])[0]) > 0
            if found.status[i] == "none":
                self.note("frame: nothing changed", all(place.columns[n].same(own[n], shown[n]) for n in own))
                self.none(i, own, favourable=favourable)
                continue
            changed = logit(place.theta, place.encode([shown])[0]) > 0
            self.note("frame: valid", changed != favourable, (own, shown))
            sentence = read_sentence(found.sentence(i), place.columns)
            proved = found.status[i] == "certified"
            self.note("status", not proved or found.kappa == 0 or sentence.models is not None)
            self.claim("sentence", sentence, own, shown, favourable=favourable, text=found.sentence(i))
            self.notice(i, own, shown, favourable=favourable)

    def none(self, i: int, own: Row, *, favourable: bool) -> None:
        """Nothing; the reason why there is no answer."""
        said = self.found.sentence(i)
        assert said == f"No change is proposed: {self.found.reason[i]}."
        if "already favourable" in said:
            self.note("reason: already favourable", favourable, own)
        elif "none exists" in said:
            tried = [{**own, **self._allowed(own)} for _ in range(20)]
            decided = [(logit(self.place.theta, x) > 0) == favourable for x in self.place.encode(tried)]
            self.note("reason: none exists", all(decided), own)

    def _allowed(self, own: Row) -> Row:
        """Other values of what may change, the way that it may."""
        changed: Row = {}
        for feature in self.place.encoding.schema.features:
            column, value = self.place.columns[feature.name], own[feature.name]
            if feature.action == "immutable" or is_empty(value) or value in column.codes:
                continue
            if column.numeric:
                low, high = (
                    (column.lower, column.upper) if column.lower <= value <= column.upper else (value, value)
                )
                low, high = {"increase_only": (value, high), "decrease_only": (low, value)}.get(
                    feature.action, (low, high)
                )
                claim = Claim(ranges={feature.name: (low, high)})
                changed |= {
                    feature.name: draw_row(claim, own, {feature.name: column}, self.rng)[feature.name]
                }
            elif feature.action == "free":
                changed[feature.name] = self.rng.choice(column.categories).item()
        return changed

    def _number(self, action: str, column: Column, value: Any) -> Any:
        """A number that somebody may take who has that one."""
        inside = column.lower <= value <= column.upper
        low, high = (column.lower, column.upper) if inside else (value, value)
        ends = {"increase_only": (value, high), "decrease_only": (low, value)}.get(action, (low, high))
        claim = Claim(ranges={column.name: ends})
        return draw_row(claim, {column.name: value}, {column.name: column}, self.rng)[column.name]

    def notice(self, i: int, own: Row, shown: Row, *, favourable: bool) -> None:
        """Nothing; the draft of a row's notice."""
        said = {"en": "Your application was accepted.", "de": "Ihr Antrag wurde angenommen."}
        for tongue, accepted in said.items():
            text = render_notice(self.found, i, CODES, language=tongue)
            where = "notice" if tongue == "en" else f"notice in {tongue}"
            if favourable:
                self.note(f"{where}: accepted", accepted in text)
                continue
            claim = read_notice(text, self.place.columns, tongue)
            assert claim is not None
            self.claim(where, claim, own, shown, favourable=False, text=text)
            self.note(f"{where}: says no more", claim.models is None, text)
            nothing = claim.number is None and claim.before_day is None
            self.note(f"{where}: is a draft", nothing and TONGUES[tongue].draft in text, text)

    def recorded_notices(self, folder: Path) -> None:
        """Nothing; notices of what was issued, against what the ledger says under their numbers."""
        place, tongue = self.place, "de" if folder.name[-1] in "13579" else "en"
        ids = [f"person {i}" for i in range(len(place.people))]
        kept = ("plain", "commitment")[int(self.rng.integers(2))]
        terms: dict[str, Any] = {"expires": timedelta(days=90), "uncertified": "skip", "original": kept}
        with (
            vt.Ledger(folder / "issued.db") as ledger,
            warnings.catch_warnings(action="ignore", category=VeriTracerWarning),
        ):
            issued = ledger.issue(self.found, place.module, ids=ids, **terms)
            numbers = [int(number) for number in issued.sequence]
            told = {number: ledger.shown(number) for number in numbers}
            openings = dict(zip(numbers, issued.openings, strict=True)) if issued.openings else {}
            for number, opening in openings.items():
                told[number]["original"] = ledger.opened(number, opening)["row"]
            own = {number: {"recipient": one["id"]} for number, one in told.items()}
            form = NoticeForm.of(CODES, None, None, tongue, {}, ["recipient"])
            count = write_notices(folder / "notices", promise_notices(ledger, numbers, own, openings), form)
        self.note("recorded notice: each once", count == len(told), told)
        for number, one in told.items():
            text = (folder / "notices" / f"{number:06}.txt").read_text()
            claim = read_notice(text, place.columns, tongue)
            self.note("recorded notice: whose", one["id"] in text, one)
            if one["favourable"]:
                self.note("recorded notice: accepted", claim is None, text)
                continue
            assert claim is not None
            assert claim.before_day is not None
            self.note("recorded notice: number", claim.number == number, text)
            day = date.fromisoformat(one["expires"][:10])
            self.note("recorded notice: until", str(day.year) in claim.before_day, one)
            self.note("recorded notice: day", re.search(rf"\b{day.day}\b", claim.before_day), one)
            self.claim("recorded notice", claim, one["original"], one["values"], favourable=False, text=text)

    def numbers(self) -> None:
        """The JSON document: values, regions, bounds and radii."""
        document = json.loads(self.found.to_json())
        for row in document["rows"]:
            own, shown = row["original"], row["counterfactual"]
            favourable = logit(self.place.theta, self.place.encode([own])[0]) > 0
            if row["status"] == "none":
                self.note("json: nothing changed", own == shown)
                continue
            for change in row["changes"]:
                name = change["feature"]
                column = self.place.columns[name]
                self.note("json: from", column.same(change["from"], own[name]), row)
                self.note("json: to", column.same(change["to"], shown[name]), row)
            further = {c["feature"]: c["at_most"] for c in row["changes"] if "at_most" in c}
            kappa = document["kappa"] if row["certified"] else row["radius"]
            models = self._set(document["norm"], document["radii"], kappa, document["kappa"])
            ranges = {n: tuple(ends) for n, ends in row.get("region", {}).items()}
            claim = Claim(after=shown, ranges=ranges, models=models, conditional=row["conditional"])
            self.promise("json", claim, own, favourable=favourable, text=row)
            narrow = Claim(
                after=shown, further={n: exact(v) for n, v in further.items() if not is_empty(own[n])}
            )
            self.promise("json: at most", narrow, own, favourable=favourable, text=row)
            self.bound("json", row, claim, own, shown, favourable=favourable)
            self.radius("json", row, document, own, shown, favourable=favourable)

    def _set(self, norm: str, radii: dict[str, float], kappa: float, asked: float) -> Models | None:
        if kappa == 0 or asked == 0:
            return None
        return Models(norm, "absolute", 0.0, {name: r * kappa / asked for name, r in radii.items()})

    def bound(self, where: str, row: Any, claim: Claim, own: Row, shown: Row, *, favourable: bool) -> None:
        """Nothing; no model of the set is nearer to the old decision than the bound."""
        if not row["certified"]:
            return
        self.note(f"{where}: below 0", row["worst_logit"] < 0, row)
        x, start = self.place.encode([shown])[0], self.place.encode([own])[0]
        sign = 1.0 if favourable else -1.0
        models = draw_models(claim.models, self.place.theta, x, -sign, self.rng)
        spoken_of = [m for m in models if not claim.conditional or sign * logit(m, start) >= 0]
        self.note(f"{where}: bound", all(sign * logit(m, x) <= row["worst_logit"] for m in spoken_of), row)

    def radius(self, where: str, row: Any, head: Any, own: Row, shown: Row, *, favourable: bool) -> None:
        """Nothing; beyond kappa it holds up to the radius, as long as the original row keeps its decision."""
        if not row["radius"] > head["kappa"] > 0:
            return
        models = self._set(head["norm"], head["radii"], row["radius"], head["kappa"])
        ranges = {n: tuple(ends) for n, ends in row.get("region", {}).items()}
        claim = Claim(after=shown, ranges=ranges, models=models, conditional=True)
        self.promise(f"{where}: radius", claim, own, favourable=favourable, text=row)

    # ------------------------------------------------------------------------------------------- files

    def files(self, folder: Path) -> None:
        """What ``explain`` writes as CSV, Parquet and JSON lines, read without the library."""
        place, options = self.place, self.place.options
        source = folder / "people.csv"
        place.people.to_csv(source, index=False)
        for kind in ("csv", "parquet"):
            target = folder / f"out.{kind}"
            with (
                open_sink(str(target)) as sink,
                warnings.catch_warnings(action="ignore", category=VeriTracerWarning),
            ):
                schema, encoding = place.recourse.encoding.schema, place.recourse.encoding
                for batch in read_batches(str(source)):
                    rows, _ = typed_rows(batch, schema, encoding)
                    found = place.recourse.explain(rows[list(schema.names)], **options)
                    kept = pd.DataFrame(index=rows.index)
                    sink.write(counterfactual_table(found, kept, sentences=True))
            rows = list(csv.DictReader(io.StringIO(target.read_text()))) if kind == "csv" else None
            frame = pd.read_parquet(target) if rows is None else pd.DataFrame(rows)
            assert len(frame) == len(self.found)
            for i in range(len(frame)):
                self.file_row(kind, frame, i)

    def file_row(self, kind: str, frame: pd.DataFrame, i: int) -> None:
        """Nothing; one row of such a file."""
        place = self.place
        line = plain_row(frame, i)
        shown = {name: self._cell(name, line[name]) for name in place.columns}
        own = place.own(int(self.found.row[i]))
        expected = place.encode([plain_row(self.found.frame, i)])
        self.note(f"{kind}: row", bool((place.encode([shown]) == expected).all()), (line, shown))
        if line["recourse.status"] != "none":
            favourable = logit(place.theta, place.encode([own])[0]) > 0
            claim = read_sentence(line["recourse.sentence"], place.columns)
            self.claim(kind, claim, own, shown, favourable=favourable, text=line)

    def _cell(self, name: str, cell: Any) -> Any:
        column = self.place.columns[name]
        if is_empty(cell) or cell == "":
            return None
        return float(cell) if column.numeric else cell

    # ------------------------------------------------------------------------------- the ledger, and audits

    def ledger(self, folder: Path) -> None:
        """What the ledger keeps, and what audits of later models make of it."""
        place = self.place
        with vt.Ledger(folder / "promises.db") as ledger:
            ids = [f"person {i}" for i in range(len(place.people))]
            terms: dict[str, Any] = {"expires": None, "uncertified": "promise", "allow_duplicate": True}
            issued = ledger.issue(self.found, place.module, ids=ids, **terms)
            told = {int(number): ledger.shown(int(number)) for number in issued.sequence}
            for number, one in told.items():
                self.kept(number, one)
            for by in (0.5 * place.recourse.kappa, 0.3, 1.5):
                model = later(place, by, self.rng)
                self.audited("audit", ledger, told, model, place.encoding)
            self.audited("audit, another encoding", ledger, told, *elsewhere(place, self.rng))

    def kept(self, number: int, one: dict[str, Any]) -> None:
        """Nothing; what one promise says in the ledger."""
        place = self.place
        person = int(one["id"].split()[1])
        own, shown = one["original"], one["values"]
        mine = place.own(person)
        self.note("ledger: original", all(place.columns[n].same(own[n], mine[n]) for n in mine), one)
        favourable = logit(place.theta, place.encode([own])[0]) > 0
        claim = read_sentence(one["sentence"], place.columns)
        self.claim("ledger", claim, own, shown, favourable=favourable, text=one)
        models = self._set(one["norm"], one["radii"], one["kappa"], one["kappa"])
        wide = Claim(after=shown, models=models, conditional=claim.conditional)
        self.promise("ledger: radii", wide, own, favourable=favourable, text=one)

    def audited(
        self, where: str, ledger: vt.Ledger, told: dict[int, Any], model: nn.Sequential, encoding: vt.Encoding
    ) -> None:
        """Nothing; each verdict of an audit against what the model does with what people were told."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeriTracerWarning)
            found = json.loads(audit(ledger, model, encoding=encoding, recourse=0).to_json())
        theta = [p.detach().numpy() for p in model.parameters()]
        broken = {line["sequence"]: line["logit"] for line in found["broken"]}
        unknown = {line["sequence"] for line in found["unchecked"]}
        self.note(f"{where}: counts", sum(found["counts"].values()) == len(told) == found["live"], found)
        for number, one in told.items():
            own, claim = one["original"], read_sentence(one["sentence"], self.place.columns)
            start = logit(self.place.theta, self.place.encode([own])[0])
            towards = -1.0 if start > 0 else 1.0
            region = bool(claim.further or claim.moves)
            rows = [one["values"]] + [
                draw_row(claim, own, self.place.columns, self.rng) for _ in range(ROWS * region)
            ]
            worst = [towards * logit(theta, x) for x in encoded(encoding, rows)]
            if number in broken:
                self.note(f"{where}: broken", region or worst[0] < NEAR, (one, worst))
                self.note(f"{where}: logit", broken[number] <= min(worst) + 1e-12, (one, worst))
                near = broken[number] >= worst[0] - 2e-9 * max(1.0, abs(worst[0]))
                asked = self.found.overshoot > 0 or bool(self.found.drift)  # then it is a bound
                self.note(f"{where}: logit is near", asked or near, (one, worst, broken[number]))
            elif number not in unknown:
                self.note(f"{where}: kept", min(worst) > 0, (one, worst))


@pytest.mark.parametrize("part", range(4))
def test_what_is_said_is_what_was_proved(part: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    wanted = (LONG if request.config.getoption("--long") else QUICK) / 4
    seen: Counter[str] = Counter()
    for seed in range(part, 10_000, 4):
        witness = Witness(world(seed), seed)
        witness.answers_as_they_are()
        witness.numbers()
        folder = tmp_path / str(seed)
        folder.mkdir()
        if seed % 3 == 0:
            witness.files(folder)
        witness.ledger(folder)
        if seed % 3 == 1:
            witness.recorded_notices(folder)
        seen += witness.seen
        if seen.total() >= wanted and seed >= 4 * (FEWEST - 1):
            break
    assert {where.split(":")[0] for where in seen} >= {
        "frame",
        "sentence",
        "notice",
        "json",
        "ledger",
        "audit",
    }
    print(f"{seen.total():,} statements: {dict(seen)}")
