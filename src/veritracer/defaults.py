"""Constants that nothing has to be imported for: the version, and defaults that the command line shows.

Functions and the command line share these; the latter shows them before it imports the former.
"""

__version__ = "0.1.0.dev0"
"""The version of this library, in the one place that everything else reads it from."""

FINE_TUNING_EPOCHS = 20
"""Passes over the new rows of a model that is trained on."""

PROMISE_DAYS = 365
"""Days for which a promise holds that ``veritracer issue`` makes, unless another end is asked for."""

AUDIT_RECOURSE = 20
"""Broken promises for which an audit looks for new recourse."""

BLOCK_ROWS = 4_096
"""Rows of a block: seconds of work where answers are refined, so that the cores are all busy to the end."""
