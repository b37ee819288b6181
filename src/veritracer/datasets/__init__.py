"""The paper's datasets and two that need no file: raw columns, raw labels, and what may change in them.

>>> from veritracer import datasets
>>> datasets.names()
('breast_cancer', 'ctg', 'heloc', 'loans', 'oula', 'taiwan_credit', 'who')
>>> datasets.load("breast_cancer").X.shape
(569, 30)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

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

if TYPE_CHECKING:
    from veritracer.datasets.catalogue import Info, info, names
    from veritracer.datasets.loading import Dataset, Split, fetch, load, loans
    from veritracer.datasets.loans_tables import loans_after, loans_chunks, loans_truth
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "catalogue": ["Info", "info", "names"],
            "loading": ["Dataset", "Split", "fetch", "load", "loans"],
            "loans_tables": ["loans_after", "loans_chunks", "loans_truth"],
        },
    )
