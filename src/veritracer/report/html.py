"""The pages, each as one HTML file that needs nothing else.

``write_report`` is about a model and its recourse, section by section; ``write_audit`` about an audit: what
became of every promise, how far the model moved, and who must be told.
"""

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
from veritracer.report.advice import Card, belief_figures, cards, effort_figures, warnings_of
from veritracer.report.approvals import approval_figure, approval_tables, approvals
from veritracer.report.charts import Bar, Figure, Row, Table, bar_picture, percent
from veritracer.report.levers import compare, group_figure, group_tables, lever_figures
from veritracer.report.quality import accuracy, auc, learning_figures, quality_figures, robustness_figure
from veritracer.report.retraining_comparison import RetrainingComparison, survival_figure
from veritracer.report.subject import Subject, model_facts, origins, schema_table, subject_of
from veritracer.times import format_time

NOBODY = "There is nobody to give recourse to: the model turns no row of this table down."
NOTHING = "No counterfactual was found for anybody, so there is nothing to show here."

LISTED_ROWS = 200
"""Broken promises, and groups of promises, that the page lists; the JSON has all."""

MEANING = {
    Verdict.PROVED: "the model is in the set that the promise was proved for",
    Verdict.CHECKED: "the model is outside of the set, but still accepts what was promised",
    Verdict.OVERTAKEN: "the person is accepted as they were, and what was promised is too",
    Verdict.BROKEN: "what was promised is turned down",
    Verdict.NOT_CHECKABLE: "the ledger does not say enough to tell under this encoding: not counted as kept",
    EXPIRED: "past its end: not held against the model",
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
    told = f"Of {asked:,} {subject.who}, {sure:,} ({percent(sure / asked)}) can be told what to change"
    proof = f"with a proof that it holds for every later model within {subject.models} of this one"
    some = int((subject.recourse.conditional[subject.first] & subject.certified)[subject.asked].sum())
    condition = f" (for {some:,} of them as long as it decides their original row as today)" if some else ""
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


def sections(subject: Subject, comparison: RetrainingComparison | None) -> tuple[Section, ...]:
    """All sections of the report."""
    told = (
        []
        if comparison is None
        else [Section("story", comparison.title, figures=(survival_figure(comparison),))]
    )
    training = Section("training", "How it was trained", figures=tuple(learning_figures(subject.model)))
    return (
        *told,
        _model(subject),
        _promise(subject),
        _belief(subject),
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
        words = "No labels were given with the table, so how good the model is can not be said here."
    elif not figures:
        words = "All labels of the table are the same, so there is no ranking to judge."
    return Section("model", "The model, and how good it is", words, model_facts(subject), figures)


def _promise(subject: Subject) -> Section:
    words = (
        "κ says how far every weight of the model may move, by the measure that the set of models above "
        "defines. A certificate is a proof over all models that close; the attack looks for one of them that "
        "breaks the promise."
    )
    if not subject.given.any():
        return Section("promise", "What is promised", NOTHING if subject.asked.any() else NOBODY)
    return Section("promise", "What is promised", words, figures=(robustness_figure(subject),))


def _belief(subject: Subject) -> Section:
    title = "Whether anybody else believes it"
    if not subject.given.any():
        return Section("belief", title, NOTHING if subject.asked.any() else NOBODY)
    figures = tuple(belief_figures(subject))
    words = (
        "A certificate is about this model. Whether the advice improves anybody's chances elsewhere is what "
        "a panel of independent models says, some of which took no part in training or search."
    )
    if not figures:
        words = "This model has no panel: nothing is known of what independent models make of its advice."
    return Section("belief", title, words, figures=figures)


def _demands(subject: Subject) -> Section:
    if not subject.given.any():
        return Section("demands", "What it asks of people", NOTHING if subject.asked.any() else NOBODY)
    figures = (*effort_figures(subject), *lever_figures(subject))
    warned = warnings_of(subject.recourse)
    return Section("demands", "What it asks of people", figures=figures, warnings=warned)


def _approvals(subject: Subject) -> Section:
    title = "Who is accepted"
    found = approvals(subject)
    if not found:
        return Section("accepted", title, "No feature is declared immutable or one-way: there are no groups.")
    words = (
        "The share of each group that the model accepts, beside the highest one of the same feature. Groups "
        "are made by the features that nobody can freely change."
    )
    figure = approval_figure(found)
    figures = () if figure is None else (figure,)
    return Section("accepted", title, words, figures=figures, tables=tuple(approval_tables(found)))


def _fairness(subject: Subject) -> Section:
    title = "For whom it is harder"
    found = compare(subject) if subject.given.any() else []
    if not found:
        return Section("fairness", title, "No feature is declared immutable or one-way: there are no groups.")
    words = (
        "Groups are made by the features that nobody can freely change. Different costs are no proof of "
        "unfair treatment, since groups may start from different places; they say where to look."
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
        return Section("people", "Worked examples", NOBODY)
    words = (
        "Real rows of the table, in the order of what they are asked to do. Handle them as you do the table."
    )
    return Section("people", f"{len(made)} worked examples", words, cards=made)


def _data(subject: Subject) -> Section:
    rows = f"{format_count(len(subject.table), 'row')} are reported on"
    share = "" if subject.labels is None else f"; {percent(float(subject.labels.mean()))} are favourable"
    table = ("", schema_table(subject.schema))
    return Section("data", "The data", f"{rows}{share}. What each column means:", tables=(table,))


# ---------------------------------------------------------------- the page


def write_report(
    path: str | os.PathLike[str],
    model: VeriTraCER,
    X: Any,
    y: Any = None,
    *,
    recourse: Counterfactuals | None = None,
    title: str | None = None,
    comparison: RetrainingComparison | None = None,
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
    comparison
        What became of promises after a retraining, to be told first.
    """
    subject = subject_of(model, X, y, recourse)
    target = subject.schema.target
    page = page_template().render(
        title=title or (f"Recourse report: {target}" if target else "Recourse report"),
        headline=headline(subject),
        tiles=tiles(subject),
        sections=sections(subject, comparison),
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
        return "There is no live promise to be kept."
    people = format_count(audit.live, "live promise")
    proved = percent(audit.counts[Verdict.PROVED] / audit.live)
    if audit.ok:
        return f"This model keeps all of {people}, {proved} of them by proof."
    unknown = audit.counts[Verdict.NOT_CHECKABLE]
    rest = f"; {unknown:,} can not be checked" if unknown else ""
    if audit.counts[Verdict.BROKEN] == 0:
        return f"Of {people} this model is not known to break any{rest}; {proved} are kept by proof."
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
    table = Table.of(["verdict", "what it means", "promises", "of those that are live"], lines, words=2)
    caption = (
        f"{audit_headline(audit)} Bars are shares of all {format_count(total, 'promise')} that were "
        "looked at."
    )
    picture = bar_picture("verdicts", rows)
    figure = Figure("verdicts", "What became of the promises", picture, caption, table)
    return Section("promises", "The promises", figures=(figure,), tables=(("", table),))


def _share(audit: Audit, name: str) -> str:
    return "–" if name == EXPIRED or audit.live == 0 else percent(audit.counts[name] / audit.live)


def _distances(audit: Audit) -> Section:
    words = (
        "How far each weight matrix (W) and each bias vector (b) is from the model that made the promise, "
        "in units of the distance that was promised to be safe. Where all are at most 1, promises are kept "
        "by proof."
    )
    shown = audit.groups[:LISTED_ROWS]
    layers = max((len(g.distances or ()) for g in shown), default=0)
    names = [f"{'W' if i % 2 == 0 else 'b'}{i // 2 + 1}" for i in range(layers)]
    header = ["issued by", "κ", "promises", "by proof", "broken", *names, "in the way of a proof"]
    lines = [_group_line(group, layers) for group in shown]
    table = Table.of(header, lines)
    if len(audit.groups) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.groups):,} groups."
    return Section("distances", "How far the model moved", words, tables=(("", table),) if lines else ())


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
        said = "not looked for" if new is None else f"From the {new.start}: {new.sentence}"
        number, kappa = f"{line['sequence']}", format_number(line["kappa"])
        until = "no end" if line["expires"] == "never" else line["expires"][:10]
        lines.append([number, str(line["id"]), said, kappa, format_number(line["logit"]), until])
    header = ["number", "whose", "new recourse", "κ", "logit", "promised until"]
    words = "The worst first: the logit says how far the model is from accepting what was promised."
    if len(audit.broken) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.broken):,}; the JSON has all."
    return Section("broken", title, words, tables=(("", Table.of(header, lines, words=3)),))


def _unchecked(audit: Audit) -> tuple[Section, ...]:
    """The promises that can not be checked, where there are any."""
    if audit.counts[Verdict.NOT_CHECKABLE] == 0:
        return ()
    lines = [
        [f"{line['sequence']}", str(line["id"]), str(line["reason"]), format_number(line["kappa"])]
        for line in audit.unchecked.head(LISTED_ROWS).to_dict("records")
    ]
    words = "What was promised is accepted as far as it is known, which is not as far as it was promised."
    if len(audit.unchecked) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.unchecked):,}; the JSON has all."
    table = Table.of(["number", "whose", "why", "κ"], lines, words=3)
    return (Section("unchecked", "Promises that can not be checked", words, tables=(("", table),)),)


def _origins(audit: Audit, model: str) -> Section:
    facts = (
        ("ledger", audit.ledger or "none: promises in memory"),
        ("its head", audit.head or "–"),
        ("promises live at", format_time(audit.at)),
        *((("model, as it was named", model),) if model else ()),
        ("model, by its digest", audit.model_digest),
        ("encoding", audit.encoding_digest),
        ("threshold", f"{audit.threshold:g}"),
        ("veritracer", __version__),
    )
    return Section("origins", "Versions and digests", facts=facts)
