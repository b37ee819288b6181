"""The version of this library, in the one place that everything else reads it from."""

__version__ = "0.1.0.dev0"
