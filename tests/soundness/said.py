"""An independent reader of what is said: of sentences, notices and numbers, written from the documentation.

Nothing of the library is imported here. A text is parsed by a grammar of its own into what it claims: which
values to take, how far one may go beyond them, what may move by itself, and for which models that holds. Rows
and models are then drawn from what was claimed, the worst ones on purpose, and a forward pass in numpy says
whether they keep it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

Cell = Any
Row = dict[str, Cell]
Theta = list[np.ndarray]


@dataclass(frozen=True)
class Column:
    """A column as its owner declared it."""

    name: str
    kind: str
    lower: float | None = None
    upper: float | None = None
    step: float | None = None
    categories: tuple[Cell, ...] = ()
    codes: tuple[Cell, ...] = ()

    @property
    def numeric(self) -> bool:
        return self.kind in ("integer", "continuous")

    def read(self, words: str, tongue: str = "en") -> Cell:
        """The value that a text names."""
        if words in ("unknown", "not stated", "nicht angegeben"):
            return None
        if self.numeric:
            return number(words, tongue)
        return {str(category): category for category in self.categories}[words]

    def same(self, cell: Cell, other: Cell) -> bool:
        """Whether two cells say the same."""
        if is_empty(cell) or is_empty(other):
            return is_empty(cell) and is_empty(other)
        return exact(cell) == exact(other) if self.numeric else cell == other


def number(words: str, tongue: str = "en") -> Decimal:
    """A number as a language writes it: 1,200.5 or 1.200,5."""
    if tongue == "de":
        words = words.replace(".", "").replace(",", ".")
    return Decimal(words.replace(",", ""))


def is_empty(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def exact(number: Cell) -> Decimal:
    """A number as it is written."""
    return number if isinstance(number, Decimal) else Decimal(repr(number))


def plain(number: Cell) -> Cell:
    """A Decimal as an int where it is whole, else as a float."""
    if not isinstance(number, Decimal):
        return number
    return int(number) if number == number.to_integral_value() else float(number)


# ------------------------------------------------------------------------------------ what a text claims


@dataclass
class Move:
    """What a value may do by itself: amounts (or levels) below and above, and numbers that it must not be."""

    least: Decimal = Decimal(0)
    most: Decimal = Decimal(0)
    becomes: Cell = None
    codes: tuple[Decimal, ...] = ()


@dataclass
class Models:
    """Which later models: the rule, and a share of what it names or absolute radii."""

    norm: str
    rule: str
    amount: float = 0.0
    radii: dict[str, float] = field(default_factory=dict)

    def distances(self, theta: Theta) -> list[float]:
        """How far each tensor may move."""
        names = [f"{'Wb'[i % 2]}{i // 2 + 1}" for i in range(len(theta))]
        if self.rule == "absolute":
            return [self.radii.get(name, self.amount) for name in names]
        size = {
            "average": lambda t: np.abs(t).mean(),
            "norm": lambda t: np.linalg.norm(t.ravel(), {"l1": 1, "l2": 2, "linf": np.inf}[self.norm]),
        }[self.rule]
        return [self.amount * float(size(t)) for t in theta]


@dataclass
class Claim:
    """What is claimed of one person's future application."""

    before: Row = field(default_factory=dict)
    after: Row = field(default_factory=dict)
    further: Row = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    ranges: dict[str, tuple[Cell, Cell]] = field(default_factory=dict)
    models: Models | None = None
    conditional: bool = False
    number: int | None = None
    before_day: str | None = None


NUMBER = r"-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?"
_NUMBERS = {"en": NUMBER, "de": r"-?[\d.]+(?:,\d+)?(?:e[+-]?\d+)?"}


def _pieces(text: str, begins: str) -> list[str]:
    """The text cut where a comma or an "and" is followed by something that begins so."""
    return re.split(rf"(?:,? and |, )(?={begins})", text)


