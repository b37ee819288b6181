"""Results that claim something else than what was found."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import veritracer as vt
from veritracer.bounds.ibp import Box
from veritracer.models import ParamSet

PROVED = {one.name for one in fields(vt.Certificates)}


def edited(found: vt.Counterfactuals, **claims: Any) -> vt.Counterfactuals:
    """Return the result with other values for what its fields and its certificates say."""
    certificates, options = found.certificates, claims.pop("options", found.options)
    if "kappa" in claims:
        certificates = replace(certificates, param_set=found.param_set.at(claims.pop("kappa")))
    if "radius_rule" in claims:
        now = found.param_set
        larger = ParamSet.of(now.network, now.center, now.kappa, now.norm, claims.pop("radius_rule"))
        certificates = replace(certificates, param_set=larger)
    proved = {name: claims.pop(name) for name in PROVED & set(claims)}
    asked = {name: claims.pop(name) for name in ("drift", "overshoot") if name in claims}
    ends = [claims.pop(name, end) for name, end in zip(Box._fields, found.region, strict=True)]
    return replace(
        found,
        **claims,
        certificates=replace(certificates, **proved),
        options=replace(options, **asked),
        region=Box(*ends),
    )
