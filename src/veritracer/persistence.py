"""Save and load models, and check everything in a file before it becomes a model.

The digests of a model folder detect accidental changes only: anybody can write other content and compute its
digests. Therefore ``load`` checks the names and types of all fields, and the names, shapes and finiteness of
all tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, get_type_hints

import pandas as pd
import torch
from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from torch import Tensor

from veritracer import model_folder
from veritracer.encoding import Encoding
from veritracer.errors import ModelFileError, listing, message
from veritracer.estimator import VeriTraCER
from veritracer.formatting import to_python
from veritracer.models.network import Theta, from_module, to_module
from veritracer.schema import POSITIVE, Schema
from veritracer.search.reference import Neighbours, QuantileBounds
from veritracer.training import Panel
from veritracer.training.config import TrainingConfig
from veritracer.training.generator import Generator, make_generator
from veritracer.training.panel import Member

_POSITIVE = {"convention": POSITIVE.value}
"""``vt.POSITIVE`` as JSON; text would be a label."""


@dataclass(frozen=True)
class _Content:
    """The content of ``model.json``."""

    params: dict[str, Any]
    settings: TrainingConfig
    schema: dict[str, Any] | None
    encoding: dict[str, Any]
    columns: list[str] | None
    members: list[Member]
    history: dict[str, list[int | float | None]]
    best_epoch: int
    stopped: str
    versions: dict[str, str]
    panel: dict[str, Any] | None = None
    threshold: float | None = None


def save(model: VeriTraCER, folder: str | os.PathLike[str], beside: Mapping[str, str] | None = None) -> None:
    """Write a fitted model as a folder of safetensors and JSON, atomically, with further text files."""
    model_folder.write(folder, _content(model), _tensors(model), beside)


def _content(model: VeriTraCER) -> dict[str, Any]:
    """Return the fields of ``_Content`` as JSON values."""
    params = model.get_params(deep=False)
    del params["schema"]
    params["favourable"] = _POSITIVE if model.favourable is POSITIVE else to_python(model.favourable)
    if isinstance(model.panel, Panel):
        params["panel"] = model.panel.params
    found = {} if model.approval_rate is None else {"threshold": model.threshold_}
    return {
        **found,
        "params": {k: list(v) if isinstance(v, tuple) else v for k, v in params.items()},
        "settings": asdict(model.settings_),
        "panel": None if model.panel_ is None else model.panel_.params,
        "members": [] if model.panel_ is None else [asdict(member) for member in model.panel_.members],
        "schema": None if model.schema is None else json.loads(model.schema.to_json()),
        "encoding": json.loads(model.encoding_.to_json()),
        "columns": None if model.feature_names_in_ is None else list(model.feature_names_in_),
        "history": model.history_.to_dict("list"),
        "best_epoch": model.best_epoch_,
        "stopped": model.stopped_,
        "versions": model_folder.versions(),
    }


def _tensors(model: VeriTraCER) -> dict[str, Tensor]:
    """Return the tensors of the model by their names in the file."""
    tensors = {f"classifier.{i}": t for i, t in enumerate(from_module(model.classifier_)[1])}
    tensors |= {f"generator.{i}": t for i, t in enumerate(model.generator_theta_)}
    for name in ("favourable", "unfavourable"):
        if hasattr(model.generator_, name):
            tensors[f"pool.{name}"] = getattr(model.generator_, name)
    tensors["rows"] = model.neighbours_.rows.float()
    if model.neighbours_.favourable is not None:
        tensors["labels"] = model.neighbours_.favourable.float()
    if model.quantile_bounds_ is not None:
        tensors |= {f"usual.{end}": t for end, t in model.quantile_bounds_._asdict().items()}
    if model.panel_ is not None:
        tensors |= {f"panel.{name}": t for name, t in model.panel_.tensors().items()}
    return tensors


def load(folder: str | os.PathLike[str]) -> VeriTraCER:
    """Load a model that ``save`` wrote, and check its digests and everything in it.

    Raises
    ------
    ModelFileError
        If the folder is missing, damaged, altered, or of an unknown version.
    """
    raw, named = model_folder.read(folder)
    content: _Content = _valid("content", _Content, raw)
    schema = None if content.schema is None else Schema.from_json(json.dumps(content.schema))
    model = VeriTraCER(schema=schema, **_params(content.params))
    model._saved_settings = content.settings  # recipes of a later release may differ
    config = model.settings_
    model.rate_threshold_ = None if model.approval_rate is None else _threshold(content.threshold)
    model.encoding_ = Encoding.from_json(json.dumps(content.encoding))
    model.schema_ = model.encoding_.schema
    if model.schema_.unfavourable is None:
        raise _refused("both labels", "no unfavourable one")
    model.classes_ = model.schema_.classes
    labels = model.schema_.favourable, model.schema_.unfavourable
    if not all(label in model.classes_.tolist() for label in labels):
        raise _refused("two labels of one type", f"{labels[0]!r} and {labels[1]!r}")
    tensors, dim = _Tensors(named), model.encoding_.dim
    model.classifier_ = to_module(config.network(), tensors.layers("classifier", config.sizes(dim)))
    from_module(model.classifier_.eval())  # refuses slopes that no bound is sound for
    model.generator_ = _generator(config, model.encoding_, tensors)
    sizes = () if model.generator_ is None else model.generator_.sizes
    model.generator_theta_ = tensors.layers("generator", sizes)
    rows = tensors.rows("rows", dim)
    model.neighbours_ = Neighbours(rows, tensors.labels(len(rows)))
    model.quantile_bounds_ = tensors.quantile_bounds(dim)
    model.panel_ = _panel(content, tensors, model.encoding_)
    tensors.check_all_used()
    model.history_ = _history(content.history, content.best_epoch)
    model.best_epoch_, model.stopped_ = content.best_epoch, content.stopped
    model.describe_inputs(content.columns)
    return model


class _Tensors:
    """Tensors of a saved model by name; each is checked when it is read."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        self.left = dict(named)

    def layers(self, prefix: str, sizes: Sequence[int]) -> Theta:
        """Return the weights and biases of layers of these widths, in float64."""
        shapes = [shape for into, out in pairwise(sizes) for shape in ((out, into), (out,))]
        return tuple(self._take(f"{prefix}.{i}", shape) for i, shape in enumerate(shapes))

    def rows(self, name: str, dim: int) -> Tensor:
        """Return any number of encoded rows."""
        found = self.left.get(name)
        count = found.shape[0] if found is not None and found.dim() == 2 else 0
        return self._take(name, (count, dim))

    def labels(self, count: int) -> Tensor | None:
        """Return a mask of the favourable rows among those that were kept; None if labels are unknown."""
        return self._take("labels", (count,)) > 0.5 if "labels" in self.left else None

    def quantile_bounds(self, dim: int) -> QuantileBounds | None:
        """Return the quantile bounds of both labels; None if labels are unknown."""
        if "usual.lower" not in self.left:
            return None
        return QuantileBounds(
            *(self._take(f"usual.{end}", (2, dim)).double() for end in QuantileBounds._fields)
        )

    def below(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names have this prefix, without it and unchecked."""
        names = [name for name in self.left if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.left.pop(name) for name in names}

    def check_all_used(self) -> None:
        """Refuse tensors that are no part of the model."""
        if self.left:
            raise _refused("only the model's tensors", f"also {listing(self.left)}")

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        found = self.left.pop(name, None)
        expected = f"the tensor {name!r}, finite floating-point numbers of the shape {shape}"
        if found is None:
            raise _refused(expected, "none")
        if found.dtype not in (torch.float32, torch.float64) or found.shape != shape:
            raise _refused(expected, f"{found.dtype} of the shape {tuple(found.shape)}")
        if not bool(found.isfinite().all()):
            raise _refused(expected, "NaN or infinity")
        return found


def _refused(expected: str, received: str) -> ModelFileError:
    remedy = "the file was changed after it was saved: restore it from a backup"
    return ModelFileError(message(f"{expected} in a saved model", received, remedy))


def _valid(what: str, kind: Any, value: Any) -> Any:
    """Validate a value as this type."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except PydanticError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (what, *first["loc"]))
        raise _refused(
            f"{place} as it was saved", f"{first['msg'].lower()} ({first['input']!r:.60})"
        ) from None


def _params(params: dict[str, Any]) -> dict[str, Any]:
    """Validate the estimator's arguments, one of which may be a panel."""
    panel = params.get("panel")
    given = {name: value for name, value in params.items() if name != "panel"}
    if given.get("favourable") == _POSITIVE:
        given["favourable"] = POSITIVE
    checked = _arguments(VeriTraCER, given, "params")
    if isinstance(panel, dict):
        return {**checked, "panel": Panel(**_arguments(Panel, panel, "params.panel"))}
    return {**checked, "panel": _valid("params.panel", Literal["default"] | None, panel)}


def _arguments(kind: type[VeriTraCER | Panel], given: dict[str, Any], what: str) -> dict[str, Any]:
    """Validate the arguments of a constructor by its annotations; a schema is stored elsewhere."""
    kinds = get_type_hints(kind.__init__)
    unknown = [name for name in given if name not in kind._get_param_names() or name == "schema"]
    if unknown:
        raise _refused(f"parameters of {kind.__name__}", listing(unknown))
    return {name: _valid(f"{what}.{name}", kinds[name], value) for name, value in given.items()}


def _threshold(threshold: float | None) -> float:
    """Check the threshold of an approval rate."""
    if threshold is None or not 0.0 < threshold < 1.0:
        raise _refused("a threshold between 0 and 1", repr(threshold))
    return threshold


def _panel(content: _Content, tensors: _Tensors, encoding: Encoding) -> Panel | None:
    """Restore the panel; its members check their own tensors."""
    if content.panel is None:
        return None
    params = _arguments(Panel, content.panel, "panel")
    try:
        return Panel.restored(params, content.members, tensors.below("panel."), encoding)
    except (LookupError, ValueError, TypeError) as error:
        raise _refused("a panel as it was saved", str(error)) from None


def _generator(config: TrainingConfig, encoding: Encoding, tensors: _Tensors) -> Generator | None:
    """Restore the generator; a neighbour generator needs the rows of each label."""
    if not config.has_generator:
        return None
    x, y = torch.empty(0, encoding.dim), torch.empty(0)
    if config.generator == "neighbour":
        pools = [tensors.rows(f"pool.{side}", encoding.dim) for side in ("favourable", "unfavourable")]
        if not all(map(len, pools)):
            raise _refused("rows of both labels", "none of one label")
        x, y = torch.cat(pools), torch.cat([torch.ones(len(pools[0])), torch.zeros(len(pools[1]))])
    return make_generator(config, encoding, x, y)


def _history(history: dict[str, list[int | float | None]], best_epoch: int) -> pd.DataFrame:
    """Restore the table of epochs, which must contain the best one."""
    lengths = {len(column) for column in history.values()}
    if len(lengths) != 1 or not 1 <= best_epoch <= max(lengths):
        received = f"columns of {sorted(lengths)} entries and epoch {best_epoch}"
        raise _refused("a history of all epochs, including the best one", received)
    return pd.DataFrame(history)
