"""Recourse measured: how certified, how close, how sparse, how plausible, how fast.

``python -m benchmarks.explain [PART ...] [--workers N]`` with the parts ``paper`` (the paper's setting),
``people`` (grids, then actionability), ``plausibility``, ``overshoot``, ``speed`` and ``gpu`` (only where
there is one). Needs the dataset files (VERITRACER_DATA). Each part writes results of its own.

Every test row is in the denominator, the attack tries every certificate of every row, and models are of the
default configuration, trained here, three seeds each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import veritracer as vt
from benchmarks import workloads
from benchmarks.legality import ranges_of, violations
from benchmarks.record import save, show
from veritracer.bounds.attack import attack
from veritracer.errors import DataWarning

DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who")
SEEDS = (0, 1, 2)
PULLS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5)

Record = dict[str, Any]


def trained(name: str, seed: int, variant: str) -> tuple[vt.VeriTraCER, vt.datasets.Split]:
    """A model of the default configuration, and its split."""
    data = vt.datasets.load(name, variant=variant)
    data = data.original if name in ("ctg", "who") else data
    split = data.split()
    return vt.VeriTraCER(schema=data.schema, random_state=seed).fit(split.X_train, split.y_train), split


def broken(model: vt.VeriTraCER, found: vt.Counterfactuals) -> int:
    """How many certificates the attack breaks; a region is attacked at its corners too."""
    rows = torch.from_numpy(np.flatnonzero(found.certified))
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    count = 0
    for part in rows.split(500):
        points = {id(p): p for p in (found.x_cf, found.region.lower, found.region.upper)}.values()
        worst = [
            attack(model.param_set(), found.x[part], p[part], sign[part], steps=15, restarts=1).worst_logit
            for p in points
        ]
        count += int((torch.stack(list(worst)).amax(0) >= 0).sum())
    return count


def quality(model: vt.VeriTraCER, found: vt.Counterfactuals, *, near: bool = True) -> Record:
    """What the answers come to, over all rows that were asked about; ``near`` the data, or not looked at."""
    asked = np.array([r != "already favourable" for r in found.reason])
    some = torch.from_numpy(np.flatnonzero(found.valid))
    x, x_cf = found.x[some], found.x_cf[some]
    record = {
        "rows": int(asked.sum()),
        "certified": float(found.certified[asked].mean()),
        "validity": float(found.valid[asked].mean()),
        "proximity": float((x_cf - x).abs().mean(-1).mean()),
        "sparsity": float(model.encoding_.changed(x_cf, x, tol=0.01).double().mean()),
        "changes": float(found.n_changes[found.valid].mean()),
        "cost": float(found.cost[found.valid].mean()),
        "conditional": int(found.conditional.sum()),
        "broken": broken(model, found),
    }
    if near:
        both = found.plausibility()[found.valid].mean()
        record |= {"data distance": float(both["distance"]), "lof": float(both["lof"])}
    return record


def paper(name: str, seed: int) -> Record:
    """The paper's setting: no actionability, no grids, both decisions."""
    model, split = trained(name, seed, "paper")
    start = time.process_time()
    found = model.explain(split.X_test, only_unfavourable=False)
    seconds = time.process_time() - start
    record = quality(model, found)
    record["accuracy"] = float(model.score(split.X_test, split.y_test))
    record["ms"] = 1e3 * seconds / len(found)
    return record


def people(name: str, seed: int) -> Record:
    """As people would get it: unfavourable decisions, with grids, then with what they can change."""
    model, split = trained(name, seed, "default")
    record: Record = {"accuracy": float(model.score(split.X_test, split.y_test))}
    free = [f.replace(action="free") for f in model.schema_.features]
    schemas = {
        "grids": vt.Schema(free, model.schema_.target, model.schema_.favourable, model.schema_.unfavourable),
        "actionable": model.schema_,
    }
    for rules, schema in schemas.items():
        found = model.recourse(schema).explain(split.X_test)
        asked = np.array([r != "already favourable" for r in found.reason])
        part = quality(model, found, near=False)
        part |= {s: float((found.status[asked] == s).mean()) for s in ("certified", "valid", "none")}
        part["proved impossible"] = float(np.mean([r.startswith("none exists") for r in found.reason[asked]]))
        ends = ranges_of(schema, split.X_train)
        part["violations"] = len(violations(schema, ends, found.original, found.frame))
        record[rules] = part
    return record


