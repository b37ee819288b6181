"""An MLflow flavour: models in a registry, with the audit of a ledger as the gate before promotion.

``log_model`` writes a model as an artifact that is ours (``load_model`` gives back the estimator) and a
``python_function`` too, for whatever serves or scores those; ``promote`` lets a version have an alias only if
it keeps what was promised. The artifact is the folder of :meth:`VeriTraCER.save`: safetensors and JSON, never
pickle.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from veritracer import __version__
from veritracer.encoding import Encoding
from veritracer.errors import DataError, PromiseError, VeriTracerWarning, message
from veritracer.estimator import VeriTraCER
from veritracer.ledger import Audit, Ledger, audit
from veritracer.persistence import load

try:
    import mlflow as flow
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "mlflow":
        raise
    raise ImportError(
        message("the package mlflow", "an install without it", "pip install 'veritracer[mlflow]'")
    ) from None

FLAVOR = "veritracer"
DATA = "model"
"""The folder of the saved model inside of the artifact."""

OUTPUTS = ("label", "probability", "recourse")
"""Values of ``params={"output": ...}`` for ``predict`` of the python_function."""

GATE = "veritracer.audit"
"""The tag of a model's version that says what its last audit came to."""


# ---------------------------------------------------------------- a model as an artifact


def save_model(
    model: VeriTraCER,
    path: str | os.PathLike[str],
    *,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: Any = None,
) -> None:
    """Write the model as an MLflow model in the folder ``path``."""
    place, written = Path(path), mlflow_model if mlflow_model is not None else Model()
    place.mkdir(parents=True, exist_ok=True)
    model.save(place / DATA)
    example = _example(model.encoding_) if input_example is None else input_example
    written.signature = signature_of(model) if signature is None else signature
    flow.models.utils._save_example(written, example, str(place))
    # The very versions matter: a certificate speaks of what this release computes.
    requirements = [f"veritracer[mlflow]=={__version__}"]
    flow.pyfunc.add_to_model(
        written, loader_module="veritracer.mlflow", data=DATA, python_env="python_env.yaml"
    )
    written.add_flavor(FLAVOR, data=DATA, veritracer_version=__version__, **_digests(model))
    (place / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    env = f'python: "{platform.python_version()}"\ndependencies:\n- -r requirements.txt\n'
    (place / "python_env.yaml").write_text(env, encoding="utf-8")
    written.save(str(place / "MLmodel"))


def log_model(
    model: VeriTraCER,
    name: str = "model",
    *,
    registered_model_name: str | None = None,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    test: tuple[Any, Any] | None = None,
    report: bool = True,
    **more: Any,
) -> Any:
    """Log a model to the active run, or to a new one, and return MLflow's ``ModelInfo``.

    Parameters
    ----------
    name
        What the artifact is called in the run.
    registered_model_name
        The name under which it becomes a version in the registry.
    signature, input_example
        Columns and a row to show; by default those of the schema, and a row that is nobody's.
    test
        Rows and labels that the model was not trained on: metrics and, with ``report``, the HTML report of
        them are logged beside the model.
    more
        What ``mlflow.models.Model.log`` takes besides.
    """
    with _run():
        info = Model.log(
            artifact_path=None,
            name=name,
            flavor=sys.modules[__name__],
            model=model,
            registered_model_name=registered_model_name,
            signature=signature,
            input_example=input_example,
            **more,
        )
        flow.log_params(_digests(model))
        if test is not None:
            log_evaluation(model, *test, report=report)
    return info


def load_model(uri: str) -> VeriTraCER:
    """Load the model at a URI: ``runs:/...``, ``models:/name@alias``, ``models:/name/3``, or a folder."""
    place = Path(flow.artifacts.download_artifacts(artifact_uri=uri))
    flavors = Model.load(str(place / "MLmodel")).flavors
    if FLAVOR not in flavors:
        received = f"one of {', '.join(flavors)} at {uri}"
        raise DataError(message("a model that veritracer logged", received, "load it with its own flavour"))
    return load(place / flavors[FLAVOR]["data"])


def signature_of(model: VeriTraCER) -> ModelSignature:
    """Return the model's signature: its columns, its label, and its parameters."""
    row = _example(model.encoding_)
    columns = [
        ColSpec(_kind(row[feature.name]), feature.name, required=feature.missing == "refuse")
        for feature in model.encoding_.schema.features
    ]
    label = ColSpec(_kind(pd.Series(np.asarray(model.classes_))))
    params = ParamSchema([ParamSpec("output", "string", OUTPUTS[0])])
    return ModelSignature(inputs=Schema([*columns]), outputs=Schema([label]), params=params)


def _example(encoding: Encoding) -> pd.DataFrame:
    """Return a legal row that belongs to nobody, with the types of the training table."""
    return encoding.decode(torch.zeros(1, encoding.dim, dtype=torch.float64))


def _kind(column: pd.Series[Any]) -> str:
    """Return MLflow's name for the type of a column."""
    kinds = {"b": "boolean", "i": "long", "u": "long", "f": "double"}
    return kinds.get(getattr(column.dtype, "kind", "O"), "string")


def _digests(model: VeriTraCER) -> dict[str, str]:
    used = model.param_set()
    return {
        "model_digest": used.center_digest,
        "encoding_digest": model.encoding_.digest,
        "models": str(used),
        "threshold": str(model.threshold),
    }


@contextmanager
def _run() -> Iterator[None]:
    """Use the active run, or a new one for the block."""
    if flow.active_run() is not None:
        yield
        return
    with flow.start_run():
        yield


# ---------------------------------------------------------------- a python_function


class RecourseFunction:
    """The model as ``mlflow.pyfunc`` calls it; ``get_raw_model`` of the loaded one returns this."""

    def __init__(self, model: VeriTraCER) -> None:
        self.model = model

    def predict(self, data: pd.DataFrame, params: Mapping[str, Any] | None = None) -> Any:
        """Labels; or, by ``params={"output": ...}``, probabilities of the favourable one, or recourse."""
        wanted = (params or {}).get("output", OUTPUTS[0])
        if wanted not in OUTPUTS:
            raise DataError(message(f"one of {', '.join(OUTPUTS)}", repr(wanted), "correct the parameter"))
        if wanted == "recourse":
            return self.explain(data)
        if wanted == "probability":
            column = list(self.model.classes_).index(self.model.encoding_.schema.favourable)
            return self.model.predict_proba(data)[:, column]
        return self.model.predict(data)

    def explain(self, data: pd.DataFrame, **options: Any) -> pd.DataFrame:
        """Return the recourse of each row as a table: its values, then ``recourse.status`` and so on."""
        frame: pd.DataFrame = self.model.explain(data, **options).to_arrow().to_pandas()
        return frame

    def get_raw_model(self) -> RecourseFunction:
        """Itself: it has ``explain`` besides, and ``model`` is the estimator."""
        return self


def _load_pyfunc(path: str) -> RecourseFunction:
    """Open the artifact as a python_function; MLflow calls this."""
    place = Path(path)
    return RecourseFunction(load(place if (place / "model.json").exists() else place / DATA))


# ---------------------------------------------------------------- what is measured


def log_evaluation(model: VeriTraCER, X: Any, y: Any, *, report: bool = True) -> dict[str, float]:
    """Log the metrics of a model on these rows to the active run, with ``report`` its report too."""
    found = model.explain(X)
    asked = ~found.favourable
    measured = {
        "accuracy": float(model.score(X, y)),
        "declined": float(asked.mean()),
        "certified": float(found.certified[asked].mean()) if asked.any() else 1.0,
        "valid": float(found.valid[asked].mean()) if asked.any() else 1.0,
    }
    given = asked & found.valid
    if given.any():
        measured["median_changes"] = float(np.median(found.n_changes[given]))
    with _run():
        flow.log_metrics(measured)
        if report:
            from veritracer.app.report import write_report

            with tempfile.TemporaryDirectory() as folder:
                flow.log_artifact(str(write_report(Path(folder) / "report.html", model, X, y)))
    return measured


# ---------------------------------------------------------------- the gate


def validate(
    model: VeriTraCER | str,
    ledger: Ledger | str | os.PathLike[str],
    *,
    allow_broken: int = 0,
    allow_unchecked: int = 0,
) -> Audit:
    """Audit a model, or the one at a URI; refuse one that breaks promises.

    The ledger has to be there (``LedgerError``), and is verified first: what an altered one says of promises
    is worth nothing. The refusal is a ``PromiseError`` whose ``report`` is the audit. Where no promise is
    live there is nothing to break, and a warning says so.
    """
    with _existing(ledger) as place:
        candidate = load_model(model) if isinstance(model, str) else model
        with place.snapshot() as state:
            checked = state.verify()
            if not checked.ok:
                received = f"{checked.count:,} findings, the first at entry {checked.findings[0].sequence:,}"
                raise PromiseError(message("a ledger that verifies", received, "run veritracer verify"))
            found = audit(state, candidate, recourse=0)
    if found.live and not found.passes(allow_broken=allow_broken, allow_unchecked=allow_unchecked):
        raise PromiseError(
            message("a model that keeps what was promised", str(found), "train it with update(keep=...)"),
            found,
        )
    if not found.live:
        received = f"none in {found.ledger}, so that nothing was checked"
        remedy = "make sure that this is the ledger in which promises are issued"
        warnings.warn(message("live promises", received, remedy), VeriTracerWarning, stacklevel=2)
    return found


@contextmanager
def _existing(ledger: Ledger | str | os.PathLike[str]) -> Iterator[Ledger]:
    """Open an existing ledger; a new one would have no promises to break."""
    if isinstance(ledger, Ledger):
        yield ledger
        return
    with Ledger(ledger, create=False) as opened_here:
        yield opened_here


def promote(
    name: str,
    version: int | str,
    ledger: Ledger | str | os.PathLike[str],
    *,
    alias: str = "champion",
    allow_broken: int = 0,
    allow_unchecked: int = 0,
    report: bool = True,
) -> Audit:
    """Audit a registered version, and give it the alias if it keeps its promises.

    A version that breaks promises is refused with a ``PromiseError``, and the alias stays where it was.
    Where the ledger is not there nothing is done at all (``LedgerError``). Otherwise numbers and, with
    ``report``, the page of the audit are logged to the version's run, and the version's tag
    ``veritracer.audit`` says ``passed``, ``failed`` or ``nothing to check``.
    """
    client = flow.MlflowClient()
    described = client.get_model_version(name, str(version))
    allowed = {"allow_broken": allow_broken, "allow_unchecked": allow_unchecked}
    try:
        found = validate(f"models:/{name}/{version}", ledger, **allowed)
    except PromiseError as refused:
        client.set_model_version_tag(name, str(version), GATE, "failed")
        if isinstance(refused.report, Audit):
            _log_audit(client, described.run_id, refused.report, report=report)
        raise
    _log_audit(client, described.run_id, found, report=report)
    client.set_model_version_tag(name, str(version), GATE, "passed" if found.live else "nothing to check")
    client.set_registered_model_alias(name, alias, str(version))
    return found


def _log_audit(client: Any, run_id: str | None, found: Audit, *, report: bool) -> None:
    if run_id is None:  # a version that no run made
        return
    for verdict, count in found.counts.items():
        client.log_metric(run_id, f"promises.{re.sub('[^a-z]+', '_', verdict)}", count)
    with tempfile.TemporaryDirectory() as folder:
        found.to_json(Path(folder) / "audit.json")
        if report:
            from veritracer.app.report import write_audit_page

            write_audit_page(Path(folder) / "audit.html", found)
        client.log_artifacts(run_id, folder, "audit")
