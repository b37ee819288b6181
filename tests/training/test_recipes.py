"""The paper's recipe: its schedules, losses, noise and steps, against numbers computed another way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import veritracer as vt
from training_cases import encoded, people
from veritracer.bounds import dual
from veritracer.bounds.affine import Affine, keeps_decision
from veritracer.bounds.methods import BOUNDS, BoundProblem
from veritracer.encoding import Encoding
from veritracer.errors import TrainingError
from veritracer.models.network import Network
from veritracer.models.param_sets import ParamSet
from veritracer.training import recipes
from veritracer.training.algorithm import TrainedModels, train
from veritracer.training.checkpoints import Checkpoint
from veritracer.training.config import TrainingConfig
from veritracer.training.data import LabelledRows, members, padded, prepare
from veritracer.training.generator import (
    Context,
    CounterNetGenerator,
    Noise,
    init_parameters,
    project_straight_through,
)
from veritracer.training.losses import Adam
from veritracer.training.objective import Objective, worst_with_fixed_slopes


def paper(name: str = "paper", method: str = "veritracer", **changes: object) -> TrainingConfig:
    settings = {"method": method, **recipes.settings_of(name, method), **changes}
    return TrainingConfig(**settings).checked()


# ---------------------------------------------------------------- settings


def test_given_values_win_and_parameters_stay_as_they_were() -> None:
    model = vt.VeriTraCER(recipe="paper:ctg", learning_rate=0.1)
    assert (model.settings_.kappa, model.settings_.learning_rate) == (0.4, 0.1)
    assert (model.kappa, model.get_params()["learning_rate"]) == (None, 0.1)
    assert vt.VeriTraCER(recipe="paper:ctg", kappa=0.3).settings_.kappa == 0.3
    changed = vt.VeriTraCER(recipe={"recipe": "paper:oula", "regenerate": 1})
    assert (changed.settings_.regenerate, changed.settings_.hidden) == (1, (127, 100, 10, 10))
    assert vt.VeriTraCER().settings_ == TrainingConfig()


def test_a_recipe_without_a_dataset_is_that_of_heloc() -> None:
    assert paper("paper") == paper("paper:heloc")
    assert paper("paper-text") == paper("paper-text:heloc")
    assert paper("paper-text").target == "decision"


def test_methods_differ_in_the_weight_of_the_bound_and_in_epochs() -> None:
    assert paper(method="standard").epochs == 20
    assert paper("paper-text", method="standard").epochs == 100
    assert paper(method="counternet").epochs == 100
    assert paper(method="counternet").robustness(1.0) == 0.0


@pytest.mark.parametrize("recipe", ["papr", "paper:helo", "paper:", 3, {"recipe": "paper", "regenarate": 1}])
def test_recipes_that_do_not_exist_are_refused(recipe: object) -> None:
    if recipe == "paper:":  # an empty dataset is none
        assert vt.VeriTraCER(recipe=recipe).settings_.epochs == 100
        return
    with pytest.raises(TrainingError, match=r"paper|regenerate|recipe"):
        _ = vt.VeriTraCER(recipe=recipe).settings_


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy_loss": "output-cross-entropy", "logits": 1},
        {"passes": "batch"},
        {"generator": "residual"},
        {"dropout": 1.0},
        {"weight_decay": -1.0},
        {"logits": 3},
        {"regenerate": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TrainingError):
        paper(**changes)


# ---------------------------------------------------------------- schedules


def test_the_robust_weight_grows_by_epochs() -> None:
    config = paper()
    ramp = [config.robustness(epoch / 100) for epoch in range(100)]
    assert ramp[:11] == pytest.approx([0.0] * 11, abs=1e-12)
    assert ramp[11:80] == pytest.approx([k / 70 for k in range(1, 70)], abs=1e-12)
    assert ramp[80:] == pytest.approx([1.0] * 20, abs=1e-12)


def test_counterfactuals_are_made_anew_every_twenty_epochs_but_not_at_first() -> None:
    assert [epoch for epoch in range(100) if paper().regenerates(epoch)] == [20, 40, 60, 80]
    assert not any(paper(method="counternet").regenerates(epoch) for epoch in range(100))
    assert all(paper("paper-text").regenerates(epoch) for epoch in range(100))


def test_fine_tuning_goes_on_without_a_warm_up() -> None:
    config = recipes.continued(paper("paper:ctg"))
    assert [epoch for epoch in range(20) if config.regenerates(epoch)] == [0]
    assert config.learning_rate == pytest.approx(4e-3 / 5)
    ramp = [config.robustness(epoch / 20) for epoch in range(20)]
    assert ramp == pytest.approx([min(1.0, epoch / 7) for epoch in range(20)])


def test_the_learning_rate_decays_before_the_first_epoch_too() -> None:
    factors = [paper("paper:ctg").lr_factor(0.0, epoch) for epoch in (0, 1, 99)]
    assert factors == pytest.approx([0.99, 0.9801, 0.99**100])
    assert paper().lr_factor(0.99, 99) == 1.0


# ---------------------------------------------------------------- losses


OUTPUTS = torch.tensor([[0.3, 1.1], [-0.4, -2.0], [0.9, 0.7], [0.0, 2.0]], dtype=torch.float64)
Y = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
WORST = torch.tensor([-0.2, 0.5, 1.5, -3.0], dtype=torch.float64)
ONES = torch.ones(4, dtype=torch.float64)


def sigmoid(z: object) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(z, dtype=float)))


def test_losses_of_the_squared_recipe_by_hand() -> None:
    objective = Objective(paper())
    z = OUTPUTS[:, 1] - OUTPUTS[:, 0]
    p, sign = sigmoid(z), np.where(z > 0, 1.0, -1.0)
    assert float(objective.accuracy(OUTPUTS, z, Y, ONES)) == pytest.approx(np.mean((p - Y.numpy()) ** 2))
    goal = objective.goal(z, torch.from_numpy(sign))
    assert goal is not None
    # In the authors' terms: b bounds z(x') from the side that matters, its target is 1 - p(x).
    b = sign * WORST.numpy()
    each = (sigmoid(b) - (1 - p)) ** 2
    assert float(objective.robust(WORST, goal, ONES)) == pytest.approx(0.05 * each.mean())
    right = (z > 0) == (Y > 0.5)
    assert right.tolist() == [True, False, True, False]
    masked = np.where(right, each, 1.0).mean()
    assert float(objective.robust(WORST, goal, ONES, 0.5, right)) == pytest.approx(0.025 * masked)
    z_cf = torch.tensor([-1.0, 0.2, 0.4, -0.3], dtype=torch.float64)
    expected = 0.5 * np.mean((sigmoid(z_cf) - (1 - p)) ** 2)
    assert float(objective.validity(z_cf, torch.from_numpy(sign), goal, ONES)) == pytest.approx(expected)
    x, x_cf = torch.zeros(4, 3).double(), torch.arange(12.0).view(4, 3).double()
    squared = objective.proximity(x_cf, x, x, ONES)
    assert float(squared) == pytest.approx(0.1 * np.mean(np.arange(12.0) ** 2))


def test_losses_of_ctg_by_hand() -> None:
    objective = Objective(paper("paper:ctg"))
    z = OUTPUTS[:, 1] - OUTPUTS[:, 0]
    p, sign = sigmoid(z), torch.where(z > 0, 1.0, -1.0).double()
    targets = np.stack([1 - Y.numpy(), Y.numpy()], -1)
    q = sigmoid(OUTPUTS)
    each = -(targets * np.log(q) + (1 - targets) * np.log(1 - q)) * np.array([0.95, 0.05])
    assert float(objective.accuracy(OUTPUTS, z, Y, ONES)) == pytest.approx(each.mean())
    goal = objective.goal(z, sign)
    b = sigmoid(sign.numpy() * WORST.numpy())
    robust = -0.5 * ((1 - p) * np.log(b) + p * np.log(1 - b))
    assert float(objective.robust(WORST, goal, ONES)) == pytest.approx(0.005 * robust.mean())
    right = torch.tensor([True, False, True, False])
    masked = np.where(right, robust, 100.0).mean()
    assert float(objective.robust(WORST, goal, ONES, 1.0, right)) == pytest.approx(0.005 * masked)


def test_masked_rows_and_goals_carry_no_gradient() -> None:
    objective = Objective(paper())
    worst, z = WORST.clone().requires_grad_(), (OUTPUTS[:, 1] - OUTPUTS[:, 0]).requires_grad_()
    goal = objective.goal(z, torch.ones(4).double())
    objective.robust(worst, goal, ONES, 1.0, torch.tensor([True, False, True, False])).backward()
    assert (worst.grad != 0).tolist() == [True, False, True, False]
    assert z.grad is None


# ---------------------------------------------------------------- the generator's noise


def generator_of(**options: object) -> tuple[CounterNetGenerator, tuple[Tensor, ...]]:
    """A generator whose raw outputs are the biases of its last layer."""
    made = CounterNetGenerator(5, 2, (50,), (slice(2, 5),), slope=0.01, **options)
    theta = init_parameters(made.sizes, torch.Generator().manual_seed(0))
    raw = torch.tensor([-0.5, 0.4, 0.0, 1.0, -1.0], dtype=torch.float64)
    return made, (*theta[:2], torch.zeros_like(theta[2]), raw)


def context_of(rows: int) -> Context:
    zeros = torch.zeros(rows, 2, dtype=torch.float64)
    return Context(torch.zeros(rows, 5, dtype=torch.float64), zeros, torch.ones(rows, dtype=torch.float64))


def test_categories_are_drawn_with_the_probabilities_of_the_softmax() -> None:
    made, theta = generator_of(clamp=True, sample=True)
    rows = 20_000
    found = made.propose(theta, context_of(rows), Noise([torch.Generator().manual_seed(1)]))
    shares = torch.bincount(found[:, 2:].argmax(-1), minlength=3).numpy() / rows
    expected = np.exp([0.0, 1.0, -1.0]) / np.exp([0.0, 1.0, -1.0]).sum()
    assert shares == pytest.approx(expected, abs=4 * 0.5 / rows**0.5)
    assert found[:, 2:].sum(-1).numpy() == pytest.approx(np.ones(rows))
    assert found[0, :2].tolist() == [0.0, 0.4]
    certain = made.propose(theta, context_of(3))
    assert certain[:, 2:].argmax(-1).tolist() == [1, 1, 1]


def test_numbers_beyond_the_range_have_no_gradient_through_the_clamp() -> None:
    made, theta = generator_of(clamp=True)
    raw = theta[-1].clone().requires_grad_()
    made.propose((*theta[:-1], raw), context_of(1)).sum().backward()
    assert raw.grad[:2].tolist() == [0.0, 1.0]


def test_dropout_keeps_the_mean_and_only_drops_in_training() -> None:
    h = torch.ones(400, 100, dtype=torch.float64)
    stream = torch.Generator().manual_seed(2)
    dropped = Noise([stream], dropping=True).dropped(h, 0.3)
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7])
    assert float((dropped == 0).double().mean()) == pytest.approx(0.3, abs=4 * 0.46 / 200)
    assert Noise([stream]).dropped(h, 0.3) is h


# ---------------------------------------------------------------- the bound with fixed slopes


def problem_of(
    seed: int, kappa: float, sizes: tuple[int, ...] = (4, 8, 5, 2)
) -> tuple[ParamSet, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    network = Network((0.01,) * (len(sizes) - 2), (-1.0, 1.0))
    theta = tuple((1.5 * t).requires_grad_() for t in init_parameters(sizes, rng))
    x = torch.rand(60, 4, generator=rng, dtype=torch.float64) * 2 - 1
    x_cf = (-x + 0.1 * torch.rand(60, 4, generator=rng, dtype=torch.float64)).requires_grad_()
    sign = torch.where(network.logit(theta, x).detach() > 0, 1.0, -1.0).double()
    return ParamSet.of(network, theta, kappa), x, x_cf, sign


@pytest.mark.parametrize("seed", range(4))
def test_fixed_slopes_change_the_gradient_and_not_the_value(seed: int) -> None:
    param_set, x, x_cf, sign = problem_of(seed, 0.1)
    fixed = worst_with_fixed_slopes(param_set, x, x_cf, sign)
    usual = BOUNDS["simul-crown"](param_set, x, x_cf, sign).worst_logit
    torch.testing.assert_close(fixed, usual, atol=1e-12, rtol=0)


def test_the_gradient_with_fixed_slopes_is_that_of_the_greedy_algorithm() -> None:
    """Algorithm 2 on constant planes, differentiated by moving the box; x_cf gets nothing."""
    checked = 0
    for seed in range(12):
        param_set, x, x_cf, sign = problem_of(seed, 0.2, (4, 8, 2))
        problem = BoundProblem(param_set, x, x_cf, sign)
        planes = problem.plane.detach(), problem.constraint().detach()
        value = worst_with_fixed_slopes(param_set, x, x_cf, sign)
        crown = BOUNDS["crown-ibp"](param_set, x, x_cf, sign).worst_logit
        center = torch.cat([t.detach().flatten() for t in param_set.center])
        pairs = zip(param_set.radii, param_set.center, strict=True)
        radius = torch.cat([r.expand(t.shape).flatten() for r, t in pairs])
        for row in (value < crown - 1e-6).nonzero()[:3, 0].tolist():
            wanted = [*param_set.center, x_cf]
            grads = torch.autograd.grad(value[row], wanted, retain_graph=True, materialize_grads=True)
            assert not grads[-1].any()
            (mu, nu), (alpha, beta) = (dense_of(plane, row, center) for plane in planes)
            direction = torch.randn(len(center), generator=torch.Generator().manual_seed(row)).double()
            ends = [
                dual.greedy_maximum(mu, nu, alpha, beta, center + step * direction, radius)
                for step in (1e-6, -1e-6)
            ]
            slope = float(ends[0] - ends[1]) / 2e-6
            found = torch.cat([g.flatten() for g in grads[:-1]])
            assert float(found @ direction) == pytest.approx(slope, rel=1e-4, abs=1e-6)
            checked += 1
    assert checked >= 10


def dense_of(plane: Affine, row: int, center: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (1, P) and offset (1,) of one row's plane, as a function of the parameters themselves."""
    slopes = plane.dense()[row]
    return slopes.unsqueeze(0), (plane.center[row] - (slopes * center).sum()).view(1)


