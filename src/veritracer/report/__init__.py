"""Pictures and reports, drawn from what the library itself computes."""
