"""The report of an audit: what became of every promise, how far the model moved, and who must be told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from veritracer.files import write_whole
from veritracer.ledger.auditing import Audit, Group
from veritracer.ledger.times import in_words
from veritracer.ledger.verdicts import EXPIRED, VERDICTS, Verdict
from veritracer.report.charts import Bar, Figure, Row, Table, bar_picture, count, percent, short
from veritracer.report.html import Section, page_template
from veritracer.version import __version__

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
        headline=" ".join([headline(audit), *notes]),
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


def headline(audit: Audit) -> str:
    """The audit in one sentence."""
    if audit.live == 0:
        return "There is no live promise to be kept."
    people = count(audit.live, "live promise")
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
    caption = f"{headline(audit)} Bars are shares of all {count(total, 'promise')} that were looked at."
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
        short(group.kappa),
        f"{sum(group.counts.values()):,}",
        f"{group.counts[Verdict.PROVED]:,}",
        f"{group.counts[Verdict.BROKEN]:,}",
        *moved,
        group.obstacle or "–",
    ]


def _times(share: float) -> str:
    return "∞" if share == float("inf") else short(share)


def _broken(audit: Audit) -> Section:
    title = "Broken promises"
    if audit.counts[Verdict.BROKEN] == 0:
        return Section("broken", title, "None.")
    told = {one.sequence: one for one in audit.recourse}
    lines = []
    for line in audit.broken.head(LISTED_ROWS).to_dict("records"):
        new = told.get(line["sequence"])
        said = "not looked for" if new is None else f"From the {new.start}: {new.sentence}"
        number, kappa = f"{line['sequence']}", short(line["kappa"])
        until = "no end" if line["expires"] == "never" else line["expires"][:10]
        lines.append([number, str(line["id"]), said, kappa, short(line["logit"]), until])
    header = ["number", "whose", "the closest new recourse", "κ", "logit", "promised until"]
    words = "The worst first: the logit says how far the model is from accepting what was promised."
    if len(audit.broken) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.broken):,}; the JSON has all."
    return Section("broken", title, words, tables=(("", Table.of(header, lines, words=3)),))


def _unchecked(audit: Audit) -> tuple[Section, ...]:
    """The promises that can not be checked, where there are any."""
    if audit.counts[Verdict.NOT_CHECKABLE] == 0:
        return ()
    lines = [
        [f"{line['sequence']}", str(line["id"]), str(line["reason"]), short(line["kappa"])]
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
        ("promises live at", in_words(audit.at)),
        *((("model, as it was named", model),) if model else ()),
        ("model, by its digest", audit.model_digest),
        ("encoding", audit.encoding_digest),
        ("threshold", f"{audit.threshold:g}"),
        ("veritracer", __version__),
    )
    return Section("origins", "Versions and digests", facts=facts)
