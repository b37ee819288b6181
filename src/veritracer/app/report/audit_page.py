"""The page of an audit: which promises a model keeps, and how far it is from the issuing models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from veritracer import __version__
from veritracer.app.report.figures import BLUE, GREY, ORANGE, Bar, Figure, Table, bar_chart, percent
from veritracer.app.report.page import Section, page_template
from veritracer.files import write_whole
from veritracer.formatting import format_count, format_number
from veritracer.ledger.auditing import Audit, Group
from veritracer.ledger.verdicts import EXPIRED, MEANING, VERDICTS, Verdict
from veritracer.times import format_time

LISTED_ROWS = 200
"""Broken promises and groups of promises on the page; the JSON output has all."""

COLOURS = {
    Verdict.PROVED: BLUE,
    Verdict.CHECKED: BLUE,
    Verdict.SUPERSEDED: GREY,
    Verdict.BROKEN: ORANGE,
    Verdict.NOT_CHECKABLE: ORANGE,
    EXPIRED: GREY,
}


def write_audit_page(
    path: str | os.PathLike[str],
    audit: Audit,
    *,
    title: str | None = None,
    notes: Sequence[str] = (),
    model: str = "",
) -> Path:
    """Write the page of an audit, whole or not at all, and return its path.

    ``notes`` are sentences for the headline, such as whether the ledger verifies; ``model`` is the name of
    the audited model, such as its folder.
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
    """Summarise the audit in one sentence."""
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
        Bar(name, f"{audit.counts[name]:,}", ((audit.counts[name] / total, COLOURS[name]),)) for name in known
    ]
    lines = [[name, MEANING[name], f"{audit.counts[name]:,}", _share(audit, name)] for name in known]
    table = Table.of(["verdict", "meaning", "promises", "share of live promises"], lines, words=2)
    caption = f"{audit_headline(audit)} Bars show shares of all {format_count(total, 'promise')}."
    picture = bar_chart("verdicts", rows)
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
    header = ["issued by", "κ", "promises", "by proof", "broken", *names, "why no proof is possible"]
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
        group.incompatibility or "–",
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
    words = "Lowest logit first: the lower it is, the further the model is from accepting the promised row."
    if len(audit.broken) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.broken):,}; the JSON output has all."
    return Section("broken", title, words, tables=(("", Table.of(header, lines, words=3)),))


def _unchecked(audit: Audit) -> tuple[Section, ...]:
    """List the promises that cannot be checked, if there are any."""
    if audit.counts[Verdict.NOT_CHECKABLE] == 0:
        return ()
    lines = [
        [f"{line['sequence']}", str(line["id"]), str(line["reason"]), format_number(line["kappa"])]
        for line in audit.unchecked.head(LISTED_ROWS).to_dict("records")
    ]
    words = "The model accepts the known part of these promises; the ledger lacks the rest."
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
