"""Each method's own mathematics, on problems whose answer is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linprog
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from training_cases import encoded
from veritracer import metrics
from veritracer.encoding import Encoding
from veritracer.schema import Schema
from veritracer_bench.baselines import (
    Elastic,
    ElasticOptions,
    Neighbour,
    Roar,
    RoarOptions,
    Sns,
    SnsOptions,
    Wachter,
    WachterOptions,
    roar,
)
from veritracer_bench.baselines.roar import Problem, _last_before_failure, _least_until_failure
from veritracer_bench.baselines.sns import shrunk


def plane(*weights: float, bias: float) -> nn.Sequential:
    layer = nn.Linear(len(weights), 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights], dtype=torch.float64))
        layer.bias.fill_(bias)
    return nn.Sequential(layer)


@pytest.fixture(scope="module")
def square() -> tuple[Encoding, Tensor, Tensor]:
    """Two numbers in [0, 1], forty rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((40, 2)), columns=["a", "b"])
    table.iloc[0], table.iloc[1] = 0.0, 1.0
    encoding = Encoding.fit(Schema.infer(table), table)
    x = encoding.encode(table)
    return encoding, x, (x[:, 0] > 0.5).double()


def mlp(inputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 12), nn.ReLU(), nn.Linear(12, 1)).double()


def test_neighbour_is_the_nearest_row_of_the_other_decision(square) -> None:
    encoding, x, y = square
    module = plane(1.0, 0.0, bias=-0.5)
    found = Neighbour(module, encoding, x, y).explain(x)
    for row, answer in zip(x, found, strict=True):
        others = x[(x[:, 0] > 0.5) != (row[0] > 0.5)]
        assert torch.equal(answer, others[(others - row).abs().sum(-1).argmin()])


def test_neighbour_gives_the_row_itself_where_nobody_is_decided_otherwise(square) -> None:
    encoding, x, y = square
    assert torch.equal(Neighbour(plane(1.0, 0.0, bias=5.0), encoding, x, y).explain(x), x)


def test_wachter_moves_the_column_that_counts_most(square) -> None:
    """The logit is 8a + b - 5: from (0.2, 0.5) the closest way across is 0.3625 in a, and 0 in b.

    Adam's steps of 0.01 in every column, back and forth, are what it may miss this by.
    """
    encoding, x, y = square
    start = torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    found = Wachter(plane(8.0, 1.0, bias=-5.0), encoding, x, y).explain(start)
    assert found[0].tolist() == pytest.approx([0.5625, 0.5], abs=0.02)


def test_wachter_keeps_the_row_where_no_weight_is_enough(square) -> None:
    encoding, x, y = square
    module = plane(0.1, 0.1, bias=5.0)
    assert torch.equal(Wachter(module, encoding, x, y, WachterOptions(rounds=2)).explain(x), x)


def test_shrinkage_takes_small_moves_back() -> None:
    x = torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    point = torch.tensor([0.55, 0.8, 0.2, 9.0], dtype=torch.float64)
    assert shrunk(point, x, 0.1).tolist() == pytest.approx([0.5, 0.7, 0.3, 1.0])


def test_elastic_changes_only_the_column_that_counts_most(square) -> None:
    """As above: one column, and with enough rounds of bisection hardly further than the border."""
    encoding, x, y = square
    start = torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    options = ElasticOptions(rounds=20)
    found = Elastic(plane(8.0, 1.0, bias=-5.0), encoding, x, y, options).explain(start)[0]
    assert found[1] == 0.5
    assert 0.5625 < found[0] < 0.63


def test_surrogate_of_a_linear_function_is_that_function() -> None:
    """Up to the ridge, whose weight of 1 stands against some thousand weighted points."""
    encoding, x, _ = encoded()
    fixed = roar.category_columns(encoding)
    weights = torch.linspace(-2, 2, x.shape[1], dtype=torch.float64)
    sample = roar.draw(lambda z: z @ weights + 0.3, x, fixed, 5000, torch.Generator().manual_seed(0))
    found = roar.fit(sample, x[:5], x[:5] @ weights + 0.3)
    torch.testing.assert_close(found.slope[:, ~fixed], weights[~fixed].expand(5, -1), rtol=0, atol=0.02)
    torch.testing.assert_close(
        (found.slope * x[:5]).sum(-1) + found.offset, x[:5] @ weights + 0.3, rtol=0, atol=0.02
    )


