"""Load the paper's datasets, and two that need no file, as raw tables with schemas.

>>> from veritracer import datasets
>>> datasets.names()
('breast_cancer', 'ctg', 'heloc', 'loans', 'oula', 'taiwan_credit', 'who')
>>> datasets.load("breast_cancer").X.shape
(569, 30)
"""

from __future__ import annotations

from veritracer.datasets.loading import Dataset, Info, Split, fetch, info, load, loans, names
from veritracer.datasets.loans import loans_after, loans_chunks, loans_truth

__all__ = [
    "Dataset",
    "Info",
    "Split",
    "fetch",
    "info",
    "load",
    "loans",
    "loans_after",
    "loans_chunks",
    "loans_truth",
    "names",
]