def _change(text: str, columns: Mapping[str, Column], claim: Claim, tongue: str = "en") -> None:
    names = "|".join(columns)
    german = [
        rf"Erhöhen: (?P<name>{names}), von (?P<old>.+) auf (?:mindestens )?(?P<new>.+)",
        rf"Verringern: (?P<name>{names}), von (?P<old>.+) auf (?P<new>.+?)(?: oder weiter)?",
        rf"Ändern: (?P<name>{names}), von (?P<old>.+) zu (?P<new>.+)",
        rf"Angeben: (?P<name>{names}), (?P<new>.+)",
    ]
    english = [
        rf"raise (?P<name>{names}) from (?P<old>.+) to (?:at least )?(?P<new>.+)",
        rf"reduce (?P<name>{names}) from (?P<old>.+) to (?P<new>.+?)(?: or further)?",
        rf"change (?P<name>{names}) from (?P<old>.+) to (?P<new>.+)",
        rf"state (?P<name>{names}): (?P<new>.+)",
    ]
    patterns = german if tongue == "de" else english
    text = text if tongue == "de" else text[:1].lower() + text[1:]
    found = next((m for p in patterns if (m := re.fullmatch(p, text))), None)
    assert found, f"this is no instruction: {text!r}"
    parts = found.groupdict()
    column = columns[parts["name"]]
    claim.after[column.name] = column.read(parts["new"], tongue)
    if parts.get("old"):
        claim.before[column.name] = column.read(parts["old"], tongue)


def _move(text: str, columns: Mapping[str, Column], claim: Claim, tongue: str = "en") -> None:
    start, unless = (
        ("may", r"and must not be (.*)") if tongue == "en" else ("darf", r"und darf nicht (.*) sein")
    )
    found = re.fullmatch(rf"({'|'.join(columns)}) ({start} .*?)(?: \({unless}\))?", text)
    assert found, f"nothing moves like this: {text!r}"
    column, words = columns[found[1]], re.sub(" levels?| Stufen?", "", found[2])
    codes = tuple(number(code, tongue) for code in re.findall(_NUMBERS[tongue], found[3] or ""))
    amount, zero = rf"({_NUMBERS[tongue]})", Decimal(0)
    up = (lambda a: Move(zero, a)), (lambda a: Move(-a, zero))
    forms: list[tuple[str, Callable[..., Move]]] = {
        "en": [
            (rf"may change by up to {amount}", lambda a: Move(-a, a)),
            (rf"may (?:grow|rise) by up to {amount}, but must not fall", up[0]),
            (rf"may fall by up to {amount}, but must not (?:grow|rise)", up[1]),
            (rf"may (?:grow|rise) by up to {amount} or fall by up to {amount}", lambda a, b: Move(-b, a)),
        ],
        "de": [
            (rf"darf sich um bis zu {amount} ändern", lambda a: Move(-a, a)),
            (rf"darf um bis zu {amount} steigen, aber nicht fallen", up[0]),
            (rf"darf um bis zu {amount} fallen, aber nicht steigen", up[1]),
            (rf"darf um bis zu {amount} steigen oder um bis zu {amount} fallen", lambda a, b: Move(-b, a)),
        ],
    }[tongue]
    for pattern, made in forms:
        if told := re.fullmatch(pattern, words):
            move = made(*(number(one, tongue) for one in told.groups()))
            break
    else:
        told = re.fullmatch(r"may become (.*)|darf zu (.*) werden", words)
        assert column.kind == "binary", text
        assert told or words in ("may change", "darf sich ändern"), text
        move = Move(becomes=column.read(told[1] or told[2])) if told else Move(Decimal(-1), Decimal(1))
    move.codes = codes
    claim.moves[column.name] = move


def _models(text: str) -> Models:
    """The set of models in the words of a sentence or a notice."""
    share = re.fullmatch(
        r"(?:weights and biases|weight matrices and bias vectors) each move by at most ([\d.]+) % of "
        r"(?:the|their) (average size|largest one|l[12] norm) "
        r"(?:in the same matrix or vector|\((l[12]) norm\))",
        text,
    )
    if share:
        rule = "average" if share[2] == "average size" else "norm"
        return Models(share[3] or "linf", rule, float(share[1]) / 100)
    absolute = re.fullmatch(
        r"(?:weights and biases|weight matrices and bias vectors) each move by at most (.*?)"
        r"(?: \((l[12]) norm\))?",
        text,
    )
    assert absolute, f"no set of models: {text!r}"
    norm = absolute[2] or "linf"
    if re.fullmatch(r"[\d.]+", absolute[1]):
        return Models(norm, "absolute", float(absolute[1]))
    radii = {name: float(radius) for radius, name in re.findall(r"([\d.]+) \(([Wb]\d+)\)", absolute[1])}
    return Models(norm, "absolute", 0.0, radii)


