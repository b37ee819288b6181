"""Being led to an anchor: as near as it takes to be accepted, and without changes that nobody asked for."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_grids import best_of_all, posed
from torch import Tensor

from veritracer.proving import CASCADE
from veritracer.search.linearised import Solutions, assess
from veritracer.search.polish import undo_changes
from veritracer.search.problem import SearchProblem
from veritracer.search.solve import anchored_search

WEIGHTS = (0.5, 0.9, 1.2)


def anchors(problem: SearchProblem, every: Tensor) -> Tensor:
    """A proved legal row for everybody who has one, else their own."""
    found = problem.x.clone()
    for i in range(len(problem)):
        part = problem.select(torch.full((len(every),), i))
        good = (problem.encoding.project(every, part.x) == every).all(-1) & (part.worst_logit(every) < 0)
        if bool(good.any()):
            found[i] = every[good][len(every[good]) // 2]
    return found


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_the_weakest_pull_that_is_accepted_is_taken(seed: int) -> None:
    problem, every = posed(seed)
    anchor = anchors(problem, every)
    alone = [anchored_search(problem, anchor, WEIGHTS[k : k + 1] * 2, _nobody)[0] for k in range(3)]
    picky = {
        (int(row), tuple(point.tolist()))
        for k, found in enumerate(alone)
        for row, point in enumerate(found.x_cf)
        if k == row % 4  # of three rows in four one weight each is accepted
    }

    def accepted(points: Tensor, rows: Tensor) -> Tensor:
        asked = zip(rows.tolist(), points.tolist(), strict=True)
        return torch.tensor([(row, tuple(point)) in picky for row, point in asked], dtype=torch.bool)

    together, passed = anchored_search(problem, anchor, WEIGHTS, accepted)
    for row in range(len(problem)):
        answers = [found for found in alone if bool(found.proved[row])]
        if not answers:
            assert torch.equal(together.x_cf[row], anchor[row])
            continue
        fine = [
            found for found in answers if bool(accepted(found.x_cf[row : row + 1], torch.tensor([row]))[0])
        ]
        assert bool(passed[row]) == bool(fine)
        expected = fine[0] if fine else answers[-1]
        assert torch.equal(together.x_cf[row], expected.x_cf[row])


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_changes_are_taken_back_whole_and_only_while_accepted(seed: int) -> None:
    problem, every = posed(seed)
    start = assess(problem, anchors(problem, every))
    first = problem.encoding.owner == 0

    def accepted(points: Tensor, rows: Tensor) -> Tensor:
        return (points[:, first] == start.x_cf[rows][:, first]).all(-1)

    found = undo_changes(problem, start, accepted)
    kept = (found.x_cf == start.x_cf) | (found.x_cf == problem.x)
    assert bool(kept.all())
    assert bool((found.x_cf[:, first] == start.x_cf[:, first]).all())
    assert torch.equal(found.proved, start.proved)
    assert bool((problem.worst_logit(found.x_cf, CASCADE)[found.proved] < 0).all())
    assert bool((found.objective <= start.objective).all())
    best = best_of_all(problem, every, CASCADE)
    assert bool((found.objective >= best - 1e-9)[found.proved].all())
    assert torch.equal(undo_changes(problem, found, accepted).x_cf, found.x_cf)


def _nobody(points: Tensor, rows: Tensor) -> Tensor:
    return torch.zeros_like(rows, dtype=torch.bool)


def test_an_answer_does_not_depend_on_its_neighbours_in_the_batch() -> None:
    problem, every = posed(3)
    anchor = anchors(problem, every)

    def accepted(points: Tensor, rows: Tensor) -> Tensor:
        return points.sum(-1) > 1.5

    whole, _ = anchored_search(problem, anchor, WEIGHTS, accepted)
    for i in range(len(problem)):
        one = torch.tensor([i])
        single, _ = anchored_search(problem.select(one), anchor[one], WEIGHTS, accepted)
        assert torch.equal(single.x_cf[0], whole.x_cf[i])
        assert isinstance(single, Solutions)
