"""``python -m veritracer`` is the command ``veritracer``."""

from __future__ import annotations

from veritracer.app.cli import main

if __name__ == "__main__":
    main()
