"""``python -m veritracer`` is the command ``veritracer``."""

from __future__ import annotations

from veritracer.cli import main

main()
