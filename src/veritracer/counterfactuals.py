"""The result of ``explain``: a counterfactual for each row with its certificate, or the reason for none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.ibp import Box
from veritracer.certificate import Certificates, Membership
from veritracer.changes import (
    Change,
    Move,
    changes_of,
    describe,
    moves_of,
    read_cells,
    read_limits,
    region_of,
    repeated_changes,
)
from veritracer.encoding import Encoding, Outside
from veritracer.encoding.exact import in_types
from veritracer.errors import DataError, message
from veritracer.files import document_text, envelope
from veritracer.formatting import format_count, to_python
from veritracer.models.param_sets import ParamSet
from veritracer.options import ExplainOptions
from veritracer.principal_reasons import PrincipalReason, accepted_rows, principal_reasons
from veritracer.search.problem import Drift, cost_weights
from veritracer.search.reference import ReferenceData

Status = Literal["certified", "valid", "none"]

FORMAT, VERSION = "veritracer-recourse", 1

NUMBERS = (
    *("valid", "certified", "radius", "worst_logit", "method", "conditional"),
    *("cost", "n_changes", "agreement"),
)
"""Attributes of each counterfactual that ``table`` has as columns, in this order."""


@dataclass(frozen=True, repr=False)
class Counterfactuals:
    """The result of ``explain``: arrays and tables with one entry for each counterfactual.

    Attributes
    ----------
    frame, original
        The counterfactuals and people's own rows: the columns, index and dtypes of the input. With several
        alternatives for a row the index has a second level, ``alternative``.
    status, outcome, reason
        ``certified``, ``valid`` (accepted today, but not proved at this kappa) or ``none``; the same in more
        detail, as an ``Outcome`` that a program can compare; and in words.
    certificates
        The certificates, and the set of models that they cover.
    x, x_cf
        The encoded rows and their counterfactuals, (n, d).
    region
        The box of encoded rows that each certificate covers: a point without ``overshoot`` and ``drift``.
    row, alternative
        The position of the row in the input, and the number of the alternative, from 0.
    agreement
        The share of the panel's held-out members that decide as requested; NaN without a counterfactual or a
        panel.
    months
        The whole months of the term for which each counterfactual is certified: all of them where it is
        ``certified``, else the most for which a proof was found.
    encoding, reference, options
        The encoding, the training rows and panel beside the model, and the options of the call.
    """

    frame: pd.DataFrame
    original: pd.DataFrame
    status: NDArray[np.str_]
    outcome: NDArray[np.object_]
    reason: NDArray[np.object_]
    certificates: Certificates
    x: Tensor
    x_cf: Tensor
    region: Box
    row: NDArray[np.int64]
    alternative: NDArray[np.int64]
    agreement: NDArray[np.float64]
    months: NDArray[np.int64]
    encoding: Encoding
    reference: ReferenceData
    options: ExplainOptions

    def __len__(self) -> int:
        return len(self.frame)

    def __str__(self) -> str:
        counts = ", ".join(f"{int((self.status == s).sum()):,} {s}" for s in ("certified", "valid", "none"))
        head = f"{format_count(len(self), 'counterfactual')} at {self.param_set}: {counts}"
        return "\n".join([head, *self.notes])

    __repr__ = __str__  # and not every row of both tables

    @property
    def valid(self) -> NDArray[np.bool_]:
        """True where today's model decides the counterfactual differently from the row."""
        return self.certificates.valid

    @property
    def certified(self) -> NDArray[np.bool_]:
        """True where every model of the set decides the counterfactual differently, by proof."""
        return self.certificates.certified

    @property
    def radius(self) -> NDArray[np.float64]:
        """Return the largest kappa at which a proof was found; 0 where there is none.

        Beyond ``kappa`` the proof may be conditional: it then holds while the row keeps its decision.
        """
        assert self.certificates.radius is not None
        return self.certificates.radius

    @property
    def worst_logit(self) -> NDArray[np.float64]:
        """Return the bound on the logit over the set, with its sign turned so that below 0 is a proof."""
        return self.certificates.worst_logit

    @property
    def method(self) -> NDArray[np.str_]:
        """Return the name of the bound that proved each counterfactual."""
        return self.certificates.method

    @property
    def conditional(self) -> NDArray[np.bool_]:
        """True where the proof holds only while the row itself keeps its decision."""
        return self.certificates.conditional

    @property
    def favourable(self) -> NDArray[np.bool_]:
        """True where today's decision on the row is favourable."""
        return self.certificates.favourable

    @property
    def param_set(self) -> ParamSet:
        """Return the set of models that the certificates cover."""
        return self.certificates.param_set

    @property
    def kappa(self) -> float:
        """Return the radius at which rows are ``certified``."""
        return self.param_set.kappa

    @property
    def model_digest(self) -> str:
        """Return the digest of today's model."""
        return self.certificates.model_digest

    @property
    def encoding_digest(self) -> str:
        """Return the digest of the encoding that the certificates name."""
        assert self.certificates.encoding_digest is not None
        return self.certificates.encoding_digest

    @property
    def threshold(self) -> float | None:
        """Return the probability at which the model decides; None if it is not known."""
        return self.certificates.threshold

    @property
    def overshoot(self) -> float:
        """Return the share of its range by which every change may go further."""
        return self.options.overshoot

    @cached_property
    def drift(self) -> Mapping[str, float | Sequence[float]]:
        """Return the covered drift of each feature: a number if it is the same both ways, else two ends."""
        return {name: Drift.of(moves).option for name, moves in self.options.drift.items()}

    @cached_property
    def cost(self) -> NDArray[np.float64]:
        """Return the cost of all changes: the L1 distance in scaled units, times the given prices."""
        weights = cost_weights(self.encoding, self.options.cost)
        finite = torch.where(torch.isinf(weights), 1.0, weights).to(self.x)
        return ((self.x_cf - self.x).abs() * finite).sum(-1).numpy()

    @cached_property
    def n_changes(self) -> NDArray[np.int64]:
        """Return the number of features that change."""
        return self.encoding.changed(self.x_cf, self.x).sum(-1).numpy()

    def select(self, rows: NDArray[np.intp]) -> Counterfactuals:
        """Return the counterfactuals at these positions."""
        some = torch.from_numpy(rows)
        return replace(
            self,
            **_selected(self, rows),
            frame=self.frame.iloc[rows],
            original=self.original.iloc[rows],
            certificates=replace(self.certificates, **_selected(self.certificates, rows)),
            x=self.x[some],
            x_cf=self.x_cf[some],
            region=self.region.select(some),
        )

    @cached_property
    def proved(self) -> NDArray[np.bool_]:
        """True where a proof was found at any kappa."""
        return self.certified | (self.radius > 0)

    @cached_property
    def cells(self) -> Mapping[str, tuple[Any, Any]]:
        """Return the cells of each column of ``original`` and ``frame``, with text read as numbers."""
        return read_cells(self.encoding, self.original, self.frame)

    @cached_property
    def accepted(self) -> Tensor:
        """Return accepted training rows that people are compared with, encoded."""
        return accepted_rows(self)

    @cached_property
    def limits(self) -> Mapping[str, tuple[Any, NDArray[np.bool_]]]:
        """Return the limit of each changed number, and a mask of the limits that lie inside the region."""
        return read_limits(self)

    @cached_property
    def outside(self) -> Mapping[str, Outside]:
        """Return the numbers of people's own rows outside the range of the training rows, by feature."""
        return self.encoding.outside(self.original)

    @cached_property
    def far_outside(self) -> NDArray[np.bool_]:
        """True where a number lies outside that range by more than its width: such rows are not promised."""
        rows = np.zeros(len(self), dtype=bool)
        for one in self.outside.values():
            rows |= one.far
        return rows

    @cached_property
    def notes(self) -> list[str]:
        """Return a sentence for each change that most of the counterfactuals share."""
        rows = torch.from_numpy((self.status != "none") & (self.alternative == 0))
        return [*repeated_changes(self.encoding, self.x[rows], self.x_cf[rows])]

    @property
    def table(self) -> pd.DataFrame:
        """Return status, reason and numbers of each counterfactual, with the index of ``frame``."""
        columns = {name: getattr(self, name) for name in ("status", "reason", *NUMBERS)}
        return pd.DataFrame(columns, index=self.frame.index)

    @property
    def probability(self) -> NDArray[np.float64]:
        """Return today's probability of the favourable label for each original row."""
        return self._probability_of(self.x)

    def _probability_of(self, x: Tensor) -> NDArray[np.float64]:
        logit = self.param_set.network.logit(self.param_set.center, x) + self.reference.threshold_logit
        return torch.sigmoid(logit).detach().double().numpy()

    @property
    def decision(self) -> NDArray[np.object_]:
        """Return today's decision on each original row, as a label of the target where these are known."""
        schema = self.encoding.schema
        yes, no = schema.favourable, schema.unfavourable
        words = ("favourable", "unfavourable") if yes is None or no is None else (str(yes), str(no))
        return np.where(self.favourable, *words).astype(object)

    def changes(self) -> pd.DataFrame:
        """Return a long table with a line for each changed feature: row, feature, from, to.

        With ``alternative`` where there are several, and ``at_most`` where going further is certified.
        """
        lines = [
            (self.label(i), self.alternative[i], c.feature.name, c.before, c.after, c.limit)
            for i in range(len(self))
            for c in self.changes_of(i)
        ]
        header = ["row", "alternative", "feature", "from", "to", "at_most"]
        table = pd.DataFrame(lines, columns=header)
        unused = [] if self._has_alternatives else ["alternative"]
        return table.drop(columns=unused + ([] if self.overshoot > 0 else ["at_most"]))

    def changes_of(self, i: int) -> list[Change]:
        """Return the changes of counterfactual ``i``, in the order of the columns."""
        return changes_of(self, i)

    def moves_of(self, i: int) -> list[Move]:
        """Return the covered drift of counterfactual ``i``, feature by feature."""
        return moves_of(self, i)

    def sentence(self, i: int) -> str:
        """Describe counterfactual ``i`` in words: the changes, and the promise about later models."""
        return describe(self, i)

    def principal_reasons(self, i: int) -> list[PrincipalReason]:
        """Return the features that weighed most against row ``i``, compared with accepted training rows.

        There are at most four, the heaviest first, each with its direction and its part of the logit. They
        explain the decision and can differ from the features that the counterfactual changes. The list is
        empty if the row is favourable, or if no training rows are known.
        """
        if i not in self._reasons:
            self._reasons[i] = principal_reasons(self, i)
        return self._reasons[i]

    @cached_property
    def _reasons(self) -> dict[int, list[PrincipalReason]]:
        return {}

    def covers(self, model: Any) -> Membership:
        """Test if ``model`` is in the set at which rows are certified: see ``Certificates.covers``."""
        return self.certificates.covers(model)

    def plausibility(self) -> pd.DataFrame:
        """Measure how close each counterfactual is to the training data.

        ``distance`` is the L1 distance to the nearest training row over the number of encoded columns;
        ``lof`` the local outlier factor (about 1 among the data, larger outside). ``distance_favourable`` and
        ``lof_favourable`` are the same among training rows with the label that the counterfactual is meant
        to get (10 neighbours); NaN where labels are not known.
        """
        near = self.reference.neighbours
        if len(near) == 0:
            remedy = "fit with keep_rows above 0, or give rows= to Recourse"
            raise DataError(message("training rows to compare with", "none", remedy))
        wanted = torch.from_numpy(~self.favourable)
        columns = {
            "distance": near.nearest(self.x_cf)[1],
            "lof": near.outlier_factor(self.x_cf),
            "distance_favourable": self.reference.distance(self.x_cf, wanted),
            "lof_favourable": self.reference.outlier_factor(self.x_cf, wanted),
        }
        return pd.DataFrame(columns, index=self.frame.index)

    def interpolation_path(
        self, i: int, feature: str | None = None, *, truth: Callable[[pd.DataFrame], Any] | None = None
    ) -> pd.DataFrame:
        """Return the probability of the favourable label from x (0) to x′ (1), and a quarter beyond.

        The table has columns for the model, for the panel's fitted members and for its held-out members. With
        ``feature``, only that one moves. ``truth``, a function from raw rows to probabilities, adds a column
        of that name.
        """
        share = torch.linspace(0.0, 1.25, 51, dtype=self.x.dtype)
        end = self.x_cf[i]
        if feature is not None:
            moved = self.encoding.owner == self.encoding.schema.names.index(feature)
            end = torch.where(moved, end, self.x[i])
        points = (self.x[i] + share.unsqueeze(-1) * (end - self.x[i])).clamp(0.0, 1.0)
        columns = {"model": self._probability_of(points)}
        panel = self.reference.panel
        if panel is not None:
            votes = {"panel": panel.vote(points), "held_out": panel.held_out_vote(points)}
            columns |= {name: each.double().numpy() for name, each in votes.items()}
        if truth is not None:
            person = self.original.iloc[[i] * len(points)].reset_index(drop=True)
            legal = self.encoding.project(points, self.x[i].expand_as(points))
            columns["truth"] = np.asarray(truth(self.encoding.decode(legal, original=person)))
        return pd.DataFrame(columns, index=pd.Index(share.numpy().round(3), name="share"))

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the result as one versioned JSON document; also write it to ``path`` if given."""
        return document_text(document(self), path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet table: the values as shown, then the columns ``recourse.status`` and so on."""
        self._typed_table().to_parquet(path)

    def to_arrow(self) -> Any:
        """Return the table of ``to_parquet`` as a ``pyarrow.Table``, without the index."""
        import pyarrow as pa

        return pa.Table.from_pandas(self._typed_table(), preserve_index=False)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export through the Arrow PyCapsule interface, for ``polars.DataFrame(recourse)`` and others."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _typed_table(self) -> pd.DataFrame:
        """Return the values in the types of the schema, then the columns ``recourse.status`` and so on."""
        # Side by side by position: labels of the index may repeat.
        parts = [in_types(self.encoding, self.frame), self.table.add_prefix("recourse.")]
        whole = pd.concat([part.reset_index(drop=True) for part in parts], axis=1)
        return whole.set_axis(self.frame.index)

    def label(self, i: int) -> Any:
        """Return the label of the row that counterfactual ``i`` is for."""
        label = self.frame.index[i]
        if self._has_alternatives:
            label = label[0] if len(label) == 2 else label[:-1]
        return to_python(label)

    @property
    def _has_alternatives(self) -> bool:
        return self.options.n > 1


