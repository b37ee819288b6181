"""A year passes: an ordinary update leaves the set that was promised, a projected one does not.

Run: python examples/keep_a_promise.py
"""

from __future__ import annotations

import torch

import veritracer as vt
from veritracer.fine_tuning import fine_tune


def main() -> None:
    """Update a model twice, and see which update kept the promises."""
    today, later = vt.datasets.loans(rows=2500), vt.datasets.loans(rows=2500, year=2, drift=2.0)
    split = today.split()
    model = vt.VeriTraCER(schema=today.schema, epochs=15, batch_size=256).fit(split.X_train, split.y_train)
    recourse = model.explain(split.X_test)
    promised = recourse.certified
    print(f"{promised.sum()} promises given at kappa = {recourse.kappa}")

    new_rows = model.encoding_.encode(later.X, out_of_range="ignore")
    new_labels = torch.from_numpy(today.schema.labels(later.y)).double()
    models = model.param_set()
    for name, project in (("free update", None), ("promise-keeping update", models.project)):
        updated = fine_tune(model.classifier_, new_rows, new_labels, epochs=5, project=project)
        kept = updated(recourse.x_cf[promised])[:, 0] > 0
        right = ((updated(new_rows)[:, 0] > 0) == (new_labels > 0.5)).double().mean()
        inside = "inside of the set: kept by proof" if models.contains(updated) else "outside of the set"
        print(f"{name}: accuracy {right:.3f} on the new year, {kept.double().mean():.1%} kept, {inside}")


if __name__ == "__main__":
    main()
