"""The report: one self-contained HTML page about a model and its recourse."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from veritracer.app.report.context import ReportContext, model_facts, origins, report_context, schema_table
from veritracer.app.report.figures import Figure, Table, percent
from veritracer.app.report.groups import (
    approval_figure,
    approval_tables,
    approvals,
    callouts,
    compare,
    group_figure,
    group_tables,
)
from veritracer.app.report.people import Card, cards, change_figures, cost_figure, number_figure
from veritracer.app.report.quality import calibration_figure, describe_quality, learning_figures
from veritracer.app.report.robustness import agreement_figures, robustness_figure
from veritracer.counterfactuals import Counterfactuals
from veritracer.estimator import VeriTraCER
from veritracer.files import write_whole
from veritracer.formatting import format_count

NOBODY = "The model declines no row of this table, so there is nobody to give recourse to."
NOTHING = "No counterfactual was found, so there is nothing to show here."
NUMBER = re.compile(r"[<>−+]?[\d.,]+(\u00a0%)?( to [\d.,]+(\u00a0%)?)?( \((of|p)[\u00a0 ].+\))?|–|∞|highest")
"""A cell that is aligned like a number."""

NO_GROUPS = "No feature is immutable or one-way, so there are no groups."


@dataclass(frozen=True)
class Section:
    """A heading, an introduction, and what follows.

    The first screen repeats the first of the ``warnings``.
    """

    identity: str
    title: str
    words: str = ""
    warnings: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    figures: Sequence[Figure] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    cards: Sequence[Card] = ()


def tiles(context: ReportContext) -> dict[str, str]:
    """Return the key numbers, each under the words that explain it to a reader without the terms."""
    explained, certified = int(context.explained.sum()), int(context.certified[context.explained].sum())
    rows = format_count(len(context.explained), "application")
    found = {f"of {rows} {context.role}": f"{explained:,}"}
    if explained:
        found["of them get advice with a certificate"] = f"{certified:,} ({percent(certified / explained)})"
    if context.has_cf.any():
        agreement = context.recourse.agreement[context.first[context.has_cf]]
        if np.isnan(agreement).all():
            found["acceptance by independent models was not measured"] = "–"
        else:
            accepted = float((agreement >= 0.5).mean())
            found["of the advice is accepted by independent models"] = percent(accepted)
        found["changes are needed in the median case"] = f"{np.median(context.n_changes[context.has_cf]):g}"
    return found


def meaning(context: ReportContext) -> list[str]:
    """Explain what a certificate means, and what it does not, in plain words."""
    if not context.explained.any():
        return [NOBODY]
    decided = "accepted" if context.role == "declined" else "decided the other way"
    if context.recourse.kappa == 0:
        return [
            f"The advice was checked for today's model only (κ = 0): whoever makes exactly these changes is "
            f"{decided} by it. Nothing is proved about later versions."
        ]
    some = int((context.recourse.conditional[context.first] & context.certified)[context.explained].sum())
    condition = (
        f" {some:,} of the certificates hold only for versions that still decide the original application as "
        "today."
        if some
        else ""
    )
    return [
        "A certificate is a proof that the advice will keep working: whoever makes exactly these changes is "
        f"{decided} by today's model, and by every later version that stays within a stated limit of it "
        f"({context.models}; see Certificates).{condition}",
        "It promises nothing if the model is changed beyond that limit, if its inputs or its threshold are "
        "changed, or if anything else in the application changes. It does not say that the advice is easy to "
        "follow.",
    ]


def sections(context: ReportContext) -> list[Section]:
    """Return the sections of the report in order: for every reader first, technical ones last."""
    return [
        _demands(context),
        _agreement(context),
        _approvals(context),
        _costs(context),
        _people(context),
        _certificates(context),
        _model(context),
        Section("training", "Training", figures=learning_figures(context.model)),
        _data(context),
        Section("origins", "Versions and digests", facts=origins(context)),
    ]


def _empty(context: ReportContext) -> str:
    """Return why there is nothing to show about counterfactuals; empty where there are some."""
    return "" if context.has_cf.any() else NOTHING if context.explained.any() else NOBODY


def _demands(context: ReportContext) -> Section:
    title, empty = "Changes and cost", _empty(context)
    if empty:
        return Section("effort", title, empty)
    figures = [*change_figures(context), number_figure(context), cost_figure(context)]
    notes = [f"{note}." for note in context.recourse.notes]
    return Section("effort", title, warnings=notes, figures=figures)


def _agreement(context: ReportContext) -> Section:
    title, empty = "Acceptance by independent models", _empty(context)
    if empty:
        return Section("acceptance", title, empty)
    figures = agreement_figures(context)
    words = (
        "A certificate covers models near this one. Whether other models accept the counterfactual too is "
        "measured by a panel of independent models; its held-out members took no part in training or search."
    )
    if not figures:
        words = "This model has no panel, so acceptance by independent models was not measured."
    return Section("acceptance", title, words, figures=figures)


def _approvals(context: ReportContext) -> Section:
    title, found = "Approval rates by group", approvals(context)
    if not found:
        return Section("approval-rates", title, NO_GROUPS)
    words = (
        "Groups are formed by immutable and one-way features. The approval rate of each group is compared "
        "with the highest one of the same feature. A rate below four fifths of it is a reason to look closer."
    )
    figure = approval_figure(found)
    figures = [] if figure is None else [figure]
    tables = approval_tables(found)
    return Section("approval-rates", title, words, callouts(found), figures=figures, tables=tables)


def _costs(context: ReportContext) -> Section:
    title = "Cost by group"
    found = compare(context) if context.has_cf.any() else []
    if not found:
        return Section("costs", title, _empty(context) or NO_GROUPS)
    words = (
        "Groups are formed by immutable and one-way features. A different cost does not prove unfair "
        "treatment, since groups start from different rows; it shows where to look."
    )
    constrained = sum(f.action != "free" for f in context.schema.features)
    if len(found) < constrained:
        words += f" Shown: {len(found)} of {format_count(constrained, 'such feature')}."
    return Section(
        "costs", title, words, figures=[group_figure(context, found)], tables=group_tables(context, found)
    )


def _people(context: ReportContext) -> Section:
    made = cards(context)
    words = "Rows of the table in order of cost; as confidential as the table itself." if made else NOBODY
    return Section("examples", "Examples", words, cards=made)


def _certificates(context: ReportContext) -> Section:
    title, empty = "Certificates", _empty(context)
    if empty:
        return Section("certificates", title, empty)
    words = (
        "κ limits how far each weight and bias may move, measured as stated under 'set of models'. A "
        "certificate is a proof for every model within κ. The attack searches for a model within κ that "
        "declines the counterfactual."
    )
    return Section("certificates", title, words, figures=[robustness_figure(context)])


def _model(context: ReportContext) -> Section:
    figure = calibration_figure(context)
    figures = [] if figure is None else [figure]
    return Section(
        "model", "The model", describe_quality(context), facts=model_facts(context), figures=figures
    )


def _data(context: ReportContext) -> Section:
    words = f"This report covers {format_count(len(context.table), 'row')}"
    if context.labels is not None:
        words += f"; {percent(float(context.labels.mean()))} have the favourable label"
    return Section("data", "Data", f"{words}.", tables={"": schema_table(context.schema)})


# ---------------------------------------------------------------- the page


def write_report(
    path: str | os.PathLike[str],
    model: VeriTraCER,
    X: Any,
    y: Any = None,
    *,
    recourse: Counterfactuals | None = None,
    title: str | None = None,
) -> Path:
    """Write a report on a model and its recourse, whole or not at all, and return its path.

    Parameters
    ----------
    path
        The file to write; missing folders are created.
    model
        A fitted model.
    X, y
        A raw table that the model was not trained on, and its raw labels if they are known.
    recourse
        The result of ``model.explain(X)``; computed if absent.
    title
        The heading; by default it names the target.
    """
    context = report_context(model, X, y, recourse)
    target = context.schema.target
    title = title or (f"Recourse report: {target}" if target else "Recourse report")
    return write_page(path, title, tiles(context), sections(context), meaning=meaning(context))


def write_page(
    path: str | os.PathLike[str],
    title: str,
    tiles: Mapping[str, str],
    sections: Sequence[Section],
    *,
    headline: str = "",
    meaning: Sequence[str] = (),
) -> Path:
    """Write a page, whole or not at all; what it shows is escaped, except for charts, which are markup."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("veritracer.app.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["numeric"] = _numeric
    page = environment.get_template("report.html").render(
        title=title,
        headline=headline,
        meaning=meaning,
        tiles=tiles,
        sections=sections,
        warnings=[section for section in sections if section.warnings],
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return write_whole(Path(path), page)


def _numeric(table: Table) -> set[str]:
    """Return the names of the columns, besides the first, that are aligned to the right."""
    names = list(table[0])[1:]
    return {name for name in names if all(NUMBER.fullmatch(row[name]) for row in table)}
