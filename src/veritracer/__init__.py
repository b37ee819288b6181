"""Counterfactual explanations whose promises are provable.

>>> import torch, veritracer as vt
>>> model = torch.nn.Linear(2, 1)
>>> vt.ParamSet.around(model, kappa=0.2).contains(model)
True
"""

from __future__ import annotations

from veritracer import datasets, errors
from veritracer.calibration import Calibration, calibrate
from veritracer.certificate import Certificate, Certificates, Membership, certified_radius, certify
from veritracer.encoding import Encoding
from veritracer.ledger import Ledger
from veritracer.model import VeriTraCER
from veritracer.panel import Panel
from veritracer.param_sets import ParamSet
from veritracer.recourse import Counterfactuals, ReasonCodes, Recourse
from veritracer.saved import load
from veritracer.schema import Feature, Schema
from veritracer.version import __version__

__all__ = [
    "Calibration",
    "Certificate",
    "Certificates",
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
    "calibrate",
    "certified_radius",
    "certify",
    "datasets",
    "errors",
    "load",
]