def _selected(whole: Counterfactuals | Certificates, rows: NDArray[np.intp]) -> dict[str, Any]:
    """Return the entries of all arrays at these positions, by the names of the fields."""
    arrays = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return {name: array[rows] for name, array in arrays.items() if isinstance(array, np.ndarray)}


def document(found: Counterfactuals) -> dict[str, Any]:
    """Return the result as a versioned JSON document."""
    head = {
        **envelope(FORMAT, VERSION),
        "kappa": found.kappa,
        "norm": found.param_set.norm,
        "rule": found.param_set.rule,
        "radii": found.param_set.named_radii,
        "center_digest": found.param_set.center_digest,
        "threshold": found.threshold,
        "overshoot": found.overshoot,
        "drift": dict(found.drift),
        "term": found.options.term,
        "model_digest": found.model_digest,
        "encoding_digest": found.encoding_digest,
    }
    rows = [_row(found, i) for i in range(len(found))]
    return {**head, "rows": rows}


def _row(found: Counterfactuals, i: int) -> dict[str, Any]:
    numbers = {name: _json_value(getattr(found, name)[i]) for name in NUMBERS}
    changes = [
        {"feature": c.feature.name, "from": _json_value(c.before), "to": _json_value(c.after)}
        | ({} if c.limit is None else {"at_most": _json_value(c.limit)})
        for c in found.changes_of(i)
    ]
    region = {name: [_json_value(end) for end in ends] for name, ends in region_of(found, i).items()}
    return {
        "row": _json_value(found.label(i)),
        "alternative": int(found.alternative[i]),
        "status": str(found.status[i]),
        "reason": str(found.reason[i]),
        **numbers,
        "original": {name: _json_value(before[i]) for name, (before, _) in found.cells.items()},
        "counterfactual": {name: _json_value(after[i]) for name, (_, after) in found.cells.items()},
        "changes": changes,
        **({"region": region} if region else {}),
        "sentence": found.sentence(i),
    }


def _json_value(value: Any) -> Any:
    value = to_python(value)
    if isinstance(value, tuple):
        return [_json_value(part) for part in value]
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)