def read_sentence(text: str, columns: Mapping[str, Column]) -> Claim:
    """What a sentence claims."""
    whole = re.fullmatch(
        r"(?P<do>.+?)\. (?=Going further|Meanwhile and|This )"
        r"(?:Going further is covered too: (?P<further>.+?)\. (?=Meanwhile and|This ))?"
        r"(?:Meanwhile and unasked, (?P<moves>.+?)\. (?=This ))?"
        r"(?P<promise>This .*)\.",
        text,
    )
    assert whole, f"this is no sentence: {text!r}"
    claim, names = Claim(), "|".join(columns)
    for piece in re.split(rf"\. (?=(?:Raise|Reduce|Change|State) (?:{names})[ :])", whole["do"]):
        _change(piece, columns, claim)
    for piece in _pieces(whole["further"], rf"(?:{names}) ") if whole["further"] else []:
        name, words = re.fullmatch(rf"({names}) (?:up|down) to (.*)", piece).groups()
        claim.further[name] = columns[name].read(words)
    for piece in _pieces(whole["moves"], rf"(?:{names}) may ") if whole["moves"] else []:
        _move(piece, columns, claim)
    told = re.fullmatch(
        r"This (?:stays valid for any later version|is valid today, but proved only for later versions) "
        r"of the model whose (.*?)(, as long as the original application would still be "
        r"(?:declined|accepted))?",
        whole["promise"],
    )
    if told:
        claim.models, claim.conditional = _models(told[1]), told[2] is not None
    else:
        assert re.match("This is valid (today;|for today's model;)", whole["promise"]), text
    return claim


def _models_in_german(text: str) -> Models:
    """The set of models in the words of a German notice."""
    what = (
        "(?:Gewichte und Schwellenwerte|Gewichtsmatrizen und Schwellenvektoren) ändern sich je um höchstens"
    )
    share = re.fullmatch(
        rf"{what} ([\d.,]+) % (?:der|ihrer|des) (mittleren Größe|größten|l[12]-Norm) ?"
        r"(?:in derselben Matrix oder demselben Vektor|\((l[12])-Norm\))",
        text,
    )
    if share:
        rule = "average" if share[2] == "mittleren Größe" else "norm"
        return Models(share[3] or "linf", rule, float(number(share[1], "de")) / 100)
    absolute = re.fullmatch(rf"{what} (.*?)(?: \((l[12])-Norm\))?", text)
    assert absolute, f"no set of models: {text!r}"
    norm = absolute[2] or "linf"
    if re.fullmatch(r"[\d.,]+", absolute[1]):
        return Models(norm, "absolute", float(number(absolute[1], "de")))
    radii = re.findall(r"([\d.,]+) \(([Wb]\d+)\)", absolute[1])
    return Models(norm, "absolute", 0.0, {name: float(number(radius, "de")) for radius, name in radii})


@dataclass(frozen=True)
class Tongue:
    """What the parts of a notice look like in a language."""

    draft: str
    steps: str
    promise: str
    proposal: str
    proposed: str
    beyond: str
    no_promise: str
    annex: str
    numbered: str
    until: str
    always: str
    limit: str
    models: Callable[[str], Models]
    except_for: str
    moving: str
    moving_too: str
    still: str
    same: str
    further: str
    as_far: str
    fixed: tuple[str, ...]


