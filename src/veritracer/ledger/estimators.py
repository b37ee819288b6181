"""What ``VeriTraCER.issue`` and ``VeriTraCER.update`` do: an estimator's promises, and its next version.

The estimator knows nothing of ledgers; it hands itself over to one of these functions.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from torch import Tensor, nn

from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import TrainingError, VeriTracerWarning, message
from veritracer.ledger.constrained_update import Retrained, Settings, UpdateReport, constrained_update
from veritracer.ledger.issuing import Issued
from veritracer.ledger.ledger import Ledger, open_ledger, open_source
from veritracer.ledger.obligations import quality, split
from veritracer.ledger.reading import Source
from veritracer.ledger.verdicts import Candidate
from veritracer.models.network import from_module, threshold_logit
from veritracer.schema import Schema
from veritracer.training import Panel
from veritracer.training.config import TrainingConfig
from veritracer.training.data import as_table
from veritracer.training.distillation import PanelPenalty
from veritracer.training.fine_tuning import FINE_TUNE_LR_FACTOR
from veritracer.training.panel import Labelled


class Estimator(Protocol):
    """What is asked of an estimator that makes promises: its parameters, and what it learned."""

    threshold_: float
    settings_: TrainingConfig
    schema_: Schema
    encoding_: Encoding
    classifier_: nn.Sequential
    panel_: Panel | None
    update_: UpdateReport

    def explain(self, X: Any, **options: Any) -> Counterfactuals:
        """A certified counterfactual near each row."""

    def fit(self, X: Any, y: ArrayLike) -> Any:
        """The estimator, trained."""

    def get_params(self, deep: bool = True) -> Mapping[str, Any]:
        """Its parameters by name."""


Model = TypeVar("Model", bound=Estimator)


def issue(
    model: Estimator,
    X: Any,
    ids: Sequence[Any],
    ledger: Ledger | str | os.PathLike[str],
    terms: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Issued:
    """The promises that are in the ledger now: every counterfactual that ``explain`` finds for ``X``.

    ``terms`` are those of ``Ledger.issue``, ``options`` those of ``explain``.
    """
    found = model.explain(X, **options)
    with open_ledger(ledger) as place:
        issued = place.issue(found, model.classifier_, ids=ids, threshold=model.threshold_, **terms)
    return replace(issued, recourse=found)


def update(
    model: Model,
    table: tuple[Any, ArrayLike],
    x: Tensor,
    *,
    keep: Source | str | os.PathLike[str] | None,
    panel: str | None,
    random_state: int,
    learning_rate: float | None,
    **options: Any,
) -> Model:
    """A copy of the estimator, fine-tuned on new rows inside the sets of all live promises in ``keep``.

    ``table`` has the new rows and their labels, as given; ``x`` the rows encoded, (n, d). ``options`` are
    those of ``Settings``.
    """
    rate = FINE_TUNE_LR_FACTOR * model.settings_.learning_rate
    chosen = Settings(
        learning_rate=rate if learning_rate is None else learning_rate,
        batch_size=model.settings_.batch_size,
        random_state=random_state,
        **options,
    )
    labels = torch.as_tensor(model.encoding_.schema.labels(table[1]), dtype=x.dtype)
    made = copy.copy(model)
    learned = split(labels, chosen.held_out, chosen.random_state)[0]
    rows = Labelled(x[learned].float(), labels[learned].float(), torch.ones(len(learned)))
    made.panel_ = _panel_for(model, panel, rows, chosen.random_state)
    with open_source(keep) as source:
        made.classifier_, made.update_ = constrained_update(
            Candidate.of(model),
            x,
            labels,
            source,
            chosen,
            scratch=lambda train, held: _retrained(model, table, train, held),
            held=_held_to_panel(made, rows, chosen.random_state),
        )
    return made


def _panel_for(model: Estimator, choice: str | None, rows: Labelled, seed: int) -> Panel | None:
    """The panel of a model that is updated on these rows."""
    if choice not in ("keep", "refit", None):
        raise TrainingError(message("panel='keep', 'refit' or None", repr(choice), "choose one of them"))
    if model.panel_ is None or choice == "keep":
        return model.panel_
    if choice is None:
        return None
    refitted: Panel = clone(model.panel_).fit_encoded(model.encoding_, rows, seed=seed)
    return refitted


def _held_to_panel(model: Estimator, rows: Labelled, seed: int) -> PanelPenalty | None:
    """What keeps an update near to what the panel says; nothing without a panel that counts."""
    if model.panel_ is None or model.panel_.strength == 0 or model.settings_.weight_accuracy <= 0:
        return None
    return PanelPenalty(
        model.panel_,
        model.encoding_,
        from_module(model.classifier_)[0],
        rows,
        threshold_logit=threshold_logit(model.threshold_),
        accuracy=model.settings_.weight_accuracy,
        random_state=seed,
    )


def _retrained(
    model: Estimator, table: tuple[Any, ArrayLike], train: NDArray[np.int64], held: NDArray[np.int64]
) -> Retrained:
    """The same procedure on some of the rows, judged on others."""
    rows, labels = as_table(table[0]), np.asarray(table[1])
    parts = [rows.iloc[part] if hasattr(rows, "iloc") else rows[part] for part in (train, held)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # of a model that is only compared with
        other = type(model)(**{**model.get_params(deep=False), "schema": model.schema_})
        other.fit(parts[0], labels[train])
        x, known = other.encoding_.encode(parts[1]), model.encoding_.schema.labels(labels[held])
    scores = quality(other.classifier_, x, torch.as_tensor(known, dtype=x.dtype), other.threshold_)
    return Retrained(Candidate.of(other), *scores)
