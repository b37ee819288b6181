"""Inputs of the golden answers, the questions that are asked of them, and the table of answers.

Everything is rebuilt from plain arrays and tables in ``data/`` through public constructors, so that the
answers outlive file formats and internal names. The panel has no public constructor from arrays: ``_panel``
and ``panel_arrays`` are the only functions here that know how it is stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import veritracer as vt

DATA = Path(__file__).parent / "data"
TABLES = ("loans", "breast_cancer")
PEOPLE = 300
"""The first rows of each table are explained; the others are known as training rows only."""
FEW, SOME = 60, 120
"""Rows of a case that takes longer, or differs little from another one."""

Arrays = Mapping[str, NDArray[Any]]

PANEL_NUMBERS = (*(f"theta.{i}" for i in range(6)), "value", "start")
"""Arrays of the panel that its opinion depends on smoothly."""


@dataclass(frozen=True)
class Inputs:
    """One table with its models, rebuilt from arrays."""

    name: str
    rows: pd.DataFrame
    labels: pd.Series[Any]
    encoding: vt.Encoding
    module: nn.Sequential
    later: nn.Sequential
    linear: nn.Sequential
    panel: vt.Panel
    destination: Tensor

    @property
    def people(self) -> pd.DataFrame:
        return self.rows.head(PEOPLE)

    def recourse(self, *, panel: bool = False, **options: Any) -> vt.Recourse:
        """The public facade: with training rows alone, or with labels and panel as an estimator has them."""
        known = {"labels": self.labels, "panel": self.panel} if panel else {}
        return vt.Recourse(self.module, encoding=self.encoding, rows=self.rows, **known, **options)

    def propose(self, x: Tensor) -> Tensor:
        """Stand in for a generator: go 60 % of the way to the typical accepted row, and be legal."""
        return self.encoding.project(x + 0.6 * (self.destination - x), x)


# ---------------------------------------------------------------- inputs


def features(name: str, arrays: Arrays) -> list[vt.Feature]:
    """Return the columns of a table, every scale end stated: nothing is learned from rows."""
    if name == "breast_cancer":
        ends = zip(arrays["columns"], arrays["lower"], arrays["upper"], strict=True)
        return [vt.Feature(str(c), "continuous", lower=float(low), upper=float(up)) for c, low, up in ends]
    still: dict[str, Any] = {"action": "immutable"}
    up: dict[str, Any] = {"action": "increase_only"}
    regions = ["capital", "coast", "north", "south", "valley"]
    levels = ["basic", "secondary", "vocational", "bachelor", "master"]
    jobs = ["permanent", "public service", "fixed-term", "self-employed", "out of work"]
    purposes = ["car", "home improvement", "debt consolidation", "education", "business", "household"]
    return [
        vt.Feature("age", "integer", lower=18, upper=67, **still),
        vt.Feature("sex", "binary", categories=["female", "male"], **still),
        vt.Feature("region", "categorical", categories=regions, **still),
        vt.Feature("education", "ordinal", categories=levels, **up),
        vt.Feature("dependants", "integer", lower=0, upper=5, **still),
        vt.Feature(
            "housing", "categorical", categories=["rent", "mortgage", "owner", "with family"], **still
        ),
        vt.Feature("employment", "categorical", categories=jobs),
        vt.Feature("years_employed", "integer", lower=0, upper=30, **up),
        vt.Feature("income", "integer", lower=8000, upper=100_000, step=100, missing="impute", **still),
        vt.Feature("savings", "integer", lower=0, upper=20_000, step=100, missing="impute"),
        vt.Feature("monthly_debt", "integer", lower=0, upper=1500, step=10),
        vt.Feature("credit_lines", "integer", lower=0, upper=10),
        vt.Feature("card_use", "integer", lower=0, upper=100),
        vt.Feature("history_years", "integer", lower=0, upper=30, **up),
        vt.Feature("missed_payments", "integer", lower=0, upper=6, action="decrease_only"),
        vt.Feature("purpose", "categorical", categories=purposes, **still),
        vt.Feature("loan_amount", "integer", lower=1000, upper=30_000, step=100),
        vt.Feature("term_months", "ordinal", categories=[12, 24, 36, 48, 60, 72, 84]),
    ]


TARGETS = {"loans": ("approved", "yes", "no"), "breast_cancer": ("diagnosis", "benign", "malignant")}


def read_rows(name: str) -> pd.DataFrame:
    """Read a table of rows with the label in its last column, every number to the last bit."""
    return pd.read_csv(DATA / f"{name}_rows.csv.gz", dtype=str).apply(_typed)


def _typed(column: pd.Series[Any]) -> pd.Series[Any]:
    """Convert text to whole numbers, else to numbers, where every cell is one; Python reads them exactly."""
    for kind in (int, float):
        try:
            return pd.Series([kind(cell) for cell in column], index=column.index, name=column.name)
        except ValueError:
            continue
    return column


def inputs(name: str, jitter: int | None = None) -> Inputs:
    """Rebuild the inputs of a table.

    With ``jitter``, a seed, every weight is off by a relative 1e-12 (1e-6 for the panel, which computes in
    float32): far more than another processor's last bits. ``record.py`` leaves out answers that move with it.
    """
    with np.load(DATA / f"{name}_inputs.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    if jitter is not None:
        arrays = _jittered(arrays, np.random.default_rng(jitter))
    table = read_rows(name)
    target, yes, no = TARGETS[name]
    schema = vt.Schema(features(name, arrays), target=target, favourable=yes, unfavourable=no)
    rows, labels = table.drop(columns=target), table[target]
    encoding = vt.Encoding.fit(schema, rows)
    return Inputs(
        name=name,
        rows=rows,
        labels=labels,
        encoding=encoding,
        module=_module(arrays, "today"),
        later=_module(arrays, "later"),
        linear=_module(arrays, "linear"),
        panel=_panel(arrays, encoding),
        destination=torch.from_numpy(arrays["destination"]),
    )


def _jittered(arrays: Arrays, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    moved = dict(arrays)
    for key, value in arrays.items():
        if key.startswith(("today.", "later.", "linear.")):
            moved[key] = value * (1 + 1e-12 * rng.standard_normal(value.shape))
        elif key.startswith("panel.") and key.endswith(PANEL_NUMBERS):
            moved[key] = (value * (1 + 1e-6 * rng.standard_normal(value.shape))).astype(value.dtype)
    return moved


def _module(arrays: Arrays, which: str) -> nn.Sequential:
    """Build a ReLU network in float64 from the weights stored under this name."""
    layers: list[nn.Module] = []
    for depth in range(sum(key.startswith(f"{which}.W") for key in arrays)):
        weight, bias = (torch.from_numpy(arrays[f"{which}.{part}{depth}"]) for part in "Wb")
        layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def _panel(arrays: Arrays, encoding: vt.Encoding) -> vt.Panel:
    """Rebuild the fitted panel; whatever comes to store panels, this function follows and the arrays stay."""
    tensors = {
        key.removeprefix("panel."): torch.from_numpy(value.astype(np.int64) if _is_position(key) else value)
        for key, value in arrays.items()
        if key.startswith("panel.")
    }
    params = vt.Panel(networks=2, boosted=2, held_out=1, random_state=0).params
    return vt.Panel.restored(params, [], tensors, encoding)


def panel_arrays(panel: vt.Panel) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``_panel`` reads, positions in one byte each."""
    found = {f"panel.{key}": value.numpy() for key, value in panel.tensors().items()}
    return {key: value.astype(np.uint8) if _is_position(key) else value for key, value in found.items()}


