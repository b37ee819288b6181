"""What ``explain`` answers: a counterfactual for each row, what was proved of it, or why there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.certificate import Membership, membership
from veritracer.changes import Advice
from veritracer.encoding import Encoding
from veritracer.encoding.exact import in_types
from veritracer.errors import DataError, message
from veritracer.files import document_text, envelope
from veritracer.formatting import to_python
from veritracer.letter import Format, write_letter
from veritracer.models.balls import Norm
from veritracer.models.param_sets import ParamSet, RadiusRule
from veritracer.reasons import PrincipalReason, ReasonCodes, as_codes, principal_reasons
from veritracer.search.reference import ReferenceData
from veritracer.wording import (
    Change,
    Move,
    Promise,
    instruction,
    promise_in_words,
    region_in_words,
    repeated_changes,
)
from veritracer.wording import language as letters_language

Status = Literal["certified", "valid", "none"]

FORMAT, VERSION = "veritracer-recourse", 1

NUMBERS = (
    *("valid", "certified", "radius", "worst_logit", "method", "conditional"),
    *("cost", "n_changes", "agreement"),
)
"""What is known of each counterfactual besides its values, in the order of the columns of ``table``."""


@dataclass(frozen=True, repr=False)
class Counterfactuals:
    """A counterfactual for each row that was asked about, as arrays with one entry for each.

    Attributes
    ----------
    frame, original
        The values that a person reads, and those that they have: the same columns, index and dtypes. With
        several alternatives for a person the index has a second level, ``alternative``.
    status, reason
        ``certified``, ``valid`` (today, but not proved at this kappa) or ``none``; and why, in words.
    outcome
        How each row ended, as an ``Outcome`` that a program can compare.
    valid, certified
        Whether today's model decides otherwise; whether every model of the set does.
    radius
        The largest kappa at which a proof was found; 0 where there is none. Beyond ``kappa`` the proof may
        need that the original row keeps its decision.
    worst_logit, method, conditional
        Of the certificate: the bound, what proved it, and whether it needs that the original row keeps its
        decision.
    cost, n_changes
        The price of all changes (L1 distance in scaled units where no prices were given), and how many
        features change.
    favourable
        Today's decision on the original row.
    person, alternative, n
        The position of the row in what was asked, the number of the alternative, from 0, and how many were
        asked for.
    kappa, norm, radius_rule, overshoot, drift
        What was asked for: a drift is a number where it goes both ways, else the two ends of the moves.
    param_set
        The set of models that the certificates speak of: centre, norm, rule and absolute radii.
    model_digest, encoding_digest, threshold
        Which model, encoding and threshold they speak of; the threshold is None where nobody said it.
    x, x_cf, lower, upper
        The encoded rows: originals, counterfactuals, and the ends of the region that is certified.
    agreement
        The share of panel members held out of training and search that decide as was asked for; NaN where
        there is no counterfactual, or no panel.
    reference
        Reference data beside the model: training rows, panel, quantile bounds.
    """

    frame: pd.DataFrame
    original: pd.DataFrame
    status: NDArray[np.str_]
    reason: NDArray[np.object_]
    outcome: NDArray[np.object_]
    valid: NDArray[np.bool_]
    certified: NDArray[np.bool_]
    radius: NDArray[np.float64]
    worst_logit: NDArray[np.float64]
    method: NDArray[np.str_]
    conditional: NDArray[np.bool_]
    cost: NDArray[np.float64]
    n_changes: NDArray[np.int64]
    favourable: NDArray[np.bool_]
    person: NDArray[np.int64]
    alternative: NDArray[np.int64]
    n: int
    kappa: float
    norm: Norm
    radius_rule: RadiusRule | float
    overshoot: float
    drift: Mapping[str, float | Sequence[float]]
    model_digest: str
    encoding_digest: str
    threshold: float | None
    param_set: ParamSet
    encoding: Encoding
    x: Tensor
    x_cf: Tensor
    lower: Tensor
    upper: Tensor
    agreement: NDArray[np.float64]
    reference: ReferenceData

    def __len__(self) -> int:
        return len(self.frame)

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.notes])

    __repr__ = __str__  # and not every row of both tables

    @cached_property
    def advice(self) -> Advice:
        """What changes in each row, and how far that is covered."""
        proved = self.certified | (self.radius > 0)
        shown = self.original, self.frame, self.x, self.x_cf
        return Advice(self.encoding, *shown, self.overshoot, self.drift, proved)

    @property
    def summary(self) -> str:
        """How many there are, and what was proved of them, in one line."""
        counts = ", ".join(f"{int((self.status == s).sum()):,} {s}" for s in ("certified", "valid", "none"))
        what = "counterfactual" if len(self) == 1 else "counterfactuals"
        return f"{len(self):,} {what} at {self.param_set}: {counts}"

    @cached_property
    def notes(self) -> list[str]:
        """Return a sentence for each change that most of the counterfactuals share."""
        rows = torch.from_numpy((self.status != "none") & (self.alternative == 0))
        return [*repeated_changes(self.encoding, self.x[rows], self.x_cf[rows])]

    @property
    def table(self) -> pd.DataFrame:
        """Status, reason and numbers of each counterfactual, with the index of ``frame``."""
        columns = {name: getattr(self, name) for name in ("status", "reason", *NUMBERS)}
        return pd.DataFrame(columns, index=self.frame.index)

    @property
    def probability(self) -> NDArray[np.float64]:
        """Today's probability of the favourable label for each original row."""
        logit = self.param_set.network.logit(self.param_set.center, self.x) + self.reference.threshold_logit
        return torch.sigmoid(logit).detach().numpy()

    @property
    def decision(self) -> NDArray[np.object_]:
        """Today's decision on each original row, as the label of the target where the schema names it."""
        schema = self.encoding.schema
        yes, no = schema.favourable, schema.unfavourable
        words = ("favourable", "unfavourable") if yes is None or no is None else (str(yes), str(no))
        return np.where(self.favourable, *words).astype(object)

    def changes(self) -> pd.DataFrame:
        """A long table with a line for each changed feature: row, feature, from, to.

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
        """The changes of counterfactual ``i``, in the order of the columns."""
        return self.advice.changes_of(i)

    def moves_of(self, i: int) -> list[Move]:
        """What may become of values of counterfactual ``i`` by themselves: see ``Advice.moves_of``."""
        return self.advice.moves_of(i)

    def region_of(self, i: int) -> dict[str, tuple[Any, Any]]:
        """Between which two values each feature may end up, all at once: see ``Advice.region_of``."""
        return self.advice.region_of(i)

    def sentence(self, i: int) -> str:
        """Counterfactual ``i`` as a person should read it: what to do, and what that is worth later."""
        if self.status[i] == "none":
            return f"No change is proposed: {self.reason[i]}."
        changes = self.changes_of(i)
        said = f"{instruction(changes)} {region_in_words(changes, self.moves_of(i))}"
        holds = bool(self.certified[i])
        if not holds and self.radius[i] == 0:
            return f"{said}This is valid today; nothing is proved about later versions of the model."
        return said + promise_in_words(self.promise(i), holds=holds)

    def letter(
        self,
        i: int,
        template: str | os.PathLike[str] | None = None,
        codes: ReasonCodes | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        format: Format | None = None,  # noqa: A002  # the word that a caller expects
        language: str | os.PathLike[str] = "en",
        **fields: Any,
    ) -> str:
        """Write a draft of the notice for the person of row ``i``: decision, reasons, what to change.

        It is marked as a draft and promises nothing. Letters of promises are written where they are issued
        (``veritracer issue --letters``, the service): those name the promise's number and its last day.
        ``codes`` has a reason for every feature that changes or is a principal reason (a mapping,
        ``ReasonCodes`` or a JSON file); one that is not there is refused. ``template`` is a Jinja2 template,
        as a file or as text, instead of the default one, ``format`` is ``"text"`` or ``"html"`` (by default
        what the file's name says, else text), ``language`` is ``"en"``, ``"de"`` or a JSON file with a
        catalogue of phrases, and ``fields`` are what the institution adds: institution, recipient, address,
        reference, date, contact, rights, or whatever an own template names. Needs the extra ``report``.
        """
        words = letters_language(language)
        return write_letter(self, i, template, as_codes(codes), format, fields, words)

    def principal_reasons(self, i: int) -> list[PrincipalReason]:
        """What weighed most against row ``i``, compared with accepted training rows; the heaviest first.

        At most four features, each with the way that it would have to go and its part of the logit. They are
        reasons of the decision, and not what the counterfactual changes. Empty where the row is favourable,
        or where no training rows are known.
        """
        if i not in self._reasons:
            self._reasons[i] = principal_reasons(self, i)
        return self._reasons[i]

    @cached_property
    def _reasons(self) -> dict[int, list[PrincipalReason]]:
        return {}

    def promise(self, i: int) -> Promise:
        """What the certificate of counterfactual ``i`` promises: at the kappa asked for, if it is reached."""
        models = self.param_set if self.certified[i] else self.param_set.at(float(self.radius[i]))
        return Promise(models, bool(self.conditional[i]), bool(self.favourable[i]))

    def covers(self, model: Any) -> Membership:
        """Whether ``model`` is in the set at which rows are ``certified``: see ``Certificates.covers``."""
        return membership(self.param_set, self.encoding_digest, self.threshold, model)

    def plausibility(self) -> pd.DataFrame:
        """How close each counterfactual is to the training data.

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
        """What is said of the favourable decision on the way from x (0) to x′ (1), and a quarter beyond.

        A column for the model, for the panel that it was held to, and for the panel's held-out members, as
        probabilities; ``feature`` moves that one alone. ``truth`` is a function from raw rows to
        probabilities, where one is known: it adds a column of that name.
        """
        return interpolation_path(self, i, feature, truth)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """One JSON document with everything, under a versioned schema; also written to ``path``."""
        return document_text(document(self), path)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet table: the values as shown, then ``recourse.status`` and so on."""
        as_table(self).to_parquet(path)

    def to_arrow(self) -> Any:
        """The same table as Arrow's, without the index."""
        import pyarrow as pa

        return pa.Table.from_pandas(as_table(self), preserve_index=False)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: ``polars.DataFrame(recourse)``, ``pyarrow.table(recourse)``."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def label(self, i: int) -> Any:
        """The label of the row that counterfactual ``i`` is for."""
        label = self.frame.index[i]
        if self._has_alternatives:
            label = label[0] if len(label) == 2 else label[:-1]
        return to_python(label)

    @property
    def _has_alternatives(self) -> bool:
        return self.n > 1


def interpolation_path(
    found: Counterfactuals, i: int, feature: str | None, truth: Callable[[pd.DataFrame], Any] | None
) -> pd.DataFrame:
    """The probabilities of ``Counterfactuals.interpolation_path``, a column for everybody who has one."""
    share = torch.linspace(0.0, 1.25, 51, dtype=found.x.dtype)
    end = found.x_cf[i]
    if feature is not None:
        moved = found.encoding.owner == found.encoding.schema.names.index(feature)
        end = torch.where(moved, end, found.x[i])
    points = (found.x[i] + share.unsqueeze(-1) * (end - found.x[i])).clamp(0.0, 1.0)
    logit = found.param_set.network.logit(found.param_set.center, points) + found.reference.threshold_logit
    said = {"model": torch.sigmoid(logit)}
    if found.reference.panel is not None:
        panel = found.reference.panel
        said |= {"panel": panel.vote(points), "held_out": panel.held_out_vote(points)}
    columns = {name: each.detach().double().numpy() for name, each in said.items()}
    if truth is not None:
        person = found.original.iloc[[i] * len(points)].reset_index(drop=True)
        legal = found.encoding.project(points, found.x[i].expand_as(points))
        columns["truth"] = np.asarray(truth(found.encoding.decode(legal, original=person)))
    return pd.DataFrame(columns, index=pd.Index(share.numpy().round(3), name="share"))


def document(found: Counterfactuals) -> dict[str, Any]:
    """Everything, as JSON can hold it, under a versioned schema."""
    head = {
        **envelope(FORMAT, VERSION),
        "kappa": found.kappa,
        "norm": found.norm,
        "radius_rule": found.radius_rule,
        "rule": found.param_set.rule,
        "radii": found.param_set.named_radii,
        "center_digest": found.param_set.center_digest,
        "threshold": found.threshold,
        "overshoot": found.overshoot,
        "drift": dict(found.drift),
        "model_digest": found.model_digest,
        "encoding_digest": found.encoding_digest,
    }
    rows = [_row(found, i) for i in range(len(found))]
    return {**head, "rows": rows}


def as_table(found: Counterfactuals) -> pd.DataFrame:
    """The values as shown, in the types of the schema, then ``recourse.status`` and so on."""
    # Side by side by position: labels of the index may repeat.
    parts = [in_types(found.encoding, found.frame), found.table.add_prefix("recourse.")]
    whole = pd.concat([part.reset_index(drop=True) for part in parts], axis=1)
    return whole.set_axis(found.frame.index)


def _row(found: Counterfactuals, i: int) -> dict[str, Any]:
    numbers = {name: _json_value(getattr(found, name)[i]) for name in NUMBERS}
    changes = [
        {"feature": c.feature.name, "from": _json_value(c.before), "to": _json_value(c.after)}
        | ({} if c.limit is None else {"at_most": _json_value(c.limit)})
        for c in found.changes_of(i)
    ]
    region = {name: [_json_value(end) for end in ends] for name, ends in found.region_of(i).items()}
    return {
        "row": _json_value(found.label(i)),
        "alternative": int(found.alternative[i]),
        "status": str(found.status[i]),
        "reason": str(found.reason[i]),
        **numbers,
        "original": {name: _json_value(before[i]) for name, (before, _) in found.advice.cells.items()},
        "counterfactual": {name: _json_value(after[i]) for name, (_, after) in found.advice.cells.items()},
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
