"""Check one model against promises, with a verdict on each: kept, superseded, broken or not checkable.

The model is ours, or any torch MLP with its encoding and its threshold. A verdict is *kept by proof* where
the model is in the promised set, and else what it predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.bounds.ibp import Box, trace
from veritracer.bounds.methods import UNCONDITIONAL
from veritracer.bounds.rounding import logit_error, round_up
from veritracer.encoding import Encoding
from veritracer.errors import LedgerError, NotSupportedError, message
from veritracer.ledger.promises import IssuingModel, Promises, check_threshold, encoded_rows
from veritracer.models.network import Network, Theta, from_module
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION, ROWS_AT_ONCE, ProofBatch, check_computed, decide, prove
from veritracer.recourse import Recourse, recourse_of


class Verdict(StrEnum):
    """The verdict on one promise; the value is its name in reports, JSON and tables.

    A promise that has expired gets no verdict.
    """

    PROVED = "kept by proof"
    CHECKED = "kept, checked"
    SUPERSEDED = "superseded"
    BROKEN = "broken"
    NOT_CHECKABLE = "not checkable"

    @property
    def code(self) -> int:
        """Return the number that stands for it in arrays: its position in ``VERDICTS``."""
        return VERDICTS.index(self)


VERDICTS = tuple(Verdict)
"""In the order of their codes."""

EXPIRED = "expired"
"""The name of promises past their end, which are counted beside the verdicts."""

MEANING = {
    Verdict.PROVED: "the model lies in the set for which the promise was proved",
    Verdict.CHECKED: "the model lies outside the set, but still accepts the promised row",
    Verdict.SUPERSEDED: "the model now accepts the original row, and the promised row too",
    Verdict.BROKEN: "the model declines the promised row",
    Verdict.NOT_CHECKABLE: "the ledger lacks the data to decide under this encoding; not counted as kept",
    EXPIRED: "past its last day; not counted against the model",
}
"""The meaning of each verdict, as people read it."""


class Unchecked(StrEnum):
    """The reason why a promise is not checkable; the value is the sentence that people read."""

    UNREADABLE = "its condition cannot be checked: the original row cannot be read"
    CUT = "its region cannot be told in this encoding: a value in it has another meaning, or none"
    CONTRADICTED = (
        "its proof speaks of this model, which turns it down: the ledger was altered "
        "(run veritracer verify), or this is a bug that must be reported"
    )

    @property
    def code(self) -> int:
        """Return the number that stands for it in arrays."""
        return tuple(Unchecked).index(self)


class AuditResults(NamedTuple):
    """The verdict on each promise as a number, and how far x′ is on the promised side (logit).

    Below 0 x′ is rejected by so much. For a promised region it is a bound for its worst row. It is rounded
    to ten digits, downwards: nothing is told to be better than it is. ``why`` is the number of the reason of
    those that are not checkable.
    """

    verdict: NDArray[np.int8]
    margin: NDArray[np.float64]
    why: NDArray[np.int8]


@dataclass(frozen=True)
class AuditedModel:
    """A model as an audit sees it.

    Attributes
    ----------
    module
        The classifier; the sign of its logit is the decision.
    network, theta
        Its architecture and parameters, in float64.
    encoding
        The map between raw tables and its inputs.
    threshold
        The probability at which that is: part of the last bias, and not applied again.
    recourse
        What finds new recourse for people whose promise it breaks.
    """

    module: nn.Module
    network: Network
    theta: Theta
    encoding: Encoding
    threshold: float
    recourse: Callable[[], Recourse]
    _inside: dict[tuple[str, float], bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, model: Any, encoding: Encoding | None = None, threshold: float | None = None) -> AuditedModel:
        """Return the audited model for a fitted VeriTraCER, a ``Recourse`` or a torch module.

        A module needs its ``encoding``; ``threshold`` is the model's own, else 0.5.
        """
        if isinstance(model, AuditedModel):
            return model
        if not isinstance(model, nn.Module):
            recourse = recourse_of(model)
            module, known, finder, noted = (
                recourse.module,
                recourse.encoding,
                lambda: recourse,
                recourse.threshold,
            )
        elif encoding is not None:
            module, known, finder, noted = model, encoding, lambda: Recourse(model, None, encoding), None
        else:
            received = f"a {type(model).__name__} without"
            remedy = "pass a fitted VeriTraCER, or a torch module and encoding="
            raise NotSupportedError(message("a model with its encoding", received, remedy))
        threshold = threshold if threshold is not None else 0.5 if noted is None else noted
        check_threshold(threshold)
        network, theta = from_module(module)
        if not all(bool(t.isfinite().all()) for t in theta):
            remedy = "training diverged: update again at a smaller learning rate"
            raise NotSupportedError(message("finite weights", "nan or infinity among them", remedy))
        exact = tuple(t.detach().to("cpu", torch.float64) for t in theta)
        return cls(module, network, exact, encoding or known, threshold, finder)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the search for new recourse: workers only judge."""
        return {**self.__dict__, "recourse": None}

    def judge(self, promises: Promises, issuing: IssuingModel) -> AuditResults:
        """Return the verdicts on some promises of one issuing model."""
        self._check_labels(issuing)
        x_cf, x, region, cut = encoded_rows(self.encoding, promises, issuing)
        sign = torch.where(torch.from_numpy(promises.favourable), 1.0, -1.0).double()
        margin, holds, turned_down = self._promised_side(x_cf, region, sign)
        always, while_declined = self._proved(promises, issuing)
        known = ~torch.isnan(x).any(-1)
        same, turned = self._originals(x, sign, known & ~torch.from_numpy(always))
        proved = always | (while_declined & same)
        # In another encoding nothing is called kept whose region or condition cannot be read; where x' itself
        # is turned down the promise is broken all the same.
        unknown = promises.conditional & ~known.numpy() & (self.encoding.digest != issuing.encoding.digest)
        verdict = np.full(len(promises), Verdict.BROKEN.code, dtype=np.int8)
        verdict[holds] = Verdict.CHECKED.code
        verdict[holds & turned] = Verdict.SUPERSEDED.code
        verdict[holds & (cut | unknown)] = Verdict.NOT_CHECKABLE.code
        verdict[proved] = Verdict.PROVED.code
        contradicted = proved & turned_down  # what issue makes cannot be
        verdict[contradicted] = Verdict.NOT_CHECKABLE.code
        why = np.where(cut, Unchecked.CUT.code, Unchecked.UNREADABLE.code)
        why[contradicted] = Unchecked.CONTRADICTED.code
        return AuditResults(verdict, -round_up(-torch.from_numpy(margin)).numpy(), why.astype(np.int8))

    def _check_labels(self, issuing: IssuingModel) -> None:
        """Refuse a model that decides between other labels, or calls another one favourable."""
        schemas = self.encoding.schema, issuing.encoding.schema
        here, there = ((schema.unfavourable, schema.favourable) for schema in schemas)
        if here != there:
            expected = f"a model that says {there[1]!r} where it is favourable, and else {there[0]!r}"
            remedy = "whoever was promised the one was not promised the other"
            raise LedgerError(message(expected, f"one that says {here[1]!r} and {here[0]!r}", remedy))

    def incompatibility(self, issuing: IssuingModel) -> str:
        """Return why nothing can be proved for this issuing model, whatever the distance; else no text."""
        self._check_labels(issuing)
        if self.encoding.digest != issuing.encoding.digest:
            return "another encoding"
        if self.threshold != issuing.threshold:
            return f"threshold {self.threshold:g} instead of {issuing.threshold:g}"
        return "" if self.has_architecture_of(issuing) else "another architecture"

    def has_architecture_of(self, issuing: IssuingModel) -> bool:
        """Return whether the networks differ in their weights alone."""
        shapes = [[tuple(t.shape) for t in theta] for theta in (self.theta, issuing.theta)]
        return self.network == issuing.network and shapes[0] == shapes[1]

    def inside(self, issuing: IssuingModel, kappa: float) -> bool:
        """Return whether the model is in the promised set; never with another encoding or threshold."""
        key = issuing.digest, kappa
        if key not in self._inside:
            comparable = not self.incompatibility(issuing)
            self._inside[key] = comparable and issuing.param_set(kappa).contains(self.theta)
        return self._inside[key]

    def _proved(
        self, promises: Promises, issuing: IssuingModel
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which promises are proved in any case, and which while x keeps its decision.

        The larger ``radius`` has a proof too, but nobody wrote down whether that one needs the condition.
        """
        within = self._each(promises.kappa, issuing)
        reached = (promises.radius > promises.kappa) & self._each(promises.radius, issuing)
        return within & ~promises.conditional, (within & promises.conditional) | reached

    def _each(self, kappas: NDArray[np.float64], issuing: IssuingModel) -> NDArray[np.bool_]:
        values, which = np.unique(kappas, return_inverse=True)
        found: NDArray[np.bool_] = np.array([self.inside(issuing, float(k)) for k in values], dtype=bool)
        return found[which]

    def _promised_side(
        self, x_cf: Tensor, region: Box, sign: Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return how far each promise is on its side, where beyond rounding, and where x′ is turned down."""
        logit, clear = self._logits(x_cf)
        margin = -sign * logit
        holds, turned_down = (margin > 0) & clear, margin <= 0
        wide = (region.lower != region.upper).any(-1).nonzero().squeeze(-1)
        for part in torch.split(wide, ROWS_AT_ONCE):
            with torch.no_grad():
                batch = ProofBatch(x_cf[part], region.select(part), sign[part])
                worst = prove(self._alone, batch, UNCONDITIONAL).worst_logit
            margin[part] = torch.minimum(margin[part], -worst)
            holds[part] &= worst < 0
        return margin.numpy(), holds.numpy(), turned_down.numpy()

    def _originals(
        self, x: Tensor, sign: Tensor, needed: Tensor
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return where the original row certainly keeps its decision, and where it certainly lost it."""
        same, turned = np.zeros((2, len(sign)), dtype=bool)
        some = needed.nonzero().squeeze(-1)
        logit, clear = self._logits(x[some])
        kept = (logit > 0) == (sign[some] > 0)
        same[some.numpy()] = (kept & clear).numpy()
        turned[some.numpy()] = (~kept & clear).numpy()
        return same, turned

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logit of each row, and whether no rounding in float32 or better could turn its sign.

        One bound for the box around all rows settles nearly all; the others get a bound of their own.
        """
        if len(x) == 0:
            return x.new_zeros(0), torch.zeros(0, dtype=torch.bool)
        with torch.no_grad():
            logit = self.network.logit(self.theta, x)
            around = Box(x.amin(0, keepdim=True), x.amax(0, keepdim=True))
            error = logit_error(self._alone, trace(self._alone, around), PRECISION)
            clear = logit.abs() > error
            check_computed(self._computed(x), logit, error)
            for part in torch.split((~clear).nonzero().squeeze(-1), ROWS_AT_ONCE):
                clear[part] = decide(self.module, x[part]).clear
        return logit, clear

    def _computed(self, x: Tensor) -> Tensor:
        """Return the logit that the module itself computes for each row."""
        first = next(self.module.parameters())
        return self.network.read(self.module(x.to(first.device, first.dtype))).to(x)

    @property
    def _alone(self) -> ParamSet:
        return ParamSet.of(self.network, self.theta, kappa=0.0)
