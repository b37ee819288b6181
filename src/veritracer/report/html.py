"""Self-contained HTML pages: ``write_report`` on a model and its recourse, ``write_audit`` on an audit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from veritracer import __version__
from veritracer.files import write_whole
from veritracer.formatting import format_count, format_number
from veritracer.ledger.auditing import Audit, Group
from veritracer.ledger.verdicts import EXPIRED, VERDICTS, Verdict
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.advice import Card, agreement_figures, cards, effort_figures
from veritracer.report.approvals import approval_figure, approval_tables, approvals
from veritracer.report.charts import Bar, Figure, Row, Table, bar_picture, percent
from veritracer.report.levers import compare, group_figure, group_tables, lever_figures
from veritracer.report.quality import accuracy, auc, learning_figures, quality_figures, robustness_figure
from veritracer.report.subject import Subject, model_facts, origins, schema_table, subject_of
from veritracer.times import format_time

NOBODY = "The model declines no row of this table, so there is nobody to give recourse to."
NOTHING = "No counterfactual was found, so there is nothing to show here."

LISTED_ROWS = 200
"""Broken promises, and groups of promises, that the page lists; the JSON output has all."""

MEANING = {
    Verdict.PROVED: "the model lies in the set for which the promise was proved",
    Verdict.CHECKED: "the model lies outside the set, but still accepts the promised row",
    Verdict.OVERTAKEN: "the model now accepts the original row, and the promised row too",
    Verdict.BROKEN: "the model declines the promised row",
    Verdict.NOT_CHECKABLE: "the ledger lacks the data to decide under this encoding; not counted as kept",
    EXPIRED: "past its last day; not counted against the model",
}
SERIES = {
    Verdict.PROVED: "s1",
    Verdict.CHECKED: "s1",
    Verdict.OVERTAKEN: "s0",
    Verdict.BROKEN: "s2",
    Verdict.NOT_CHECKABLE: "s2",
    EXPIRED: "s0",
}


@dataclass(frozen=True)
class Section:
    """A heading, what to know before reading on, and what follows: facts, figures, tables, cards."""

    identity: str
    title: str
    words: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    cards: tuple[Card, ...] = ()
    warnings: tuple[str, ...] = ()


def headline(subject: Subject) -> str:
    """The report in one sentence."""
    asked = int(subject.asked.sum())
    if asked == 0:
        return NOBODY
    sure = int(subject.certified[subject.asked].sum())
    told = f"Of {asked:,} {subject.who}, {sure:,} ({percent(sure / asked)}) have a certified counterfactual"
    proof = f"proved to stay valid for every model within {subject.models} of this one"
    some = int((subject.recourse.conditional[subject.first] & subject.certified)[subject.asked].sum())
    condition = f" ({some:,} of them only while that model still declines their original row)" if some else ""
    return f"{told}, {proof}{condition}."


def tiles(subject: Subject) -> tuple[tuple[str, str], ...]:
    """The few numbers that everything else explains."""
    found = []
    if subject.labels is not None:
        found.append(("accuracy", percent(accuracy(subject))))
        area = auc(subject)
        found += [] if np.isnan(area) else [("AUC", f"{area:.3f}")]
    asked, given = subject.asked, subject.given
    found.append((f"{subject.role}, of {format_count(len(asked), 'row')}", f"{int(asked.sum()):,}"))
    if asked.any():
        found.append(("certified", percent(float(subject.certified[asked].mean()))))
    if given.any():
        found.append(("median changes", f"{np.median(subject.n_changes[given]):g}"))
        found.append(("median cost", format_number(float(np.median(subject.cost[given])))))
    return tuple(found)


def sections(subject: Subject) -> tuple[Section, ...]:
    """All sections of the report."""
    training = Section("training", "Training", figures=tuple(learning_figures(subject.model)))
    return (
        _model(subject),
        _promise(subject),
        _agreement(subject),
        _demands(subject),
        _approvals(subject),
        _fairness(subject),
        _people(subject),
        training,
        _data(subject),
        Section("origins", "Versions and digests", facts=origins(subject)),
    )


def _model(subject: Subject) -> Section:
    figures = tuple(quality_figures(subject))
    words = ""
    if subject.labels is None:
        words = "No labels were given with the table, so the quality of the model cannot be measured."
    elif not figures:
        words = "All labels of the table are equal, so no ranking can be measured."
    return Section("model", "The model", words, model_facts(subject), figures)


def _promise(subject: Subject) -> Section:
    words = (
        "κ is the distance by which every weight and bias may move, measured as stated under 'set of "
        "models'. A certificate is a proof for all models within κ; the attack searches for one of them that "
        "declines the counterfactual."
    )
    if not subject.given.any():
        return Section("promise", "Certificates", NOTHING if subject.asked.any() else NOBODY)
    return Section("promise", "Certificates", words, figures=(robustness_figure(subject),))


def _agreement(subject: Subject) -> Section:
    title = "Acceptance by independent models"
    if not subject.given.any():
        return Section("acceptance", title, NOTHING if subject.asked.any() else NOBODY)
    figures = tuple(agreement_figures(subject))
    words = (
        "A certificate speaks about models near this one. Whether the change is also accepted elsewhere is "
        "measured by a panel of independent models; its held-out members took no part in training or search."
    )
    if not figures:
        words = "This model has no panel, so acceptance by independent models was not measured."
    return Section("acceptance", title, words, figures=figures)


def _demands(subject: Subject) -> Section:
    if not subject.given.any():
        return Section("demands", "Changes and cost", NOTHING if subject.asked.any() else NOBODY)
    figures = (*effort_figures(subject), *lever_figures(subject))
    notes = tuple(f"{note}." for note in subject.recourse.notes)
    return Section("demands", "Changes and cost", figures=figures, warnings=notes)


def _approvals(subject: Subject) -> Section:
    title = "Approval rates by group"
    found = approvals(subject)
    if not found:
        return Section("accepted", title, "No feature is immutable or one-way, so there are no groups.")
    words = (
        "The approval rate of each group beside the highest one of the same feature. Groups are formed by "
        "immutable and one-way features."
    )
    figure = approval_figure(found)
    figures = () if figure is None else (figure,)
    return Section("accepted", title, words, figures=figures, tables=tuple(approval_tables(found)))


def _fairness(subject: Subject) -> Section:
    title = "Cost by group"
    found = compare(subject) if subject.given.any() else []
    if not found:
        return Section("fairness", title, "No feature is immutable or one-way, so there are no groups.")
    words = (
        "Groups are formed by immutable and one-way features. A different cost does not prove unfair "
        "treatment, since groups start from different rows; it shows where to look."
    )
    constrained = sum(f.action != "free" for f in subject.schema.features)
    if len(found) < constrained:
        words += f" Shown: {len(found)} of {format_count(constrained, 'such feature')}."
    figure = group_figure(subject, found)
    figures = () if figure is None else (figure,)
    return Section("fairness", title, words, figures=figures, tables=tuple(group_tables(subject, found)))


def _people(subject: Subject) -> Section:
    made = cards(subject)
    if not made:
        return Section("people", "Examples", NOBODY)
    words = "Rows of the table in order of cost. They are as confidential as the table itself."
    return Section("people", "Examples", words, cards=made)


def _data(subject: Subject) -> Section:
    rows = f"This report covers {format_count(len(subject.table), 'row')}"
    share = (
        ""
        if subject.labels is None
        else f"; {percent(float(subject.labels.mean()))} have the favourable label"
    )
    table = ("", schema_table(subject.schema))
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
    """
    subject = subject_of(model, X, y, recourse)
    target = subject.schema.target
    page = page_template().render(
        title=title or (f"Recourse report: {target}" if target else "Recourse report"),
        headline=headline(subject),
        tiles=tiles(subject),
        sections=sections(subject),
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


def write_audit(
    path: str | os.PathLike[str],
    audit: Audit,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    model: str = "",
) -> Path:
    """Where the report was written: whole or not at all.

    ``notes`` are sentences to begin with, such as whether the ledger verifies; ``model`` is what the audited
    model is called, such as its folder.
    """
    page = page_template().render(
        title=title or "Audit of promises",
        headline=" ".join([audit_headline(audit), *notes]),
        tiles=tuple((name, f"{audit.counts[name]:,}") for name in (*VERDICTS, EXPIRED)),
        sections=(
            _verdicts(audit),
            _distances(audit),
            _broken(audit),
            *_unchecked(audit),
            _origins(audit, model),
        ),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return write_whole(Path(path), page)


def audit_headline(audit: Audit) -> str:
    """The audit in one sentence."""
    if audit.live == 0:
        return "The ledger has no live promise."
    people = format_count(audit.live, "live promise")
    proved = percent(audit.counts[Verdict.PROVED] / audit.live)
    if audit.ok:
        return f"This model keeps all of {people}, {proved} of them by proof."
    unknown = audit.counts[Verdict.NOT_CHECKABLE]
    rest = f"; {unknown:,} cannot be checked" if unknown else ""
    if audit.counts[Verdict.BROKEN] == 0:
        return f"This model breaks none of {people} as far as is known{rest}; {proved} are kept by proof."
    share = percent(audit.counts[Verdict.BROKEN] / audit.live)
    breaks = f"This model breaks {audit.counts[Verdict.BROKEN]:,} of {people} ({share})"
    return f"{breaks}{rest}; {proved} are kept by proof."


def _verdicts(audit: Audit) -> Section:
    known = [name for name in (*VERDICTS, EXPIRED) if audit.counts[name] or name != EXPIRED]
    total = max(audit.live + audit.counts[EXPIRED], 1)
    rows = [
        Row(name, (Bar(audit.counts[name] / total, f"{audit.counts[name]:,}", SERIES[name]),))
        for name in known
    ]
    lines = [[name, MEANING[name], f"{audit.counts[name]:,}", _share(audit, name)] for name in known]
    table = Table.of(["verdict", "meaning", "promises", "share of live promises"], lines, words=2)
    caption = f"{audit_headline(audit)} Bars show shares of all {format_count(total, 'promise')}."
    picture = bar_picture("verdicts", rows)
    figure = Figure("verdicts", "Promises by verdict", picture, caption, table)
    return Section("promises", "Promises", figures=(figure,), tables=(("", table),))


def _share(audit: Audit, name: str) -> str:
    return "–" if name == EXPIRED or audit.live == 0 else percent(audit.counts[name] / audit.live)


def _distances(audit: Audit) -> Section:
    words = (
        "The distance of each weight matrix (W) and bias vector (b) from the issuing model, as a multiple of "
        "the certified distance. If all are at most 1, the promises are kept by proof."
    )
    shown = audit.groups[:LISTED_ROWS]
    layers = max((len(g.distances or ()) for g in shown), default=0)
    names = [f"{'W' if i % 2 == 0 else 'b'}{i // 2 + 1}" for i in range(layers)]
    header = ["issued by", "κ", "promises", "by proof", "broken", *names, "obstacle to a proof"]
    lines = [_group_line(group, layers) for group in shown]
    table = Table.of(header, lines)
    if len(audit.groups) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.groups):,} groups."
    return Section(
        "distances", "Distance from the issuing models", words, tables=(("", table),) if lines else ()
    )