def _is_position(key: str) -> bool:
    return key.endswith((".feature", ".member"))


# ---------------------------------------------------------------- questions and answers

Answers = pd.DataFrame
"""One line for each row and alternative of a case, with the columns ``COLUMNS``."""


@dataclass(frozen=True)
class Explain:
    """One call of ``explain``: what the model is given beside its weights, how many rows, which options."""

    options: Mapping[str, Any]
    panel: bool = False
    generator: bool = False
    rows: int = FEW
    norm: str = "linf"
    radius: str | float = "mean-abs"


def explain_cases(name: str) -> dict[str, Explain]:
    """Name the calls of ``explain`` of one table."""
    number, other = {"loans": ("savings", "card_use"), "breast_cancer": ("worst area", "worst texture")}[name]
    return {
        "panel": Explain({}, panel=True, rows=PEOPLE),
        "rows only": Explain({}, rows=PEOPLE),
        "as proposed": Explain({"refine": False}, generator=True, rows=SOME),
        "generator": Explain({}, generator=True),
        "two alternatives": Explain({"n": 2}, panel=True),
        "two changes": Explain({"max_changes": 2}),
        "limits": Explain({"limits": {number: 0.3, other: 0.2}}),
        "cost": Explain({"cost": {number: 5.0, other: float("inf")}}),
        "overshoot": Explain({"overshoot": 0.05, "drift": {other: (0, 2)}}),
        "l2": Explain({}, norm="l2"),
        "l1": Explain({"kappa": 0.01}, norm="l1", radius="norm"),
        "kappa": Explain({"kappa": 0.05}),
        "everybody": Explain({"only_unfavourable": False, "search_radius": False}, rows=SOME),
        "demanding": Explain({"agreement": 1.0, "plausible": True}, panel=True),
    }