TONGUES = {
    "en": Tongue(
        draft="DRAFT",
        steps="WHAT WOULD CHANGE THE DECISION",
        promise="WHAT WE PROMISE",
        proposal="NOT PROMISED YET",
        proposed=r"These changes can be promised\. The notice of the promise then states its number, its "
        r"last day and its conditions\.",
        beyond="WHAT WE DO NOT PROMISE",
        no_promise="THIS IS NOT A PROMISE",
        annex="ANNEX: WHAT WAS PROVED",
        numbered=r"Promise number: (\d+)",
        until=r"We commit to this for every application that reaches us before (.+?), also if we update our "
        r"scoring model until then, as long as the updated model keeps to the limit in the "
        r"annex(?P<condition>.*?): with the values above you will be accepted if all of this holds\.",
        always=r"We commit to this without a last day, also if we update our scoring model, as long as the "
        r"updated model keeps to the limit in the annex(?P<condition>.*?): with the values above you will be "
        r"accepted if all of this holds\.",
        limit=r"The model that then decides is today's, or an update of it that keeps to the limit for which "
        r"this was proved: its (.*), and nothing else of how it decides is changed\.",
        models=_models,
        except_for=r"Everything else that you stated is the same as in this application, except for (.*)\.",
        moving=r"({names}) \(which (.*)\)",
        moving_too=r"From wherever you bring it, and without your doing, (.*)\.",
        still=" and would still decline your application as it is now",
        same="Everything else that you stated is the same as in this application, "
        "also what changes by itself.",
        further=r"Going further is covered for (.*); nothing is said about other values\.",
        as_far=r"({names}) as far as (.*)",
        fixed=(
            r"It was proved for every model within that limit, not only tried on some\.",
            r"Today's model has the digest [0-9a-f]{64}\.",
            r"This promise is number \d+ in our ledger and (?:has no end|ends on [-\d: ]+ \(UTC\))\.",
        ),
    ),
    "de": Tongue(
        draft="ENTWURF",
        steps="WAS DIE ENTSCHEIDUNG ÄNDERN WÜRDE",
        promise="WAS WIR ZUSAGEN",
        proposal="NOCH NICHT ZUGESAGT",
        proposed=r"Diese Änderungen können zugesagt werden\. Der Bescheid über die Zusage nennt dann ihre "
        r"Nummer, ihren letzten Tag und ihre Bedingungen\.",
        beyond="WAS WIR NICHT ZUSAGEN",
        no_promise="DIES IST KEINE ZUSAGE",
        annex="ANLAGE: WAS BEWIESEN WURDE",
        numbered=r"Nummer der Zusage: (\d+)",
        until=r"Wir stehen dafür ein bei jedem Antrag, der uns vor dem (.+?) erreicht, auch wenn wir unser "
        r"Bewertungsmodell bis dahin aktualisieren, solange das aktualisierte Modell die Grenze in der "
        r"Anlage einhält(?P<condition>.*?): Mit den Werten oben werden Sie angenommen, wenn all dies "
        r"zutrifft\.",
        always=r"Wir stehen dafür ohne letzten Tag ein, auch wenn wir unser Bewertungsmodell aktualisieren, "
        r"solange das aktualisierte Modell die Grenze in der Anlage einhält(?P<condition>.*?): Mit den "
        r"Werten oben werden Sie angenommen, wenn all dies zutrifft\.",
        limit=r"Das Modell, das dann entscheidet, ist das heutige oder eine Aktualisierung, die die Grenze "
        r"einhält, für die dies bewiesen wurde: (.*); sonst ist an der Entscheidung nichts geändert\.",
        models=_models_in_german,
        except_for=r"Alles andere, was Sie angegeben haben, ist wie in diesem Antrag, ausgenommen (.*)\.",
        moving=r"({names}) \((.*)\)",
        moving_too=r"Wohin auch immer Sie es bringen, ohne Ihr Zutun gilt für (.*)\.",
        still=" und Ihren jetzigen Antrag weiterhin ablehnen würde",
        same="Alles andere, was Sie angegeben haben, ist wie in diesem Antrag, "
        "auch was sich von selbst ändert.",
        further=r"Weiter zu gehen ist abgedeckt für (.*); über andere Werte ist nichts gesagt\.",
        as_far=r"({names}) bis (.*)",
        fixed=(
            r"Es wurde für jedes Modell innerhalb dieser Grenze bewiesen, nicht nur an einigen erprobt\.",
            r"Das heutige Modell hat den Fingerabdruck [0-9a-f]{64}\.",
            r"Diese Zusage hat in unserem Verzeichnis die Nummer \d+ und "
            r"(?:kein Ende|endet am [-\d: ]+ \(UTC\))\.",
        ),
    ),
}


