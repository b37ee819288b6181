"""One run of training on prepared rows: panels and threshold first, then every model and where it decides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from sklearn.base import clone
from torch import Tensor

from veritracer.config import TrainingConfig
from veritracer.distillation import Distillation, Teacher
from veritracer.errors import TrainingWarning, message
from veritracer.models.network import Theta, rate_threshold, threshold_logit
from veritracer.panel import Panel
from veritracer.panel.panel import Labelled
from veritracer.preparing import Prepared
from veritracer.training import Ending, Trained, train, watch


@dataclass(frozen=True)
class Run:
    """What is trained, and how: ``panel`` is not fitted yet, ``approval_rate`` replaces the threshold."""

    config: TrainingConfig
    panel: Panel | None
    threshold: float
    approval_rate: float | None
    device: str
    verbose: bool

    def fit(self, prepared: Prepared, seeds: list[int], *, share_panel: bool = False) -> Fitted:
        """A model for each seed, all trained at once; Ctrl-C stops after the batch and keeps the best."""
        panels = self._panels(prepared, seeds[:1] if share_panel else seeds)
        threshold = self._first_threshold(prepared, panels)
        config = replace(self.config, threshold_logit=threshold_logit(threshold))
        teacher = self._teacher(prepared, panels, threshold)
        with watch(verbose=self.verbose) as (on_epoch, interrupted):
            trained = train(
                config,
                prepared.encoding,
                prepared.rows,
                prepared.validation,
                seeds,
                teacher=teacher,
                on_epoch=on_epoch,
                interrupted=interrupted,
            )
        if trained.ended is Ending.INTERRUPTED:
            kept = f"the best of {len(trained.history[0])} epochs was kept; fit again to train to the end"
            warnings.warn(message("a whole run", trained.stopped, kept), TrainingWarning, stacklevel=4)
        return Fitted(prepared, panels, trained, self.approval_rate)

    def _panels(self, prepared: Prepared, seeds: Sequence[int]) -> list[Panel]:
        """A fitted panel for each seed, on the rows that its model may see; none where none is wanted."""
        if self.panel is None:
            return []
        return [
            clone(self.panel).fit_encoded(prepared.encoding, rows, seed=seed)
            for seed, rows in zip(seeds, _labelled(prepared), strict=False)
        ]

    def _first_threshold(self, prepared: Prepared, panels: list[Panel]) -> float:
        """The threshold to train at: as given, or about that which accepts as many people as is asked."""
        if self.approval_rate is None:
            return self.threshold
        x, y, weight = (part.cpu() for part in prepared.rows)
        if panels:
            score = torch.logit(panels[0].vote(x), eps=1e-6)
        else:
            from sklearn.linear_model import LogisticRegression  # here: few models need it

            linear = LogisticRegression(max_iter=1000).fit(x.numpy(), y.numpy(), weight[0].numpy())
            score = torch.from_numpy(linear.decision_function(x.numpy()))
        at = float(rate_threshold(score[weight[0] > 0], self.approval_rate))
        return float(torch.sigmoid(torch.tensor(at, dtype=torch.float64)).clamp(0.01, 0.99))

    def _teacher(self, prepared: Prepared, panels: list[Panel], threshold: float) -> Teacher | None:
        """What the classifiers are held to, where there is a panel that counts in training."""
        if not panels or self.config.method != "veritracer" or panels[0].strength == 0:
            return None
        options = Distillation().times(panels[0].strength)
        rows = [Labelled(*(part.to(self.device) for part in mine)) for mine in _labelled(prepared)]
        return Teacher(panels, rows[: len(panels)], options, threshold_logit(threshold))


@dataclass(frozen=True)
class Fitted:
    """What came out of a run, by the index of the model in it; on the CPU, in double precision."""

    prepared: Prepared
    panels: list[Panel]
    trained: Trained
    approval_rate: float | None

    def panel(self, index: int) -> Panel | None:
        """The panel of a model: its own, or the one that all share."""
        return self.panels[min(index, len(self.panels) - 1)] if self.panels else None

    def generator_theta(self, index: int) -> Theta:
        """The parameters of a model's generator."""
        return _double(self.trained.generator_theta[index])

    def classifier(self, index: int) -> tuple[Theta, float | None]:
        """A classifier, moved to where it accepts as many people as is asked, and that threshold."""
        theta, offset = _double(self.trained.theta[index]), self.trained.threshold_logit
        if self.approval_rate is None:
            return theta, None
        both = (self.prepared.rows, self.prepared.validation)
        parts = [(part.x.cpu(), part.weight[index].cpu() > 0) for part in both]
        logits = torch.cat([self.trained.network.logit(theta, x[seen].double()) for x, seen in parts])
        at = rate_threshold(logits, self.approval_rate)
        threshold = float(torch.sigmoid(at + offset))
        return (*theta[:-1], theta[-1] - (threshold_logit(threshold) - offset)), threshold

    def seen(self, index: int) -> tuple[Tensor, Tensor]:
        """The training rows (n, d) that a model saw, and which of them are favourable (n,)."""
        x, favourable, weight = (part.cpu() for part in self.prepared.rows)
        rows = weight[index] > 0
        return x[rows], favourable[rows] > 0.5


def _labelled(prepared: Prepared) -> list[Labelled]:
    """The training rows as the panel of each model sees them, on the CPU."""
    x, y, weight = (part.cpu() for part in prepared.rows)
    return [Labelled(x, y, mine) for mine in weight]


def _double(theta: Theta) -> Theta:
    return tuple(t.detach().to("cpu", torch.float64) for t in theta)
