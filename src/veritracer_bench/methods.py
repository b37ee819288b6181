"""Methods of the evaluation: how each finds its counterfactuals, and how its classifier is trained.

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
from dataclasses import dataclass, fields
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

_ALONE: dict[str, Any] = {"panel": None, "initialisation": "small"}
"""Algorithm 1 and nothing more, from a start near zero."""

TRAINERS: dict[str, dict[str, Any]] = {
    "veritracer": {},
    "algorithm-1": _ALONE,
    "algorithm-1-ibp": {**_ALONE, "bound": "ibp"},
    "algorithm-1-crown-ibp": {**_ALONE, "bound": "crown-ibp"},
    "counternet": {**_COUNTERNET, "initialisation": "torch"},
    "standard": {"method": "standard", "initialisation": "torch"},
    "algorithm-1-torch": {**_ALONE, "initialisation": "torch"},
    "algorithm-1-steady": {**_ALONE, "weight_proximity": 3.0},
    "counternet-small": {**_COUNTERNET, "initialisation": "small"},
}
"""Arguments of ``VeriTraCER`` by the name of the training."""

TIMED = (
    "veritracer",
    "algorithm-1",
    "algorithm-1-ibp",
    "algorithm-1-crown-ibp",
    "counternet",
    "standard",
)
"""Trainings in the table of times; the others take as long as one of these."""

SECONDS = {
    "veritracer": 300.0,
    "algorithm-1": 110.0,
    "algorithm-1-crown-ibp": 105.0,
    "algorithm-1-ibp": 65.0,
    "counternet": 45.0,
    "standard": 20.0,
    "algorithm-1-torch": 110.0,
    "algorithm-1-steady": 110.0,
    "counternet-small": 45.0,
}
"""Approximate seconds for ten models on one core: for the order of the work and the time left."""


def arguments(trainer: str) -> dict[str, Any]:
    """Return the arguments of ``VeriTraCER`` for a training; refuse an unknown name.

    ``counternet[weight_proximity=0.3]`` changes some of them.
    """
    base, options = _options_in(trainer)
    if base not in TRAINERS:
        raise NotSupportedError(unknown_name("a way of training", base, TRAINERS))
    return TRAINERS[base] | options


def _options_in(name: str) -> tuple[str, dict[str, Any]]:
    """Split ``name[option=value,...]`` into the name and its options."""
    if not name.endswith("]"):
        return name, {}
    base, _, inside = name[:-1].partition("[")
    try:
        pairs = [part.split("=") for part in inside.split(",") if part]
        return base, {option.strip(): ast.literal_eval(value.strip()) for option, value in pairs}
    except (ValueError, SyntaxError):
        remedy = "write veritracer[plausibility=0.5,max_changes=4]"
        raise NotSupportedError(message("options with plain values", repr(name), remedy)) from None


# ---------------------------------------------------------------- methods


class Problem(NamedTuple):
    """The input of a method: a fitted model, raw rows ``X``, the same rows encoded, and the training rows."""

    model: VeriTraCER
    X: pd.DataFrame
    x: Tensor
    x_train: Tensor
    y_train: Tensor
    seed: int


@dataclass(frozen=True)
class Method:
    """A method: its name, its title in tables, the training that it needs, and its counterfactuals (n, d).

    ``seconds`` is the approximate time for a thousand rows on one core.
    """

    name: str
    title: str
    trainer: str
    answer: Callable[[Problem], Tensor]
    seconds: float = 1.0


def refined_at(kappa: float | None) -> Callable[[Problem], Tensor]:
    """Return the closest counterfactuals that are certified at this kappa, by default that of training.

    As in the paper, both decisions are explained, and only the range of a feature limits its change.
    """

    def answer(problem: Problem) -> Tensor:
        found = problem.model.explain(
            problem.X, only_unfavourable=False, search_radius=False, kappa=kappa, extremes=True
        )
        return found.x_cf

    return answer


refined = refined_at(None)


def generated(problem: Problem) -> Tensor:
    """Return the generator's proposals."""
    return problem.model.propose_encoded(problem.x)


def explained(**options: Any) -> Callable[[Problem], Tensor]:
    """Return counterfactuals from ``explain`` with its defaults and these options, for both decisions."""
    given = {"search_radius": False, "only_unfavourable": False} | options

    def answer(problem: Problem) -> Tensor:
        return problem.model.explain(problem.X, **given).x_cf

    return answer


def searched(kind: type[Baseline[Any]], **options: Any) -> Callable[[Problem], Tensor]:
    """Return the counterfactuals of a baseline with its default hyperparameters and these options."""
    try:
        config = kind.options(**options)
    except TypeError as error:
        remedy = f"it has {', '.join(each.name for each in fields(kind.options))}"
        raise NotSupportedError(message(f"options of {kind.name!r}", str(error), remedy)) from None

    def answer(problem: Problem) -> Tensor:
        model = problem.model
        rows = problem.x_train, problem.y_train
        explainer = kind(model.classifier_, model.encoding_, *rows, config, problem.seed)
        return explainer.explain(problem.x)

    return answer