def plausibility(name: str, seed: int) -> Record:
    """The curve: what staying near the data costs, and what it brings."""
    model, split = trained(name, seed, "paper")
    curve = {}
    for pull in PULLS:
        found = model.explain(split.X_test, only_unfavourable=False, plausibility=pull)
        curve[str(pull)] = quality(model, found)
    return curve


def overshoot(name: str, seed: int) -> Record:
    """How many rows are still certified as a region, and at what extra distance."""
    model, split = trained(name, seed, "paper")
    point = model.explain(split.X_test, only_unfavourable=False)
    region = model.explain(split.X_test, only_unfavourable=False, overshoot=0.05)
    return {"point": quality(model, point, near=False), "region": quality(model, region, near=False)}


def speed() -> list[str]:
    """Times on one core: many rows, one row, and growth with rows, features and parameters."""
    torch.set_num_threads(1)
    model, split = trained("heloc", 0, "paper")
    X = split.X_test
    model.explain(X.head(3), only_unfavourable=False)
    many = min(_seconds(lambda: model.explain(X, only_unfavourable=False)) for _ in range(3))
    singles = [_seconds(lambda i=i: model.explain(X.iloc[[i]], only_unfavourable=False)) for i in range(40)]
    head = [
        ["HELOC's test rows, amortised", f"{len(X):,}", 1e3 * many / len(X)],
        ["one row, median of 40", "1", 1e3 * float(np.median(singles))],
        ["one row, slowest of 40", "1", 1e3 * max(singles)],
    ]
    growth = _growth(model, X)
    save(
        "explain_speed",
        {"amortised_ms": 1e3 * many / len(X), "single_ms": [1e3 * s for s in singles], "growth": growth},
        tables := [
            show("Refined certified counterfactuals, one core", ["what", "rows", "ms for each"], head),
            show("Growth, one core", ["what", "size", "ms for each row"], growth),
        ],
    )
    return tables


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _growth(model: vt.VeriTraCER, X: Any) -> list[list[object]]:
    """Milliseconds for a row as rows, features and parameters grow; linear in rows means constant."""
    lines: list[list[object]] = []
    for rows in (250, 500, 1000, 1975):
        taken = X.head(rows)
        seconds = min(_seconds(lambda t=taken: model.explain(t, only_unfavourable=False)) for _ in range(2))
        lines.append(["rows", rows, 1e3 * seconds / rows])
    for what, sizes in (("features", (10, 20, 40, 80)), ("hidden units", (25, 50, 100, 200))):
        for size in sizes:
            recourse, table = workloads.recourse(
                features=size if what == "features" else 20, width=size if what == "hidden units" else 100
            )
            recourse.explain(table.head(3), only_unfavourable=False)
            seconds = _seconds(lambda r=recourse, t=table: r.explain(t, only_unfavourable=False))
            lines.append([what, size, 1e3 * seconds / len(table)])
    return lines


def gpu() -> list[str]:
    """100,000 rows of HELOC's shape on a GPU, next to one CPU core on fewer of them."""
    model, split = trained("heloc", 0, "paper")
    many = split.X_test.sample(100_000, replace=True, random_state=0).reset_index(drop=True)
    cpu = _seconds(lambda: model.explain(many.head(2000), only_unfavourable=False)) / 2000
    model.classifier_.cuda()
    model.generator_theta_ = tuple(t.cuda() for t in model.generator_theta_)
    model.explain(many.head(2000), only_unfavourable=False)
    torch.cuda.synchronize()
    found: list[vt.Counterfactuals] = []
    seconds = _seconds(lambda: found.append(model.explain(many, only_unfavourable=False)))
    lines = [
        [torch.cuda.get_device_name(), f"{len(many):,}", seconds, 1e3 * seconds / len(many)],
        ["CPU", "2,000", 2000 * cpu, 1e3 * cpu],
    ]
    record = {
        "seconds": seconds,
        "rows": len(many),
        "certified": float(found[0].certified.mean()),
        "cpu_ms": 1e3 * cpu,
    }
    header = ["device", "rows", "seconds", "ms for each"]
    save("explain_gpu", record, tables := [show("100,000 rows on a GPU", header, lines)])
    return tables


