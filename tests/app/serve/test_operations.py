"""Batches of requests: what each is told, and that nobody is harmed by the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving_cases import people

from veritracer.app.serve.app import refusal_of
from veritracer.app.serve.models import NoticeOptions, row_model, row_of
from veritracer.app.serve.operations import Job, Operations, PromiseJob
from veritracer.app.serve.settings import Settings
from veritracer.errors import NoticeError, ServiceError
from veritracer.options import ExplainOptions


@pytest.fixture
def operations(settings: Settings, tmp_path: Path) -> Iterator[Operations]:
    """A model with a ledger of its own."""
    made = Operations(replace(settings, ledger=str(tmp_path / "l.db")))
    made.deploy()
    yield made
    made.close()


def answers(operations: Operations, *jobs: Job, seconds: float = 60.0) -> list[Any]:
    return operations.run(jobs, time.monotonic() + seconds)


def row(i: int = 0) -> dict[str, Any]:
    return dict(people()[i])


def test_a_service_without_a_ledger_promises_nothing(settings: Settings) -> None:
    operations = Operations(replace(settings, ledger=None))
    with pytest.raises(ServiceError, match="expected a service with a ledger, got one without") as refused:
        operations.state()
    assert refused.value.status == 404
    (told,) = answers(operations, PromiseJob([row()], ids=["a"], key="k", content="{}"))
    assert told.status == 404
    (told,) = answers(operations, Job("decide", [row()]))
    assert told["decisions"][0]["decision"] == "no"


@pytest.mark.parametrize(
    ("own", "requested", "left", "wanted"),
    [(None, None, 60.0, 60.0), (2.0, None, 60.0, 2.0), (2.0, 1.0, 60.0, 1.0), (2.0, 60.0, 0.5, 0.5)],
)
def test_the_search_ends_with_the_shortest_of_all_times(
    operations: Operations,
    monkeypatch: pytest.MonkeyPatch,
    own: float | None,
    requested: float | None,
    left: float,
    wanted: float,
) -> None:
    seen: list[float] = []
    explain = operations.recourse.explain
    operations.settings = replace(operations.settings, time_budget=own)

    def watched(X: Any, **options: Any) -> Any:
        seen.append(options["time_budget"])
        return explain(X, **options)

    monkeypatch.setattr(operations.recourse, "explain", watched)
    answers(operations, Job("explain", [row()], ExplainOptions(time_budget=requested)), seconds=left)
    assert seen == [pytest.approx(wanted, abs=0.2)]


def test_a_mistake_of_a_whole_batch_is_told_to_each(operations: Operations) -> None:
    options = ExplainOptions(cost={"nothing": 1.0})
    told = answers(operations, Job("explain", [row()], options), Job("explain", [row(1)], options))
    assert [refusal_of(one).status for one in told] == [422, 422]
    assert "'nothing'" in str(told[0])


def test_a_notice_that_cannot_be_written_harms_nobody_else(operations: Operations) -> None:
    operations.settings = replace(operations.settings, fields={"nonsense": "x"})
    good, bad = answers(operations, Job("explain", [row()]), Job("explain", [row(1)], notice=NoticeOptions()))
    assert good["answers"][0]["alternatives"][0]["status"] == "certified"
    assert isinstance(bad, NoticeError)


def test_a_bad_row_is_taken_out_of_its_batch(operations: Operations) -> None:
    bad = {**row(1), "savings": 2_050}  # not a multiple of 100
    first, second, third = answers(
        operations, Job("decide", [row()]), Job("decide", [bad]), Job("decide", [row(2)])
    )
    assert refusal_of(second).status == 422
    assert [first] == answers(operations, Job("decide", [row()]))
    assert [third] == answers(operations, Job("decide", [row(2)]))


def test_another_result_than_the_previewed_one_is_refused(operations: Operations) -> None:
    job = PromiseJob([row()], ids=["a"], key="k", content="{}", choose=[0], preview="0" * 64)
    (told,) = answers(operations, job)
    assert (told.status, told.args[0].expected) == (409, "the result that was shown")
    assert operations.state()["live"] == 0


def test_the_example_is_a_legal_row(operations: Operations) -> None:
    example = operations.example()
    assert row_of(row_model(operations.model.schema_).model_validate(example)) == example
    (told,) = answers(operations, Job("decide", [example]))
    assert "decision" in told["decisions"][0]


def test_numbers_beyond_the_learned_range_are_noted(operations: Operations) -> None:
    low, _ = operations.ranges["income"]
    operations.ranges["income"] = (low, 20_000.0)
    (told,) = answers(operations, Job("explain", [{**row(), "income": 30_000.0}]))
    assert told["notes"] == [f"'income' in row 0 is outside {low:,g} to 20,000 and counts as the nearer end"]