def from_baseline(kind: type[Baseline[Any]], title: str | None = None, seconds: float = 4.0) -> Method:
    """Return a baseline as a method; by default it explains a classifier trained for accuracy."""
    trainer = str(getattr(kind, "trainer", "standard"))
    arguments(trainer)  # refuses an unknown name
    return Method(kind.name, title or kind.name, trainer, searched(kind), seconds)


WIDER = (0.3, 0.4)
"""Radii beyond the paper's 0.2 at which counterfactuals are also certified, for the curve."""

STEADY = 0.25
"""Radius for counterfactuals that should also survive retraining from scratch."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("veritracer", "VeriTraCER (default)", "veritracer", explained()),
        Method("algorithm-1", "Algorithm 1 alone", "algorithm-1", refined),
        Method("generator", "Algorithm 1, generator alone", "algorithm-1", generated, 0.1),
        Method("counternet", "CounterNet", "counternet", generated, 0.1),
        from_baseline(BASELINES["roar"], "ROAR", 12.0),
        from_baseline(BASELINES["sns"], "SNS", 6.0),
        from_baseline(BASELINES["wachter"], "Wachter", 3.0),
        from_baseline(BASELINES["neighbour"], "nearest neighbour", 0.5),
        from_baseline(BASELINES["rnce"], "RNCE", 1.0),
        from_baseline(BASELINES["proplace"], "PROPLACE", 5000.0),
        from_baseline(BASELINES["dice"], "DiCE", 200.0),
        from_baseline(BASELINES["ellice"], "ElliCE", 500.0),
        *(
            Method(
                f"algorithm-1-{kappa}",
                f"Algorithm 1 alone, κ = {kappa}",
                "algorithm-1",
                refined_at(kappa),
                1.5,
            )
            for kappa in WIDER
        ),
        Method(
            "algorithm-1-steady",
            f"Algorithm 1 alone, steady (κ = {STEADY})",
            "algorithm-1-steady",
            refined_at(STEADY),
        ),
        Method("algorithm-1-torch", "Algorithm 1 alone, usual start", "algorithm-1-torch", refined),
        Method("counternet-small", "CounterNet, small start", "counternet-small", generated, 0.1),
        Method("algorithm-1-ibp", "Algorithm 1 alone, IBP", "algorithm-1-ibp", refined),
        Method("generator-ibp", "generator, IBP", "algorithm-1-ibp", generated, 0.1),
        Method("algorithm-1-crown-ibp", "Algorithm 1 alone, CROWN-IBP", "algorithm-1-crown-ibp", refined),
        Method("generator-crown-ibp", "generator, CROWN-IBP", "algorithm-1-crown-ibp", generated, 0.1),
    )
}
"""Every method of the library by its name."""

SEARCHED = ("roar", "sns", "wachter", "neighbour", "rnce", "proplace", "dice", "ellice")
"""Baselines that search on a classifier trained for accuracy, and have options."""

COMPARED = ("veritracer", "algorithm-1", "generator", "counternet", "roar", "sns", "wachter", "neighbour")
"""Methods of the tables by default; the library's own default comes first."""

BY_KAPPA = {0.2: "algorithm-1", **{kappa: f"algorithm-1-{kappa}" for kappa in WIDER}}
"""Methods of the curve: refinement at each radius."""

BY_START = {
    "Algorithm 1 alone, small start": "algorithm-1",
    "Algorithm 1 alone, usual start": "algorithm-1-torch",
    "CounterNet, usual start": "counternet",
    "CounterNet, small start": "counternet-small",
}
"""Methods that show the effect of a classifier's initial parameters."""

BY_BOUND = {
    "IBP": ("generator-ibp", "algorithm-1-ibp"),
    "CROWN-IBP": ("generator-crown-ibp", "algorithm-1-crown-ibp"),
    "Simul-CROWN": ("generator", "algorithm-1"),
}
"""Methods of the ablation: for each bound in training, the generator alone and with refinement."""


def resolve(name: str) -> Method:
    """Return the method with this name, or the one at ``module:Class``.

    Options are in brackets: ``veritracer[plausibility=0.5]`` has options of ``explain``,
    ``roar[delta_max=0.3]`` of a baseline, and ``counternet[weight_proximity=0.3]`` of the training.
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
    base, options = _options_in(name)
    method = resolve(base)
    said = ", ".join(f"{option} {value}" for option, value in options.items())
    answer, trainer = method.answer, method.trainer
    if base in SEARCHED:
        answer = searched(BASELINES[base], **options)
    elif answer is generated:
        trainer += name.removeprefix(base)
        arguments(trainer)  # refuses an unknown training
    else:
        answer = explained(**options)
    return Method(name, f"{method.title}, {said}", trainer, answer, method.seconds)
