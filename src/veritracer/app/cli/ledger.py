"""``promises``, ``verify`` and ``audit``: read a ledger, check it, and audit a model against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer import engines, model_folder, tables
from veritracer.app.cli.checks import check_ledger, check_output
from veritracer.app.cli.options import (
    AsJson,
    EngineName,
    Force,
    KeyFile,
    LedgerPlace,
    Quiet,
    read_key,
    saved_model,
)
from veritracer.app.cli.output import note, percent, print_json, print_table, progress, say, spinner
from veritracer.errors import LedgerError, message
from veritracer.files import writable
from veritracer.options import AUDIT_RECOURSE
from veritracer.times import parse_time

if TYPE_CHECKING:
    from veritracer.ledger import Audit, Finding, Ledger, Verification
    from veritracer.ledger.auditing import Group

app = typer.Typer(help="List, show, release and erase promises, and what happened to a ledger.")

MAX_PROMISES = 50
"""Promises that the terminal lists unless more are asked for."""

FAILED = 1
MAX_FINDINGS = 20
"""Findings that the terminal shows of each kind."""


@app.callback(invoke_without_command=True)
def promises_group(context: typer.Context) -> None:
    """List, show, release and erase promises, and show the history of a ledger."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Example: veritracer promises list --ledger promises.db --id 0042")
def list_(
    ledger: LedgerPlace,
    id_: Annotated[
        str | None, typer.Option("--id", help="Promises of one person.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also released and expired promises.")] = False,
    at: Annotated[
        str | None, typer.Option(help="On this day instead of now: 2027-01-31.", show_default=False)
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Show at most this many.")] = MAX_PROMISES,
    as_json: AsJson = False,
) -> None:
    """List the live promises: number, id, first and last day."""
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
    """Show one promise: id, values, last day, and the proof."""
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
    """Release promises: they need not be kept any more."""
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
    """Erase all records of these people, or none if one of them is unknown."""
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
    """Show the other entries: models, releases, erasures, audits, updates and deployments."""
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
        ended = "passed" if one["passed"] else "failed"
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
    head: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="A head noted earlier, as printed by issue.", show_default=False),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check every entry of a ledger; exit with 1 if anything was changed.

    Every changed byte is found. With a head that was noted elsewhere, a truncated or rewritten ledger is
    found too.
    """
    check_ledger(ledger)
    with spinner("verifying", quiet=quiet), vt.ledger.Ledger(ledger, create=False) as opened:
        found = opened.verify(head)
    if as_json:
        findings, notes = ([one._asdict() for one in some] for some in (found.findings, found.notes))
        names = ("entries", "promises", "erased", "head", "count", "noted", "newer")
        numbers = {name: getattr(found, name) for name in names}
        print_json({"ok": found.ok, **numbers, "findings": findings, "notes": notes})
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


MAX_SHOWN = 8
"""Groups and broken promises that the terminal shows."""


def audit_(
    ledger: LedgerPlace,
    model: Annotated[str, typer.Option(help="Folder of the model to audit.")],
    out: Annotated[Path | None, typer.Option(help="Write an HTML report.", show_default=False)] = None,
    allow_broken: Annotated[
        int, typer.Option(min=0, help="Pass with at most this many broken promises.")
    ] = 0,
    allow_unchecked: Annotated[
        int, typer.Option(min=0, help="Pass with at most this many promises that cannot be checked.")
    ] = 0,
    recourse: Annotated[
        int, typer.Option(min=-1, help="Find new recourse for this many broken promises; -1 is all.")
    ] = AUDIT_RECOURSE,
    at: Annotated[
        str | None, typer.Option(help="Live at this date instead of now: 2027-01-31.", show_default=False)
    ] = None,
    verify: Annotated[bool, typer.Option(help="First check that the ledger was not altered.")] = True,
    head: Annotated[
        str | None,
        typer.Option(help="A head noted earlier: finds a cut-off or rewritten end too.", show_default=False),
    ] = None,
    record: Annotated[
        bool, typer.Option(help="Record the audit in the ledger, unless it is read-only.")
    ] = True,
    key_file: KeyFile = None,
    engine: EngineName = "local",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes.", show_default=False)
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Audit a model: check every live promise; exit with 1 if one is broken, or the ledger was altered.

    It also exits with 1 if a promise cannot be checked: for a model with another encoding the ledger may
    lack a part of it.
    """
    when = None if at is None else parse_time(at)
    key = None if key_file is None else read_key(key_file)
    model_folder.verified(model)
    check_ledger(ledger)
    check_output(out, [ledger], force=force)
    loaded = saved_model(model)
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
    place = tables.without_password(ledger)
    empty = [] if found.live else [f"no live promise in {place}: nothing could be broken"]
    note([*notes.values(), *empty], quiet=quiet)
    passed = found.passes(allow_broken=allow_broken, allow_unchecked=allow_unchecked)
    if out is not None:
        _write_page(out, found, checked, model)
    noted_as = _record_audit(ledger, found, passed=passed) if record else None
    if as_json:
        told = {"passed": passed, "verified": checked is not None, "recorded": noted_as}
        print_json({**told, **found.to_plain()})
    elif not quiet:
        print_audit(found, checked, passed=passed, out=out)
        if record:
            say(
                f"The head, with this audit: {noted_as}"
                if noted_as
                else "The ledger is read-only: not noted."
            )
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
    names = vt.ledger.VERDICTS
    shares = [None if found.live == 0 else found.counts[name] / found.live for name in names]
    counted = [*zip(names, map(percent, shares), strict=True), ("expired", "")]
    lines = [
        [name, f"{found.counts[name]:,}", share, vt.ledger.MEANING[name] if found.counts[name] else ""]
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
    if found.counts[vt.ledger.Verdict.BROKEN]:
        _print_broken(found)
    if found.counts[vt.ledger.Verdict.NOT_CHECKABLE]:
        _print_unchecked(found)
    if checked is not None:
        say(f"The ledger verifies: {checked.entries:,} entries.")
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


def _group_line(group: Group) -> list[str]:
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
