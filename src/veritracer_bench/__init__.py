"""The paper's evaluation, and what independent models and a simulator say about counterfactuals.

``running.Run(plan, out).go(engine)`` measures what is missing of a plan; ``page.write_all`` writes tables,
pages and pictures. ``baselines`` has other methods, ``shifts`` the ways in which a later model differs, and
``cli`` the command ``veritracer bench``. Pictures need the extra ``bench``. This module imports nothing, so
that the command's help is fast.
"""