def _sections(text: str, draft: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The listed sentences of each part of a notice, and what stands there besides, by its heading."""
    parts: dict[str, list[str]] = {"": []}
    besides: dict[str, str] = {"": ""}
    section = ""
    for line in text.splitlines():
        if line.strip() and line == line.upper() and not line.startswith(("-", " ")) and line != line.lower():
            section = line.removeprefix(f"{draft}: ")
            parts[section], besides[section] = [], ""
        elif line.startswith("- "):
            parts[section].append(line[2:].strip())
        elif line.startswith("  ") and parts[section]:
            parts[section][-1] += f" {line.strip()}"
        else:
            besides[section] = f"{besides[section]} {line.strip()}".strip()
    return parts, besides


def read_notice(text: str, columns: Mapping[str, Column], tongue: str = "en") -> Claim | None:
    """What a notice claims; None where it proposes nothing."""
    grammar = TONGUES[tongue]
    parts, besides = _sections(text, grammar.draft)
    steps = parts.get(grammar.steps, [])
    if not steps:
        return None
    claim, names = Claim(), "|".join(columns)
    for step in steps:
        _change(step.removesuffix("."), columns, claim, tongue)
    if found := re.search(grammar.numbered, text):
        claim.number = int(found[1])
    if grammar.promise in parts:
        until = re.fullmatch(grammar.until, besides[grammar.promise])
        claim.before_day = until[1] if until else None
        promise = until or re.fullmatch(grammar.always, besides[grammar.promise])
        assert promise, besides[grammar.promise]
        assert promise["condition"] in ("", grammar.still), promise["condition"]
        claim.conditional = promise["condition"] != ""
    if grammar.proposal in parts:
        assert grammar.draft in parts, "a proposal in a notice that is no draft"
        assert re.fullmatch(grammar.proposed, besides[grammar.proposal]), besides[grammar.proposal]
    assert not (grammar.draft in parts and grammar.promise in parts), "a draft that promises"
    for condition in parts.get(grammar.promise, []):
        if found := re.fullmatch(grammar.except_for, condition):
            for piece in _pieces(found[1], rf"(?:{names}) \("):
                name, words = re.fullmatch(grammar.moving.format(names=names), piece).groups()
                _move(f"{name} {words}", columns, claim, tongue)
        elif found := re.fullmatch(grammar.moving_too, condition):
            _move(found[1].replace(": ", " ", 1), columns, claim, tongue)
        else:
            assert condition == grammar.same, condition
    for sentence in parts.get(grammar.annex, []):
        if found := re.fullmatch(grammar.limit, sentence):
            claim.models = grammar.models(found[1])
        else:
            assert any(re.fullmatch(known, sentence) for known in grammar.fixed), sentence
    for line in parts.get(grammar.beyond, parts.get(grammar.no_promise, [])):
        if said := re.fullmatch(grammar.further, line):
            for piece in _pieces(said[1], grammar.as_far.format(names=names).replace("(.*)", "").rstrip()):
                name, words = re.fullmatch(grammar.as_far.format(names=names), piece).groups()
                claim.further[name] = columns[name].read(words, tongue)
    assert (claim.models is None) == (grammar.promise not in parts)
    return claim


# --------------------------------------------------------------------- rows and models of what is claimed


def told_row(claim: Claim, own: Row) -> Row:
    """The person's row after they did as they were told."""
    return {**own, **{name: plain(value) for name, value in claim.after.items()}}


def _between(column: Column, low: Decimal, high: Decimal, rng: np.random.Generator) -> Decimal:
    """A number that an application may have: an end, or one in between; on the grid where there is one."""
    if column.step is None:
        kind = rng.integers(4)
        return low if kind == 0 else high if kind == 1 else exact(float(rng.uniform(float(low), float(high))))
    anchor, step = exact(column.lower or 0.0), exact(column.step)
    first = math.ceil((low - anchor) / step)
    last = math.floor((high - anchor) / step)
    if first > last:
        return low
    k = rng.choice([first, last, rng.integers(first, last + 1)])
    return anchor + int(k) * step


def draw_row(claim: Claim, own: Row, columns: Mapping[str, Column], rng: np.random.Generator) -> Row:
    """A row inside of what is claimed: carried on, and moved from there."""
    row = told_row(claim, own)
    for name, column in columns.items():
        value = row[name]
        if name in claim.ranges:
            low, high = claim.ranges[name]
            if column.numeric:
                value = plain(_between(column, exact(low), exact(high), rng))
            else:
                first, last = (column.categories.index(end) for end in (low, high))
                value = column.categories[int(rng.integers(first, last + 1))]
        if name in claim.further and not is_empty(value):
            ends = sorted([exact(value), exact(claim.further[name])])
            value = plain(_between(column, *ends, rng))
        if name in claim.moves and not is_empty(value) and value not in column.codes:
            value = _moved(column, value, claim.moves[name], rng)
        row[name] = value
    return row


def _moved(column: Column, value: Cell, move: Move, rng: np.random.Generator) -> Cell:
    if column.numeric:
        here = exact(value)
        ends = here + move.least, here + move.most
        if column.step is not None and here != _between(column, here, here, rng):
            return value  # beyond a range, off the grid: nobody can say where it goes from there
        there = _between(column, *ends, rng) if column.step is None or ends[0] < ends[1] else here
        return value if there in move.codes or not ends[0] <= there <= ends[1] else plain(there)
    at, last = column.categories.index(value), len(column.categories) - 1
    if move.becomes is not None:
        return move.becomes if rng.integers(2) else value
    step = int(rng.integers(int(move.least), int(move.most) + 1))
    return column.categories[min(max(at + step, 0), last)]


def logit(theta: Theta, x: np.ndarray) -> float:
    """The network: ReLU between its layers."""
    h = x
    for k in range(0, len(theta), 2):
        h = theta[k] @ h + theta[k + 1]
        if k < len(theta) - 2:
            h = np.maximum(h, 0.0)
    return float(h[0])


def slopes(theta: Theta, x: np.ndarray) -> Theta:
    """The derivative of the logit by each tensor."""
    inputs, h = [], x
    for k in range(0, len(theta), 2):
        inputs.append(h)
        z = theta[k] @ h + theta[k + 1]
        h = np.maximum(z, 0.0) if k < len(theta) - 2 else z
    found: Theta = [np.empty(0)] * len(theta)
    back = np.ones(1)
    for k in range(len(theta) - 2, -1, -2):
        found[k], found[k + 1] = np.outer(back, inputs[k // 2]), back
        back = (theta[k].T @ back) * (inputs[k // 2] > 0)
    return found


def _step(direction: np.ndarray, distance: float, norm: str) -> np.ndarray:
    """The step of that length in a norm that goes furthest in a direction."""
    if norm == "linf":
        return distance * np.sign(direction)
    if norm == "l2":
        size = np.linalg.norm(direction.ravel())
        return distance * direction / size if size > 0 else np.zeros_like(direction)
    step = np.zeros(direction.size)
    at = int(np.abs(direction).argmax())
    step[at] = distance * np.sign(direction.ravel()[at])
    return step.reshape(direction.shape)


def draw_models(
    models: Models | None, theta: Theta, x: np.ndarray, towards: float, rng: np.random.Generator
) -> list[Theta]:
    """Today's model and some of the set: extreme ones at random, and those that push ``x`` the wrong way."""
    if models is None:
        return [theta]
    distances = models.distances(theta)
    found = [theta]
    for _ in range(2):
        signs = [rng.choice([-1.0, 1.0], t.shape) * rng.random(t.shape) ** 0.2 for t in theta]
        found.append([t + _step(s, d, models.norm) for t, s, d in zip(theta, signs, distances, strict=True)])
    worst = theta
    for _ in range(3):
        pull = slopes(worst, x)
        worst = [
            t - _step(towards * g, d, models.norm) for t, g, d in zip(theta, pull, distances, strict=True)
        ]
        found.append(worst)
    return found


def held(
    claim: Claim,
    rows: Sequence[Row],
    own: np.ndarray,
    encode: Callable[[Sequence[Row]], np.ndarray],
    theta: Theta,
    towards: float,
    rng: np.random.Generator,
) -> tuple[bool, str]:
    """Whether every model drawn decides every row as was claimed: ``towards`` +1 is accepted.

    A conditional claim speaks only of models that decide the original row as before.
    """
    for x in encode(rows):
        for model in draw_models(claim.models, theta, x, towards, rng):
            if claim.conditional and towards * logit(model, own) > 0:
                continue
            if not towards * logit(model, x) > 0:
                return False, f"logit {logit(model, x)} at {x}"
    return True, ""
