"""Speed of two source trees side by side: certify, fit, explain, issue and audit through the public API.

``python -m benchmarks.compare_trees ../before [--rounds 5] [--tasks fit,explain]``

Each task runs in a fresh process on one thread, first with one tree and then with the other, and the order
changes in every round. The ratio is the CPU time of the tree given divided by that of this one: above 1 this
tree is faster. Importing, fitting and encoding before a task are not counted, except where they are the task.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.record import save, show

HERE = Path(__file__).resolve().parents[1]

PREPARE = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import veritracer as vt
folder = sys.argv[1]
data = vt.datasets.loans(rows=4000, random_state=0)
split = data.split()
def fitted(epochs):
    model = vt.VeriTraCER(schema=data.schema, epochs=epochs, random_state=0)
    return model.fit(split.X_train, split.y_train)
def timed(task):
    start = time.process_time()
    task()
    print(time.process_time() - start)
"""

TASKS = {
    "fit": "timed(lambda: fitted(4))",
    "certify": """
model = fitted(3)
x_cf = split.X_test.sample(frac=1.0, random_state=0).set_axis(split.X_test.index)
model.certify(split.X_test[:50], x_cf[:50])
timed(lambda: [model.certify(split.X_test, x_cf) for _ in range(5)])
""",
    "explain": """
model = fitted(3)
model.explain(split.X_test[:20])
timed(lambda: model.explain(split.X_test))
""",
    "explain, one row": """
model = fitted(3)
rows = split.X_test[model.predict(split.X_test) == "no"]
model.explain(rows[:1])
timed(lambda: [model.explain(rows[i:i + 1]) for i in range(1, 41)])
""",
    "issue and audit": """
model = fitted(3)
rows = split.X_test
def promise():
    model.issue(rows, ids=range(len(rows)), ledger=folder + "/promises.db", overshoot=0.01)
    for _ in range(5):
        vt.ledger.audit(vt.Ledger(folder + "/promises.db"), model)
timed(promise)
""",
}


def seconds(tree: Path, task: str) -> float:
    """Return the CPU seconds of a task with the code of a tree."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        code = PREPARE + TASKS[task]
        command = [sys.executable, "-c", code, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{task} failed in {tree}:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Run all tasks with both trees and save the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", default=",".join(TASKS))
    given = parser.parse_args()
    names = [name for name in TASKS if name in given.tasks.split(",")]
    trees = {"before": given.before.resolve(), "now": HERE}
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for round_ in range(given.rounds):
        for task in names:
            for tree in sorted(trees, reverse=round_ % 2 == 1):
                taken[task, tree].append(seconds(trees[tree], task))
    rows = []
    for task in names:
        before, now = taken[task, "before"], taken[task, "now"]
        ratios = [a / b for a, b in zip(before, now, strict=True)]
        rows.append((task, statistics.median(before), statistics.median(now), statistics.median(ratios)))
    head = subprocess.run(
        ["git", "-C", str(trees["before"]), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    title = f"CPU seconds, {given.rounds} rounds, beside commit {head.stdout.strip()}"
    table = show(title, ("task", "before", "now", "before / now"), rows)
    save("compare_trees", {"seconds": {" ".join(key): value for key, value in taken.items()}}, [table])


if __name__ == "__main__":
    main()
