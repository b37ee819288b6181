"""Find certified counterfactuals for a given model: an MLP in torch, or a logistic regression."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import singledispatch
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from veritracer.certificate import Certificates, certify, with_encoding
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import AdviceWarning, DataError, NotSupportedError, SchemaError, TargetError, message
from veritracer.explaining import Explanation
from veritracer.formatting import to_python
from veritracer.models.balls import Norm
from veritracer.models.network import from_module, threshold_logit
from veritracer.models.param_sets import ParamSet
from veritracer.options import Effort, ExplainOptions, takes
from veritracer.schema import POSITIVE, Feature, Schema
from veritracer.schema.labels import stated_twice
from veritracer.search.reference import Neighbours, QuantileBounds, ReferenceData
from veritracer.threads import one_thread
from veritracer.training import Panel
from veritracer.training.data import LabelledRows, as_table

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


class Recourse:
    """Find certified counterfactuals for a given model: ours, any torch MLP, or a LogisticRegression.

    Parameters
    ----------
    module
        A torch MLP of Linear and (Leaky)ReLU layers with one or two logits, or a fitted scikit-learn
        ``LogisticRegression``; its inputs are rows of ``encoding``.
    schema
        The features, with the actions that people can take. It may differ from the encoding's own schema in
        actions, limits, display steps and notes only.
    encoding
        The map between raw tables and the model's inputs; ``None`` fits one to ``rows``.
    rows, labels
        Training rows as a raw table, which serve as starts and prototypes, and their labels, as in the
        schema's target. With labels, proposals stay inside the quantiles of rows with the wanted label.
    panel
        Independent models that judge counterfactuals: a fitted ``Panel`` with the same encoding, or
        ``"default"`` to fit one to ``rows`` and ``labels``. With labels, the search goes toward prototypes
        that the panel accepts.
    kappa, norm, radius
        The set of models, as in ``ParamSet.around``.
    propose
        Function from encoded rows to starts of the search; ``None`` starts at training rows or at the row
        itself.
    reference
        Rows, labels and panel as one value, instead of the three.
    favourable
        The favourable class of a ``LogisticRegression`` whose classes are not the schema's labels: the class,
        or ``vt.POSITIVE`` for the second one. A torch module decides favourably if its logit is above 0.
    threshold
        The probability at which the model decides, for the record: the last bias includes it already.

    >>> import veritracer as vt
    >>> from sklearn.linear_model import LogisticRegression
    >>> data = vt.datasets.load("breast_cancer")
    >>> encoding = vt.Encoding.fit(data.schema, data.X)
    >>> linear = LogisticRegression().fit(encoding.encode(data.X).numpy(), data.schema.labels(data.y))
    >>> print(Recourse(linear, data.schema, encoding, kappa=0.05).explain(data.X.head(3)))
    3 counterfactuals at kappa = 0.05 (linf, mean-abs): 3 certified, 0 valid, 0 none
    """

    def __init__(
        self,
        module: Any,
        schema: Schema | None = None,
        encoding: Encoding | None = None,
        *,
        rows: pd.DataFrame | None = None,
        labels: ArrayLike | None = None,
        panel: Panel | Literal["default"] | None = None,
        kappa: float = 0.2,
        norm: Norm = "linf",
        radius: str | float = "mean-abs",
        propose: Callable[[Tensor], Tensor] | None = None,
        reference: ReferenceData | None = None,
        favourable: Any = None,
        threshold: float | None = None,
    ) -> None:
        self.encoding = _encoding_of(schema, encoding, rows)
        _check_stated(self.encoding.schema)
        self.module = _as_module(module, self.encoding, favourable)
        width = from_module(self.module)[1][0].shape[1]
        if width != self.encoding.dim:
            remedy = "give the encoding whose rows the model was trained on"
            raise DataError(message(f"a model of {self.encoding.dim} inputs", f"{width}", remedy))
        self.kappa, self.norm, self.radius, self.propose = kappa, norm, radius, propose
        self.threshold = threshold
        if reference is None:
            logit = 0.0 if threshold is None else threshold_logit(threshold)
            reference = _reference_of(self.encoding, rows, labels, panel, logit)
        self.reference = reference

    @takes(ExplainOptions)
    def explain(self, X: Any, options: ExplainOptions) -> Counterfactuals:
        """Find a certified counterfactual near each row of the raw table ``X``.

        Parameters
        ----------
        kappa
            Certify at this radius instead of the model's own.
        max_changes
            Change at most this many features.
        cost
            Price of one full range of each feature: 1 by default, infinite for never.
        immutable
            Leave these features unchanged, besides those that the schema calls immutable.
        only_unfavourable
            Leave rows alone that are favourable already.
        plausibility
            Weight of the distance to the training data, in shares of the cost. By default a model with a
            panel searches toward prototypes instead: training rows with the wanted label that all models of
            the set and the panel accept.
        agreement, plausible
            Require that at least this share of the panel's held-out members accepts the counterfactual, and
            that it is no outlier among rows of the wanted label (local outlier factor of at most 1.5).
            Otherwise the row gets no counterfactual, and the reason names the requirement.
        limits
            Change a number by at most this share of the person's own value: ``{"amount": 0.3}``.
        extremes
            ``True`` allows all legal values. By default, if labels are known, numbers stay between the 5 %
            and 95 % quantiles of rows of the wanted label, and a category must occur in 0.5 % of those rows.
        n
            Return up to this many alternatives for each row, no two of which change the same features. They
            come in the order in which the search prefers them, which with prototypes is not that of the cost.
        time_budget
            Stop the search after this many seconds, with the best so far; the exact stage gets what is left.
            Without it, results are deterministic.
        effort
            ``"exact"`` decides by branch and bound what the bounds leave open: a counterfactual may then be
            certified by ``exact``, or broken, with the model that breaks it in ``certificates``. It takes
            sets of norm ``linf``.
        overshoot, drift
            Certify a region: every change may go further by up to this share of the feature's range, and the
            named features may then move by themselves: ``{"savings": 200}`` by up to 200 both ways (raw
            units, or levels), ``{"age": (0, 2)}`` by up to 2 more and never less. Drift is independent of the
            actions in the schema.
        term
            Time for which counterfactuals are certified: ``"365d"``, ``"52w"``, ``"1y"`` or a timedelta.
            Features with ``yearly`` drift as far as they move in it, unless ``drift`` says otherwise, and
            those that move one way only are never changed further than that. Rows without a proof for the
            whole term say for how many months there is one. ``None`` covers the shown values only.
        refine
            ``False`` returns the start (the generator's proposal) with its certificate, which is faster.
        search_radius
            ``False`` omits the search for the largest kappa with a proof: ``radius`` is then kappa for
            certified rows, and 0 for the others.
        """
        return self._explain(X, options)

    def _explain(self, X: Any, options: ExplainOptions) -> Counterfactuals:
        """Return the result of ``explain`` for options in one value."""
        chosen = options.checked(self.encoding)
        self._check_reference(chosen)
        explanation = Explanation(
            module=self.module,
            encoding=self.encoding,
            param_set=self.param_set(chosen.kappa),
            threshold=self.threshold,
            propose=self.propose,
            reference=self.reference,
            options=chosen,
        )
        with one_thread(next(self.module.parameters()).device.type == "cpu"):
            found = explanation.of(as_table(X))
        for note in found.notes:
            warnings.warn(note, AdviceWarning, stacklevel=4)  # where explain() was called
        return found

    def certify(
        self,
        X: Any,
        X_cf: Any,
        *,
        kappa: float | None = None,
        effort: Effort = "fast",
        time_budget: float | None = None,
    ) -> Certificates:
        """Certify counterfactuals from any source; both tables have raw values.

        ``veritracer.certify`` describes ``effort`` and ``time_budget``.
        """
        x, x_cf = (self.encoding.encode(as_table(table)) for table in (X, X_cf))
        if len(x) != len(x_cf):
            received = f"{len(x_cf):,} for {len(x):,}"
            raise DataError(message("one counterfactual for each row", received, "pair them up"))
        param_set = self.param_set(kappa)
        found = certify(self.module, x, x_cf, param_set, effort=effort, time_budget=time_budget)
        return with_encoding(found, self.encoding.digest, self.threshold)

    def _check_reference(self, options: ExplainOptions) -> None:
        """Refuse requirements that need a panel or labelled rows if there are none."""
        if options.agreement is not None and self.reference.panel is None:
            remedy = "train with a panel (the default), or give panel= to Recourse"
            raise DataError(message("a panel for agreement=", "a model without one", remedy))
        if options.plausible and len(self.reference.neighbours.labelled(True)) < 2:
            remedy = "fit with keep_rows above 0, or give rows= and labels= to Recourse"
            raise DataError(message("labelled rows for plausible=True", "none", remedy))

    def param_set(self, kappa: float | None = None) -> ParamSet:
        """Return the set of models that certificates cover."""
        return ParamSet.around(self.module, self.kappa if kappa is None else kappa, self.norm, self.radius)


@singledispatch
def recourse_of(model: Any) -> Recourse:
    """Return the ``Recourse`` of a fitted model; each type of estimator registers its own implementation.

    Raises
    ------
    NotSupportedError
        If no implementation is registered for the type of ``model``.
    """
    remedy = "pass a fitted VeriTraCER, or a torch module and encoding="
    raise NotSupportedError(message("a model with its encoding", f"a {type(model).__name__}", remedy))


@recourse_of.register(Recourse)
def _unchanged(model: Recourse) -> Recourse:
    return model


def _check_stated(schema: Schema) -> None:
    """Refuse a schema that has a target but no favourable label."""
    if schema.target is not None and schema.favourable is None:
        expected = f"a schema with the favourable label of {schema.target!r}"
        remedy = "state it: Schema.infer(..., favourable=...) or schema.with_labels(y, favourable=...)"
        raise TargetError(message(expected, "one without it", remedy))


def _encoding_of(schema: Schema | None, encoding: Encoding | None, rows: pd.DataFrame | None) -> Encoding:
    """Return the encoding: as given, with the actions of the schema, or fitted to the rows."""
    if encoding is None:
        if schema is None or rows is None:
            remedy = "pass the encoding that the model was trained with"
            raise DataError(message("an encoding, or a schema and training rows", "neither", remedy))
        return Encoding.fit(schema, rows)
    if schema is None or schema == encoding.schema:
        return encoding
    others = [
        theirs
        for ours, theirs in zip_longest(encoding.schema.features, schema.features)
        if ours is None or theirs is None or _meaning(ours) != _meaning(theirs)
    ]
    if others:
        received = "another one" if others[0] is None else f"another {others[0].name!r}"
        remedy = "change only actions, limits, display steps and notes"
        raise SchemaError(message("a schema that encodes rows as the encoding does", received, remedy))
    stated, known = schema.favourable, encoding.schema.favourable
    if stated is not None and known is not None and stated != known:
        raise TargetError(stated_twice(stated, known))
    return Encoding(schema, encoding.fitted)


def _reference_of(
    encoding: Encoding,
    rows: pd.DataFrame | None,
    labels: ArrayLike | None,
    panel: Panel | Literal["default"] | None,
    logit: float,
) -> ReferenceData:
    """Return the reference data made of rows, labels and panel, as far as they are given."""
    if (labels is not None or panel == "default") and (rows is None or labels is None):
        missing = "labels without rows" if rows is None else "a panel to be fitted without labels"
        raise DataError(message("rows and their labels", missing, "give rows= and labels="))
    if isinstance(panel, Panel) and panel.encoding_.digest != encoding.digest:
        remedy = "fit the panel with this encoding: Panel().fit_encoded(encoding, ...)"
        raise DataError(message("a panel with the model's encoding", "one with another", remedy))
    x = torch.empty(0, encoding.dim).double() if rows is None else encoding.encode(rows)
    if labels is None:
        return ReferenceData(Neighbours(x), None if panel == "default" else panel, None, logit)
    y = torch.as_tensor(encoding.schema.labels(labels), dtype=torch.float32)
    if panel == "default":
        panel = Panel().fit_encoded(encoding, LabelledRows(x.float(), y, torch.ones_like(y)), seed=0)
    return ReferenceData(Neighbours(x, y > 0.5), panel, QuantileBounds.of(encoding, x, y > 0.5), logit)


def _meaning(feature: Feature) -> dict[str, Any]:
    """Return the fields of a feature that the encoding depends on."""
    return feature.model_dump(exclude={"action", "limit", "yearly", "display_step", "note"})


def _as_module(model: Any, encoding: Encoding, favourable: Any = None) -> nn.Module:
    """Return the model as a torch module: itself, or one layer for a fitted ``LogisticRegression``."""
    if isinstance(model, nn.Module):
        return model
    from sklearn.linear_model import LogisticRegression  # here: a torch module does without

    if isinstance(model, LogisticRegression) and hasattr(model, "coef_"):
        return _layer(model, _sign_of(model, encoding, favourable))
    received = type(model).__name__
    remedy = "fit it first" if isinstance(model, LogisticRegression) else "take its linear or torch part"
    raise NotSupportedError(message("a torch MLP or a fitted LogisticRegression", received, remedy))


def _sign_of(model: LogisticRegression, encoding: Encoding, favourable: Any) -> float:
    """Return +1 if the model's second class is the favourable one, -1 if it is the first."""
    labels = [np.asarray(label).item() for label in model.classes_]
    if len(labels) != 2:
        raise NotSupportedError(message("a model of two classes", f"{len(labels)}", "map them onto two"))
    stated = encoding.schema.favourable
    wanted: Any = (
        labels[1] if favourable is POSITIVE else stated if favourable is None else to_python(favourable)
    )
    if set(labels) == {0, 1}:
        # The model may have learned the raw labels or schema.labels(y), where 1 is favourable: ask.
        if favourable is None and (stated is None or (stated in labels and stated != 1)):
            whose = "no label" if stated is None else f"{stated!r}"
            received = f"classes 0 and 1 for a schema in which {whose} is favourable"
            remedy = "pass favourable=1 if it was trained on schema.labels(y), else the wanted label"
            raise TargetError(message("classes that name the favourable one", received, remedy))
        wanted = 1 if favourable is None else wanted
    elif stated is not None and stated in labels and wanted != stated:
        raise TargetError(stated_twice(wanted, stated))
    if wanted not in labels:
        remedy = "train it on schema.labels(y), where 1 is favourable, or pass favourable="
        raise TargetError(message(f"the favourable label {wanted!r} among its classes", f"{labels}", remedy))
    return 1.0 if labels[1] == wanted else -1.0


def _layer(model: LogisticRegression, sign: float) -> nn.Module:
    weight = sign * torch.from_numpy(np.asarray(model.coef_, dtype=np.float64))
    layer = nn.Linear(weight.shape[1], 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(
            sign * torch.from_numpy(np.atleast_1d(np.asarray(model.intercept_, dtype=np.float64)))
        )
    return nn.Sequential(layer).eval()
