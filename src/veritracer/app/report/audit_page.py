"""The page of an audit: which promises a model keeps, and how far it is from the issuing models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from veritracer import __version__
from veritracer.app.report.figures import percent
from veritracer.app.report.page import Section, write_page
from veritracer.formatting import format_count, format_number
from veritracer.ledger.auditing import Audit, Group
from veritracer.ledger.verdicts import EXPIRED, MEANING, VERDICTS, Verdict
from veritracer.times import format_time

LISTED_ROWS = 200
"""Broken promises and groups of promises on the page; the JSON output has all."""


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
    counts = {name: f"{audit.counts[name]:,}" for name in (*VERDICTS, EXPIRED)}
    sections = [_verdicts(audit), _distances(audit), _broken(audit), *_unchecked(audit)]
    headline = " ".join([audit_headline(audit), *notes])
    page = [*sections, _origins(audit, model)]
    return write_page(path, title or "Audit of promises", counts, page, headline=headline)


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
    table = [
        {
            "verdict": name,
            "meaning": MEANING[name],
            "promises": f"{audit.counts[name]:,}",
            "share of live promises": (
                "–" if name == EXPIRED or audit.live == 0 else percent(audit.counts[name] / audit.live)
            ),
        }
        for name in (*VERDICTS, EXPIRED)
        if audit.counts[name] or name != EXPIRED
    ]
    return Section("promises", "Promises", tables={"": table})


def _distances(audit: Audit) -> Section:
    words = (
        "The distance of each weight matrix (W) and bias vector (b) from the issuing model, as a multiple of "
        "the certified distance. If all are at most 1, the promises are kept by proof."
    )
    layers = max((len(group.distances or ()) for group in audit.groups[:LISTED_ROWS]), default=0)
    table = [_group_line(group, layers) for group in audit.groups[:LISTED_ROWS]]
    if len(audit.groups) > LISTED_ROWS:
        words += f" Shown are {LISTED_ROWS} of {len(audit.groups):,} groups."
    tables = {"": table} if table else {}
    return Section("distances", "Distance from the issuing models", words, tables=tables)


def _group_line(group: Group, layers: int) -> dict[str, str]:
    moved = list(group.distances or ())
    names = [f"{'W' if k % 2 == 0 else 'b'}{k // 2 + 1}" for k in range(layers)]
    return {
        "issued by": f"{group.model[:12]} ({group.norm})",
        "κ": format_number(group.kappa),
        "promises": f"{sum(group.counts.values()):,}",
        "by proof": f"{group.counts[Verdict.PROVED]:,}",
        "broken": f"{group.counts[Verdict.BROKEN]:,}",
        **{name: _times(moved[k]) if k < len(moved) else "–" for k, name in enumerate(names)},
        "why no proof is possible": group.incompatibility or "–",
    }


def _times(share: float) -> str:
    return "∞" if share == float("inf") else format_number(share)


def _broken(audit: Audit) -> Section:
    title = "Broken promises"
    if audit.counts[Verdict.BROKEN] == 0:
        return Section("broken", title, "None.")
    told = {one.sequence: f"From the {one.start}: {one.sentence}" for one in audit.recourse}
    table = [
        {
            "number": f"{line['sequence']}",
            "id": str(line["id"]),
            "new recourse": told.get(line["sequence"], "not searched"),
            "κ": format_number(line["kappa"]),
            "logit": format_number(line["logit"]),
            "ends": "never" if line["expires"] == "never" else line["expires"][:16].replace("T", " "),
        }
        for line in audit.broken.head(LISTED_ROWS).to_dict("records")
    ]
    words = (
        "Lowest logit first: the lower it is, the further the model is from accepting the promised row. "
        "Times are in UTC."
    )
    return Section("broken", title, words + _more(len(audit.broken)), tables={"": table})


def _more(count: int) -> str:
    """State that not all promises are listed, where that is so."""
    return f" Shown are {LISTED_ROWS} of {count:,}; the JSON output has all." if count > LISTED_ROWS else ""


def _unchecked(audit: Audit) -> list[Section]:
    """List the promises that cannot be checked, if there are any."""
    table = [
        {
            "number": f"{line['sequence']}",
            "id": str(line["id"]),
            "reason": str(line["reason"]),
            "κ": format_number(line["kappa"]),
        }
        for line in audit.unchecked.head(LISTED_ROWS).to_dict("records")
    ]
    words = "The model accepts the known part of these promises; the ledger lacks the rest."
    words += _more(len(audit.unchecked))
    title = "Promises that cannot be checked"
    return [Section("unchecked", title, words, tables={"": table})] if table else []


def _origins(audit: Audit, model: str) -> Section:
    facts = {
        "ledger": audit.ledger or "none (promises in memory)",
        "checksum": audit.head or "–",
        "date of the audit": format_time(audit.at),
        **({"model": model} if model else {}),
        "model digest": audit.model_digest,
        "encoding digest": audit.encoding_digest,
        "threshold": f"{audit.threshold:g}",
        "veritracer": __version__,
    }
    return Section("origins", "Versions and digests", facts=facts)
