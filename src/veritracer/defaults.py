"""Defaults that functions and the command line share; ``--help`` shows them without further imports."""

FINE_TUNING_EPOCHS = 20
"""Passes over the new rows of a model that is trained on."""

PROMISE_DAYS = 365
"""Days for which a promise holds that ``veritracer issue`` makes, unless another end is asked for."""

AUDIT_RECOURSE = 20
"""Broken promises for which an audit looks for new recourse."""

BLOCK_ROWS = 4_096
"""Rows of a block: seconds of work where answers are refined, so that the cores are all busy to the end."""