def test_where_the_constraint_does_not_bind_half_of_the_full_gradient_reaches_the_counterfactual() -> None:
    param_set, x, x_cf, sign = problem_of(0, 0.02)
    problem = BoundProblem(param_set, x, x_cf, sign)
    free = keeps_decision(param_set, problem.plane, x, sign)
    tighter = problem.plane.upper(param_set.row_radii, "linf") < problem.interval - 1e-9
    rows = free & tighter
    assert rows.any()
    fixed = torch.autograd.grad(worst_with_fixed_slopes(param_set, x, x_cf, sign).sum(), x_cf)[0]
    param_set, x, x_cf, sign = problem_of(0, 0.02)
    full = torch.autograd.grad(BOUNDS["crown-ibp"](param_set, x, x_cf, sign).worst_logit.sum(), x_cf)[0]
    torch.testing.assert_close(fixed[rows], full[rows] / 2)


# ---------------------------------------------------------------- the optimiser and the steps


def test_weight_decay_is_that_of_adamw() -> None:
    rng = torch.Generator().manual_seed(0)
    ours = torch.randn(6, generator=rng, dtype=torch.float64)
    theirs = ours.clone().requires_grad_()
    adam, reference = Adam([ours], weight_decay=0.1), torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for _ in range(20):
        gradient = torch.randn(6, generator=rng, dtype=torch.float64)
        adam.step([gradient], 0.01)
        theirs.grad = gradient
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-12, rtol=0)


