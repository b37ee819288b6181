"""Timings and tightness. Each benchmark prints a table, saves JSON under out/, and compares in one run."""
