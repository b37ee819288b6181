"""A panel: independent models of two kinds, fitted for accuracy alone, that keep a classifier honest.

A classifier that is trained jointly with its own counterfactuals can learn model-specific recourse: a
direction off the data in which its decision changes and nothing else does. A panel takes no part in that
training. Its *teachers* guide training and the search for counterfactuals; its *held-out* members take part
in neither and tell afterwards whether they agree with the result. Each member is fitted on its own part of
the rows, and stopped early on the other part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import TrainingError, message
from veritracer.models.network import Network, Theta
from veritracer.schema import Schema
from veritracer.threads import one_thread
from veritracer.training.data import LabelledRows
from veritracer.training.generator import init_parameters
from veritracer.training.losses import Adam, accuracy_loss, weighted_mean
from veritracer.training.panel_members import BoostedTrees, Networks, Ranks

HIDDEN = (64, 32)
BATCH = 256
LEARNING_RATE = 3e-3
STEPS, STEPS_PER_ROW, FEWEST_STEPS, FEWEST_EPOCHS = 2000, 1.2, 200, 8
"""Length of a network's training: proportional to the rows, between two limits."""
PATIENCE = 200
"""Steps without progress on its unseen rows after which a network stops."""
TREES, DEPTH, SHRINKAGE = 120, 4, 0.1
COLUMNS = 0.3
"""Share of the columns available to each split, so that trees do not all rely on one feature."""
SMALLEST_LEAF = 20
MANY_ROWS = 50_000
"""Number of rows from which threads pay off for trees."""

Kind = Literal["network", "boosted trees"]
Role = Literal["teacher", "held out"]

KINDS: tuple[Kind, Kind] = ("network", "boosted trees")

FOLDS = 4
"""Each teaching network sees three quarters of the rows; trees and held-out members see two thirds."""


