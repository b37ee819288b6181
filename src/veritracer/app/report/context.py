"""The subject of a report: a model, a table, its counterfactuals, and their digests."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer import __version__
from veritracer.app.report.figures import Table, percent
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DataError, ParamSetError, message
from veritracer.formatting import format_count
from veritracer.models.network import from_module, threshold_logit
from veritracer.schema import Schema
from veritracer.search.outcomes import Outcome

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER


@dataclass(frozen=True)
class ReportContext:
    """A model, the rows of a table, and their counterfactuals.

    Attributes
    ----------
    table, x
        The raw rows in the schema's order, and encoded (n, d).
    logit, probability
        Of the favourable decision, for each row.
    labels
        1 where the favourable label is the true one, else 0; None where nobody said.
    first
        The position in ``recourse`` of each row's first counterfactual, (n,).
    explained, has_cf
        Rows for which a counterfactual was searched for, and those for which one was found, (n,) bool.
    """

    model: VeriTraCER
    table: pd.DataFrame
    x: Tensor
    logit: NDArray[np.float64]
    probability: NDArray[np.float64]
    labels: NDArray[np.int64] | None
    recourse: Counterfactuals
    first: NDArray[np.int64]
    explained: NDArray[np.bool_]
    has_cf: NDArray[np.bool_]

    @property
    def schema(self) -> Schema:
        """Return the schema of the table."""
        return self.recourse.encoding.schema

    @property
    def certified(self) -> NDArray[np.bool_]:
        """Return a mask of the rows with a certified counterfactual, (n,)."""
        return self.recourse.certified[self.first]

    @property
    def cost(self) -> NDArray[np.float64]:
        """Return the cost of each row's counterfactual, (n,); meaningful where ``has_cf``."""
        return self.recourse.cost[self.first]

    @property
    def n_changes(self) -> NDArray[np.int64]:
        """Return the number of features that each row's counterfactual changes, (n,)."""
        return self.recourse.n_changes[self.first]

    @property
    def models(self) -> str:
        """Return the set of models of the certificates as text."""
        return str(self.recourse.param_set).replace("kappa", "κ")

    @property
    def role(self) -> str:
        """Return what the explained rows are called: declined, unless accepted ones are explained too."""
        return "explained" if (self.explained & (self.logit > 0)).any() else "declined"


def report_context(model: VeriTraCER, X: Any, y: Any, recourse: Counterfactuals | None) -> ReportContext:
    """Check that model, table and recourse belong together; compute recourse where it is absent."""
    table = model.encoding_.schema.frame(X)
    if len(table) == 0:
        raise DataError(message("at least one row to report on", "none", "pass the test table"))
    recourse = model.explain(table) if recourse is None else recourse
    # Values that are out of range were warned of when recourse was computed: once is enough.
    x = model.encoding_.encode(table, out_of_range="ignore")
    first = np.flatnonzero(recourse.alternative == 0)
    _check_match(model, x, recourse, first)
    logit = model.logits(x)
    probability = torch.sigmoid(logit + threshold_logit(model.threshold_))
    explained = recourse.outcome[first] != Outcome.FAVOURABLE
    return ReportContext(
        model=model,
        table=table,
        x=x,
        logit=logit.numpy(),
        probability=probability.numpy(),
        labels=None if y is None else _labels(model, y, len(table)),
        recourse=recourse,
        first=first,
        explained=explained,
        has_cf=explained & (recourse.status[first] != "none"),
    )


def _check_match(model: VeriTraCER, x: Tensor, recourse: Counterfactuals, first: NDArray[np.int64]) -> None:
    network, theta = from_module(model.classifier_)
    if recourse.model_digest != network.digest(theta):
        remedy = "pass what this model's explain() returned, or leave recourse out"
        raise ParamSetError(message("recourse of this model", "that of another one", remedy))
    if len(first) != len(x) or not torch.equal(recourse.x[first].to(x), x):
        remedy = "pass the table that was explained, in the same order"
        raise DataError(message(f"recourse for these {len(x):,} rows", "that of other rows", remedy))


def _labels(model: VeriTraCER, y: Any, rows: int) -> NDArray[np.int64]:
    labels = model.encoding_.schema.labels(y, require_both=False)
    if len(labels) != rows:
        raise DataError(
            message(f"{rows:,} labels, one for each row", f"{len(labels):,}", "pass them in pairs")
        )
    return labels


# ---------------------------------------------------------------- where it comes from


PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "scipy")
METHODS = {
    "veritracer": "classifier and counterfactual generator trained together against a set of models",
    "counternet": "classifier and counterfactual generator trained together, without robustness",
    "standard": "classifier only",
}


def model_facts(context: ReportContext) -> dict[str, str]:
    """Describe the model as names and values."""
    model, encoding, schema = context.model, context.recourse.encoding, context.schema
    _, theta = from_module(model.classifier_)
    widths = [theta[0].shape[1], *(t.shape[0] for t in theta[::2])]
    features, columns = format_count(len(schema), "feature"), format_count(encoding.dim, "encoded column")
    models, epochs = str(model.param_set()).replace("kappa", "κ"), format_count(len(model.history_), "epoch")
    parameters = format_count(sum(t.numel() for t in theta), "parameter")
    return {
        "target": f"{schema.target or 'the target'}: {schema.favourable} is favourable, "
        f"{schema.unfavourable} is not",
        "method": f"{METHODS.get(model.method, model.method)} (method {model.method})",
        "set of models": f"{models}; trained with the bound {model.bound}",
        "network": f"{' → '.join(str(w) for w in widths)}, {parameters}",
        "inputs": f"{features} as {columns}",
        "threshold": f"favourable if the probability is above {percent(model.threshold_)}",
        "training": f"{epochs}, seed {model.random_state}; {model.stopped_}",
    }


def schema_table(schema: Schema) -> Table:
    """Describe each feature: kind, legal values, how it may change, missing values and note."""
    return [
        {
            "feature": str(name),
            "kind": line["kind"],
            "legal values": " ".join(part for part in (line["range"], line["categories"]) if part),
            "step": line["step"],
            "may change": line["action"].replace("_", " "),
            "missing": line["missing"],
            "note": line["note"],
        }
        for name, line in schema.describe().iterrows()
    ]


def origins(context: ReportContext) -> dict[str, str]:
    """Return digests and versions, by which others can tell that they use the same model and data."""
    return {
        "model": context.recourse.model_digest,
        "encoding": context.recourse.encoding_digest,
        "encoded rows": hashlib.sha256(context.x.contiguous().numpy().tobytes()).hexdigest(),
        "veritracer": __version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }
