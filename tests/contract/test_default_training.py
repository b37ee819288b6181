"""Quality of one default training: accuracy, certified answers, and agreement of models that took no part.

Bits of a training differ between machines, so that its quality is guarded here by tolerances, and its bits by
``tools/same_training.py`` on one machine.
"""

from __future__ import annotations

import numpy as np
import pytest

import veritracer as vt

ACCURACY = 0.93
"""Seeds 0 to 3 have 0.947 to 0.959 on these 171 rows, of which one is 0.006 and a standard error 0.016."""
CERTIFIED = AGREEMENT = 0.96
"""Seeds 0 to 3 have 1.0. Between 65 and 67 rows are declined: two of them may be lost."""


@pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")  # test rows beyond the training rows
def test_defaults_are_accurate_certified_and_believed() -> None:
    data = vt.datasets.load("breast_cancer")
    part = data.split(test_size=0.3, random_state=0)
    model = vt.VeriTraCER(schema=data.schema, random_state=0).fit(part.X_train, part.y_train)
    assert model.score(part.X_test, part.y_test) >= ACCURACY
    found = model.explain(part.X_test)
    declined = model.predict(part.X_test) != data.schema.favourable
    assert 50 <= declined.sum() <= 80
    assert found.certified[declined].mean() >= CERTIFIED
    assert np.nanmean(found.agreement[found.valid]) >= AGREEMENT
