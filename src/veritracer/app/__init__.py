"""Programs on top of the library: the pages of the report."""
