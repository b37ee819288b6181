"""Algorithm 1: what one step does, what side by side means, and what the run keeps."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

import veritracer as vt
from training_cases import encoded, people
from veritracer.errors import TrainingError
from veritracer.training import algorithm, losses
from veritracer.training.algorithm import train
from veritracer.training.config import TrainingConfig
from veritracer.training.data import LabelledRows
from veritracer.training.generator import Context, init_parameters, make_generator, project_straight_through


def run(
    config: TrainingConfig, seeds: list[int], weight: Tensor | None = None, n: int = 240
) -> algorithm.TrainedModels:
    encoding, x, y = encoded(n)
    weight = torch.ones(len(seeds), n, dtype=torch.float64) if weight is None else weight
    rows = LabelledRows(x, y, weight)
    return train(config, encoding, rows, rows, seeds)


SHORT = TrainingConfig(epochs=3, batch_size=64, hidden=(8, 6), generator_hidden=(8,), warmup=0.0, ramp=0.3)


@pytest.mark.parametrize("bound", ["ibp", "crown-ibp", "simul-crown"])
@pytest.mark.parametrize("generator", ["residual", "counternet", "neighbour"])
def test_models_side_by_side_equal_models_alone(bound: str, generator: str) -> None:
    """Three epochs of three seeds in float64, to 1e-9: parameters, records and chosen epochs."""
    config = TrainingConfig(**{**SHORT.__dict__, "bound": bound, "generator": generator})
    seeds = [3, 1, 4]
    together = run(config, seeds)
    for index, seed in enumerate(seeds):
        alone = run(config, [seed])
        assert together.best_epoch[index] == alone.best_epoch[0]
        pairs = [
            (together.theta[index], alone.theta[0]),
            (together.generator_theta[index], alone.generator_theta[0]),
        ]
        for many, one in pairs:
            for a, b in zip(many, one, strict=True):
                torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
        for a, b in zip(together.history[index], alone.history[0], strict=True):
            assert a["objective"] == pytest.approx(b["objective"], abs=1e-8)


def test_rows_of_weight_zero_are_not_learned_from() -> None:
    """Turning the labels of left-out rows changes nothing."""
    encoding, x, y = encoded()
    weight = torch.ones(1, 240, dtype=torch.float64)
    weight[:, :60] = 0
    turned = torch.cat([1 - y[:60], y[60:]])
    found = [
        train(SHORT, encoding, LabelledRows(x, t, weight), LabelledRows(x, t, weight), [0]).theta[0]
        for t in (y, turned)
    ]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_the_best_epoch_is_restored() -> None:
    frame, y = people()
    model = vt.VeriTraCER(favourable="yes", panel=None, epochs=8, hidden=(8, 6), batch_size=64).fit(frame, y)
    history = model.history_
    ready = history[history["kappa"] >= 0.2 - 1e-12]
    assert model.best_epoch_ == int(ready.loc[ready["objective"].idxmin(), "epoch"])


def test_methods_are_configurations_of_one_run() -> None:
    standard = run(TrainingConfig(**{**SHORT.__dict__, "method": "standard"}), [0])
    counternet = run(TrainingConfig(**{**SHORT.__dict__, "method": "counternet"}), [0])
    assert standard.generator is None
    assert standard.generator_theta == [()]
    assert np.isnan(standard.history[0][0]["certified"])
    # Without the robust loss the classifier does not know of the generator.
    assert counternet.history[0][0]["accuracy"] == standard.history[0][0]["accuracy"]
    assert counternet.history[0][0]["kappa"] == 0.0


def test_robustness_ramps_up_after_the_warm_up() -> None:
    config = TrainingConfig(warmup=0.2, ramp=0.4)
    assert [round(config.robustness(p), 6) for p in (0.0, 0.2, 0.4, 0.6, 1.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert TrainingConfig(method="counternet").robustness(1.0) == 0.0


def test_training_makes_counterfactuals_certified() -> None:
    frame, y = people(400)
    sizes = {"panel": None, "epochs": 120, "hidden": (16, 8), "batch_size": 64}
    model = vt.VeriTraCER(bound="crown-ibp", favourable="yes", **sizes).fit(frame, y)
    plain = vt.VeriTraCER(method="counternet", favourable="yes", **sizes).fit(frame, y)
    certified = [m.certify(frame, m.propose(frame)).certified.mean() for m in (model, plain)]
    assert certified[0] > 0.9
    assert certified[1] < 0.5
    assert model.score(frame, y) > plain.score(frame, y) - 0.05


@pytest.mark.parametrize("kind", ["residual", "counternet", "neighbour"])
def test_generators_only_propose_what_the_schema_allows(kind: str) -> None:
    encoding, x, y = encoded()
    config = TrainingConfig(generator=kind, hidden=(4, 2), generator_hidden=(8,))
    generator = make_generator(config, encoding, x, y)
    theta = init_parameters(generator.sizes, torch.Generator().manual_seed(0)) if generator.sizes else ()
    theta = tuple(5 * t for t in theta)  # wild proposals
    sign = torch.where(y > 0.5, 1.0, -1.0).double()
    context = Context(
        x, torch.randn(240, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), sign
    )
    hard, _ = project_straight_through(encoding, generator.propose(theta, context), x)
    frame, before = encoding.decode(hard), encoding.decode(x)
    assert (frame["age"] == before["age"]).all()
    assert (frame["lines"] <= before["lines"]).all()
    assert frame["grade"].isin(["low", "mid", "high"]).all()
    torch.testing.assert_close(encoding.project(hard, x), hard, atol=1e-12, rtol=0)
    assert (hard != x).any()


def test_an_untrained_residual_generator_starts_from_the_row() -> None:
    encoding, x, y = encoded()
    config = TrainingConfig(hidden=(1, 1), generator_hidden=(4,))
    generator = make_generator(config, encoding, x, y)
    theta = init_parameters(generator.sizes, torch.Generator().manual_seed(0), zero_last=True)
    context = Context(x, torch.zeros(240, 2, dtype=torch.float64), torch.ones(240, dtype=torch.float64))
    assert torch.equal(project_straight_through(encoding, generator.propose(theta, context), x)[0], x)


def test_gradients_pass_through_rounding_and_choosing() -> None:
    encoding, x, _ = encoded()
    proposal = (x + 0.01).requires_grad_()
    project_straight_through(encoding, proposal, x)[0].sum().backward()
    names = list(encoding.columns)
    assert (proposal.grad[:, names.index("savings")] != 0).any()
    assert (proposal.grad[:, names.index("age")] == 0).all()


def test_losses_by_hand() -> None:
    weight = torch.tensor([1.0, 3.0])
    zero, sign = torch.zeros(2), torch.tensor([1.0, -1.0])
    assert losses.accuracy_loss(zero, torch.tensor([0.0, 1.0]), weight).item() == pytest.approx(np.log(2))
    assert losses.validity_loss(torch.tensor([20.0, 20.0]), sign, weight).item() == pytest.approx(0.25)
    assert losses.robust_loss(torch.tensor([20.0, -20.0]), weight).item() == pytest.approx(0.25)
    moved = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    assert losses.proximity_loss(moved, torch.zeros(2, 2), weight).item() == pytest.approx(
        (0.5 + 3 * 0.25) / 4
    )
    assert losses.weighted_mean(zero, zero).item() == 0.0


def test_a_loss_that_is_not_a_number_stops_with_a_remedy() -> None:
    encoding, x, y = encoded()
    weight = torch.full((1, 240), float("nan"), dtype=torch.float64)
    with pytest.raises(TrainingError, match=r"epoch 1, batch 1 of 3 — try a smaller learning_rate"):
        train(SHORT, encoding, LabelledRows(x, y, weight), LabelledRows(x, y, weight), [0])


def test_an_interruption_keeps_a_usable_model() -> None:
    encoding, x, y = encoded()
    rows = LabelledRows(x, y, torch.ones(1, 240, dtype=torch.float64))
    asked = iter([False] * 4 + [True] * 100)
    found = train(SHORT, encoding, rows, rows, [0], interrupted=lambda: next(asked))
    assert found.stopped == "interrupted in epoch 2 of 3"
    assert len(found.history[0]) == 2


def test_patience_ends_a_run() -> None:
    config = TrainingConfig(**{**SHORT.__dict__, "epochs": 60, "patience": 2, "learning_rate": 1e-30})
    found = run(config, [0])
    assert found.stopped == "no progress for 2 epochs"


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("radius", ["mean-abs", "norm", 0.01])
def test_every_set_can_be_trained_against(norm: str, radius: str | float) -> None:
    config = TrainingConfig(**{**SHORT.__dict__, "norm": norm, "radius": radius, "kappa": 0.05})
    assert np.isfinite(run(config, [0]).history[0][-1]["loss"])


def test_a_small_start_has_a_small_first_layer_and_no_biases() -> None:
    usual, small = (
        init_parameters((3, 5, 4, 1), torch.Generator().manual_seed(0), small=small)
        for small in (False, True)
    )
    assert torch.equal(small[0], 0.2 * usual[0])
    assert all(torch.equal(s, u) for s, u in zip(small[2::2], usual[2::2], strict=True))
    assert all(not bias.any() for bias in small[1::2])


def test_epochs_follow_from_the_rows_where_nobody_says() -> None:
    config = TrainingConfig(batch_size=64)
    found = [config.epochs_for(rows) for rows in (40, 1_000, 100_000)]
    assert found == sorted(found, reverse=True)  # about as many steps, whatever the rows
    assert config.epochs_for(1_000) * (1_000 // 64) == pytest.approx(1_900, rel=0.05)
    assert TrainingConfig(epochs=7).epochs_for(1_000) == 7


def test_ctrl_c_is_asked_for_and_pressed_twice_it_interrupts() -> None:
    with algorithm.monitor(verbose=False) as (report, interrupted):
        assert (report, interrupted()) == (None, False)
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_in_another_thread_nobody_listens() -> None:
    told: list[bool] = []

    def run() -> None:
        before = signal.getsignal(signal.SIGINT)
        with algorithm.monitor(verbose=False) as (_, interrupted):
            told.extend([interrupted(), signal.getsignal(signal.SIGINT) is before])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [False, True]


def test_an_epoch_without_counterfactuals_says_nothing_of_them() -> None:
    reported: list[algorithm.Epoch] = []
    encoding, x, y = encoded()
    rows = LabelledRows(x, y, torch.ones(1, 240, dtype=torch.float64))
    for method in ("standard", "veritracer"):
        config = TrainingConfig(epochs=1, batch_size=64, hidden=(4,), generator_hidden=(4,), method=method)
        train(config, encoding, rows, rows, [0], on_epoch=reported.append)
    plain, robust = (algorithm.summary(epoch) for epoch in reported)
    assert plain.startswith("epoch 1/1: loss ")
    assert "validity" not in plain
    assert "certified" in robust
