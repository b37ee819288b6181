"""Recourse for any supported model: a certified counterfactual near each row."""

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

from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import AdviceWarning, DataError, NotSupportedError, SchemaError, TargetError, message
from veritracer.explaining import Explanation
from veritracer.models.balls import Norm
from veritracer.models.network import from_module, threshold_logit
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.options import ExplainOptions, takes
from veritracer.schema import POSITIVE, Feature, Schema
from veritracer.schema.feature import plain
from veritracer.schema.labels import stated_twice
from veritracer.search.reference import Neighbours, QuantileBounds, ReferenceData
from veritracer.threads import one_thread
from veritracer.training import Panel
from veritracer.training.data import as_table
from veritracer.training.panel import Labelled

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


class Recourse:
    """Certified counterfactuals of a model that exists: ours, any torch MLP, or a LogisticRegression.

    Parameters
    ----------
    module
        A torch MLP of Linear and (Leaky)ReLU layers with one or two logits, or a fitted scikit-learn
        ``LogisticRegression``; its inputs are rows of ``encoding``.
    schema
        What may change, and which way. It may differ from the encoding's own schema in that alone.
    encoding
        The map between raw tables and the model's inputs; ``None`` fits one to ``rows``.
    rows, labels
        Training rows, as a raw table: to start from, and to stay near to; and their labels, as in the
        schema's target: proposals then stay inside what rows of the wanted label show.
    panel
        Independent models that say what else thinks of an answer: a fitted ``Panel`` of the same encoding,
        or ``"default"`` to fit one to ``rows`` and ``labels``. With labels, answers follow people that the
        panel believes in.
    kappa, norm, radius
        The set of models, as in ``ParamSet.around``.
    propose
        Where to begin: a function of encoded rows; ``None`` begins at training rows or at the row itself.
    reference
        Rows, labels and panel as one value, for those who have it already.
    favourable
        Which class of a ``LogisticRegression`` is favourable, where its classes leave that open: the class,
        or ``vt.POSITIVE`` for the second one. The logit of a torch module is above 0 where it is favourable.
    threshold
        The probability at which the model decides, for the record: it is part of the last bias already.

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
        radius: RadiusRule | float = "mean-abs",
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
        """A certified counterfactual near each row of the raw table ``X``, as near as is found and believed.

        Parameters
        ----------
        kappa
            Certify at this radius instead of the model's own.
        max_changes
            Change at most so many features.
        cost
            What one full range of a feature costs to move along (1 for those not named; infinite: never).
        immutable
            Leave these features unchanged, besides those that the schema calls immutable.
        only_unfavourable
            Leave rows alone that are favourable already.
        plausibility
            How strongly to stay near the training data, in shares of the cost; 0 does not. By default, where
            there is a panel, answers follow the nearest role model (somebody who has the wanted label, whom
            all models of the set and the panel accept) as closely as it takes for the panel to believe them.
        agreement, plausible
            Requirements: at least this share of the panel's held-out members decides as was asked for; the
            answer is no outlier (LOF of at most 1.5) among rows of the wanted label. A row whose answer does
            not meet them gets none, and its reason says so.
        limits
            By which share of their own value people may be asked to change a number: ``{"amount": 0.3}``.
        extremes
            ``True`` lets proposals go to the ends of a range. By default, where labels are known, numbers
            stay between the 5 % and 95 % quantiles of rows of the wanted label, and categories are such that
            0.5 % of those rows have.
        n
            Up to so many alternatives for each row, no two of which change the same features. They come in
            the order in which the search prefers them, which where answers follow role models is not that of
            their cost.
        time_budget
            Seconds after which the best so far is the answer. Without it answers are deterministic.
        overshoot, drift
            Certify a region: every change carried further by up to this share of the feature's range, and,
            from wherever that is, the named features moving by themselves: ``{"savings": 200}`` by up to 200
            both ways (raw units, or levels), ``{"age": (0, 2)}`` by up to 2 more and never less. What people
            may be asked to change plays no part in how a value may drift.
        refine
            ``False`` gives the start (the generator's answer) with its certificate, for bulk.
        search_radius
            ``False`` does not search for the largest kappa with a proof: ``radius`` is then kappa where a row
            is certified, and 0 elsewhere.
        """
        return self._explain(X, options)

    def _explain(self, X: Any, options: ExplainOptions) -> Counterfactuals:
        """Return what ``explain`` returns, for options that are one value already."""
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

    def _check_reference(self, options: ExplainOptions) -> None:
        """Refuse requirements that nobody is there to judge."""
        if options.agreement is not None and self.reference.panel is None:
            remedy = "train with a panel (the default), or give panel= to Recourse"
            raise DataError(message("a panel to agree", "a model without one", remedy))
        if options.plausible and len(self.reference.neighbours.labelled(True)) < 2:
            remedy = "fit with keep_rows above 0, or give rows= and labels= to Recourse"
            raise DataError(message("labelled rows to compare with", "none", remedy))

    def param_set(self, kappa: float | None = None) -> ParamSet:
        """The set of models that certificates speak of."""
        return ParamSet.around(self.module, self.kappa if kappa is None else kappa, self.norm, self.radius)


@singledispatch
def recourse_of(model: Any) -> Recourse:
    """What answers ``explain`` for a fitted model; estimators register how they do.

    A ``Recourse`` is its own answer; what nobody registered is refused.
    """
    remedy = "pass a fitted VeriTraCER, or a torch module and encoding="
    raise NotSupportedError(message("a model with its encoding", f"a {type(model).__name__}", remedy))


@recourse_of.register(Recourse)
def _itself(model: Recourse) -> Recourse:
    return model


def _check_stated(schema: Schema) -> None:
    """Refuse a schema that has a target and leaves open which of its labels people want."""
    if schema.target is not None and schema.favourable is None:
        expected = f"a schema that says which label of {schema.target!r} is favourable"
        remedy = "state it: Schema.infer(..., favourable=...) or schema.with_labels(y, favourable=...)"
        raise TargetError(message(expected, "one that leaves it open", remedy))


def _encoding_of(schema: Schema | None, encoding: Encoding | None, rows: pd.DataFrame | None) -> Encoding:
    """The encoding to explain with: as given, with the schema's rules of what may change, or fitted."""
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
        remedy = "change nothing but what may change: actions, display steps, notes"
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
    """What rows, labels and panel say, each as far as it was given."""
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
        panel = Panel().fit_encoded(encoding, Labelled(x.float(), y, torch.ones_like(y)), seed=0)
    return ReferenceData(Neighbours(x, y > 0.5), panel, QuantileBounds.of(encoding, x, y > 0.5), logit)


def _meaning(feature: Feature) -> dict[str, Any]:
    """All of a feature that the encoding depends on."""
    return feature.model_dump(exclude={"action", "limit", "yearly", "display_step", "note"})


def _as_module(model: Any, encoding: Encoding, favourable: Any = None) -> nn.Module:
    """The model as a torch module: itself, or the one layer that a fitted ``LogisticRegression`` is."""
    if isinstance(model, nn.Module):
        return model
    from sklearn.linear_model import LogisticRegression  # here: a torch module does without

    if isinstance(model, LogisticRegression) and hasattr(model, "coef_"):
        return _layer(model, _sign_of(model, encoding, favourable))
    received = type(model).__name__
    remedy = "fit it first" if isinstance(model, LogisticRegression) else "take its linear or torch part"
    raise NotSupportedError(message("a torch MLP or a fitted LogisticRegression", received, remedy))


def _sign_of(model: LogisticRegression, encoding: Encoding, favourable: Any) -> float:
    """+1 where the model's second class is the favourable one, -1 where it is the first."""
    labels = [np.asarray(label).item() for label in model.classes_]
    if len(labels) != 2:
        raise NotSupportedError(message("a model of two classes", f"{len(labels)}", "map them onto two"))
    stated = encoding.schema.favourable
    wanted: Any = labels[1] if favourable is POSITIVE else stated if favourable is None else plain(favourable)
    if set(labels) == {0, 1}:
        # Trained on the raw labels, or on schema.labels(y), where 1 is favourable? Both look the same.
        if favourable is None and (stated is None or (stated in labels and stated != 1)):
            whose = "no label" if stated is None else f"{stated!r}"
            received = f"classes 0 and 1 for a schema in which {whose} is favourable"
            remedy = "pass favourable=1 if it was trained on schema.labels(y), else the wanted label"
            raise TargetError(message("to know which class is favourable", received, remedy))
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
