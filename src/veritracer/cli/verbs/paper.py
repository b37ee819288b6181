"""The paper's two-dimensional examples: certified, drawn, and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from veritracer.certificate import Certificate
from veritracer.cli.printing import patience, print_json, print_table, say
from veritracer_bench.paper_figures import CONCLUSIONS, DELTA, Example, certificates, draw


def show(out: Path, *, as_json: bool) -> None:
    """Certify and draw the examples into the folder ``out``, and print what to conclude."""
    with patience("drawing"):
        found = certificates()
        picture = draw(out / "paper_examples.png")
    if as_json:
        examples = [_fields(*pair) for pair in found]
        print_json({"delta": DELTA, "picture": str(picture), "examples": examples})
        return
    header = ("model", "x′", "certified", "method", "worst logit", "radius / δ")
    print_table(f"x = (4, 1), δ = {DELTA:g}", header, [_cells(*pair) for pair in found])
    say(*CONCLUSIONS, f"The picture: {picture}")


def _fields(example: Example, certificate: Certificate | None) -> dict[str, Any]:
    kept = ("certified", "method", "conditional", "worst_logit", "radius")
    known = {name: getattr(certificate, name) for name in kept} if certificate else None
    return {"model": example.name, "counterfactual": example.counterfactual, "certificate": known}


def _cells(example: Example, certificate: Certificate | None) -> list[str]:
    if example.counterfactual is None or certificate is None:
        return [example.name, "none exists", "", "", "", ""]
    at = "({:g}, {:g})".format(*example.counterfactual)
    numbers = [f"{certificate.worst_logit:.3f}", f"{certificate.radius or 0:.3f}"]
    return [example.name, at, "yes" if certificate.certified else "unknown", certificate.method, *numbers]
