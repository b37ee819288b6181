"""Fitted or external methods behind our interface.

``CounterNet`` uses a generator that was trained with its classifier: CounterNet's, and VeriTraCER's own.
``Dice`` is DiCE (Mothilal, Sharma, Tan 2020) through the package ``dice-ml``, which is widely used.
``Ellice`` is ElliCE (2025), robust over an ellipsoid of last layers, through its authors' package ``ellice``.
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import Block
from veritracer.errors import NotSupportedError, message
from veritracer.models.network import from_module, to_module
from veritracer_bench.baselines.explainer import Baseline, Options

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER


@dataclass(frozen=True)
class GeneratorOptions(Options):
    """The trained model whose generator answers; its proposals are always projected."""

    model: VeriTraCER | None = None


class CounterNet(Baseline[GeneratorOptions]):
    """The proposals of a fitted ``VeriTraCER(method="counternet")``, after Guo, Nguyen and Yadav (2023).

    An adapter: the generator comes from training, and explains only the classifier it was trained with.
    ``CounterNet.of(model)`` builds it from the model alone.
    """

    name = "counternet"
    options = GeneratorOptions

    def prepare(self) -> None:
        """Check that there is a generator and that it belongs to this classifier."""
        model = self.config.model
        if model is None or model.generator_ is None:
            received = "none" if model is None else f"method={model.method!r}, which trains none"
            remedy = "fit VeriTraCER(method='counternet') and pass GeneratorOptions(model=...)"
            raise NotSupportedError(message("a fitted model with a generator", received, remedy))
        network, theta = from_module(model.classifier_)
        if network.digest(theta) != self.network.digest(self.theta):
            remedy = "a generator belongs to the classifier it was trained with: pass model.classifier_"
            raise NotSupportedError(message("the generator's own classifier", "another one", remedy))
        self.model = model

    @classmethod
    def of(cls, model: VeriTraCER) -> Self:
        """Build the explainer of a fitted model."""
        nothing = torch.zeros(0, model.encoding_.dim, dtype=torch.float64)
        options = GeneratorOptions(model=model)
        return cls(model.classifier_, model.encoding_, nothing, nothing[:, 0], options)

    def search(self, x: Tensor) -> Tensor:
        """Run one pass through the generator."""
        return self.model.propose_encoded(x)


@dataclass(frozen=True)
class DiceOptions(Options):
    """DiCE's search method: ``"random"`` samples features, ``"genetic"`` evolves rows."""

    method: Literal["random", "genetic"] = "random"


class Dice(Baseline[DiceOptions]):
    """One counterfactual of DiCE for each row; needs the extra ``dice``.

    DiCE sees a table with a column for each number in [0, 1] and one for each category, so that one-hot
    groups stay whole; immutable features and the marks of missing cells are not varied. It works row by row
    and is by far the slowest method here.
    """

    name = "dice"
    options = DiceOptions

    def prepare(self) -> None:
        """Build DiCE's own engine over the training rows."""
        dice_ml = _package()
        self.varied = self._varied()
        table = self._table(self.x_train).assign(outcome=self.y_train.long().numpy())
        numbers = [name for name in table if str(name).startswith("number")]
        with _quiet():
            data = dice_ml.Data(dataframe=table, continuous_features=numbers, outcome_name="outcome")
            model = dice_ml.Model(model=self, backend="sklearn")
            self.engine = dice_ml.Dice(data, model, method=self.config.method)

    def search(self, x: Tensor) -> Tensor:
        """Return DiCE's first answer for each row; the global random streams are restored."""
        with _quiet():
            return torch.stack([self._one(x[i : i + 1]) for i in range(len(x))])

    def predict_proba(self, table: pd.DataFrame) -> NDArray[np.float64]:
        """Return both probabilities of each row of DiCE's table, as DiCE asks of a model."""
        with torch.no_grad():
            favourable = torch.sigmoid(self.logit(self._encoded(table))).numpy()
        return np.stack([1 - favourable, favourable], -1)

    def predict(self, table: pd.DataFrame) -> NDArray[np.int64]:
        """Return the decision of each row of DiCE's table."""
        return (self.predict_proba(table)[:, 1] > 0.5).astype(np.int64)

    def _one(self, x: Tensor) -> Tensor:
        seed = {"random_seed": self.random_state} if self.config.method == "random" else {}
        random.seed(self.random_state)
        np.random.seed(self.random_state)  # noqa: NPY002  # DiCE draws from the global stream
        try:
            answer = self.engine.generate_counterfactuals(
                self._table(x), total_CFs=1, desired_class="opposite", features_to_vary=self.varied, **seed
            )
        except _not_found():
            return x[0]
        found = answer.cf_examples_list[0].final_cfs_df
        return x[0] if found is None or found.empty else self._encoded(found.head(1))[0]

    def _varied(self) -> list[str]:
        """Return the columns of DiCE's table that may change."""
        return [
            f"{'number' if block.group is None else 'category'}{block.start}"
            for block in self.encoding.blocks
            if block.feature.action != "immutable"
        ]

    def _table(self, x: Tensor) -> pd.DataFrame:
        """Convert encoded rows to DiCE's table: a number in [0, 1], or the position of the category."""
        columns: dict[str, Any] = {}
        for block in self.encoding.blocks:
            if block.group is None:
                columns[f"number{block.start}"] = x[:, block.start].numpy()
            else:
                position = x[:, block.group].argmax(-1).numpy()
                columns[f"category{block.start}"] = position.astype(str).astype(object)
            for flag in self._flags(block):
                columns[f"number{flag}"] = x[:, flag].numpy()
        return pd.DataFrame(columns)

    def _encoded(self, table: pd.DataFrame) -> Tensor:
        """Encode the rows of DiCE's table."""
        x = torch.zeros(len(table), self.encoding.dim, dtype=torch.float64)
        for block in self.encoding.blocks:
            if block.group is not None:
                position = table[f"category{block.start}"].astype(int).to_numpy()
                x[torch.arange(len(table)), block.group.start + torch.tensor(position)] = 1.0
            for column in [*([block.start] if block.group is None else []), *self._flags(block)]:
                x[:, column] = torch.tensor(table[f"number{column}"].to_numpy(dtype=np.float64))
        return x.clamp(0.0, 1.0)

    @staticmethod
    def _flags(block: Block) -> range:
        """Return the marks of missing cells that are beside the value, not among the categories."""
        return range(block.flags.start, block.flags.stop) if not block.marker_slots else range(0)


