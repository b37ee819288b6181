"""The report: one self-contained HTML page about a model and its recourse."""

from __future__ import annotations

import os
from dataclasses import dataclass
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
    compare,
    group_figure,
    group_tables,
)
from veritracer.app.report.people import Card, cards, change_figures, effort_figures
from veritracer.app.report.quality import accuracy, auc, learning_figures, quality_figures
from veritracer.app.report.robustness import agreement_figures, robustness_figure
from veritracer.counterfactuals import Counterfactuals
from veritracer.estimator import VeriTraCER
from veritracer.files import write_whole
from veritracer.formatting import format_count, format_number

NOBODY = "The model declines no row of this table, so there is nobody to give recourse to."
NOTHING = "No counterfactual was found, so there is nothing to show here."


@dataclass(frozen=True)
class Section:
    """A heading, an introduction, and what follows: facts, figures, tables, cards."""

    identity: str
    title: str
    words: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    cards: tuple[Card, ...] = ()
    warnings: tuple[str, ...] = ()


def headline(context: ReportContext) -> str:
    """Summarise the report in one sentence."""
    explained = int(context.explained.sum())
    if explained == 0:
        return NOBODY
    sure = int(context.certified[context.explained].sum())
    share = f"{sure:,} ({percent(sure / explained)})"
    told = f"Of {explained:,} {context.who}, {share} have a certified counterfactual"
    proof = f"proved to stay valid for every model within {context.models} of this one"
    some = int((context.recourse.conditional[context.first] & context.certified)[context.explained].sum())
    condition = f" ({some:,} of them only while that model still declines their original row)" if some else ""
    return f"{told}, {proof}{condition}."


def tiles(context: ReportContext) -> tuple[tuple[str, str], ...]:
    """Return the key numbers."""
    found = []
    if context.labels is not None:
        found.append(("accuracy", percent(accuracy(context))))
        area = auc(context)
        found += [] if np.isnan(area) else [("AUC", f"{area:.3f}")]
    explained, has_cf = context.explained, context.has_cf
    found.append((f"{context.role}, of {format_count(len(explained), 'row')}", f"{int(explained.sum()):,}"))
    if explained.any():
        found.append(("certified", percent(float(context.certified[explained].mean()))))
    if has_cf.any():
        found.append(("median changes", f"{np.median(context.n_changes[has_cf]):g}"))
        found.append(("median cost", format_number(float(np.median(context.cost[has_cf])))))
    return tuple(found)


def sections(context: ReportContext) -> tuple[Section, ...]:
    """Return the sections of the report in order."""
    training = Section("training", "Training", figures=tuple(learning_figures(context.model)))
    return (
        _model(context),
        _promise(context),
        _agreement(context),
        _demands(context),
        _approvals(context),
        _fairness(context),
        _people(context),
        training,
        _data(context),
        Section("origins", "Versions and digests", facts=origins(context)),
    )


def _model(context: ReportContext) -> Section:
    figures = tuple(quality_figures(context))
    words = ""
    if context.labels is None:
        words = "No labels were given with the table, so the quality of the model cannot be measured."
    elif not figures:
        words = "All labels of the table are equal, so no ranking can be measured."
    return Section("model", "The model", words, model_facts(context), figures)


def _promise(context: ReportContext) -> Section:
    words = (
        "κ limits how far each weight and bias may move, measured as stated under 'set of models'. A "
        "certificate is a proof for every model within κ. The attack searches for a model within κ that "
        "declines the counterfactual."
    )
    if not context.has_cf.any():
        return Section("certificates", "Certificates", NOTHING if context.explained.any() else NOBODY)
    return Section("certificates", "Certificates", words, figures=(robustness_figure(context),))


def _agreement(context: ReportContext) -> Section:
    title = "Acceptance by independent models"
    if not context.has_cf.any():
        return Section("acceptance", title, NOTHING if context.explained.any() else NOBODY)
    figures = tuple(agreement_figures(context))
    words = (
        "A certificate covers models near this one. Whether other models accept the counterfactual too is "
        "measured by a panel of independent models; its held-out members took no part in training or search."
    )
    if not figures:
        words = "This model has no panel, so acceptance by independent models was not measured."
    return Section("acceptance", title, words, figures=figures)


def _demands(context: ReportContext) -> Section:
    if not context.has_cf.any():
        return Section("effort", "Changes and cost", NOTHING if context.explained.any() else NOBODY)
    figures = (*effort_figures(context), *change_figures(context))
    notes = tuple(f"{note}." for note in context.recourse.notes)
    return Section("effort", "Changes and cost", figures=figures, warnings=notes)


def _approvals(context: ReportContext) -> Section:
    title = "Approval rates by group"
    found = approvals(context)
    if not found:
        return Section("approval-rates", title, "No feature is immutable or one-way, so there are no groups.")
    words = (
        "Groups are formed by immutable and one-way features. The approval rate of each group is compared "
        "with the highest one of the same feature."
    )
    figure = approval_figure(found)
    figures = () if figure is None else (figure,)
    return Section("approval-rates", title, words, figures=figures, tables=tuple(approval_tables(found)))


def _fairness(context: ReportContext) -> Section:
    title = "Cost by group"
    found = compare(context) if context.has_cf.any() else []
    if not found:
        return Section("costs", title, "No feature is immutable or one-way, so there are no groups.")
    words = (
        "Groups are formed by immutable and one-way features. A different cost does not prove unfair "
        "treatment, since groups start from different rows; it shows where to look."
    )
    constrained = sum(f.action != "free" for f in context.schema.features)
    if len(found) < constrained:
        words += f" Shown: {len(found)} of {format_count(constrained, 'such feature')}."
    figure = group_figure(context, found)
    figures = () if figure is None else (figure,)
    return Section("costs", title, words, figures=figures, tables=tuple(group_tables(context, found)))


def _people(context: ReportContext) -> Section:
    made = cards(context)
    if not made:
        return Section("examples", "Examples", NOBODY)
    words = "Rows of the table in order of cost; as confidential as the table itself."
    return Section("examples", "Examples", words, cards=made)


def _data(context: ReportContext) -> Section:
    rows = f"This report covers {format_count(len(context.table), 'row')}"
    share = (
        ""
        if context.labels is None
        else f"; {percent(float(context.labels.mean()))} have the favourable label"
    )
    table = ("", schema_table(context.schema))
    return Section("data", "Data", f"{rows}{share}.", tables=(table,))


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
    page = page_template().render(
        title=title or (f"Recourse report: {target}" if target else "Recourse report"),
        headline=headline(context),
        tiles=tiles(context),
        sections=sections(context),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return write_whole(Path(path), page)


def page_template() -> jinja2.Template:
    """Return the template of a page; it escapes everything except for charts, which are markup."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("veritracer.app.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")
