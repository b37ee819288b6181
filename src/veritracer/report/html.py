"""The report of a model and its recourse: one HTML file that needs nothing else."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2

from veritracer.files import write_whole
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.sections import headline, sections, tiles
from veritracer.report.story import Story
from veritracer.report.subject import subject_of


def write_report(
    path: str | os.PathLike[str],
    model: VeriTraCER,
    X: Any,
    y: Any = None,
    *,
    recourse: Counterfactuals | None = None,
    title: str | None = None,
    story: Story | None = None,
) -> Path:
    """Where the report was written: whole or not at all.

    Parameters
    ----------
    path
        The file to write; folders on the way are made.
    model
        A fitted model.
    X, y
        A raw table that the model has not learned from, and its raw labels where they are known.
    recourse
        What ``model.explain(X)`` returned; it is computed where it is absent.
    title
        The heading; by default it names the target.
    story
        What became of promises after a retraining, to be told first.
    """
    subject = subject_of(model, X, y, recourse)
    target = subject.schema.target
    page = page_template().render(
        title=title or (f"Recourse report: {target}" if target else "Recourse report"),
        headline=headline(subject),
        tiles=tiles(subject),
        sections=sections(subject, story),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return write_whole(Path(path), page)


def page_template() -> jinja2.Template:
    """The page; everything that it is given is escaped, except for SVG, which is escaped already."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("veritracer.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")
