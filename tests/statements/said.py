"""An independent reader of what is said: of sentences, letters and numbers, written from the documentation.

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

    def read(self, words: str) -> Cell:
        """The value that a text names."""
        if words in ("unknown", "not stated"):
            return None
        if self.numeric:
            return Decimal(words.replace(",", ""))
        return {str(category): category for category in self.categories}[words]

    def same(self, cell: Cell, other: Cell) -> bool:
        """Whether two cells say the same."""
        if is_empty(cell) or is_empty(other):
            return is_empty(cell) and is_empty(other)
        return exact(cell) == exact(other) if self.numeric else cell == other


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
    by: Row = field(default_factory=dict)
    further: Row = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    ranges: dict[str, tuple[Cell, Cell]] = field(default_factory=dict)
    models: Models | None = None
    conditional: bool = False


NUMBER = r"-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?"


def _pieces(text: str, begins: str) -> list[str]:
    """The text cut where a comma or an "and" is followed by something that begins so."""
    return re.split(rf"(?:, | and )(?={begins})", text)


def _change(text: str, columns: Mapping[str, Column], claim: Claim) -> None:
    names = "|".join(columns)
    patterns = [
        rf"raise (?P<name>{names}) from (?P<old>.+) to (?:at least )?(?P<new>.+)",
        rf"reduce (?P<name>{names}) from (?P<old>.+) to (?P<new>{NUMBER}) \(by at least (?P<by>.+)\)",
        rf"reduce (?P<name>{names}) from (?P<old>.+) to (?P<new>.+?)(?: or further)?",
        rf"change (?P<name>{names}) from (?P<old>.+) to (?P<new>.+)",
        rf"state (?P<name>{names})(?: as|:) (?P<new>.+)",
    ]
    text = text[:1].lower() + text[1:]
    found = next((m for p in patterns if (m := re.fullmatch(p, text))), None)
    assert found, f"this is no instruction: {text!r}"
    parts = found.groupdict()
    column = columns[parts["name"]]
    claim.after[column.name] = column.read(parts["new"])
    if parts.get("old"):
        claim.before[column.name] = column.read(parts["old"])
    if parts.get("by"):
        claim.by[column.name] = Decimal(parts["by"].replace(",", ""))


def _move(text: str, columns: Mapping[str, Column], claim: Claim) -> None:
    found = re.fullmatch(rf"({'|'.join(columns)}) (may .*?)(?: \(and must not be (.*)\))?", text)
    assert found, f"nothing moves like this: {text!r}"
    column, words = columns[found[1]], found[2].replace(" levels", "").replace(" level", "")
    codes = tuple(Decimal(code) for code in re.findall(NUMBER, found[3] or ""))
    amount = rf"({NUMBER})"
    forms: list[tuple[str, Callable[..., Move]]] = [
        (rf"may change by up to {amount}", lambda a: Move(-a, a)),
        (rf"may (?:grow|rise) by up to {amount}, but must not fall", lambda a: Move(Decimal(0), a)),
        (rf"may fall by up to {amount}, but must not (?:grow|rise)", lambda a: Move(-a, Decimal(0))),
        (rf"may (?:grow|rise) by up to {amount} or fall by up to {amount}", lambda a, b: Move(-b, a)),
    ]
    for pattern, made in forms:
        if told := re.fullmatch(pattern, words):
            move = made(*(Decimal(number.replace(",", "")) for number in told.groups()))
            break
    else:
        told = re.fullmatch(r"may become (.*)", words)
        assert column.kind == "binary", text
        assert told or words == "may change", text
        move = Move(becomes=column.read(told[1])) if told else Move(Decimal(-1), Decimal(1))
    move.codes = codes
    claim.moves[column.name] = move


def _models(text: str) -> Models:
    """The set of models in the words of a sentence or a letter."""
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
    for piece in _pieces(whole["do"], rf"(?:raise|reduce|change|state) (?:{names})[ :]"):
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


def read_letter(text: str, columns: Mapping[str, Column]) -> Claim | None:
    """What a letter claims; None where it proposes nothing."""
    parts: dict[str, list[str]] = {"": []}
    section = ""
    for line in text.splitlines():
        if line.strip() and line == line.upper() and not line.startswith(("-", " ")):
            section = line
            parts[section] = []
        elif line.startswith("- "):
            parts[section].append(line[2:].strip())
        elif line.startswith("  ") and parts[section]:
            parts[section][-1] += f" {line.strip()}"
    steps = parts.get("WHAT WOULD CHANGE THE DECISION", [])
    if not steps:
        return None
    claim, names = Claim(), "|".join(columns)
    for step in steps:
        _change(step.removesuffix("."), columns, claim)
    for condition in parts.get("WHAT WE PROMISE", []):
        if found := re.fullmatch(r".* was proved: its (.*), and nothing else of how .*", condition):
            claim.models = _models(found[1])
        elif found := re.fullmatch(r"Everything else .* application, except for (.*)\.", condition):
            for piece in _pieces(found[1], rf"(?:{names}) \(which "):
                name, words = re.fullmatch(rf"({names}) \(which (.*)\)", piece).groups()
                _move(f"{name} {words}", columns, claim)
        elif found := re.fullmatch(r"From wherever you bring it, and without your doing, (.*)\.", condition):
            _move(found[1], columns, claim)
        elif condition.endswith("would still decline your application as it is now."):
            claim.conditional = True
        else:
            known = ("You may apply", "You apply before", "Everything else that you stated is the same as")
            assert condition.startswith(known), condition
    beyond = [line for line in parts.get("WHAT WE DO NOT PROMISE", []) if line.startswith("Going further")]
    for line in beyond:
        said = re.fullmatch(r"Going further is covered for (.*); nothing is said about other values\.", line)
        for piece in _pieces(said[1], rf"(?:{names}) as far"):
            name, words = re.fullmatch(rf"({names}) as far as (.*)", piece).groups()
            claim.further[name] = columns[name].read(words)
    assert (claim.models is None) == ("WHAT WE PROMISE" not in parts)
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