def _job(task: tuple[str, str, int]) -> tuple[tuple[str, str, int], Record]:
    warnings.simplefilter("ignore", DataWarning)  # test values beyond the training rows are clipped, and many
    torch.set_num_threads(1)
    part, name, seed = task
    return task, PARTS[part](name, seed)


PARTS: dict[str, Callable[[str, int], Record]] = {
    "paper": paper,
    "people": people,
    "plausibility": plausibility,
    "overshoot": overshoot,
}
WHERE: dict[str, Sequence[str]] = {
    "paper": DATASETS,
    "people": DATASETS,
    "plausibility": ("heloc",),
    "overshoot": ("heloc", "taiwan_credit", "oula"),
}


def _mean(records: Sequence[Record], key: str) -> str:
    values = [record[key] for record in records]
    if key in ("broken", "violations", "rows", "conditional"):
        return f"{sum(values):,}"
    return f"{np.mean(values):.3f} ± {np.std(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def report(part: str, found: dict[tuple[str, int], Record]) -> None:
    """Tables and JSON of one part."""
    names = list(dict.fromkeys(name for name, _ in found))
    columns = ["certified", "validity", "proximity", "sparsity", "changes", "data distance", "lof", "broken"]
    lines: list[list[object]] = []
    for name in names:
        records = [record for (n, _), record in found.items() if n == name]
        if part == "paper":
            header = ["dataset", *columns, "accuracy", "ms"]
            lines.append([name, *(_mean(records, c) for c in header[1:])])
        elif part == "people":
            more = ["rows", "certified", "valid", "none", "proved impossible", "cost", "changes", "broken"]
            header = ["dataset", "rules", *more, "violations"]
            for rules in ("grids", "actionable"):
                parts = [record[rules] for record in records]
                lines.append([name, rules, *(_mean(parts, c) for c in header[2:])])
        elif part == "plausibility":
            header = ["dataset", "plausibility", *columns]
            lines += [
                [name, pull, *(_mean([r[pull] for r in records], c) for c in columns)] for pull in records[0]
            ]
        else:
            kept = [column for column in columns if column not in ("data distance", "lof")]
            header = ["dataset", "certified for", *kept]
            lines += [
                [name, what, *(_mean([r[what] for r in records], c) for c in kept)]
                for what in ("point", "region")
            ]
    seeds = len({seed for _, seed in found})
    title = f"{part}: kappa = 0.2, mean ± standard deviation over {seeds} seeds, sums of counts"
    table = show(title, header, lines)
    save(f"explain_{part}", {f"{n} {s}": record for (n, s), record in found.items()}, [table])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=[*PARTS, "speed"])
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", DataWarning)
    tasks = [(p, n, s) for p in chosen.parts if p in PARTS for n in WHERE[p] for s in SEEDS]
    found: dict[str, dict[tuple[str, int], Record]] = {}
    with multiprocessing.get_context("spawn").Pool(chosen.workers, maxtasksperchild=1) as pool:
        for (part, name, seed), record in pool.imap_unordered(_job, tasks):
            print(part, name, seed, record, flush=True)
            found.setdefault(part, {})[name, seed] = record
    for part, records in found.items():
        order = [(n, s) for n in WHERE[part] for s in SEEDS if (n, s) in records]
        report(part, {key: records[key] for key in order})
    for part in chosen.parts:
        if part in ("speed", "gpu"):
            {"speed": speed, "gpu": gpu}[part]()


if __name__ == "__main__":
    main()
