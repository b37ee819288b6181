"""Counterfactual explanations that are certified for every model near the current one.

>>> import torch, veritracer as vt
>>> model = torch.nn.Linear(2, 1)
>>> vt.ParamSet.around(model, kappa=0.2).contains(model)
True
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from veritracer import errors

__all__ = [
    "POSITIVE",
    "Calibration",
    "Certificate",
    "Certificates",
    "Client",
    "Counterfactuals",
    "Encoding",
    "Feature",
    "Ledger",
    "Membership",
    "Panel",
    "ParamSet",
    "ReasonCodes",
    "Recourse",
    "Schema",
    "VeriTraCER",
    "__version__",
    "audit",
    "calibrate",
    "certified_radius",
    "certify",
    "datasets",
    "errors",
    "load",
]

__version__ = "0.1.0"

if TYPE_CHECKING:
    from veritracer import datasets
    from veritracer.app.reason_codes import ReasonCodes
    from veritracer.app.serve.client import Client
    from veritracer.certificate import Certificate, Certificates, Membership, certified_radius, certify
    from veritracer.counterfactuals import Counterfactuals
    from veritracer.encoding import Encoding
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Calibration, Ledger, audit, calibrate
    from veritracer.models import ParamSet
    from veritracer.persistence import load
    from veritracer.recourse import Recourse
    from veritracer.schema import POSITIVE, Feature, Schema
    from veritracer.training import Panel

_NAMES = {
    "certificate": ["Certificate", "Certificates", "Membership", "certified_radius", "certify"],
    "encoding": ["Encoding"],
    "ledger": ["Calibration", "Ledger", "audit", "calibrate"],
    "estimator": ["VeriTraCER"],
    "models": ["ParamSet"],
    "counterfactuals": ["Counterfactuals"],
    "persistence": ["load"],
    "recourse": ["Recourse"],
    "schema": ["POSITIVE", "Feature", "Schema"],
    "app.reason_codes": ["ReasonCodes"],
    "app.serve.client": ["Client"],
    "training": ["Panel"],
}
"""Public names by module: torch and pandas take seconds to import, and most errors are found without them."""

if not TYPE_CHECKING:  # type checkers would take every name for one of the package's

    def __getattr__(name: str) -> Any:
        """Import a public name or a module of the package when it is first used (PEP 562)."""
        module = next((module for module, names in _NAMES.items() if name in names), None)
        if module is not None:
            value = getattr(import_module(f"{__name__}.{module}"), name)
        elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            value = import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        modules = (found.name for found in iter_modules(__path__) if not found.name.startswith("_"))
        return sorted({*__all__, *modules})
