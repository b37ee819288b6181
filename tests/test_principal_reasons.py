"""Principal reasons: what weighed against somebody in the decision itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import veritracer as vt
from recourse_tables import fitted
from veritracer.principal_reasons import accepted_rows, contributions
from veritracer.schema import Feature


def test_principal_reasons_come_from_the_decision_and_not_from_the_way_out() -> None:
    """A linear model declines for its debt; the only thing that may change is savings."""
    features = [Feature(name, "continuous", lower=0, upper=1) for name in ("debt", "missed", "other")]
    features = [f.replace(action="immutable") for f in features]
    schema = vt.Schema([*features, Feature("savings", "continuous", lower=0, upper=1)])
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.uniform(size=(300, 4)), columns=list(schema.names))
    encoding = vt.Encoding.fit(schema, rows)
    layer = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[-4.0, -2.0, 0.0, 3.0]])
        layer.bias[:] = 0.5
    answers = vt.Recourse(torch.nn.Sequential(layer), encoding=encoding, rows=rows, kappa=0.01)
    person = pd.DataFrame([{"debt": 0.9, "missed": 0.8, "other": 0.1, "savings": 0.6}])
    found = answers.explain(person)
    assert [c.feature.name for c in found.changes_of(0)] in ([], ["savings"])
    reasons = found.principal_reasons(0)
    assert [(one.feature, one.direction) for one in reasons][:2] == [("debt", "reduce"), ("missed", "reduce")]
    assert "other" not in {one.feature for one in reasons}
    # of a linear model a feature's part is its weight times the distance to the accepted rows' mean
    accepted = accepted_rows(found).mean(0)
    x = encoding.encode(person)[0].double()
    parts = contributions(found, x, accepted_rows(found))
    assert torch.allclose(parts, layer.weight[0] * (x - accepted), atol=1e-9)


def test_the_parts_sum_to_what_is_between_the_person_and_accepted_people() -> None:
    model, X = fitted()
    found = model.explain(X[:40])
    i = int(np.flatnonzero(found.status == "certified")[0])
    rows, x = accepted_rows(found), found.x[i].double()
    theta = tuple(t.double() for t in found.param_set.center)
    logit = found.param_set.network.logit(theta, torch.cat([x[None], rows]))
    between = logit[0] - logit[1:].mean()
    assert float(contributions(found, x, rows).sum()) == pytest.approx(float(between), abs=1e-9)
    reasons = found.principal_reasons(i)
    assert 1 <= len(reasons) <= 4
    assert [r.contribution for r in reasons] == sorted(r.contribution for r in reasons)
    assert all(r.contribution < 0 for r in reasons)
