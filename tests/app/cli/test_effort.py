"""``--effort exact``: open rows end as certified, broken or unknown, and exact proofs can be promised."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from processes import run

ROWS = 60
EXACT = ["--kappa", "0.06", "--effort", "exact"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that nobody trained: its counterfactuals are close to where bounds and models meet."""
    place = tmp_path_factory.mktemp("exact")
    data = vt.datasets.loans(rows=300)
    model = vt.VeriTraCER(schema=data.schema, method="standard", hidden=(8, 8, 8), epochs=1, panel=None)
    model.fit(data.X, data.y)
    x = model.encoding_.encode(data.X).to(next(model.classifier_.parameters()))
    torch.manual_seed(4)
    with torch.no_grad():
        for layer in model.classifier_:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
                layer.weight *= 2.0
        model.classifier_[-1].bias -= model.classifier_(x).median()
    model.save(place / "model")
    data.X.head(ROWS).assign(id=[f"p{i}" for i in range(ROWS)]).to_csv(place / "people.csv", index=False)
    return place


def test_explain_certify_and_issue(folder: Path) -> None:
    people = ["model", "people.csv", "--keep", "id"]
    explained = run("explain", *people, "--no-refine", *EXACT, "--out", "a.csv", "--json", cwd=folder)
    assert explained.returncode == 0, explained.stderr
    shown = pd.read_csv(folder / "a.csv")
    exact = (shown["recourse.status"] == "certified") & (shown["recourse.method"] == "exact")
    assert exact.any()
    assert (shown.loc[exact, "recourse.radius"] >= 0.06).all()
    assert not shown.loc[exact, "recourse.conditional"].any()
    broken = shown["recourse.reason"].str.contains("broken by a model at kappa = 0.06")
    assert broken.any()
    assert (shown.loc[broken, "recourse.status"] == "valid").all()

    files = ["model", "people.csv", "a.csv", "--ignore", "id"]
    timed = [*EXACT, "--time-budget", "60"]
    certified = run("certify", *files, *timed, "--out", "b.csv", "--json", cwd=folder)
    assert certified.returncode == 1, certified.stderr
    told, proofs = json.loads(certified.stdout), pd.read_csv(folder / "b.csv")
    assert told["broken"] == int((proofs["recourse.status"] == "broken").sum()) == int(broken.sum())
    assert told["certified"] == int((shown["recourse.status"] == "certified").sum())
    assert f"{told['broken']} valid today but broken" in run("certify", *files, *EXACT, cwd=folder).stdout

    terms = ["--ledger", "promises.db", "--id-column", "id", "--out", "c.csv", "--json"]
    issued = run("issue", "model", "people.csv", "--no-refine", *EXACT, *terms, cwd=folder)
    assert issued.returncode == 0, issued.stderr
    with vt.Ledger(folder / "promises.db") as ledger:
        assert ledger.counts().live == told["certified"]
        assert ledger.verify().ok
