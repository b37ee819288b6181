"""The report's sections in order, each as plain values that a template sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from veritracer.report.belief import belief_figures, notes_in_words
from veritracer.report.effort import effort_figures
from veritracer.report.examples import Card, cards
from veritracer.report.figure import Figure, Table, count, percent, short
from veritracer.report.groups import compare, group_figure, group_tables
from veritracer.report.learning import learning_figures
from veritracer.report.levers import lever_figures
from veritracer.report.provenance import model_facts, origins, schema_table
from veritracer.report.quality import accuracy, auc, quality_figures
from veritracer.report.robustness import robustness_figure
from veritracer.report.story import Story
from veritracer.report.subject import Subject
from veritracer.report.survival import survival_figure

NOBODY = "There is nobody to give recourse to: the model turns no row of this table down."
NOTHING = "No counterfactual was found for anybody, so there is nothing to show here."


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
    found.append((f"{subject.role}, of {count(len(asked), 'row')}", f"{int(asked.sum()):,}"))
    if asked.any():
        found.append(("certified", percent(float(subject.certified[asked].mean()))))
    if given.any():
        found.append(("median changes", f"{np.median(subject.n_changes[given]):g}"))
        found.append(("median cost", short(float(np.median(subject.cost[given])))))
    return tuple(found)


def sections(subject: Subject, story: Story | None) -> tuple[Section, ...]:
    """All sections of the report."""
    told = [] if story is None else [Section("story", story.title, figures=(survival_figure(story),))]
    training = Section("training", "How it was trained", figures=tuple(learning_figures(subject.model)))
    return (
        *told,
        _model(subject),
        _promise(subject),
        _belief(subject),
        _demands(subject),
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
    return Section("belief", title, f"{words} {notes_in_words(subject.recourse)}".strip(), figures=figures)


def _demands(subject: Subject) -> Section:
    if not subject.given.any():
        return Section("demands", "What it asks of people", NOTHING if subject.asked.any() else NOBODY)
    figures = (*effort_figures(subject), *lever_figures(subject))
    return Section("demands", "What it asks of people", figures=figures)


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
        words += f" Shown: {len(found)} of {count(constrained, 'such feature')}."
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
    rows = f"{count(len(subject.table), 'row')} are reported on"
    share = "" if subject.labels is None else f"; {percent(float(subject.labels.mean()))} are favourable"
    table = ("", schema_table(subject.schema))
    return Section("data", "The data", f"{rows}{share}. What each column means:", tables=(table,))