def test_surrogate_equals_scikit_learns_weighted_ridge() -> None:
    """1e-8: two solvers of one linear system in float64."""
    encoding, x, _ = encoded()
    fixed, module = roar.category_columns(encoding), mlp(x.shape[1])
    sample = roar.draw(lambda z: module(z)[:, 0], x, fixed, 400, torch.Generator().manual_seed(0))
    at_x = module(x[:3])[:, 0].detach()
    found = roar.fit(sample, x[:3], at_x)
    for i in range(3):
        here = (x[i] - sample.mean) / sample.scale
        points, logits = torch.cat([here[None], sample.z]), torch.cat([at_x[i : i + 1], sample.logit])
        distance = (points - here).norm(dim=-1).numpy()
        weight = np.sqrt(np.exp(-(distance**2) / (0.75**2 * x.shape[1])))
        ridge = Ridge(alpha=1.0).fit(points.numpy(), logits.numpy(), sample_weight=weight)
        assert found.slope[i].numpy() == pytest.approx(ridge.coef_ / sample.scale.numpy(), abs=1e-8)
        value = float((found.slope[i] * x[i]).sum() + found.offset[i])
        assert value == pytest.approx(float(ridge.predict(here.numpy()[None])[0]), abs=1e-8)


def test_surrogate_of_an_outlier_knows_at_least_its_own_logit() -> None:
    """A row so far away that the kernel of every sampled point is 0 in float64; 1e-9 is rounding at 1e4."""
    encoding, x, _ = encoded()
    fixed, module = roar.category_columns(encoding), mlp(x.shape[1])
    sample = roar.draw(lambda z: module(z)[:, 0], x, fixed, 400, torch.Generator().manual_seed(0))
    far = x[:1] + 1e4
    at_far = module(far)[:, 0].detach()
    found = roar.fit(sample, far, at_far)
    torch.testing.assert_close(found.slope, torch.zeros_like(found.slope), rtol=0, atol=1e-9)
    torch.testing.assert_close((found.slope * far).sum(-1) + found.offset, at_far)


def test_roars_worst_model_is_the_linear_programs(square) -> None:
    """The inner maximisation in closed form against HiGHS, on linear models, for both decisions."""
    encoding, x, y = square
    weights, bias = (2.0, -1.0), -0.4
    explainer = Roar(plane(*weights, bias=bias), encoding, x, y)
    local = explainer._local(x, explainer.samples[0])
    for goal in (1.0, -1.0):
        goals = torch.full((len(x),), goal, dtype=torch.float64)
        found, _ = Problem(x, goals, *local, torch.zeros_like(goals)).objective(x, 0.1)
        for row, loss in zip(x.numpy(), found.numpy(), strict=True):
            point = np.append(row, 1.0)
            delta = linprog(goal * point, bounds=[(-0.1, 0.1)] * 3).x
            worst = goal * ((np.array([*weights, bias]) + delta) @ point)
            assert loss == pytest.approx(np.log1p(np.exp(-worst)), abs=1e-9)  # HiGHS' own tolerance is 1e-9


def test_roars_gradient_is_that_of_its_loss() -> None:
    """Against autograd, away from the kinks of the absolute values; 1e-12 is float64 rounding."""
    rng = torch.Generator().manual_seed(0)
    start, slope, point = torch.randn(3, 20, 4, generator=rng, dtype=torch.float64)
    offset, cost = torch.rand(2, 20, generator=rng, dtype=torch.float64)
    goal = torch.where(offset > 0.5, 1.0, -1.0).double()
    problem = Problem(start, goal, slope, offset, cost)
    point.requires_grad_()
    loss, gradient = problem.objective(point, 0.1)
    (expected,) = torch.autograd.grad(loss.sum(), point)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_roar_survives_every_shift_of_a_linear_model_that_it_was_promised(square) -> None:
    """With a small cost the answer holds for the worst weights, and plain gradient search does not."""
    encoding, x, y = square
    module = plane(6.0, 2.0, bias=-4.0)
    rows = x[(x @ torch.tensor([6.0, 2.0], dtype=torch.float64)) < 3.0]
    found = Roar(module, encoding, x, y, RoarOptions(cost=0.01)).explain(rows)
    floor = Wachter(module, encoding, x, y).explain(rows)

    def worst(x_cf: Tensor) -> Tensor:
        return module(x_cf)[:, 0].detach() - 0.1 * (x_cf.abs().sum(-1) + 1)

    assert (worst(found) > 0).all()
    assert (worst(floor) < 0).any()


def test_roar_takes_the_last_cost_before_a_failure() -> None:
    """Columns: fails at the third; never fails; never succeeds; begins late; fails and succeeds again."""
    reached = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 0, 1, 0], [0, 1, 0, 1, 1], [0, 1, 0, 0, 1]]).bool()
    assert _last_before_failure(reached).tolist() == [1, 3, 3, 2, 0]