def numeric(n: int) -> tuple[Encoding, LabelledRows]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((n, 4)), columns=list("abcd"))
    y = np.where(frame["a"] - frame["b"] + rng.normal(0, 0.1, n) > 0, "yes", "no")
    schema = vt.Schema.infer(frame).with_labels(y, favourable="yes").unconstrained()
    encoding = Encoding.fit(schema, frame)
    weight = torch.ones(1, n, dtype=torch.float64)
    return encoding, LabelledRows(encoding.encode(frame), torch.as_tensor(schema.labels(y)).double(), weight)


def test_two_epochs_equal_a_plain_implementation() -> None:
    """CounterNet of the recipe against loops over torch modules and torch's AdamW, in float64."""
    encoding, rows = numeric(70)
    small = {"epochs": 2, "hidden": (7, 5), "generator_hidden": (6,), "batch_size": 32, "dropout": 0.0}
    config = paper("paper:ctg", method="counternet", sample=False, **small)
    config = replace(config, validation="stratified", accuracy_loss="mse")
    found = train(config, encoding, rows, rows, [3])
    stream = torch.Generator().manual_seed(3)
    f = [t.requires_grad_() for t in init_parameters((4, 7, 5, 2), stream)]
    g = [t.requires_grad_() for t in init_parameters((12, 6, 4), stream)]
    first, second = (torch.optim.AdamW([*f, *g], lr=1.0, weight_decay=config.weight_decay) for _ in range(2))
    leaky = torch.nn.functional.leaky_relu
    linear = torch.nn.functional.linear

    def decide(x: Tensor) -> tuple[Tensor, Tensor]:
        h1 = leaky(linear(x, f[0], f[1]), 0.01)
        h2 = leaky(linear(h1, f[2], f[3]), 0.01)
        o = linear(h2, f[4], f[5])
        return torch.sigmoid(o[:, 1] - o[:, 0]), torch.cat([h1, h2], -1)

    def step(optimiser: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        size = sum(t.grad.square().sum() for t in [*f, *g] if t.grad is not None) ** 0.5
        for t in [*f, *g]:
            if t.grad is not None:
                t.grad *= min(1.0, 0.5 / float(size))
        optimiser.step()

    histories = []
    for epoch in range(2):
        rate = config.learning_rate * 0.99 ** (epoch + 1)
        for batch in torch.randperm(70, generator=stream).split(32):
            p, _ = decide(rows.x[batch])
            step(first, (p - rows.y[batch]).square().mean(), rate)
        for batch in torch.randperm(70, generator=stream).split(32):
            x = rows.x[batch]
            p, latent = decide(x)
            raw = linear(leaky(linear(latent, g[0], g[1]), 0.01), g[2], g[3])
            x_cf = raw.clamp(0, 1)
            cost = 0.05 * (x_cf - x).square().mean()
            cost = cost + 2.0 * (decide(x_cf)[0] - (1 - p).detach()).square().mean()
            step(second, cost, rate)
        histories.append([t.detach().clone() for t in [*f, *g]])
    wanted = histories[found.best_epoch[0] - 1]
    for ours, theirs in zip([*found.theta[0], *found.generator_theta[0]], wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def test_a_classifier_alone_decays_in_both_passes() -> None:
    encoding, rows = numeric(64)
    config = paper(method="standard", epochs=1, hidden=(3, 3), batch_size=32, learning_rate=0.1)
    still = replace(config, validation="stratified", weight_accuracy=0.0)
    found = train(still, encoding, rows, rows, [0])
    start = init_parameters((4, 3, 3, 2), torch.Generator().manual_seed(0))
    for after, before in zip(found.theta[0], start, strict=True):
        torch.testing.assert_close(after, before * (1 - 0.1 * 0.05) ** 4)


# ---------------------------------------------------------------- whole runs

SHORT = {
    "epochs": 5,
    "hidden": (8, 6),
    "generator_hidden": (8,),
    "batch_size": 64,
    "warmup": 0.0,
    "ramp": 0.4,
}
SHORT |= {"regenerate": 2, "first_regenerated": 2, "learning_rate": 5e-3}


def run(seeds: list[int], checkpoint: Checkpoint | None = None, **options: object) -> TrainedModels:
    encoding, x, y = encoded()
    weight = torch.ones(len(seeds), 240, dtype=torch.float64)
    held = torch.zeros_like(weight)
    for model, seed in enumerate(seeds):
        held[model, torch.randperm(240, generator=torch.Generator().manual_seed(seed))[:30]] = 1
    config = paper(**SHORT)
    parts = LabelledRows(x, y, weight - held), LabelledRows(x, y, held)
    return train(config, encoding, *parts, seeds, checkpoint=checkpoint, **options)


def test_models_side_by_side_equal_models_alone() -> None:
    together = run([3, 1])
    for index, seed in enumerate((3, 1)):
        alone = run([seed])
        assert together.best_epoch[index] == alone.best_epoch[0]
        for many, one in zip(together.theta[index], alone.theta[0], strict=True):
            torch.testing.assert_close(many, one, atol=1e-9, rtol=0)


def test_a_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole = run([4, 2])
    steps = iter(range(10**6))
    place = tmp_path / "run.checkpoint"
    # Four batches of 210 rows in each of two passes: stopped within the fourth epoch.
    stopped = run([4, 2], Checkpoint(place, seconds_between=0.0), interrupted=lambda: next(steps) == 26)
    assert len(stopped.history[0]) == 4
    told: list[int] = []
    resumed = run(
        [4, 2], Checkpoint(place, seconds_between=0.0), on_epoch=lambda epoch: told.append(epoch.epoch)
    )
    assert told == [4, 5]
    assert resumed.best_epoch == whole.best_epoch
    for ours, theirs in zip(resumed.theta[1], whole.theta[1], strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(resumed.generator_theta[0], whole.generator_theta[0], strict=True):
        assert torch.equal(ours, theirs)
    objectives = [[epoch["objective"] for epoch in each.history[0]] for each in (resumed, whole)]
    assert objectives[0] == objectives[1]
    with pytest.raises(TrainingError, match="other settings, rows or seeds"):
        run([4, 5], Checkpoint(place))


def test_validation_rows_are_random_by_seed_and_never_left_out_ones() -> None:
    frame, y = people(400)
    block = np.arange(40, 44)
    known = {"schema": None, "favourable": "yes", "sample_weight": None, "class_weight": None}
    data = prepare(
        frame,
        y,
        validation_fraction=1 / 8,
        validation_seeds=[0, 1, 0],
        leave_out=[[], [], block],
        device="cpu",
        **known,
    )
    kept, held = members(data.rows), members(data.validation)
    assert [len(rows) for rows in held] == [50, 50, 49]
    assert [len(rows) for rows in kept] == [350, 350, 347]
    assert held[0].tolist() != held[1].tolist()
    for index in range(3):
        assert not set(kept[index].tolist()) & set(held[index].tolist())
    assert not set(block) & {*kept[2].tolist(), *held[2].tolist()}
    stacked, live = padded(kept)
    assert stacked.shape == (3, 350)
    assert live is not None
    assert live.sum(-1).tolist() == [350, 350, 347]


def test_a_drawn_category_is_one_that_exists() -> None:
    encoding, x, _ = encoded()
    made = CounterNetGenerator(encoding.dim, 4, (6,), tuple(encoding.groups), clamp=True, sample=True)
    theta = init_parameters(made.sizes, torch.Generator().manual_seed(0))
    context = Context(x, torch.zeros(len(x), 4).double(), torch.ones(len(x)).double())
    noise = Noise([torch.Generator().manual_seed(1)], dropping=True)
    hard, _ = project_straight_through(encoding, made.propose(theta, context, noise), x)
    for group in encoding.groups:
        assert set(hard[:, group].flatten().tolist()) == {0.0, 1.0}
        assert (hard[:, group].sum(-1) == 1).all()
