"""Describe a table: its features, their legal values, and the actions that people can take."""

from __future__ import annotations

from veritracer.schema.feature import Action, Feature, Kind, Policy, Value
from veritracer.schema.labels import POSITIVE
from veritracer.schema.schema import Schema

__all__ = ["POSITIVE", "Action", "Feature", "Kind", "Policy", "Schema", "Value"]
