"""Whether promises survive that people act on them: models refitted on rows of which a share has acted.

``python -m benchmarks.performative [--datasets loans --seeds 0 1 2 --processes 2]``

A model advises declined training rows, who do as they were told; a share alpha of the next training rows are
they, labelled by the simulator (``loans``) or by extra trees that saw the old rows only. Promises were made
to declined test rows; told is the share of them that the refitted model honours, refitted by the method's own
training and as a standard network. Finished lines are kept in ``out/performative.jsonl``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks.record import keep, lines_of, save, show
from benchmarks.truth import LOANS, Asked, fitted, subject_for
from veritracer import VeriTraCER
from veritracer.encoding import Encoding
from veritracer.engines import make_engine
from veritracer.errors import VeriTracerWarning
from veritracer_bench.methods import Question, resolve
from veritracer_bench.plan import Subject
from veritracer_bench.running import attempt
from veritracer_bench.truth import Simulator

ALPHAS = (0.1, 0.3, 0.5)
DATASETS = ("loans", "loans-repaid", "heloc", "taiwan_credit", "ctg", "who")
METHODS = ("veritracer", "algorithm-1", "counternet", "roar", "neighbour")
ACTORS, PROMISED = 1000, 200
LINES = Path("out/performative.jsonl")
WHOLE = Asked(LINES.parent, 0, None, None)


class Advised(NamedTuple):
    """People and what they were told, raw; only those who got an answer that the model accepts."""

    origin: pd.DataFrame
    shown: pd.DataFrame


def advised(model: VeriTraCER, name: str, subject: Subject, X: pd.DataFrame, most: int, seed: int) -> Advised:
    """The answers of a method to the first so many declined rows, in an order that all methods share."""
    order = X.iloc[np.random.default_rng(0).permutation(len(X))]
    people = order[model.decision_function(order) <= 0].head(most)
    if people.empty:
        return Advised(people, people)
    x, train = (model.encoding_.encode(each, out_of_range="ignore") for each in (people, subject.X_train))
    labels = torch.from_numpy(subject.schema.labels(subject.y_train)).double()
    x_cf = resolve(name).answer(Question(model, people, x, train, labels, seed))
    x_cf = torch.where(torch.isfinite(x_cf).all(-1, keepdim=True), x_cf.to(x), x)
    shown = model.encoding_.decode(x_cf, original=people, start=x)
    found = model.decision_function(shown) > 0
    return Advised(people[found], shown[found])


def after_acting(dataset: str, subject: Subject, people: Advised) -> tuple[pd.DataFrame, np.ndarray]:
    """The rows of people who did as they were told, and whether it went well for them."""
    if dataset.startswith("loans"):
        became = Simulator("repaid" if dataset == "loans-repaid" else "approved", LOANS).act(
            people.shown, people.origin
        )
        return became.frame, became.happened_after
    encoding = Encoding.fit(subject.schema, subject.X_train)
    rows = (encoding.encode(each, out_of_range="ignore").numpy() for each in (subject.X_train, people.shown))
    train, acted = rows
    judge = ExtraTreesClassifier(500, min_samples_leaf=5, random_state=1000)
    judge.fit(train, subject.schema.labels(subject.y_train))
    return people.shown, judge.predict(acted) == 1


def mixed(subject: Subject, acted: pd.DataFrame, well: np.ndarray, alpha: float, seed: int) -> Subject:
    """As many training rows as before, a share of them people who acted."""
    random = np.random.default_rng(seed)
    count = round(alpha * len(subject.X_train))
    old = np.sort(random.choice(len(subject.X_train), len(subject.X_train) - count, replace=False))
    new = random.choice(len(acted), count, replace=count > len(acted))
    favourable = subject.schema.labels(subject.y_train) == 1
    names = [subject.y_train[mask].iloc[0] for mask in (~favourable, favourable)]
    labels = pd.Series([names[int(each)] for each in well[new]], dtype=subject.y_train.dtype)
    return subject._replace(
        X_train=pd.concat([subject.X_train.iloc[old], acted.iloc[new]], ignore_index=True),
        y_train=pd.concat([subject.y_train.iloc[old], labels], ignore_index=True),
    )


def measure(dataset: str, seed: int, name: str) -> list[dict[str, Any]]:
    """A line for each share of people who acted and each way of refitting."""
    warnings.simplefilter("ignore", VeriTracerWarning)
    subject, trainer = subject_for(dataset), resolve(name).trainer
    (model,) = fitted(subject, trainer, [seed], WHOLE)
    people = advised(model, name, subject, subject.X_train, ACTORS, seed)
    promised = advised(model, name, subject, subject.X_test, PROMISED, seed).shown
    if people.origin.empty or promised.empty:
        return []  # nobody is turned down, or nobody was told anything: there is nothing to keep
    acted, well = after_acting(dataset, subject, people)
    lines = []
    for alpha in ALPHAS:
        next_rows = mixed(subject, acted, well, alpha, seed)
        for refit in dict.fromkeys((trainer, "standard")):
            (other,) = fitted(next_rows, refit, [seed + 100], WHOLE)
            kept = int((other.decision_function(promised) > 0).sum())
            lines.append(
                {
                    "dataset": dataset,
                    "seed": seed,
                    "method": name,
                    "alpha": alpha,
                    "refit": refit,
                    "promises": len(promised),
                    "kept": kept,
                    "well": float(np.mean(well)),
                }
            )
    return lines


def run(chosen: argparse.Namespace) -> pd.DataFrame:
    """All lines, those that were there and those that were missing."""
    lines = lines_of(LINES)
    done = {(each["dataset"], each["seed"], each["method"]) for each in lines}
    wanted = [(d, s, m) for s in chosen.seeds for m in chosen.methods for d in chosen.datasets]
    calls = ((measure, each) for each in wanted if each not in done)
    for each in make_engine("local", chosen.processes).map(attempt, calls):
        if each.failure is not None:
            print(*each.args, f"failed: {each.failure}", file=sys.stderr)
            continue
        keep(LINES, each.result)
        lines += each.result
        print(*each.args, flush=True)
    return pd.DataFrame(lines)


def rows_of(lines: pd.DataFrame) -> Iterator[list[object]]:
    """A table row for each dataset, method and way of refitting."""
    for (name, method), part in lines.groupby(["dataset", "method"], sort=False):
        own = part["refit"] != "standard"
        for title, some in (("same training", part[own]), ("standard", part[~own])):
            if some.empty:
                continue
            row: list[object] = [name, method, title, some["seed"].nunique(), f"{some['well'].mean():.3f}"]
            for alpha in ALPHAS:
                each = some[some["alpha"] == alpha]
                row.append(f"{each['kept'].sum() / max(each['promises'].sum(), 1):.3f}")
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    chosen = parser.parse_args()
    lines = pd.DataFrame(lines_of(LINES)) if chosen.table else run(chosen)
    header = [
        "dataset",
        "method",
        "refitted by",
        "seeds",
        "it went well for",
        *(f"kept at {a}" for a in ALPHAS),
    ]
    text = show("Promises kept when a share of the people has acted", header, list(rows_of(lines)))
    save("performative", {"lines": lines.to_dict("records")}, [text])


if __name__ == "__main__":
    main()
