"""The paper's evaluation: what is measured, how it is run, and the tables that come of it."""
