"""Counterfactuals for other programs: one JSON document, one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from veritracer.encoding.exact import in_types
from veritracer.files import envelope
from veritracer.formatting import to_python

if TYPE_CHECKING:
    from veritracer.recourse.counterfactuals import Counterfactuals

FORMAT, VERSION = "veritracer-recourse", 1

NUMBERS = (
    *("valid", "certified", "radius", "worst_logit", "method", "conditional"),
    *("cost", "n_changes", "agreement"),
)
"""What is known of each counterfactual besides its values, in the order of the columns of ``table``."""


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
