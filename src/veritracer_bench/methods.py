"""The methods of the evaluation: how each finds its answers, and how their classifiers are trained.

CounterNet is trained as its authors do it: the generator that rebuilds the whole row, and the weights of the
three losses that are the defaults of their own library (1 for accuracy, 0.2 for validity, 0.1 for proximity).
What departs from their code: the proximity is absolute instead of squared, and the accuracy loss is
cross-entropy, as for every other method here. ROAR, SNS and the two floors explain a classifier that was
trained for accuracy alone, as in the paper. All of these start as torch starts a layer. VeriTraCER's own
trainings are Algorithm 1 without a panel, as in the paper; what a panel changes is measured by
``benchmarks/truth.py``.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
from torch import Tensor

from veritracer.errors import NotSupportedError, message, unknown_name
from veritracer_bench.baselines import BASELINES, Baseline

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER

_COUNTERNET: dict[str, Any] = {
    "method": "counternet",
    "generator": "counternet",
    "weight_accuracy": 1.0,
    "weight_validity": 0.2,
    "weight_proximity": 0.1,
}

_PLAIN: dict[str, Any] = {"panel": None, "initialisation": "small"}
"""Algorithm 1 and nothing more, from a start near zero: the default before there were panels."""

TRAINERS: dict[str, dict[str, Any]] = {
    "veritracer": _PLAIN,
    "veritracer-ibp": {**_PLAIN, "bound": "ibp"},
    "veritracer-crown-ibp": {**_PLAIN, "bound": "crown-ibp"},
    "counternet": {**_COUNTERNET, "initialisation": "torch"},
    "standard": {"method": "standard", "initialisation": "torch"},
    "veritracer-torch": {**_PLAIN, "initialisation": "torch"},
    "veritracer-steady": {**_PLAIN, "weight_proximity": 3.0},
    "counternet-small": {**_COUNTERNET, "initialisation": "small"},
    "veritracer-default": {},
    "veritracer-plain": _PLAIN,
}
"""Arguments of ``VeriTraCER`` by the name of the training."""

TIMED = ("veritracer", "veritracer-ibp", "veritracer-crown-ibp", "counternet", "standard")
"""The trainings of the table of times; the others differ from one of these in nothing that takes time."""

SECONDS = {
    "veritracer": 110.0,
    "veritracer-crown-ibp": 105.0,
    "veritracer-ibp": 65.0,
    "counternet": 45.0,
    "standard": 20.0,
    "veritracer-torch": 110.0,
    "veritracer-steady": 110.0,
    "counternet-small": 45.0,
    "veritracer-default": 300.0,
    "veritracer-plain": 110.0,
}
"""What ten models take on one core, about: for the order of the work and for the time left."""


def arguments(trainer: str) -> dict[str, Any]:
    """The arguments of ``VeriTraCER`` for this training; an unknown name is refused."""
    if trainer not in TRAINERS:
        raise NotSupportedError(unknown_name("a way of training", trainer, TRAINERS))
    return TRAINERS[trainer]


# ---------------------------------------------------------------- methods


class Question(NamedTuple):
    """What a method is asked: a fitted model, raw rows ``X`` and the same encoded, and the training rows."""

    model: VeriTraCER
    X: pd.DataFrame
    x: Tensor
    x_train: Tensor
    y_train: Tensor
    seed: int


@dataclass(frozen=True)
class Method:
    """A name, what tables call it, the training that it needs, and its answer (n, d) to a question.

    ``seconds`` is what a thousand rows take on one core, about.
    """

    name: str
    title: str
    trainer: str
    answer: Callable[[Question], Tensor]
    seconds: float = 1.0


def refined_at(kappa: float | None) -> Callable[[Question], Tensor]:
    """The closest counterfactuals that are certified at this kappa, or at the one of training.

    In the paper's setting: both decisions are explained, and nothing but the range limits a change.
    """

    def answer(question: Question) -> Tensor:
        found = question.model.explain(
            question.X, only_unfavourable=False, search_radius=False, kappa=kappa, extremes=True
        )
        return found.x_cf

    return answer


refined = refined_at(None)


def generated(question: Question) -> Tensor:
    """What the generator proposes."""
    return question.model.propose_encoded(question.x)


def explained(**options: Any) -> Callable[[Question], Tensor]:
    """The answers of ``explain`` as anybody gets them who calls it, but for these options."""

    def answer(question: Question) -> Tensor:
        return question.model.explain(question.X, **({"search_radius": False} | options)).x_cf

    return answer


def searched(kind: type[Baseline[Any]]) -> Callable[[Question], Tensor]:
    """The answers of a baseline, with its default hyperparameters."""

    def answer(question: Question) -> Tensor:
        model = question.model
        rows = question.x_train, question.y_train
        explainer = kind(model.classifier_, model.encoding_, *rows, random_state=question.seed)
        return explainer.explain(question.x)

    return answer


def from_baseline(kind: type[Baseline[Any]], title: str | None = None, seconds: float = 4.0) -> Method:
    """A method that searches; it explains a classifier trained for accuracy, unless it has a ``trainer``."""
    trainer = str(getattr(kind, "trainer", "standard"))
    arguments(trainer)  # refuses an unknown one
    return Method(kind.name, title or kind.name, trainer, searched(kind), seconds)


WIDER = (0.3, 0.4)
"""Radii beyond the 0.2 of the paper that counterfactuals are also certified at, for the curve."""

STEADY = 0.25
"""The radius of answers that are meant to outlast training anew too; their models care less for closeness."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("veritracer", "VeriTraCER", "veritracer", refined),
        Method("generator", "VeriTraCER, generator alone", "veritracer", generated, 0.1),
        Method("counternet", "CounterNet", "counternet", generated, 0.1),
        from_baseline(BASELINES["roar"], "ROAR", 12.0),
        from_baseline(BASELINES["sns"], "SNS", 6.0),
        from_baseline(BASELINES["wachter"], "Wachter", 3.0),
        from_baseline(BASELINES["neighbour"], "nearest neighbour", 0.5),
        from_baseline(BASELINES["dice"], "DiCE", 200.0),
        *(
            Method(f"veritracer-{kappa}", f"VeriTraCER, κ = {kappa}", "veritracer", refined_at(kappa), 1.5)
            for kappa in WIDER
        ),
        Method(
            "veritracer-steady", f"VeriTraCER, steady (κ = {STEADY})", "veritracer-steady", refined_at(STEADY)
        ),
        Method("veritracer-torch", "VeriTraCER, usual start", "veritracer-torch", refined),
        Method("counternet-small", "CounterNet, small start", "counternet-small", generated, 0.1),
        Method("veritracer-ibp", "VeriTraCER, IBP", "veritracer-ibp", refined),
        Method("generator-ibp", "generator, IBP", "veritracer-ibp", generated, 0.1),
        Method("veritracer-crown-ibp", "VeriTraCER, CROWN-IBP", "veritracer-crown-ibp", refined),
        Method("generator-crown-ibp", "generator, CROWN-IBP", "veritracer-crown-ibp", generated, 0.1),
        Method("veritracer-default", "VeriTraCER, as it comes", "veritracer-default", explained()),
        Method("veritracer-plain", "VeriTraCER, Algorithm 1 alone", "veritracer-plain", refined),
    )
}
"""Every method of the library by its name."""

