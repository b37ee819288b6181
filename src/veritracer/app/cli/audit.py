"""``veritracer audit``: every live promise against a model, as a gate for deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veritracer import distributed, engines, persistence, streaming, tables
from veritracer import ledger as ledgers
from veritracer.app.cli.options import (
    AsJson,
    EngineName,
    Force,
    KeyFile,
    LedgerPlace,
    Quiet,
    check_ledger,
    check_output,
    read_key,
    saved_model,
)
from veritracer.app.cli.output import note, patience, percent, print_json, print_table, progress, say
from veritracer.files import writable
from veritracer.options import AUDIT_RECOURSE
from veritracer.times import parse_time

if TYPE_CHECKING:
    from veritracer.ledger import Audit, Verification
    from veritracer.ledger.auditing import Group

FAILED = 1
MAX_SHOWN = 8
"""Groups and broken promises that the terminal shows."""


def audit_(
    ledger: LedgerPlace,
    model: Annotated[str, typer.Option(help="The folder of the model that is to decide from now on.")],
    out: Annotated[Path | None, typer.Option(help="Write an HTML report.", show_default=False)] = None,
    allow_broken: Annotated[int, typer.Option(min=0, help="Pass with up to so many broken promises.")] = 0,
    allow_unchecked: Annotated[
        int, typer.Option(min=0, help="Pass with up to so many promises that cannot be checked.")
    ] = 0,
    recourse: Annotated[
        int, typer.Option(min=-1, help="New recourse for so many broken promises; -1 is all.")
    ] = AUDIT_RECOURSE,
    at: Annotated[
        str | None, typer.Option(help="Live at this date instead of now: 2027-01-31.", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option(help="First make sure that the ledger was not altered.")] = True,
    head: Annotated[
        str | None,
        typer.Option(help="A head noted earlier: finds a cut-off or rewritten end too.", show_default=False),
    ] = None,
    record: Annotated[
        bool, typer.Option(help="Note the audit in the ledger, where it can be written.")
    ] = True,
    key_file: KeyFile = None,
    engine: EngineName = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Judge promises on so many cores.", show_default=False)
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Hold every live promise against a model; exit with 1 if one is broken, or the ledger was altered.

    Also if one cannot be checked: for a model with another encoding the ledger may not say all that was
    promised.
    """
    when = None if at is None else parse_time(at)
    key = None if key_file is None else read_key(key_file)
    persistence.verified(model)
    check_ledger(ledger)
    check_output(out, [ledger], force=force)
    loaded = saved_model(model)
    noted = None if head is None else ledgers.head_of(head)
    notes, judging = streaming.Notes(), None
    if workers is not None or engine == "ray":
        judging = distributed.judging(model, engines.make_engine(engine, workers))
    with ledgers.Ledger(ledger, create=False, key=key) as opened, opened.snapshot() as state:
        with patience("verifying", quiet=quiet):
            checked = state.verify(noted) if verify or head is not None else None
        if checked is not None and not checked.ok:
            _refuse(checked, as_json=as_json)
        with progress("auditing", quiet=quiet) as watch, notes.taken():
            found = ledgers.audit(
                state,
                loaded,
                at=when,
                recourse=None if recourse < 0 else recourse,
                watch=watch,
                judging=judging,
            )
    place = tables.without_password(ledger)
    empty = [] if found.live else [f"no live promise in {place}: nothing could be broken"]
    note([*notes.sentences(), *empty], quiet=quiet)
    passed = found.passes(allow_broken=allow_broken, allow_unchecked=allow_unchecked)
    if out is not None:
        _write(out, found, checked, model)
    noted_as = _record(ledger, found, passed=passed) if record else None
    if as_json:
        told = {"passed": passed, "verified": checked is not None, "recorded": noted_as}
        print_json({**told, **found.to_plain()})
    elif not quiet:
        print_summary(found, checked, passed=passed, out=out)
        if record:
            say(
                f"The head, with this audit: {noted_as}"
                if noted_as
                else "The ledger is read-only: not noted."
            )
    if not passed:
        raise typer.Exit(FAILED)


def _refuse(checked: Verification, *, as_json: bool) -> None:
    """Exit with the findings: what an altered ledger says of promises is worth nothing."""
    findings = [f"entry {sequence:,}: {what}" for sequence, what in checked.findings]
    if as_json:
        print_json({"passed": False, "verified": False, "findings": findings})
    else:
        say("The ledger was altered, so it was not audited:", *findings)
    raise typer.Exit(FAILED)


