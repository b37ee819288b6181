"""What a panel costs: fit and explain with the default and with ``panel=None``, in one run, in CPU time.

``python -m benchmarks.panel [--datasets heloc oula]``
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any

from benchmarks.record import save, show
from veritracer import VeriTraCER
from veritracer.errors import VeriTracerWarning
from veritracer_bench.plan import subject_of

ROWS = 1000
"""Declined test rows that are explained."""


def seconds(name: str, **options: Any) -> tuple[float, float]:
    """CPU seconds of a fit, and of explaining declined test rows."""
    subject = subject_of(name, sys.maxsize)
    start = time.process_time()
    model = VeriTraCER(subject.schema, **options).fit(subject.X_train, subject.y_train)
    fit = time.process_time() - start
    declined = subject.X_test[model.decision_function(subject.X_test) <= 0].head(ROWS)
    model.explain(declined.head(20))  # indices are made on the first call
    start = time.process_time()
    model.explain(declined)
    return fit, (time.process_time() - start) / len(declined)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["heloc", "oula"])
    warnings.simplefilter("ignore", VeriTracerWarning)
    results, rows = {}, []
    for name in parser.parse_args().datasets:
        (fit, explain), (bare_fit, bare_explain) = seconds(name), seconds(name, panel=None)
        results[name] = {"fit": [fit, bare_fit], "explain": [explain, bare_explain]}
        ratios = [f"{fit / bare_fit:.2f}×", f"{explain / bare_explain:.2f}×"]
        rows.append([name, fit, bare_fit, ratios[0], 1000 * explain, 1000 * bare_explain, ratios[1]])
    header = ["dataset", "fit, s", "without", "ratio", "explain, ms a row", "without", "ratio"]
    save("panel", results, [show("What a panel costs", header, rows)])


if __name__ == "__main__":
    main()
