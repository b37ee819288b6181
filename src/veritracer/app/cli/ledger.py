"""``promises``, ``verify`` and ``audit``: read a ledger, check it, and audit a model against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer import engines, model_folder, tables
from veritracer.app.cli.options import AsJson, Day, EngineName, Force, KeyFile, LedgerPlace, Quiet
from veritracer.app.cli.output import (
    note,
    percent,
    print_json,
    print_table,
    progress,
    say,
    show_help,
    spinner,
)
from veritracer.app.cli.places import check_ledger, check_new, load_model, read_key
from veritracer.errors import LedgerError, message
from veritracer.files import writable
from veritracer.options import AUDIT_RECOURSE
from veritracer.times import parse_time

if TYPE_CHECKING:
    from veritracer.ledger import Audit, Finding, Ledger, Verification
    from veritracer.ledger.auditing import Group

app = typer.Typer(help="List, show, release and erase promises, and show the history of a ledger.")

FAILED = 1
MAX_PROMISES = 50
"""Promises that are listed by default."""

MAX_FINDINGS = 20
"""Findings of each kind that are printed as text."""

MAX_SHOWN = 8
"""Groups and broken promises that are printed as text."""

Head = Annotated[
    str | None,
    typer.Option(metavar="HEX", help="Head of the ledger noted earlier: detects a cut-off or rewritten end."),
]

app.callback(invoke_without_command=True)(show_help)


@app.command("list", epilog="Example: veritracer promises list --ledger promises.db --id 0042")
def list_(
    ledger: LedgerPlace,
    id_: Annotated[str | None, typer.Option("--id", help="Only the promises of this person.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include released and expired promises.")] = False,
    at: Day = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Show at most this many.")] = MAX_PROMISES,
    as_json: AsJson = False,
) -> None:
    """List the live promises."""
    with _opened(ledger) as opened:
        when = None if at is None else parse_time(at)
        found = opened.listing(when, identity=id_)
    chosen = found if every else found[found["status"] == "live"]
    if as_json:
        print_json(chosen.astype(object).where(chosen.notna(), None).to_dict("records"))
        return
    rows = [
        [f"{number}", str(whose or "–"), status, issued[:10], expires[:10], f"{kappa:.4g}"]
        for number, whose, status, issued, expires, kappa, _ in chosen.head(most).itertuples(index=False)
    ]
    counts = ", ".join(f"{count:,} {word}" for word, count in found["status"].value_counts().items())
    print_table(
        f"{len(chosen):,} of {len(found):,} promises" + (f" ({counts})" if counts else ""),
        ("number", "whose", "status", "issued", "expires", "kappa"),
        rows,
    )
    if len(chosen) > most:
        say(f"{len(chosen) - most:,} more: ask with --most, --id or --json.")


@app.command(epilog="Example: veritracer promises show 17 --ledger promises.db")
def show(
    number: Annotated[int, typer.Argument(min=1, help="The number of the promise.")],
    ledger: LedgerPlace,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one promise: person, values, last day and proof."""
    from veritracer.formatting import format_value  # here: it brings pandas

    with _opened(ledger, key_file) as opened:
        found = opened.shown(number)
        listed = opened.listing()
    status = str(listed.loc[listed["number"] == number, "status"].iloc[0])
    if as_json:
        print_json({"status": status, **found})
        return
    facts = {"number": number, "whose": found["id"], "status": status}
    facts |= {name: found[name] for name in ("issued", "expires", "kappa", "radius", "method")}
    print_table(f"Promise {number}", ("", ""), [[name, str(value)] for name, value in facts.items()])
    own: dict[str, Any] = found["original"] or {}
    rows = [
        [name, format_value(own[name]) if name in own else "not kept", format_value(value)]
        for name, value in found["values"].items()
    ]
    print_table("The application", ("", "as it was", "as it is promised"), rows)
    if found["sentence"]:
        say(found["sentence"])


@app.command(epilog='Example: veritracer promises release 17 18 --ledger promises.db --reason "withdrawn"')
def release(
    numbers: Annotated[
        list[int], typer.Argument(metavar="NUMBER...", min=1, help="Numbers of the promises.")
    ],
    ledger: LedgerPlace,
    reason: Annotated[str, typer.Option(help="Reason; it stays in the ledger and should name no person.")],
    as_json: AsJson = False,
) -> None:
    """Release promises, which then need not be kept."""
    with _opened(ledger) as opened:
        head = opened.release(numbers, reason)
    if as_json:
        print_json({"released": sorted(set(numbers)), "head": head})
        return
    count = len(set(numbers))
    say(f"{count:,} released." if count > 1 else f"Promise {numbers[0]} is released.")
    say(f"The head, to be noted elsewhere: {head}")


