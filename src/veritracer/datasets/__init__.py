"""Load the paper's datasets, and two that need no file, as raw tables with schemas.

>>> from veritracer import datasets
>>> datasets.names()
('breast_cancer', 'ctg', 'heloc', 'loans', 'oula', 'taiwan_credit', 'who')
>>> datasets.load("breast_cancer").X.shape
(569, 30)
"""

from __future__ import annotations

from veritracer.datasets.loading import (
    Dataset,
    DatasetSource,
    Info,
    Split,
    fetch,
    info,
    load,
    loans,
    names,
    register,
)
from veritracer.datasets.loans import loans_after, loans_chunks, loans_truth
from veritracer.datasets.published import Parts

__all__ = [
    "Dataset",
    "DatasetSource",
    "Info",
    "Parts",
    "Split",
    "fetch",
    "info",
    "load",
    "loans",
    "loans_after",
    "loans_chunks",
    "loans_truth",
    "names",
    "register",
]