def fold_masks(y: NDArray[np.int64], folds: int, rounds: int, seed: int) -> NDArray[np.bool_]:
    """Return which rows each member sees, (folds · rounds, n): in each round one member misses each row.

    With too few rows of a label, every member sees all of them.
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


def fit_networks(rows: LabelledRows, seen: NDArray[np.bool_], seed: int) -> Networks:
    """Fit a network for each row of ``seen`` (members, n); every second one sees ranks instead of values."""
    run = _NetworkRun(rows, torch.from_numpy(seen), seed)
    return run.best()


class _NetworkRun:
    """All networks of a panel, trained side by side."""

    def __init__(self, rows: LabelledRows, seen: Tensor, seed: int) -> None:
        self.rows, self.seen = rows, seen
        self.streams = [torch.Generator().manual_seed(seed + member) for member in range(len(seen))]
        sizes = (rows.x.shape[1], *HIDDEN, 1)
        starts = [init_parameters(sizes, stream) for stream in self.streams]
        self.theta = [torch.stack(ts).to(rows.x.dtype).requires_grad_() for ts in zip(*starts, strict=True)]
        ranked = torch.arange(len(seen)) % 2 == 1
        self.members = Networks(Network((0.0,) * len(HIDDEN)), tuple(self.theta), ranked, Ranks.of(rows.x))
        self.inputs = self.members.inputs(rows.x)

    def best(self) -> Networks:
        """Return each network at the epoch with the lowest log loss on its unseen rows."""
        count = int(self.seen.sum(-1).min())
        size = min(BATCH, count)
        batches = count // size
        steps = min(STEPS, round(FEWEST_STEPS + STEPS_PER_ROW * self.seen.shape[1]))
        epochs = max(FEWEST_EPOCHS, -(-steps // batches))
        patience = -(-PATIENCE // batches)
        lowest = torch.full((len(self.seen),), torch.inf)
        theta, idle = [t.detach().clone() for t in self.theta], torch.zeros(len(self.seen))
        optimiser = Adam(self.theta)
        for epoch in range(epochs):
            lr_factor = 1.0 if epoch < 0.5 * epochs else 0.3
            for index in self._batches(size, batches):
                optimiser.step(self._gradients(index), LEARNING_RATE * lr_factor)
            loss = self._unseen_loss()
            better = loss < lowest
            lowest, idle = torch.where(better, loss, lowest), torch.where(better, 0, idle + 1)
            for old, new in zip(theta, self.theta, strict=True):
                old[better] = new.detach()[better]
            if bool((idle >= patience).all()):
                break
        return Networks(self.members.network, tuple(theta), self.members.ranked, self.members.ranks)

    def _batches(self, size: int, batches: int) -> Iterator[Tensor]:
        """Yield the positions (members, size) of each batch of one epoch."""
        orders = []
        for seen, stream in zip(self.seen, self.streams, strict=True):
            visible = seen.nonzero().squeeze(-1)
            orders.append(visible[torch.randperm(len(visible), generator=stream)][: size * batches])
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
        """Return the log loss of each network on its unseen rows; on all rows if it saw all."""
        logit = self.members.network.logit(self.theta, self.inputs)
        y, weight = self.rows.y.expand_as(logit), self.rows.weight.expand_as(logit)
        apart = torch.where(self.seen.all(-1, keepdim=True), True, ~self.seen)
        each = torch.nn.functional.binary_cross_entropy_with_logits(logit, y, reduction="none")
        return weighted_mean(each, weight * apart)


def fit_trees(rows: LabelledRows, seen: NDArray[np.bool_], seed: int) -> BoostedTrees:
    """Fit an ensemble of boosted trees for each row of ``seen`` (members, n)."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # imported here: a fitted panel needs none

    x, y, weight = (part.double().numpy() for part in rows)
    equal = bool((weight == weight[:1]).all())  # weighted bins take scikit-learn seconds
    models = []
    for member, visible in enumerate(seen):
        count = int(visible.sum())
        enough = count >= 20 * SMALLEST_LEAF and np.bincount(y[visible].astype(int), minlength=2).min() >= 20
        model = HistGradientBoostingClassifier(
            max_iter=TREES if enough else TREES // 3,
            max_depth=DEPTH,
            learning_rate=SHRINKAGE,
            max_features=COLUMNS,
            min_samples_leaf=min(SMALLEST_LEAF, max(2, count // 50)),
            early_stopping=enough,
            random_state=seed + member,
        )
        # On a busy machine, threads that wait for each other take a hundred times as long as one thread.
        with threadpool_limits(1 if count < MANY_ROWS else None):
            models.append(model.fit(x[visible], y[visible], sample_weight=None if equal else weight[visible]))
    return BoostedTrees.of(models)


@dataclass(frozen=True)
class Member:
    """One member: its kind, its role, the number of rows it saw, and its log loss on the others."""

    kind: Kind
    role: Role
    rows: int
    log_loss: float


class Ensemble(NamedTuple):
    """Members of both kinds that are evaluated together."""

    networks: Networks
    trees: BoostedTrees

    def logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (members, n) of both kinds on encoded rows, in the precision of ``x``."""
        return self.networks.logits(x).to(x.dtype), self.trees.logits(x)

    def opinions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both halves of the vote on encoded rows: mean probability of networks, and of trees."""
        networks, trees = self.logits(x)
        return torch.sigmoid(networks).mean(0), torch.sigmoid(trees).mean(0)

    def vote(self, x: Tensor) -> Tensor:
        """Return the probability (n,) of the favourable label of encoded rows (n, d), half by each kind."""
        return torch.stack(self.opinions(x)).mean(0)

    def to(self, device: str | torch.device) -> Ensemble:
        """Return the same members on another device."""
        return Ensemble(self.networks.to(device), self.trees.to(device))

    @classmethod
    def restored(cls, role: str, tensors: Mapping[str, Tensor], dim: int) -> Ensemble:
        """Restore the members stored under ``role`` in a panel's tensors, for rows of ``dim`` columns."""
        parts = [
            {
                name.removeprefix(f"{role}.{kind}."): t
                for name, t in tensors.items()
                if name.startswith(f"{role}.{kind}.")
            }
            for kind in cls._fields
        ]
        return cls(Networks.from_tensors(parts[0], dim), BoostedTrees.from_tensors(parts[1], dim))


class Panel(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Networks and boosted trees on parts of the same rows; each kind has half of the vote.

    Parameters
    ----------
    schema
        Description of the table if the panel is fitted by itself; a model supplies its own.
    networks, boosted
        Number of teachers of each kind. Every second network sees ranks instead of values; a split of a tree
        chooses among a third of the columns. So the members do not all rely on the same feature.
    held_out
        Number of members of each kind that take no part in training or search; ``recourse.agreement`` reports
        their vote.
    strength
        Weight of the panel in training: 1 is the default, 0 only evaluates it afterwards.
    random_state
        Seed of its members; None uses the model's own.

    Attributes
    ----------
    members : the panel's members as ``Member``, teachers first.
    classes_, encoding_ : the labels, and the map between table and tensor.
    """

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        networks: int = 8,
        boosted: int = 3,
        held_out: int = 3,
        strength: float = 1.0,
        random_state: int | None = None,
    ) -> None:
        self.schema = schema
        self.networks = networks
        self.boosted = boosted
        self.held_out = held_out
        self.strength = strength
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the panel to raw rows and labels; ``schema=None`` infers one.

        Raises ``TargetError`` if the schema does not say which label is favourable, unless the labels are a
        well-known pair.
        """
        schema = Schema.infer(X) if self.schema is None else self.schema
        schema = schema.with_labels(y) if schema.unfavourable is None else schema
        encoding = Encoding.fit(schema, X)
        labels = torch.as_tensor(schema.labels(y), dtype=torch.float32)
        weight = torch.ones_like(labels) if sample_weight is None else torch.as_tensor(sample_weight).float()
        return self.fit_encoded(encoding, LabelledRows(encoding.encode(X).float(), labels, weight), seed=0)

    def fit_encoded(self, encoding: Encoding, rows: LabelledRows, *, seed: int) -> Self:
        """Fit the panel to encoded rows in float32; members do not see rows of weight 0.

        ``soft_labels_`` holds the probability of each row by the teachers that did not see it (for rows of
        weight 0: by all of them). ``seed`` is used if ``random_state`` is None.
        """
        self._check()
        self.encoding_, self.classes_ = encoding, encoding.schema.classes
        seed = 1000 * (seed if self.random_state is None else int(self.random_state))
        visible = (rows.weight > 0).nonzero().squeeze(-1)
        used = rows.select(visible)
        y = used.y.numpy().astype(np.int64)
        rounds = max(1, -(-self.networks // FOLDS))
        taught = (
            fold_masks(y, FOLDS, rounds, seed)[: self.networks],
            fold_masks(y, self.boosted, 1, seed + 100),
        )
        others = (
            [fold_masks(y, self.held_out, 1, seed + 200 + kind) for kind in (0, 1)] if self.held_out else []
        )
        seen = [np.concatenate(both) for both in zip(taught, others, strict=True)] if others else list(taught)
        with one_thread():
            networks = fit_networks(used, seen[0], seed + 300)
        trees = fit_trees(used, seen[1], seed + 400)
        first = [range(len(masks)) for masks in taught]
        rest = [range(len(masks), len(both)) for masks, both in zip(taught, seen, strict=True)]
        self.teachers_ = Ensemble(networks.select(first[0]), trees.select(first[1]))
        self.held_out_ = Ensemble(networks.select(rest[0]), trees.select(rest[1]))
        self.members_ = _describe_members("teacher", self.teachers_, used, taught)
        self.members_ += _describe_members("held out", self.held_out_, used, others)
        self.soft_labels_ = self.vote(rows.x)
        self.soft_labels_[visible] = _unseen_vote(self.teachers_, used, taught)
        return self

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the members of the panel."""
        check_is_fitted(self, "members_")
        return tuple(self.members_)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the vote of the teachers for each label, (rows, 2), in the order of ``classes_``."""
        check_is_fitted(self, "members_")
        vote = self.vote(self.encoding_.encode(X)).double().numpy()
        pair = np.stack([1 - vote, vote], -1)
        return pair if self.classes_[1] == self.encoding_.schema.favourable else pair[:, ::-1].copy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label with more than half of the vote."""
        decided: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(-1)]
        return decided

    @torch.no_grad()
    def vote(self, x: Tensor) -> Tensor:
        """Return the teachers' probability (n,) of the favourable label of encoded rows (n, d)."""
        return self.teachers_.vote(x)

    def opinions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both halves of the vote on encoded rows: mean probability of networks, and of trees."""
        return self.teachers_.opinions(x)

    @torch.no_grad()
    def held_out_vote(self, x: Tensor) -> Tensor:
        """Return the held-out members' mean probability (n,) of the favourable label; NaN without any."""
        return torch.sigmoid(torch.cat(self.held_out_.logits(x))).mean(0)

    @torch.no_grad()
    def agreement(self, x_cf: Tensor, favourable: Tensor, threshold_logit: float = 0.0) -> Tensor:
        """Return the share (n,) of held-out members whose decision on the rows is ``favourable`` (n,).

        NaN without held-out members. They decide at the model's threshold.
        """
        logits = torch.cat(self.held_out_.logits(x_cf))
        return ((logits > threshold_logit) == favourable).to(x_cf.dtype).mean(0)

    @property
    def params(self) -> dict[str, Any]:
        """Return the arguments that make such a panel; its schema is the model's."""
        return {name: value for name, value in self.get_params(deep=False).items() if name != "schema"}

    def tensors(self) -> dict[str, Tensor]:
        """Return all numbers of the members, by name."""
        return {
            f"{role}.{kind}.{name}": t.clone()  # tensors in a file cannot share memory
            for role, ensemble in (("teachers", self.teachers_), ("held_out", self.held_out_))
            for kind, members in ensemble._asdict().items()
            for name, t in members.tensors().items()
        }

    @classmethod
    def restored(
        cls,
        params: Mapping[str, Any],
        members: Sequence[Member],
        tensors: Mapping[str, Tensor],
        encoding: Encoding,
    ) -> Panel:
        """Restore the panel that had these parts; ``ValueError`` if they are not those of a panel."""
        panel = cls(**params)
        panel.encoding_, panel.classes_ = encoding, encoding.schema.classes
        panel.teachers_ = Ensemble.restored("teachers", tensors, encoding.dim)
        panel.held_out_ = Ensemble.restored("held_out", tensors, encoding.dim)
        panel.members_ = list(members)
        if panel.tensors().keys() != tensors.keys():
            raise ValueError("other tensors than a panel's")
        return panel

    def _check(self) -> None:
        for name, least in (("networks", 1), ("boosted", 1), ("held_out", 0)):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < least:
                raise TrainingError(
                    message(f"{name} of at least {least}", repr(count), "give a whole number")
                )
        if not 0.0 <= self.strength < float("inf"):
            raise TrainingError(message("strength of at least 0", repr(self.strength), "1 is the default"))


@torch.no_grad()
def _describe_members(
    role: Role, members: Ensemble, rows: LabelledRows, seen: Sequence[NDArray[np.bool_]]
) -> list[Member]:
    """Describe each member, with its log loss on its unseen rows (on all rows if it saw all)."""
    described = []
    for kind, logits, parts_seen in zip(KINDS, members.logits(rows.x), seen, strict=False):
        for logit, visible in zip(logits, parts_seen, strict=True):
            apart = torch.from_numpy(visible.all() | ~visible)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logit[apart], rows.y[apart])
            described.append(Member(kind, role, int(visible.sum()), float(loss)))
    return described


@torch.no_grad()
def _unseen_vote(members: Ensemble, rows: LabelledRows, seen: Sequence[NDArray[np.bool_]]) -> Tensor:
    """Return the vote on each row of the teachers that did not see it; of all if all saw it."""
    halves = []
    for logits, visible in zip(members.logits(rows.x), seen, strict=True):
        apart = torch.from_numpy(~visible).to(logits.dtype)
        apart = torch.where(apart.sum(0) > 0, apart, 1.0)
        halves.append((torch.sigmoid(logits) * apart).sum(0) / apart.sum(0))
    return torch.stack(halves).mean(0)
