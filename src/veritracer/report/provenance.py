"""Where a report comes from: what the model is, what the data are, and which versions made it."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version

from veritracer.network import from_module
from veritracer.report.figure import Table, count, percent
from veritracer.report.subject import Subject
from veritracer.schema import Schema
from veritracer.version import __version__

PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "scipy")
METHODS = {
    "veritracer": "classifier and counterfactual generator together, against a whole set of models",
    "counternet": "classifier and counterfactual generator together, without robustness",
    "standard": "the classifier alone",
}


def model_facts(subject: Subject) -> tuple[tuple[str, str], ...]:
    """What the model is, as names and values."""
    model, encoding = subject.model, subject.recourse.encoding
    _, theta = from_module(model.classifier_)
    widths = [theta[0].shape[1], *(t.shape[0] for t in theta[::2])]
    parameters = sum(t.numel() for t in theta)
    favourable, other = subject.schema.favourable, subject.schema.unfavourable
    return (
        ("decides", f"{subject.schema.target or 'the target'}: {favourable} is favourable, {other} is not"),
        ("trained", f"{METHODS.get(model.method, model.method)} (method {model.method})"),
        (
            "set of models",
            f"{str(model.param_set()).replace('kappa', 'κ')}; trained with the bound {model.bound}",
        ),
        ("network", f"{' → '.join(str(w) for w in widths)}, {count(parameters, 'parameter')}"),
        ("inputs", f"{count(len(encoding.schema), 'feature')} as {count(encoding.dim, 'encoded column')}"),
        ("threshold", f"favourable above a probability of {percent(model.threshold)}"),
        ("training", f"{count(len(model.history_), 'epoch')}, seed {model.random_state}; {model.stopped_}"),
    )


def schema_table(schema: Schema) -> Table:
    """Each feature with its kind, its legal values, how it may change, missing values and note."""
    described = schema.describe()
    rows = [
        [
            str(name),
            line["kind"],
            " ".join(part for part in (line["range"], line["categories"]) if part),
            line["step"],
            line["action"].replace("_", " "),
            line["missing"],
            line["note"],
        ]
        for name, line in described.iterrows()
    ]
    header = ["feature", "kind", "legal values", "step", "may change", "missing", "note"]
    return Table.of(header, rows, words=len(header))


def origins(subject: Subject) -> tuple[tuple[str, str], ...]:
    """Versions and digests: with them somebody else can make sure that they speak of the same thing."""
    recourse = subject.recourse
    rows = hashlib.sha256(subject.x.contiguous().numpy().tobytes()).hexdigest()
    digests = (
        ("model", recourse.model_digest),
        ("encoding", recourse.encoding_digest),
        ("rows of this report, encoded", rows),
    )
    versions = (("veritracer", __version__), ("Python", platform.python_version()))
    return (*digests, *versions, *((name, version(name)) for name in PACKAGES))
