"""Whether most people are told the same: to pull one lever, or to go to one end of a range.

Each answer alone may be proved, close and believed; an institution that sends all of them should know it.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import message

FEWEST = 20
"""Fewer people than this have too little in common to speak of."""

MOST = 0.5
"""More than this share of them is most people."""


def common_levers(encoding: Encoding, x: Tensor, x_cf: Tensor) -> Iterator[str]:
    """Sentences about what most of the people (n, d) are told; none where there is nothing to say."""
    if len(x) < FEWEST:
        return
    moved = encoding.by_feature((x_cf - x).abs())
    main = moved.argmax(-1).bincount(minlength=len(encoding.blocks)) / len(x)
    for k in (main > MOST).nonzero().squeeze(-1).tolist():
        name = encoding.schema.names[k]
        received = f"{float(main[k]):.0%} of {len(x):,} people told first of all to change {name!r}"
        yield message("several levers among the people", received, f"check what {name!r} really does")
    for block in encoding.blocks:
        if not block.feature.is_numeric:
            continue
        before, after = x[:, block.start], x_cf[:, block.start]
        for end, word in ((0.0, "lowest"), (1.0, "highest")):
            share = float(((after == end) & (before != end)).double().mean())
            if share > MOST:
                name = block.feature.name
                received = f"{share:.0%} of {len(x):,} people told to bring {name!r} to its {word} value"
                yield message("advice inside of a range", received, f"give limits={{{name!r}: 0.3}}")