def _group_line(group: Group, layers: int) -> list[str]:
    moved = [_times(share) for share in group.distances or ()]
    moved += ["–"] * (layers - len(moved))
    return [
        f"{group.model[:12]} ({group.norm})",
        format_number(group.kappa),
        f"{sum(group.counts.values()):,}",
        f"{group.counts[Verdict.PROVED]:,}",
        f"{group.counts[Verdict.BROKEN]:,}",
        *moved,
        group.obstacle or "–",
    ]


def _times(share: float) -> str:
    return "∞" if share == float("inf") else format_number(share)


def _broken(audit: Audit) -> Section:
    title = "Broken promises"
    if audit.counts[Verdict.BROKEN] == 0:
        return Section("broken", title, "None.")
    told = {one.sequence: one for one in audit.recourse}
    lines = []
    for line in audit.broken.head(LISTED_ROWS).to_dict("records"):
        new = told.get(line["sequence"])
        said = "not searched" if new is None else f"From the {new.start}: {new.sentence}"
        number, kappa = f"{line['sequence']}", format_number(line["kappa"])
        until = "no end" if line["expires"] == "never" else line["expires"][:10]
        lines.append([number, str(line["id"]), said, kappa, format_number(line["logit"]), until])
    header = ["number", "id", "new recourse", "κ", "logit", "last day"]
    words = "Ordered by logit, the lowest first: how far the model is from accepting the promised row."
    if len(audit.broken) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.broken):,}; the JSON output has all."
    return Section("broken", title, words, tables=(("", Table.of(header, lines, words=3)),))


def _unchecked(audit: Audit) -> tuple[Section, ...]:
    """The promises that can not be checked, where there are any."""
    if audit.counts[Verdict.NOT_CHECKABLE] == 0:
        return ()
    lines = [
        [f"{line['sequence']}", str(line["id"]), str(line["reason"]), format_number(line["kappa"])]
        for line in audit.unchecked.head(LISTED_ROWS).to_dict("records")
    ]
    words = "The known part of what was promised is accepted, but not all of it is known."
    if len(audit.unchecked) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.unchecked):,}; the JSON output has all."
    table = Table.of(["number", "id", "reason", "κ"], lines, words=3)
    return (Section("unchecked", "Promises that cannot be checked", words, tables=(("", table),)),)


def _origins(audit: Audit, model: str) -> Section:
    facts = (
        ("ledger", audit.ledger or "none (promises in memory)"),
        ("checksum", audit.head or "–"),
        ("date of the audit", format_time(audit.at)),
        *((("model", model),) if model else ()),
        ("model digest", audit.model_digest),
        ("encoding digest", audit.encoding_digest),
        ("threshold", f"{audit.threshold:g}"),
        ("veritracer", __version__),
    )
    return Section("origins", "Versions and digests", facts=facts)
