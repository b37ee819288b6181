"""Rows as they come over the wire, checked without the model."""

from __future__ import annotations

import pytest

from veritracer.app.serve.rows import Column, Columns
from veritracer.errors import DataError

AGE = Column("age", "integer", "free", 18, 90, 1.0, (), "refuse", ())
INCOME = Column("income", "continuous", "free", 0.0, 1e5, None, (), "impute", (-1,))
JOB = Column("job", "categorical", "free", None, None, None, ("clerk", "cook"), "refuse", ())
COLUMNS = Columns((AGE, INCOME, JOB))
ROW = {"age": 30, "income": 2e4, "job": "cook"}


def test_what_may_be_missing_and_what_may_not() -> None:
    assert COLUMNS.check([ROW, {**ROW, "income": None}, {**ROW, "income": -1}]) == []
    with pytest.raises(DataError, match="expected a value of 'age', got none in row 1 — state it"):
        COLUMNS.check([ROW, {**ROW, "age": None}])


def test_what_is_beyond_the_range_is_noted() -> None:
    assert COLUMNS.check([{**ROW, "age": 95}]) == [
        "'age' in row 0 is beyond 18 to 90 and counts as the nearer end"
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROW, "job": "cooks"}, "expected a value of 'job', got 'cooks' in row 0 — did you mean 'cook'"),
        ({**ROW, "job": "x" * 100}, "got 'x+… in row 0 — there are"),
        ({"age": 30, "job": "cook"}, "expected 3 columns, got in row 0 none called 'income' — add them"),
        ({**ROW, "jobs": "cook"}, "expected columns of this model alone, got 'jobs' in row 0 — did you mean"),
    ],
)
def test_what_is_no_row(row: dict[str, object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        COLUMNS.check([row])
