"""Defaults that functions, command line and service share; ``--help`` shows them without further imports.

The terms of promises are stated here and nowhere else.
"""

from datetime import timedelta
from typing import Final

FINE_TUNING_EPOCHS = 20
"""Passes over the new rows of a model that is trained on."""

PROMISE_DAYS = 365
"""Days for which a promise holds, unless another end is asked for."""

PROMISE_TERM = timedelta(days=PROMISE_DAYS)
"""The same as a duration. ``None`` in its place is a promise without an end."""

PROMISE_UNCERTIFIED: Final = "skip"
"""What becomes of a counterfactual that is not certified for more than today's model: no promise."""

PROMISE_AGAIN: Final = False
"""Whether an application that has a live promise gets another one."""

AUDIT_RECOURSE = 20
"""Broken promises for which an audit looks for new recourse."""

BLOCK_ROWS = 4_096
"""Rows of a block: seconds of work where answers are refined, so that the cores are all busy to the end."""