def _record(ledger: str, found: Audit, *, passed: bool) -> str | None:
    """The new head of the ledger, which says now that it was audited; None where it can only be read."""
    with ledgers.Ledger(ledger, create=False) as opened:
        return None if opened.read_only else opened.record_audit(found, passed=passed)


def _write(out: Path, found: Audit, checked: Verification | None, model: str) -> None:
    from veritracer.app.report import write_audit_page

    notes = [] if checked is None else [f"The ledger of {checked.entries:,} entries verifies."]
    with writable(out):
        write_audit_page(out, found, notes=notes, model=model)


def print_summary(found: Audit, checked: Verification | None, *, passed: bool, out: Path | None) -> None:
    """Print the verdicts, what stands in the way, and where the report is."""
    names = ledgers.VERDICTS
    shares = [None if found.live == 0 else found.counts[name] / found.live for name in names]
    counted = [*zip(names, map(percent, shares), strict=True), ("expired", "")]
    lines = [
        [name, f"{found.counts[name]:,}", share, ledgers.MEANING[name] if found.counts[name] else ""]
        for name, share in counted
    ]
    print_table(f"{found.live:,} live promises", ("verdict", "promises", "share", "meaning"), lines)
    header = (
        "issued by",
        "kappa",
        "promises",
        "by proof",
        "broken",
        "largest move",
        "why no proof is possible",
    )
    rows = [_group_line(group) for group in found.groups[:MAX_SHOWN]]
    more = f", {len(found.groups) - MAX_SHOWN:,} more in --json" if len(found.groups) > MAX_SHOWN else ""
    if rows:
        print_table(f"By issuing model and kappa{more}", header, rows)
        say("Largest move: how far the most changed layer is from the issuing model; proofs cover 1.")
    if found.counts[ledgers.Verdict.BROKEN]:
        _print_broken(found)
    if found.counts[ledgers.Verdict.NOT_CHECKABLE]:
        _print_unchecked(found)
    if checked is not None:
        say(f"The ledger verifies: {checked.entries:,} entries.")
    say("PASSED" if passed else f"FAILED: {_in_the_way(found)}.")
    if out is not None:
        say(f"The report: {out}")


def _in_the_way(found: Audit) -> str:
    """What an audit failed for."""
    verdict = ledgers.Verdict
    broken, unknown = found.counts[verdict.BROKEN], found.counts[verdict.NOT_CHECKABLE]
    parts = [f"{broken:,} promises are broken"] if broken else []
    parts += [f"{unknown:,} cannot be checked (--allow-unchecked)"] if unknown else []
    return ", ".join(parts)


def _group_line(group: Group) -> list[str]:
    far = "–" if group.farthest is None else f"{_layer(group)}: {group.farthest:.3g}"
    verdict = ledgers.Verdict
    total = sum(group.counts.values())
    proved, broken = group.counts[verdict.PROVED], group.counts[verdict.BROKEN]
    numbers = [f"{total:,}", f"{proved:,}", f"{broken:,}"]
    return [group.model[:12], f"{group.kappa:.4g}", *numbers, far, group.incompatibility or "–"]


def _layer(group: Group) -> str:
    """The tensor that moved farthest: W1, b1, W2, ..."""
    assert group.distances is not None
    index = group.distances.index(max(group.distances))
    return f"{'W' if index % 2 == 0 else 'b'}{index // 2 + 1}"


def _print_broken(found: Audit) -> None:
    told = {one.sequence: one.sentence for one in found.recourse}
    rows: list[Any] = [
        [str(b["sequence"]), str(b["id"]), f"{b['logit']:.3g}", told.get(b["sequence"], "–")]
        for b in found.broken.head(MAX_SHOWN).to_dict("records")
    ]
    more = f", {len(found.broken) - MAX_SHOWN:,} more in --json" if len(found.broken) > MAX_SHOWN else ""
    header = ("number", "whose", "logit", "new recourse")
    print_table(f"Broken promises, the worst first{more}", header, rows)


def _print_unchecked(found: Audit) -> None:
    rows: list[Any] = [
        [str(one["sequence"]), str(one["id"]), str(one["reason"])]
        for one in found.unchecked.head(MAX_SHOWN).to_dict("records")
    ]
    more = (
        f", {len(found.unchecked) - MAX_SHOWN:,} more in --json" if len(found.unchecked) > MAX_SHOWN else ""
    )
    print_table(f"Promises that cannot be checked{more}", ("number", "whose", "why"), rows)
