"""Counterfactual explanations whose promises are provable.

>>> import torch, veritracer as vt
>>> model = torch.nn.Linear(2, 1)
>>> vt.ParamSet.around(model, kappa=0.2).contains(model)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer import errors
from veritracer.lazy import attach

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

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from veritracer import datasets
    from veritracer.app.serve import Client
    from veritracer.calibration import Calibration, calibrate
    from veritracer.certificate import Certificate, Certificates, Membership, certified_radius, certify
    from veritracer.encoding import Encoding
    from veritracer.ledger import Ledger, audit
    from veritracer.model import VeriTraCER
    from veritracer.models import ParamSet
    from veritracer.recourse import Counterfactuals, ReasonCodes, Recourse
    from veritracer.saved import load
    from veritracer.schema import POSITIVE, Feature, Schema
    from veritracer.training import Panel
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "calibration": ["Calibration", "calibrate"],
            "certificate": ["Certificate", "Certificates", "Membership", "certified_radius", "certify"],
            "encoding": ["Encoding"],
            "ledger": ["Ledger", "audit"],
            "model": ["VeriTraCER"],
            "models": ["ParamSet"],
            "recourse": ["Counterfactuals", "ReasonCodes", "Recourse"],
            "saved": ["load"],
            "schema": ["POSITIVE", "Feature", "Schema"],
            "app.serve": ["Client"],
            "training": ["Panel"],
        },
    )
