"""Work beyond one process: tables in blocks, on all cores of a machine or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = [
    "Block",
    "Inputs",
    "Outcome",
    "Question",
    "Record",
    "RunFolder",
    "certify_blocks",
    "explain_batches",
    "explain_blocks",
    "issue_blocks",
    "model_digest",
]

if TYPE_CHECKING:
    from veritracer.distributed.batches import explain_batches
    from veritracer.distributed.blocks import Block, Record, RunFolder
    from veritracer.distributed.jobs import (
        Inputs,
        Outcome,
        Question,
        certify_blocks,
        explain_blocks,
        issue_blocks,
        model_digest,
    )
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "batches": ["explain_batches"],
            "blocks": ["Block", "Record", "RunFolder"],
            "jobs": [
                "Inputs",
                "Outcome",
                "Question",
                "certify_blocks",
                "explain_blocks",
                "issue_blocks",
                "model_digest",
            ],
        },
    )
