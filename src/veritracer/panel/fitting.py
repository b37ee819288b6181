"""How members are fitted: for accuracy alone, each on its own part of the rows, stopped by the other part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from veritracer.generator import init_parameters
from veritracer.losses import accuracy_loss, weighted_mean
from veritracer.network import Network, Theta
from veritracer.optimiser import Adam
from veritracer.panel.members import BoostedTrees, Networks, Ranks

HIDDEN = (64, 32)
BATCH = 256
LEARNING_RATE = 3e-3
STEPS, STEPS_PER_ROW, FEWEST_STEPS, FEWEST_EPOCHS = 2000, 1.2, 200, 8
"""How long a network learns at the most: longer on more rows, up to a limit."""
PATIENCE = 200
"""Steps without progress on the rows that it did not see after which a network stops."""
TREES, DEPTH, SHRINKAGE = 120, 4, 0.1
COLUMNS = 0.3
"""The share of the columns that a split chooses among: trees that share their trust among many columns do not
take one lever for the whole person."""
SMALLEST_LEAF = 20
MANY_ROWS = 50_000
"""From so many rows on, threads are worth their cost to trees."""


class Labelled(NamedTuple):
    """Rows (n, d) with labels 0 or 1 (n,) and weights above 0 (n,)."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def select(self, rows: Tensor) -> Labelled:
        """Some of the rows."""
        return Labelled(*(part[rows] for part in self))


def parts(y: NDArray[np.int64], folds: int, rounds: int, seed: int) -> NDArray[np.bool_]:
    """Which rows each member sees, (folds · rounds, n): in each round every row is unseen by exactly one.

    With too few rows of a label to go round, every member sees all of them.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = min(folds, int(np.bincount(y, minlength=2).min()))
    if folds < 2:
        return np.ones((rounds, len(y)), dtype=bool)
    seen = []
    for number in range(rounds):
        split = StratifiedKFold(folds, shuffle=True, random_state=seed + number)
        for _, unseen in split.split(y, y):
            seen.append(np.ones(len(y), dtype=bool))
            seen[-1][unseen] = False
    return np.stack(seen)


def fit_networks(rows: Labelled, seen: NDArray[np.bool_], seed: int) -> Networks:
    """A network for each line of ``seen`` (members, n); every second one sees ranks instead of values."""
    run = _NetworkRun(rows, torch.from_numpy(seen), seed)
    return run.best()


class _NetworkRun:
    """All networks of a panel, trained side by side."""

    def __init__(self, rows: Labelled, seen: Tensor, seed: int) -> None:
        self.rows, self.seen = rows, seen
        self.streams = [torch.Generator().manual_seed(seed + member) for member in range(len(seen))]
        sizes = (rows.x.shape[1], *HIDDEN, 1)
        starts = [init_parameters(sizes, stream) for stream in self.streams]
        self.theta = [torch.stack(ts).to(rows.x.dtype).requires_grad_() for ts in zip(*starts, strict=True)]
        ranked = torch.arange(len(seen)) % 2 == 1
        self.members = Networks(Network((0.0,) * len(HIDDEN)), tuple(self.theta), ranked, Ranks.of(rows.x))
        self.inputs = self.members.inputs(rows.x)

    def best(self) -> Networks:
        """The networks at their best epoch, each by the log loss on the rows that it did not see."""
        count = int(self.seen.sum(-1).min())
        size = min(BATCH, count)
        batches = count // size
        steps = min(STEPS, round(FEWEST_STEPS + STEPS_PER_ROW * self.seen.shape[1]))
        epochs = max(FEWEST_EPOCHS, -(-steps // batches))
        patience = -(-PATIENCE // batches)
        lowest = torch.full((len(self.seen),), torch.inf)
        kept, idle = [t.detach().clone() for t in self.theta], torch.zeros(len(self.seen))
        optimiser = Adam(self.theta)
        for epoch in range(epochs):
            pace = 1.0 if epoch < 0.5 * epochs else 0.3
            for index in self._batches(size, batches):
                optimiser.step(self._gradients(index), LEARNING_RATE * pace)
            loss = self._unseen_loss()
            better = loss < lowest
            lowest, idle = torch.where(better, loss, lowest), torch.where(better, 0, idle + 1)
            for old, new in zip(kept, self.theta, strict=True):
                old[better] = new.detach()[better]
            if bool((idle >= patience).all()):
                break
        return Networks(self.members.network, tuple(kept), self.members.ranked, self.members.ranks)

    def _batches(self, size: int, batches: int) -> Iterator[Tensor]:
        """Positions (members, size) of each batch of one epoch."""
        orders = []
        for seen, stream in zip(self.seen, self.streams, strict=True):
            mine = seen.nonzero().squeeze(-1)
            orders.append(mine[torch.randperm(len(mine), generator=stream)][: size * batches])
        order = torch.stack(orders)
        for batch in range(batches):
            yield order[:, batch * size : (batch + 1) * size]

    def _gradients(self, index: Tensor) -> Theta:
        wide = index.unsqueeze(-1).expand(-1, -1, self.inputs.shape[-1])
        logit = self.members.network.logit(self.theta, self.inputs.gather(1, wide))
        loss = accuracy_loss(logit, self.rows.y[index], self.rows.weight[index])
        return torch.autograd.grad(loss.sum(), self.theta)

    @torch.no_grad()
    def _unseen_loss(self) -> Tensor:
        """The log loss of each network on the rows that it did not see; on all where it saw all."""
        logit = self.members.network.logit(self.theta, self.inputs)
        y, weight = self.rows.y.expand_as(logit), self.rows.weight.expand_as(logit)
        apart = torch.where(self.seen.all(-1, keepdim=True), True, ~self.seen)
        each = torch.nn.functional.binary_cross_entropy_with_logits(logit, y, reduction="none")
        return weighted_mean(each, weight * apart)


def fit_trees(rows: Labelled, seen: NDArray[np.bool_], seed: int) -> BoostedTrees:
    """An ensemble of boosted trees for each line of ``seen`` (members, n)."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # here: a fitted panel does without

    x, y, weight = (part.double().numpy() for part in rows)
    equal = bool((weight == weight[:1]).all())  # scikit-learn finds weighted bins one by one, for seconds
    models = []
    for member, mine in enumerate(seen):
        count = int(mine.sum())
        enough = count >= 20 * SMALLEST_LEAF and np.bincount(y[mine].astype(int), minlength=2).min() >= 20
        model = HistGradientBoostingClassifier(
            max_iter=TREES if enough else TREES // 3,
            max_depth=DEPTH,
            learning_rate=SHRINKAGE,
            max_features=COLUMNS,
            min_samples_leaf=min(SMALLEST_LEAF, max(2, count // 50)),
            early_stopping=enough,
            random_state=seed + member,
        )
        # Threads that wait for each other on a busy machine take a hundred times as long as one alone.
        with threadpool_limits(1 if count < MANY_ROWS else None):
            models.append(model.fit(x[mine], y[mine], sample_weight=None if equal else weight[mine]))
    return BoostedTrees.of(models)