def explained(given: Inputs, case: Explain, order: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Yield the answers of one call, its rows passed in this order."""
    options: dict[str, Any] = {"norm": case.norm, "radius": case.radius}
    if case.generator:
        options["propose"] = given.propose
    people = given.people.iloc[order[order < case.rows]]
    found = given.recourse(panel=case.panel, **options).explain(people, **case.options)
    rows = found.frame.index.get_level_values(0)
    alternatives = (
        found.frame.index.get_level_values(-1) if found.frame.index.nlevels > 1 else [0] * len(rows)
    )
    names = list(given.rows.columns)
    before = given.rows.loc[rows].astype(object).to_numpy().tolist()
    after = found.frame[names].astype(object).to_numpy().tolist()
    for i, (row, alternative) in enumerate(zip(rows, alternatives, strict=True)):
        yield {
            "row": int(row),
            "alternative": int(alternative),
            "status": str(found.status[i]),
            "valid": bool(found.valid[i]),
            "certified": bool(found.certified[i]),
            "radius": float(found.radius[i]),
            "changes": _changes(names, before[i], after[i]),
        }


def _changes(names: list[str], before: list[Any], after: list[Any]) -> str:
    """Write the cells that differ, every number to the last bit."""
    cells = zip(names, before, after, strict=True)
    changed = [(name, new) for name, old, new in cells if not (old == new or (pd.isna(old) and pd.isna(new)))]
    return "; ".join(f"{name} = {new}" for name, new in changed)


@dataclass(frozen=True)
class Certify:
    """One call of ``certify``: which model and set, and whether its points lie around the origin."""

    options: Mapping[str, Any]
    centred: bool = False
    linear: bool = False


CERTIFY = {
    "certify linf": Certify({"kappa": 0.2}),
    "certify linf norm": Certify({"kappa": 0.02, "radius": "norm"}),
    "certify absolute": Certify({"kappa": 1.0, "radius": 0.01}),
    "certify l2": Certify({"kappa": 0.02, "norm": "l2", "radius": "norm"}, centred=True),
    "certify l1": Certify({"kappa": 0.01, "norm": "l1", "radius": "norm"}, centred=True),
    "certify conditional": Certify({"kappa": 1.0, "radius": 0.1}, centred=True, linear=True),
}


def certified(given: Inputs, case: Certify, order: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Yield the certificates of pairs: every person with one of the other label, or with the point opposite.

    Opposite points around the origin have slopes of opposite signs: a proof may need the condition on x.
    """
    everybody = given.encoding.encode(given.rows)
    x = everybody[:PEOPLE]
    module = given.linear if case.linear else given.module
    if case.centred:
        x = 2 * x - 1
        x_cf = -x
    else:
        accepted = torch.tensor((given.labels == given.encoding.schema.favourable).tolist())
        turn = torch.arange(PEOPLE) % int(torch.minimum(accepted.sum(), (~accepted).sum()))
        partners = everybody[~accepted][turn], everybody[accepted][turn]
        x_cf = torch.where(accepted[:PEOPLE, None], *partners)
    models = vt.ParamSet.around(module, **case.options)
    found = vt.certify(module, x[order.copy()], x_cf[order.copy()], models)
    assert found.radius is not None
    for i, row in enumerate(order):
        proved = bool(found.certified[i])
        yield {
            "row": int(row),
            "alternative": 0,
            "valid": bool(found.valid[i]),
            "certified": proved,
            "radius": float(found.radius[i]),
            "method": str(found.method[i]) if proved else "",
            "conditional": bool(found.conditional[i]) if proved else "",
        }


def audited(given: Inputs, order: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """Yield the verdict of a later model on certified promises, each from a ledger of its own rows."""
    people = given.people.iloc[order[order < FEW]]
    recourse = given.recourse()
    first = recourse.explain(people, search_radius=False)
    people = people[first.certified]
    found = recourse.explain(people, search_radius=False)
    with tempfile.TemporaryDirectory() as folder, vt.Ledger(Path(folder) / "ledger.db") as ledger:
        ledger.issue(found, given.module, ids=[str(row) for row in people.index])
        report = vt.audit(ledger, given.later, encoding=given.encoding, recourse=0)
    assert report.live == len(people)
    broken = set(report.broken["id"])
    for row in people.index:
        yield {"row": int(row), "alternative": 0, "status": "broken" if str(row) in broken else "kept"}


def questions(name: str) -> dict[str, Callable[[Inputs, NDArray[np.int64]], Iterator[dict[str, Any]]]]:
    """Name every case of a table, with what answers it."""
    cases: dict[str, Any] = {
        key: lambda given, order, case=case: explained(given, case, order)
        for key, case in explain_cases(name).items()
    }
    cases |= {
        key: lambda given, order, case=case: certified(given, case, order) for key, case in CERTIFY.items()
    }
    return {**cases, "audit": audited}


COLUMNS = ("row", "alternative", "status", "valid", "certified", "radius", "method", "conditional", "changes")


def answers(given: Inputs, case: str, order: NDArray[np.int64] | None = None) -> Answers:
    """Answer one case as a table in the order of its rows; ``order`` is that in which they are passed."""
    asked = np.arange(PEOPLE) if order is None else order
    table = pd.DataFrame(list(questions(given.name)[case](given, asked)), columns=list(COLUMNS))
    return table.sort_values(["row", "alternative"], ignore_index=True)


def recorded(name: str) -> Answers:
    """Read the stored answers of a table."""
    table = pd.read_csv(DATA / f"{name}_answers.csv.gz", dtype=str)
    numbers = {"row": int, "alternative": int, "radius": float}
    return table.assign(**{column: table[column].map(kind) for column, kind in numbers.items()})
