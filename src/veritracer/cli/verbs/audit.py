"""``veritracer audit``: every live promise against a model, as a gate for deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from veritracer.cli.options import AsJson, KeyFile, LedgerPlace, Quiet, read_key
from veritracer.cli.printing import patience, percent, print_json, print_table, progress, say
from veritracer.ledger import Ledger, Verification
from veritracer.ledger.auditing import RECOURSE, Audit, Group, audit
from veritracer.ledger.times import read_moment
from veritracer.ledger.verdicts import VERDICTS
from veritracer.saved import load
from veritracer.tablefiles.sinks import writable

FAILED = 1
FEW = 8
"""Groups and broken promises that the terminal shows."""


def audit_(
    ledger: LedgerPlace,
    model: Annotated[str, typer.Option(help="The folder of the model that is to decide from now on.")],
    out: Annotated[Path | None, typer.Option(help="Write an HTML report.", show_default=False)] = None,
    allow_broken: Annotated[int, typer.Option(min=0, help="Pass with up to so many broken promises.")] = 0,
    recourse: Annotated[
        int, typer.Option(min=-1, help="New recourse for so many broken promises; -1 is all.")
    ] = RECOURSE,
    at: Annotated[
        str | None, typer.Option(help="Live at this date instead of now: 2027-01-31.", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option(help="First make sure that the ledger was not altered.")] = True,
    head: Annotated[
        str | None,
        typer.Option(help="A head noted earlier: finds a cut-off or rewritten end too.", show_default=False),
    ] = None,
    key_file: KeyFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Hold every live promise against a model; exit with 1 if one is broken, or the ledger was altered."""
    when = None if at is None else read_moment(at)
    loaded = load(model)
    key = None if key_file is None else read_key(key_file)
    with Ledger(ledger, create=False, key=key) as book:
        with patience("verifying", quiet=quiet):
            checked = book.verify(head) if verify or head is not None else None
        if checked is not None and not checked.ok:
            _refuse(checked, as_json=as_json)
        with progress("auditing", quiet=quiet) as watch:
            found = audit(book, loaded, at=when, recourse=None if recourse < 0 else recourse, watch=watch)
    passed = found.counts["broken"] <= allow_broken
    if out is not None:
        _write(out, found, checked)
    if as_json:
        print_json({"passed": passed, "verified": checked is not None, **found.to_plain()})
    elif not quiet:
        _tell(found, checked, passed=passed, out=out)
    if not passed:
        raise typer.Exit(FAILED)


def _refuse(checked: Verification, *, as_json: bool) -> None:
    """Nothing; exits with the findings: what an altered ledger says of promises is worth nothing."""
    findings = [f"entry {sequence:,}: {what}" for sequence, what in checked.findings]
    if as_json:
        print_json({"passed": False, "verified": False, "findings": findings})
    else:
        say("The ledger was altered, so it was not audited:", *findings)
    raise typer.Exit(FAILED)


def _write(out: Path, found: Audit, checked: Verification | None) -> None:
    from veritracer.report.audit_page import write_audit

    notes = [] if checked is None else [f"The ledger of {checked.entries:,} entries verifies."]
    with writable(out):
        write_audit(out, found, notes=notes)


def _tell(found: Audit, checked: Verification | None, *, passed: bool, out: Path | None) -> None:
    shares = [None if found.live == 0 else found.counts[name] / found.live for name in VERDICTS]
    lines = [[n, f"{found.counts[n]:,}", percent(s)] for n, s in zip(VERDICTS, shares, strict=True)]
    lines.append(["expired", f"{found.counts['expired']:,}", ""])
    print_table(f"{found.live:,} live promises", ("verdict", "promises", "share"), lines)
    header = ("issued by", "kappa", "promises", "proof", "broken", "farthest layer, in radii", "obstacle")
    rows = [_group_line(group) for group in found.groups[:FEW]]
    more = f", {len(found.groups) - FEW:,} more in --json" if len(found.groups) > FEW else ""
    if rows:
        print_table(f"By issuing model and kappa{more}", header, rows)
    if not found.ok:
        _tell_broken(found)
    if checked is not None:
        say(f"The ledger verifies: {checked.entries:,} entries.")
    say("PASSED" if passed else f"FAILED: {found.counts['broken']:,} promises are broken.")
    if out is not None:
        say(f"The report: {out}")


def _group_line(group: Group) -> list[str]:
    far = "–" if group.farthest is None else f"{_layer(group)}: {group.farthest:.3g}"
    total, proved, broken = sum(group.counts.values()), group.counts["kept by proof"], group.counts["broken"]
    numbers = [f"{total:,}", f"{proved:,}", f"{broken:,}"]
    return [group.model[:12], f"{group.kappa:.4g}", *numbers, far, group.obstacle or "–"]


def _layer(group: Group) -> str:
    """The tensor that moved farthest: W1, b1, W2, ..."""
    assert group.distances is not None
    index = group.distances.index(max(group.distances))
    return f"{'W' if index % 2 == 0 else 'b'}{index // 2 + 1}"


def _tell_broken(found: Audit) -> None:
    told = {one.sequence: one.sentence for one in found.recourse}
    rows: list[Any] = [
        [str(b["sequence"]), str(b["id"]), f"{b['logit']:.3g}", told.get(b["sequence"], "–")]
        for b in found.broken.head(FEW).to_dict("records")
    ]
    more = f", {len(found.broken) - FEW:,} more in --json" if len(found.broken) > FEW else ""
    header = ("number", "whose", "logit", "the closest new recourse")
    print_table(f"Broken promises, the worst first{more}", header, rows)
