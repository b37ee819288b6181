"""The paper's datasets and one that needs no file: raw columns, raw labels, and what may change in them.

>>> names()
('breast_cancer', 'ctg', 'heloc', 'oula', 'taiwan_credit', 'who')
>>> load("breast_cancer").X.shape
(569, 30)
"""

from __future__ import annotations

from veritracer.datasets.catalogue import Info, info, names
from veritracer.datasets.download import fetch
from veritracer.datasets.loading import Dataset, Split, load

__all__ = ["Dataset", "Info", "Split", "fetch", "info", "load", "names"]
