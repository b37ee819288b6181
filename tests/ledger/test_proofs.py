"""No verdict is too good: what an audit calls proved, every model of the set confirms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from hypothesis import given
from hypothesis import strategies as st
from promise_cases import points

import veritracer as vt
from networks import NORMS, make_case
from veritracer.encoding import Encoding
from veritracer.ledger.promises import IssuingModel, Promises
from veritracer.ledger.verdicts import AuditedModel, Verdict
from veritracer.models.network import to_module

NAMES = [f"c{i}" for i in range(4)]
SCHEMA = vt.Schema([vt.Feature(n, "continuous", lower=0.0, upper=1.0) for n in NAMES], "y", "yes", "no")
ENCODING = Encoding.fit(SCHEMA, pd.DataFrame({n: [0.0, 1.0] for n in NAMES}))


@given(
    seed=st.integers(0, 2**31 - 1),
    norm=st.sampled_from(NORMS),
    kappa=st.sampled_from([0.01, 0.1, 0.4]),
    depth=st.integers(1, 3),
    outputs=st.sampled_from([1, 2]),
    far=st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    corners=st.booleans(),
)
def test_verdicts_agree_with_predictions(
    seed: int, norm: str, kappa: float, depth: int, outputs: int, far: float, corners: bool
) -> None:
    case = make_case(
        seed=seed, norm=norm, kappa=kappa, depth=depth, outputs=outputs, inputs=4, signed=False, rows=12
    )
    today = to_module(case.param_set.network, case.param_set.center)
    found = vt.certify(today, case.x, case.x_cf, case.param_set)
    given_ = np.flatnonzero(found.valid)
    promised = np.where(found.certified, kappa, found.radius)[given_]
    issuing = IssuingModel.of(today, ENCODING, 0.5, vt.ParamSet.around(today, norm=norm))
    rows = torch.from_numpy(given_)
    promises = Promises(
        model=issuing.digest,
        sequence=np.arange(len(given_)),
        ids=[str(i) for i in given_],
        issued=np.zeros(len(given_)),
        expires=np.full(len(given_), np.inf),
        kappa=promised,
        # Below kappa nobody asked whether the proof has a condition: the worse is assumed.
        conditional=(found.conditional | ~found.certified)[given_],
        radius=found.radius[given_],
        worst_logit=found.worst_logit[given_],
        favourable=found.favourable[given_],
        x_cf=case.x_cf[rows],
        x=case.x[rows],
        region=points(ENCODING, len(given_)),
    )
    g = torch.Generator().manual_seed(seed)
    sign = np.where(found.favourable[given_], 1, -1)
    for moved in zip(*case.param_set.at(kappa * far).sample(6, g, corners=corners), strict=True):
        later = to_module(issuing.network, moved)
        judged = AuditedModel.of(later, ENCODING).judge(promises, issuing)
        with torch.no_grad():
            there, own = (issuing.network.logit(moved, r).numpy() for r in (promises.x_cf, promises.x))
        turned_down, kept = there * sign >= 0, own * sign > 0
        assert not (turned_down & (judged.verdict != Verdict.BROKEN.code)).any()
        assert not (kept & (judged.verdict == Verdict.SUPERSEDED.code)).any()
        assert not (~kept & (judged.verdict == Verdict.CHECKED.code) & (np.abs(own) > 1e-3)).any()
        if far <= 0.5:
            whole = (promised >= kappa) & (~promises.conditional | (kept & (np.abs(own) > 1e-3)))
            assert (judged.verdict[whole] == Verdict.PROVED.code).all()