@app.command(epilog="Example: veritracer promises erase 0042 0043 --ledger promises.db --yes")
def erase(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the people.")],
    ledger: LedgerPlace,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: it cannot be undone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase all records of people, or none if one is unknown."""
    with _opened(ledger) as opened:
        count = sum(len(opened.sequences_of(one)) for one in dict.fromkeys(ids))
        if count and not yes:
            whose = repr(ids[0]) if len(ids) == 1 else f"{len(ids):,} people"
            remedy = "add --yes: it cannot be undone"
            raise LedgerError(message(f"a yes to erase {count:,} records of {whose}", "none", remedy))
        gone, head = opened.erase(*ids), opened.head
    if as_json:
        print_json({"erased": gone, "head": head})
        return
    say(f"{len(gone):,} records were erased: {', '.join(map(str, gone))}.")
    say(f"The head, to be noted elsewhere: {head}")


@app.command(epilog="Example: veritracer promises history --ledger promises.db")
def history(ledger: LedgerPlace, as_json: AsJson = False) -> None:
    """Show all entries but promises.

    These are models, releases, erasures, audits, updates and deployments.
    """
    with _opened(ledger) as opened:
        found = opened.history()
    if as_json:
        print_json(found)
        return
    rows = [[str(one["number"]), one["kind"], one["time"][:19], _said(one)] for one in found]
    print_table("What happened to the ledger", ("entry", "kind", "when (UTC)", "what"), rows)


def _said(one: dict[str, Any]) -> str:
    """Summarise an entry in a few words."""
    kind = one["kind"]
    if kind == "audit":
        kept = sum(one[name] for name in ("proved", "checked", "superseded"))
        checked = kept + one["broken"] + one["not_checkable"]
        ended = "passed" if one["passed"] else "failed" if checked else "nothing to check"
        unknown = f", {one['not_checkable']:,} not checkable" if one["not_checkable"] else ""
        return f"of model {one['model'][:12]}: {ended}; {kept:,} kept, {one['broken']:,} broken{unknown}"
    if kind == "update":
        return (
            f"from {one['before'][:12]} to {one['after'][:12]}: {one['broken']:,} of {one['live']:,} broken"
        )
    if kind == "deployment":
        why = f", although it breaks {one['broken']:,}: {one['reason']}" if one["reason"] else ""
        return f"of model {one['model'][:12]} by {one['by']}; {one['live']:,} live promises{why}"
    if kind == "model":
        return str(one["digest"])[:12]
    if kind == "clock":
        return f"corrected from {one['newest'][:19]}: {one['reason']}"
    if kind == "ledger":
        return f"{one['ledger']}, layout {one['version']}"
    numbers = ", ".join(map(str, one["sequence"][:8])) + (", …" if len(one["sequence"]) > 8 else "")
    return f"{numbers}: {one['reason']}" if kind == "release" else numbers


def _opened(place: str, key_file: Path | None = None) -> Ledger:
    """Open a ledger, which must exist."""
    key = None if key_file is None else read_key(key_file)
    check_ledger(place)
    return vt.ledger.Ledger(place, create=False, key=key)


def verify(
    ledger: LedgerPlace,
    head: Head = None,
    correct_clock: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Record why the newest entry, which lies in the future, has a wrong time.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check that a ledger was not altered.

    Exits with 1 if it was. Every changed byte is detected; with a head that was noted elsewhere, also a
    truncated or rewritten ledger. With --correct-clock an unaltered ledger can be written to again after an
    entry of a wrong clock.
    """
    check_ledger(ledger)
    with spinner("verifying", quiet=quiet), vt.ledger.Ledger(ledger, create=False) as opened:
        found = opened.verify(head)
        if correct_clock is not None and found.ok:
            opened.correct_clock(correct_clock)
            found = opened.verify(head)
    if as_json:
        findings, notes = ([one._asdict() for one in some] for some in (found.findings, found.notes))
        print_json({"ok": found.ok, **asdict(found), "findings": findings, "notes": notes})
    elif not quiet:
        _print_verification(found, noted=head is not None)
    if not found.ok:
        raise typer.Exit(FAILED)


def _print_verification(found: Verification, *, noted: bool) -> None:
    """Print the counts and the findings."""
    erased = f", {found.erased:,} of them erased" if found.erased else ""
    say(f"{found.entries:,} entries, {found.promises:,} promises{erased}.")
    say(*_lines(found.findings, found.count), *_lines(found.notes, found.noted, "Noted, and no fault: "))
    if not found.ok:
        say("The ledger is NOT what was written.")
        return
    end = "; without --head a missing end does not show"
    if noted:
        newer = f"; {found.newer:,} entries are newer, and not covered by it" if found.newer else ""
        end = f", and the head is in it{newer}"
    say(f"The ledger is what was written{end}.", f"The head: {found.head}")


def _lines(some: Sequence[Finding], count: int, before: str = "") -> list[str]:
    """Return a line for each of the first findings, and the number of the others."""
    where = [f"entry {finding.sequence:,}: " if finding.sequence else "" for finding in some[:MAX_FINDINGS]]
    lines = [before + place + finding.what for place, finding in zip(where, some, strict=False)]
    more = count - len(lines)
    return lines + ([f"{before}and {more:,} more"] if more else [])


def audit_(
    ledger: LedgerPlace,
    model: Annotated[str, typer.Option(help="Folder of the model to audit.")],
    out: Annotated[Path | None, typer.Option(help="New HTML file for the audit page.")] = None,
    allow_broken: Annotated[
        int, typer.Option(min=0, help="Pass with at most this many broken promises.")
    ] = 0,
    allow_unchecked: Annotated[
        int, typer.Option(min=0, help="Pass with at most this many promises that cannot be checked.")
    ] = 0,
    recourse: Annotated[
        int, typer.Option(min=-1, help="Find new recourse for this many broken promises; -1 is all.")
    ] = AUDIT_RECOURSE,
    at: Day = None,
    verify: Annotated[bool, typer.Option(help="First check that the ledger was not altered.")] = True,
    head: Head = None,
    record: Annotated[
        bool, typer.Option(help="Record the audit in the ledger, unless it is read-only.")
    ] = True,
    key_file: KeyFile = None,
    engine: EngineName = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check a model against all live promises.

    Exits with 1 if a promise is broken, or the ledger was altered. It also exits with 1 if a promise cannot
    be checked, because the model may need a part of the application that the ledger does not have, and if
    there is no live promise, because then nothing was checked.
    """
    when = None if at is None else parse_time(at)
    key = None if key_file is None else read_key(key_file)
    model_folder.verified(model)
    check_ledger(ledger)
    check_new(out, force=force)
    loaded = load_model(model)
    noted = None if head is None else vt.ledger.head_of(head)
    many = workers is not None or engine == "ray"
    with vt.ledger.Ledger(ledger, create=False, key=key) as opened, opened.snapshot() as state:
        with spinner("verifying", quiet=quiet):
            checked = state.verify(noted) if verify or head is not None else None
        if checked is not None and not checked.ok:
            _refuse(checked, as_json=as_json)
        with progress("auditing", quiet=quiet) as watch, tables.collect_warnings() as notes:
            found = vt.ledger.audit(
                state,
                loaded,
                at=when,
                recourse=None if recourse < 0 else recourse,
                watch=watch,
                engine=engines.make_engine(engine, workers) if many else None,
            )
    note(notes.values(), quiet=quiet)
    passed = found.passes(allow_broken=allow_broken, allow_unchecked=allow_unchecked)
    if out is not None:
        _write_page(out, found, checked, model)
    noted_as = _record_audit(ledger, found, passed=passed) if record else None
    if as_json:
        told = {"passed": passed, "verified": checked is not None, "recorded": noted_as}
        print_json({**told, **found.to_plain()})
    elif not quiet:
        print_audit(found, checked, passed=passed, out=out)
        if record and noted_as is None:
            say("The audit is not recorded: the ledger is read-only.")
        elif record:
            say(f"The head, with this audit: {noted_as}")
    if not passed:
        raise typer.Exit(FAILED)


def _refuse(checked: Verification, *, as_json: bool) -> None:
    """Exit with the findings: the promises of an altered ledger prove nothing."""
    findings = [f"entry {sequence:,}: {what}" for sequence, what in checked.findings]
    if as_json:
        print_json({"passed": False, "verified": False, "findings": findings})
    else:
        say("The ledger was altered, so it was not audited:", *findings)
    raise typer.Exit(FAILED)


def _record_audit(ledger: str, found: Audit, *, passed: bool) -> str | None:
    """Record the audit in the ledger, and return its new head; None if it is read-only."""
    with vt.ledger.Ledger(ledger, create=False) as opened:
        return None if opened.read_only else opened.record_audit(found, passed=passed)


def _write_page(out: Path, found: Audit, checked: Verification | None, model: str) -> None:
    from veritracer.app.report import write_audit_page

    notes = [] if checked is None else [f"The ledger of {checked.entries:,} entries verifies."]
    with writable(out):
        write_audit_page(out, found, notes=notes, model=model)


def print_audit(found: Audit, checked: Verification | None, *, passed: bool, out: Path | None) -> None:
    """Print the verdicts, what stands in the way, and where the report is."""
    verdicts = vt.ledger.VERDICTS
    shares = [None if found.live == 0 else found.counts[name] / found.live for name in verdicts]
    counted = [*zip(verdicts, map(percent, shares), strict=True), ("expired", "")]
    lines = [
        [name, f"{found.counts[name]:,}", share, vt.ledger.MEANING[name] if found.counts[name] else ""]
        for name, share in counted
    ]
    print_table(f"{found.live:,} live promises", ("verdict", "promises", "share", "meaning"), lines)
    if found.groups:
        counts = ("promises", "by proof", "broken")
        header = ("issued by", "kappa", *counts, "largest move", "why no proof is possible")
        rows = [_group_cells(group) for group in found.groups]
        print_table("By issuing model and kappa", header, rows, most=MAX_SHOWN)
        say("Largest move: how far the most changed layer is from the issuing model; proofs cover 1.")
    if len(found.broken):
        told = {one.sequence: one.sentence for one in found.recourse}
        columns = zip(*(found.broken[name] for name in ("sequence", "id", "logit")), strict=True)
        rows = [[str(n), str(whose), f"{logit:.3g}", told.get(n, "–")] for n, whose, logit in columns]
        names = ("number", "whose", "logit", "new recourse")
        print_table("Broken promises, the worst first", names, rows, most=MAX_SHOWN)
    if len(found.unchecked):
        cells = found.unchecked[["sequence", "id", "reason"]].astype(str).to_numpy().tolist()
        print_table("Promises that cannot be checked", ("number", "whose", "why"), cells, most=MAX_SHOWN)
    if checked is not None:
        say(f"The ledger verifies: {checked.entries:,} entries.")
    if limitation := found.limitation():
        say(limitation)
    if found.live == 0:
        say("NOTHING TO CHECK: no promise in this ledger is live at that time.")
    else:
        say("PASSED" if passed else f"FAILED: {_in_the_way(found)}.")
    if out is not None:
        say(f"The report: {out}")


def _in_the_way(found: Audit) -> str:
    """Return why an audit failed."""
    verdict = vt.ledger.Verdict
    broken, unknown = found.counts[verdict.BROKEN], found.counts[verdict.NOT_CHECKABLE]
    parts = [f"{broken:,} promises are broken"] if broken else []
    parts += [f"{unknown:,} cannot be checked (--allow-unchecked)"] if unknown else []
    return ", ".join(parts)


def _group_cells(group: Group) -> list[str]:
    far = "–" if group.farthest is None else f"{_layer(group)}: {group.farthest:.3g}"
    verdict = vt.ledger.Verdict
    total = sum(group.counts.values())
    proved, broken = group.counts[verdict.PROVED], group.counts[verdict.BROKEN]
    numbers = [f"{total:,}", f"{proved:,}", f"{broken:,}"]
    return [group.model[:12], f"{group.kappa:.4g}", *numbers, far, group.incompatibility or "–"]


def _layer(group: Group) -> str:
    """Return the tensor that moved farthest: W1, b1, W2, ..."""
    assert group.distances is not None
    index = group.distances.index(max(group.distances))
    return f"{'W' if index % 2 == 0 else 'b'}{index // 2 + 1}"