def test_roar_leaves_categories_alone_and_sns_breaks_them() -> None:
    encoding, x, y = encoded()
    module = mlp(x.shape[1])
    fixed = roar.category_columns(encoding)
    assert fixed.sum() > 0
    assert torch.equal(Roar(module, encoding, x, y).explain(x[:20])[:, fixed], x[:20][:, fixed])
    found = Sns(module, encoding, x, y).explain(x[:20])
    assert metrics.broken_groups(encoding, found) > 0.5


def test_sns_stays_in_its_ball_and_raises_the_integral() -> None:
    encoding, x, y = encoded()
    module = mlp(x.shape[1])
    sns = Sns(module, encoding, x, y, SnsOptions(radius=0.05))
    rows = x[:30]
    base, found, goal = sns.base.explain(rows), sns.explain(rows), sns.goal(rows)
    moved = (found - base).norm(dim=-1)
    assert (moved <= 0.05 + 1e-12).all()  # rounding of a square root
    assert (moved > 0.04).any()

    def integral(x_cf: Tensor) -> Tensor:
        share = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None, None]
        return torch.sigmoid(goal * sns.logit(share * x_cf)).mean(0)

    valid = metrics.valid_rows(module, rows, base)
    assert valid.any()
    assert (integral(found) > integral(base))[valid].double().mean() > 0.95
    assert metrics.valid_rows(module, rows, found)[valid].all()


# ---------------------------------------------------------------- the paper's recipe


def test_the_authors_rule_takes_the_cheapest_cost_up_to_the_first_failure() -> None:
    """Columns: the failing one is the cheapest; one before it is; none fails; one after it would be."""
    reached = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 1, 1]]).bool()
    cost = torch.tensor([[3.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0], [1.0, 3.0, 1.0, 1.0]])
    assert _least_until_failure(reached, cost).tolist() == [1, 0, 2, 1]


def test_the_authors_draw_categories_column_by_column() -> None:
    encoding, x, _ = encoded()
    fixed = roar.category_columns(encoding)

    def drawn(*, independent: bool) -> Tensor:
        rng = torch.Generator().manual_seed(0)
        sample = roar.draw(lambda z: z[:, 0], x, fixed, 4000, rng, independent=independent)
        return sample.z[:, fixed]

    for independent in (False, True):
        share = drawn(independent=independent).mean(0)
        torch.testing.assert_close(share, x[:, fixed].mean(0), rtol=0, atol=0.05)
    groups = [block.group for block in encoding.blocks if block.group is not None]
    inside = fixed.nonzero()[:, 0].tolist()
    columns = [inside.index(i) for i in range(groups[0].start, groups[0].stop)]
    assert (drawn(independent=False)[:, columns].sum(-1) == 1).all()
    assert (drawn(independent=True)[:, columns].sum(-1) != 1).any()


def test_roar_of_the_paper_knows_no_range_and_puts_categories_back() -> None:
    encoding, x, y = encoded()
    module = mlp(x.shape[1])
    options = RoarOptions(recipe="paper", samples=300, delta_max=0.3)
    found = Roar(module, encoding, x, y, options).explain(x[:6])
    fixed = roar.category_columns(encoding)
    assert torch.equal(found[:, fixed], x[:6][:, fixed])
    assert torch.isfinite(found).all()
    far = plane(*([0.5] * x.shape[1]), bias=-40.0)
    beyond = Roar(far, encoding, x, y, RoarOptions(recipe="paper", cost=0.01)).explain(x[:2])
    assert (beyond > 1.0).any()


def test_sns_of_the_paper_has_a_margin_of_probabilities_and_an_offset_for_each_row(square) -> None:
    """The first valid iterate is beyond the boundary; the gradient is 0 from a margin of 0.5 on."""
    encoding, x, y = square
    module = plane(8.0, 1.0, bias=-5.0)
    start = torch.tensor([[0.2, 0.5], [0.2, 0.5]], dtype=torch.float64)
    base = ElasticOptions(shrink=0.01, learning_rate=0.01)
    usual, paper = (
        Sns(module, encoding, x, y, SnsOptions(base=base, recipe=recipe, steps=5))
        for recipe in (None, "paper")
    )
    assert paper.base.config.recipe == "paper"
    assert torch.equal(*usual.explain(start).unbind())
    found = paper.explain(start)
    assert not torch.equal(*found.unbind())
    assert (module(found) > 0).all()