COMPARED = ("veritracer", "generator", "counternet", "roar", "sns", "wachter", "neighbour")
"""The methods of the tables, where none are named."""

BY_KAPPA = {0.2: "veritracer", **{kappa: f"veritracer-{kappa}" for kappa in WIDER}}
"""The methods of the curve: refinement at each radius."""

BY_START = {
    "VeriTraCER, small start": "veritracer",
    "VeriTraCER, usual start": "veritracer-torch",
    "CounterNet, usual start": "counternet",
    "CounterNet, small start": "counternet-small",
}
"""The methods that show what the start of a classifier brings."""

BY_BOUND = {
    "IBP": ("generator-ibp", "veritracer-ibp"),
    "CROWN-IBP": ("generator-crown-ibp", "veritracer-crown-ibp"),
    "Simul-CROWN": ("generator", "veritracer"),
}
"""The methods of the ablation: for each bound in training, the generator alone and with refinement."""


def resolve(name: str) -> Method:
    """The method of this name, or the one that ``module:Class`` names.

    ``veritracer-default[plausibility=0.5]`` asks ``explain`` of a method's model with these options.
    """
    if name.endswith("]"):
        return _with_options(name)
    if ":" not in name:
        if name not in METHODS:
            raise NotSupportedError(unknown_name("the name of a method", name, METHODS))
        return METHODS[name]
    place, _, attribute = name.partition(":")
    remedy = "name a subclass of veritracer_bench.baselines.Baseline that Python can import"
    try:
        kind = getattr(importlib.import_module(place), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise NotSupportedError(message(f"a method at {name!r}", str(error), remedy)) from None
    if not (isinstance(kind, type) and issubclass(kind, Baseline)):
        raise NotSupportedError(message(f"a method at {name!r}", repr(kind), remedy))
    return from_baseline(kind)


def _with_options(name: str) -> Method:
    base, _, inside = name[:-1].partition("[")
    method = resolve(base)
    try:
        pairs = [part.split("=") for part in inside.split(",") if part]
        options = {option.strip(): ast.literal_eval(value.strip()) for option, value in pairs}
    except (ValueError, SyntaxError):
        remedy = "write veritracer-default[plausibility=0.5,max_changes=4]"
        raise NotSupportedError(message("options with plain values", repr(name), remedy)) from None
    said = ", ".join(f"{option} {value}" for option, value in options.items())
    return Method(name, f"{method.title}, {said}", method.trainer, explained(**options), method.seconds)