def _package() -> Any:
    try:
        import dice_ml
    except ImportError as error:
        remedy = "install veritracer[dice]"
        raise NotSupportedError(message("the package dice-ml", "none", remedy)) from error
    return dice_ml


def _not_found() -> type[Exception]:
    """Return the exception that DiCE raises if it finds nothing or meets an unknown category."""
    from raiutils.exceptions import UserConfigValidationException

    found: type[Exception] = UserConfigValidationException
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence DiCE's progress bars and warnings, and restore the random streams."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with (
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


# ---------------------------------------------------------------- ElliCE


@dataclass(frozen=True)
class ElliceOptions(Options):
    """Hyperparameters of ElliCE.

    Attributes
    ----------
    epsilon
        Loss above the classifier's own up to which a model belongs to the set.
    method
        ``"continuous"`` optimises a point, ``"data_supported"`` looks among the training rows.
    steps
        Steps of the optimisation at most.
    """

    epsilon: float = 0.01
    method: Literal["continuous", "data_supported"] = "continuous"
    steps: int = 1000


class Ellice(Baseline[ElliceOptions]):
    """One counterfactual of ElliCE for each row; needs the package ``ellice``.

    ElliCE sees a column for each encoded one, with its one-hot groups, and works row by row in float32.
    """

    name = "ellice"
    options = ElliceOptions

    def prepare(self) -> None:
        """Build ElliCE's explainer over the training rows."""
        try:
            import ellice
        except ImportError as error:
            raise NotSupportedError(message("the package ellice", "none", "pip install ellice")) from error
        self.columns = [f"x{i}" for i in range(self.encoding.dim)]
        table = self._table(self.x_train).assign(outcome=self.y_train.long().numpy())
        data = ellice.Data(dataframe=table, target_column="outcome", continuous_features=self.columns)
        module = to_module(self.network, tuple(t.float() for t in self.theta)).eval()
        self.engine = ellice.Explainer(model=module, data=data, backend="pytorch", device="cpu")
        blocks = (block.group for block in self.encoding.blocks if block.group is not None)
        self.groups = [self.columns[group] for group in blocks]

    def search(self, x: Tensor) -> Tensor:
        """Return ElliCE's answer for each row; the global random streams are restored."""
        goals = (self.goal(x) > 0).long().tolist()
        with _quiet(), torch.random.fork_rng(devices=[]):
            return torch.stack([self._one(x[i : i + 1], goal) for i, goal in enumerate(goals)])

    def _one(self, x: Tensor, goal: int) -> Tensor:
        torch.manual_seed(self.random_state)
        options: dict[str, Any] = {"one_hot_groups": self.groups or None, "progress_bar": False}
        if self.config.method == "continuous":
            options["optimization_params"] = {"max_iterations": self.config.steps}
        found = self.engine.generate_counterfactuals(
            self._table(x),
            method=self.config.method,
            robustness_epsilon=self.config.epsilon,
            target_class=goal,
            **options,
        )
        if found.empty:
            return x[0]
        row = found[self.columns].to_numpy(dtype=np.float64)[0]
        return torch.from_numpy(row).clamp(0.0, 1.0)

    def _table(self, x: Tensor) -> pd.DataFrame:
        """Convert encoded rows to ElliCE's table."""
        return pd.DataFrame(x.numpy(), columns=self.columns)
