"""What cannot be explained, or written into a letter, is refused before anything is searched for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.app.notice_templates import page_pdf
from veritracer.errors import DataError, NoticeError, NotSupportedError


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 1)).double()


def test_a_schema_and_rows_are_an_encoding() -> None:
    frame, _ = applicants(60)
    width = vt.Encoding.fit(SCHEMA, frame).dim
    made = vt.Recourse(network(width), SCHEMA, rows=frame)
    assert made.encoding.digest == vt.Encoding.fit(SCHEMA, frame).digest
    with pytest.raises(DataError, match="expected an encoding, or a schema and training rows, got neither"):
        vt.Recourse(network(width), SCHEMA)


def test_labels_belong_to_rows() -> None:
    frame, y = applicants(60)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    with pytest.raises(DataError, match="expected rows and their labels, got labels without rows"):
        vt.Recourse(network(encoding.dim), encoding=encoding, labels=y)
    with pytest.raises(DataError, match="got a panel to be fitted without labels"):
        vt.Recourse(network(encoding.dim), encoding=encoding, rows=frame, panel="default")


def test_two_classes_are_decided_between() -> None:
    frame, _ = applicants(60)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    three = LogisticRegression().fit(encoding.encode(frame).numpy(), np.arange(60) % 3)
    with pytest.raises(NotSupportedError, match="expected a model of two classes, got 3"):
        vt.Recourse(three, encoding=encoding)


@pytest.mark.parametrize("fitted", [True, False])
def test_a_pipeline_is_refused(fitted: bool) -> None:
    frame, y = applicants(60)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    if fitted:
        pipeline.fit(encoding.encode(frame).numpy(), y)
    refused = "got a Pipeline — the pipeline's steps change the columns; fit VeriTraCER on the raw table"
    with pytest.raises(NotSupportedError, match=refused):
        vt.Recourse(pipeline, encoding=encoding)


def test_nobody_is_advised_to_take_a_part_of_a_model() -> None:
    frame, _ = applicants(60)
    model = GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {})
    with pytest.raises(NotSupportedError, match="got a GridSearchCV — fit VeriTraCER on the raw table"):
        vt.Recourse(model, SCHEMA, rows=frame)


def test_limits_are_for_numbers() -> None:
    frame, _ = applicants(60)
    made = vt.Recourse(network(vt.Encoding.fit(SCHEMA, frame).dim), SCHEMA, rows=frame)
    with pytest.raises(
        DataError, match="expected a numeric feature in limits, got the categorical feature 'job'"
    ):
        made.explain(frame.head(2), limits={"job": 0.1})


def test_a_system_without_pango_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "print('WeasyPrint could not'); raise OSError('cannot load library pango\\nand more')"
    (tmp_path / "weasyprint.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "weasyprint"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(NoticeError, match=r"got cannot load library pango — install Pango"):
        page_pdf("<p>letter</p>")
    assert capsys.readouterr().out == ""  # which is for results
