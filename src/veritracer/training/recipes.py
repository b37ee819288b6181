"""Named recipes: the settings of a training, by the name that ``VeriTraCER(recipe=...)`` takes.

``"paper"`` is the recipe of the paper's code, ``"paper-text"`` the one of its text. Each has settings for the
five datasets, as in ``"paper:ctg"``; without a dataset they are those of HELOC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from veritracer.errors import TrainingError, message, unknown_name
from veritracer.training.config import TrainingConfig

Recipe = str | Mapping[str, Any]
"""The name of a recipe, or a mapping with its name under ``"recipe"`` and other values for its settings."""

CONTINUED_EPOCHS, CONTINUED_LR_FACTOR, CONTINUED_RAMP = 20, 0.2, 0.35
"""Epochs, factor of the learning rate, and ramp without a warm-up, of ``continue_fit``."""

_PAPER: dict[str, Any] = {
    "kappa": 0.2,
    "radius": "mean-abs",
    "logits": 2,
    "hidden": (100, 10, 10),
    "slope": 0.01,
    "generator": "counternet",
    "generator_hidden": (100,),
    "generator_slope": 0.01,
    "dropout": 0.3,
    "clamp": True,
    "sample": True,
    "initialisation": "torch",
    "accuracy_loss": "mse",
    "proximity_loss": "squared",
    "target": "probability",
    "mask_wrong": True,
    "weight_accuracy": 1.0,
    "weight_robust": 0.05,
    "batch_size": 128,
    "epochs": 100,
    "warmup": 0.1,
    "ramp": 0.7,
    "clip_norm": 0.5,
    "weight_decay": 0.05,
    "lr_decay": 1.0,
    "passes": "epoch",
    "joint": True,
    "regenerate": 20,
    "first_regenerated": 20,
    "ramp_kappa": False,
    "detach_slopes": True,
    "select_all": True,
    "validation": "random",
    "validation_fraction": 1 / 8,
}
"""What all datasets share; how the paper's code computes it is said where each option is used."""

_DATASETS: dict[str, dict[str, Any]] = {
    "heloc": {
        "learning_rate": 5e-3,
        "weight_proximity": 0.1,
        "weight_validity": 0.5,
    },
    "taiwan_credit": {
        "hidden": (33, 50, 10, 10),
        "generator_hidden": (50,),
        "learning_rate": 5e-5,
        "weight_proximity": 0.01,
        "weight_validity": 1.0,
    },
    "oula": {
        "hidden": (127, 100, 10, 10),
        "learning_rate": 2e-4,
        "weight_proximity": 0.01,
        "weight_validity": 0.2,
    },
    "ctg": {
        "kappa": 0.4,
        "hidden": (50, 10, 10),
        "generator_hidden": (50,),
        "accuracy_loss": "output-cross-entropy",
        "output_weights": (0.95, 0.05),  # the heavy output is that of suspect recordings
        "learning_rate": 4e-3,
        "lr_decay": 0.99,
        "weight_decay": 0.1,
        "weight_proximity": 0.05,
        "weight_validity": 2.0,
        "weight_robust": 0.005,
    },
    "who": {
        "kappa": 0.35,
        "learning_rate": 2e-3,
        "weight_proximity": 0.05,
        "weight_validity": 0.5,
    },
}

_TEXT: dict[str, Any] = {
    "radius": "norm",
    "accuracy_loss": "mse",
    "proximity_loss": "absolute",
    "target": "decision",
    "mask_wrong": False,
    "joint": False,
    "regenerate": 1,
    "first_regenerated": 0,
    "detach_slopes": False,
}
"""Where the paper's text differs from its code; it gives no weights and no learning rates."""

STANDARD_EPOCHS = 20
"""Epochs of the paper's code for a classifier alone; its text has as many as for the others."""

PANEL_FREE = ("paper", "paper-text")
"""Recipes whose default is no panel."""


def names() -> list[str]:
    """Return the name of every recipe."""
    return [
        f"{base}{dataset}" for base in PANEL_FREE for dataset in ("", *(f":{name}" for name in _DATASETS))
    ]


def base_of(recipe: Recipe | None) -> str | None:
    """Return the name of a recipe; None for the library's own settings."""
    return recipe.get("recipe") if isinstance(recipe, Mapping) else recipe


def settings_of(recipe: Recipe | None, method: str) -> dict[str, Any]:
    """Return the settings of a recipe that differ from those of ``TrainingConfig``.

    >>> settings_of("paper:ctg", "veritracer")["kappa"]
    0.4
    """
    name = base_of(recipe)
    settings = {} if name is None else _named(name, method)
    if not isinstance(recipe, Mapping):
        return settings
    changed = {option: value for option, value in recipe.items() if option != "recipe"}
    known = {field.name for field in fields(TrainingConfig)} - {"method", "threshold_logit"}
    for option in changed:
        if option not in known:
            raise TrainingError(unknown_name("a setting of a recipe", option, sorted(known)))
    as_tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in changed.items()}
    return settings | as_tuples


def _named(name: str, method: str) -> dict[str, Any]:
    """Return the settings of the recipe of that name."""
    base, _, dataset = name.partition(":") if isinstance(name, str) else (None, "", "")
    dataset = dataset or "heloc"
    if base not in PANEL_FREE or dataset not in _DATASETS:
        raise TrainingError(unknown_name("the name of a recipe", str(name), names()))
    text = base == "paper-text"
    settings = _PAPER | _DATASETS[dataset] | (_TEXT if text else {})
    if method == "standard" and not text:
        settings["epochs"] = STANDARD_EPOCHS
    return settings


def continued(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration of the fine-tuning that a recipe prescribes, with its own losses.

    NOTE[paper]: as in its code, a fifth of the learning rate, no warm-up, and counterfactuals that are made
    once, before the first epoch.
    """
    return replace(
        config,
        epochs=CONTINUED_EPOCHS,
        learning_rate=CONTINUED_LR_FACTOR * config.learning_rate,
        warmup=0.0,
        ramp=CONTINUED_RAMP,
        regenerate=None if config.regenerate is None else CONTINUED_EPOCHS,
        first_regenerated=0,
    )


def check(recipe: Any) -> None:
    """Refuse what is not a recipe."""
    if recipe is not None and not isinstance(recipe, str | Mapping):
        remedy = f"choose one of {names()}"
        raise TrainingError(message("the name of a recipe, or a mapping", repr(recipe), remedy))
