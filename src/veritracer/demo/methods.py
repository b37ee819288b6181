"""Three ways to give recourse, each with a model of its own that is later retrained in the ordinary way."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.baselines import Wachter
from veritracer.datasets import Split
from veritracer.demo.years import Years
from veritracer.errors import DataError, DataWarning, message
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.story import Survival
from veritracer.shifts import SLOWER, fine_tune


class Given(NamedTuple):
    """What people were told: their rows, the values they were shown, and whether that was a promise."""

    X: pd.DataFrame
    shown: pd.DataFrame
    promised: NDArray[np.bool_]
    certified: int | None


@dataclass(frozen=True)
class Outcome:
    """What became of one method's promises, and how good its models were (accuracy on test rows)."""

    survival: Survival
    accuracy: float
    accuracy_fine_tuned: float
    accuracy_from_scratch: float

    @property
    def kept_fine_tuned(self) -> float:
        """The share of the promises that the fine-tuned model keeps."""
        return (self.survival.fine_tuned or 0) / max(self.survival.given, 1)

    @property
    def kept_from_scratch(self) -> float:
        """The share of the promises that the model trained anew keeps."""
        return (self.survival.from_scratch or 0) / max(self.survival.given, 1)


def trained(method: Any, years: Years, *, epochs: int | None, seed: int, verbose: int = 0) -> VeriTraCER:
    """Today's model."""
    model = VeriTraCER(years.data.schema, method=method, epochs=epochs, random_state=seed, verbose=verbose)
    return model.fit(years.today.X_train, years.today.y_train)


def certified_recourse(recourse: Counterfactuals) -> Given:
    """The certified counterfactuals of everybody who was turned down."""
    declined = ~recourse.favourable
    frame, own = recourse.frame[declined], recourse.original[declined]
    return Given(own, frame, recourse.certified[declined], int(recourse.certified[declined].sum()))


def proposals(model: VeriTraCER, X: pd.DataFrame) -> Given:
    """What the generator of a CounterNet proposes."""
    declined = _declined(model, X)
    shown = model.propose(declined)
    return Given(declined, shown, model.decision_function(shown) > 0, None)


def gradient_search(model: VeriTraCER, X: pd.DataFrame, years: Years) -> Given:
    """Plain gradient counterfactuals, rounded to values that a table can hold.

    The method knows nothing of what people can change, so it may move immutable features: nothing is put
    back, since that would undo most of its answers.
    """
    declined = _declined(model, X)
    encoding = model.encoding_
    x_train = encoding.encode(years.today.X_train)
    labels = torch.as_tensor(model.schema_.labels(years.today.y_train), dtype=x_train.dtype)
    found = Wachter(model.classifier_, encoding, x_train, labels).explain(encoding.encode(declined))
    shown = encoding.decode(found).set_axis(declined.index)
    return Given(declined, shown, model.decision_function(shown) > 0, None)


def outcome(name: str, model: VeriTraCER, given: Given, years: Years, *, seed: int) -> Outcome:
    """What two ordinary retrainings on tomorrow's rows make of the promises.

    *Fine-tuned*: today's network goes on learning by cross-entropy. *From scratch*: the same procedure as
    today, with another seed. Numbers beyond the ranges of an encoding are clipped by it, as in production.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        x, x_cf = model.encoding_.encode(given.X), model.encoding_.encode(given.shown)
        tuned = _fine_tuned(model, years.tomorrow, seed)
        params = {**model.get_params(deep=False), "random_state": seed + 1}
        anew = VeriTraCER(**params).fit(years.tomorrow.X_train, years.tomorrow.y_train)
        later = {
            "fine_tuned": _says_yes(tuned, x_cf),
            "from_scratch": anew.decision_function(given.shown) > 0,
        }
        counts = {when: int((yes & given.promised).sum()) for when, yes in later.items()}
        distance = (x_cf - x).abs().sum(-1).numpy()[given.promised]
        y = model.schema_.labels(years.tomorrow.y_test)
        right = _says_yes(tuned, model.encoding_.encode(years.tomorrow.X_test)) == (y == 1)
        return Outcome(
            Survival(
                name,
                rows=len(given.X),
                given=int(given.promised.sum()),
                cost=float(distance.mean()) if len(distance) else None,
                certified=given.certified,
                **counts,
            ),
            accuracy=float(model.score(years.today.X_test, years.today.y_test)),
            accuracy_fine_tuned=float(right.mean()),
            accuracy_from_scratch=float(anew.score(years.tomorrow.X_test, years.tomorrow.y_test)),
        )


def _declined(model: VeriTraCER, X: pd.DataFrame) -> pd.DataFrame:
    declined = X[model.decision_function(X) <= 0]
    if len(declined) == 0:
        remedy = "take another seed or dataset"
        raise DataError(message("somebody who is turned down", "nobody among the test rows", remedy))
    return declined


def _fine_tuned(model: VeriTraCER, tomorrow: Split, seed: int) -> torch.nn.Module:
    x = model.encoding_.encode(tomorrow.X_train)
    y = torch.as_tensor(model.schema_.labels(tomorrow.y_train), dtype=x.dtype)
    return fine_tune(
        model.classifier_,
        x,
        y,
        learning_rate=SLOWER * model.learning_rate,
        batch_size=model.batch_size,
        threshold=model.threshold,
        random_state=seed,
    )


@torch.no_grad()
def _says_yes(module: torch.nn.Module, x: Tensor) -> NDArray[np.bool_]:
    yes: NDArray[np.bool_] = (module(x)[:, 0] > 0).numpy()
    return yes
