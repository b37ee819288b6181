"""Refinement against enumeration: never better than the best legal row, always proved, and near the best."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_grids import best_of_all, posed
from torch import Tensor

from veritracer.search.polish import alternatives, limit_changes
from veritracer.search.problem import SearchProblem
from veritracer.search.solve import anchor_to_data, closest


def from_itself(problem: SearchProblem) -> Tensor:
    return problem.x


@settings(max_examples=25)
@given(st.integers(0, 2**31))
def test_an_answer_is_legal_proved_and_never_better_than_the_best(seed: int) -> None:
    problem, every = posed(seed)
    found = closest(problem, [from_itself])
    best = best_of_all(problem, every)
    proved = found.proved
    assert torch.equal(problem.encoding.project(found.x_cf, problem.x), found.x_cf)
    by_ibp = proved & (problem.worst_logit(found.x_cf) < 0)
    assert bool((found.objective[by_ibp] >= best[by_ibp] - 1e-9).all())
    torch.testing.assert_close(found.objective[by_ibp], problem.objective(found.x_cf)[by_ibp])


def test_answers_are_near_the_best_of_all_legal_rows() -> None:
    gaps, missed, total = [], 0, 0
    for seed in range(25):
        problem, every = posed(seed)
        found, best = closest(problem, [from_itself, lambda p: 1 - p.x]), best_of_all(problem, every)
        possible = torch.isfinite(best)
        total += int(possible.sum())
        missed += int((possible & ~found.proved).sum())
        both = possible & found.proved & (problem.worst_logit(found.x_cf) < 0)
        gaps.append(found.objective[both] / best[both])
    ratio = torch.cat(gaps)
    assert total > 100
    assert missed <= 0.05 * total  # random networks are harsher than trained ones
    assert float(ratio.median()) < 1.001
    assert float(ratio.mean()) < 1.15


def test_fewer_changes_are_kept_to() -> None:
    for seed in range(8):
        problem, _ = posed(seed, kappa=0.02)

        def solver(part: SearchProblem) -> object:
            return closest(part, [from_itself])

        free = solver(problem)
        found = limit_changes(problem, free, 1, solver)
        count = problem.encoding.changed(found.x_cf, problem.x).sum(-1)
        assert int(count.max()) <= 1
        assert bool((found.worst_logit[found.proved] < 0).all())


def _everything(points: Tensor, rows: Tensor) -> Tensor:
    return torch.ones_like(rows, dtype=torch.bool)


def test_accepted_alternatives_come_before_cheaper_ones() -> None:
    problem, _ = posed(0, kappa=0.01)
    first = problem.encoding.owner == 0

    def accepted(points: Tensor, rows: Tensor) -> Tensor:
        return (points[:, first] == problem.x[rows][:, first]).all(-1)

    found = closest(problem, [from_itself])
    options = alternatives(problem, found, 3, lambda part: closest(part, [from_itself]), accepted)
    passed = accepted(options.x_cf, options.row)
    assert bool((options.proved & ~passed).any())
    for row in range(len(problem)):
        order = passed[(options.row == row) & options.proved].tolist()
        assert order == sorted(order, reverse=True)


def test_alternatives_change_different_features() -> None:
    several = 0
    for seed in range(6):
        problem, _ = posed(seed, kappa=0.01)
        found = closest(problem, [from_itself])
        options = alternatives(problem, found, 3, lambda part: closest(part, [from_itself]), _everything)
        assert torch.equal(options.row, options.row.sort().values)
        for row in range(len(problem)):
            mine = options.select((options.row == row).nonzero().squeeze(-1))
            assert mine.alternative.tolist() == list(range(len(mine.alternative)))
            proved = mine.x_cf[mine.proved]
            changed = problem.encoding.changed(proved, problem.x[row].expand_as(proved))
            sets = [tuple(one) for one in changed.tolist()]
            assert len(set(sets)) == len(sets)
            assert bool((mine.objective >= mine.objective[0] - 1e-9).all())
            several += len(sets) > 1
    assert several > 10


def test_a_pull_brings_answers_nearer_to_the_data() -> None:
    problem, every = posed(3, kappa=0.02)
    found = closest(problem, [from_itself])
    data = every[::37]

    def nearest(points: Tensor) -> Tensor:
        return data[torch.cdist(points, data, p=1.0).argmin(-1)]

    anchored = anchor_to_data(problem, found, nearest, 1.5)
    assert torch.equal(anchored.proved, found.proved)
    rows = found.proved
    far = [(f.x_cf - nearest(f.x_cf)).abs().sum(-1)[rows].mean() for f in (found, anchored)]
    assert far[1] < far[0]
    assert bool((problem.cost(anchored.x_cf)[rows] >= problem.cost(found.x_cf)[rows] - 1e-9).all())
    assert bool((anchored.worst_logit[rows] < 0).all())
