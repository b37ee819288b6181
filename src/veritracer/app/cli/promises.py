"""``veritracer promises`` and ``verify``: what a ledger holds, what can be done with it, was it changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer.app.cli.options import AsJson, KeyFile, LedgerPlace, Quiet, check_ledger, read_key
from veritracer.app.cli.output import patience, print_json, print_table, say
from veritracer.errors import LedgerError, message
from veritracer.times import parse_time

if TYPE_CHECKING:
    from pathlib import Path

    from veritracer.ledger import Finding, Ledger, Verification

app = typer.Typer(help="List, show, release and erase promises, and what happened to a ledger.")

MAX_SHOWN = 50
"""Promises that the terminal lists unless more are asked for."""

CHANGED = 1
MAX_FINDINGS = 20
"""Findings that the terminal shows of each kind."""


@app.callback(invoke_without_command=True)
def promises_group(context: typer.Context) -> None:
    """List, show, release and erase promises, and what happened to a ledger."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Example: veritracer promises list --ledger promises.db --id 0042")
def list_(
    ledger: LedgerPlace,
    id_: Annotated[str | None, typer.Option("--id", help="Those of one person.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that need not be kept any more.")] = False,
    at: Annotated[
        str | None, typer.Option(help="On this day instead of now: 2027-01-31.", show_default=False)
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Show at most so many.")] = MAX_SHOWN,
    as_json: AsJson = False,
) -> None:
    """List the promises that are live: number, whose, since when, until when."""
    with _opened(ledger) as opened:
        when = None if at is None else parse_time(at)
        found = opened.listing(when, identity=id_)
    chosen = found if every else found[found["status"] == "live"]
    if as_json:
        print_json(chosen.astype(object).where(chosen.notna(), None).to_dict("records"))
        return
    rows = [
        [f"{number}", str(whose or "–"), standing, issued[:10], expires[:10], f"{kappa:.4g}"]
        for number, whose, standing, issued, expires, kappa, _ in chosen.head(most).itertuples(index=False)
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
    """Show one promise as it was told: whose, what, until when, and what was proved."""
    from veritracer.formatting import format_value  # here: it brings pandas

    with _opened(ledger, key_file) as opened:
        found = opened.shown(number)
        listed = opened.listing()
    standing = str(listed.loc[listed["number"] == number, "status"].iloc[0])
    if as_json:
        print_json({"status": standing, **found})
        return
    facts = {"number": number, "whose": found["id"], "status": standing}
    facts |= {name: found[name] for name in ("kind", "issued", "expires", "kappa", "radius", "method")}
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
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", min=1, help="Which promises.")],
    ledger: LedgerPlace,
    reason: Annotated[str, typer.Option(help="Why; it stays in the ledger and should name no person.")],
    as_json: AsJson = False,
) -> None:
    """Say in the ledger that these promises need not be kept any more."""
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
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Whose records.")],
    ledger: LedgerPlace,
    yes: Annotated[bool, typer.Option("--yes", help="Really: it cannot be undone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase all that the ledger keeps of these people, or of none where one is unknown."""
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
    """Show what happened besides promises: models, releases, erasures, audits, updates and deployments."""
    with _opened(ledger) as opened:
        found = opened.history()
    if as_json:
        print_json(found)
        return
    rows = [[str(one["number"]), one["kind"], one["time"][:19], _said(one)] for one in found]
    print_table("What happened to the ledger", ("entry", "kind", "when (UTC)", "what"), rows)


def _said(one: dict[str, Any]) -> str:
    """An entry in a few words."""
    kind = one["kind"]
    if kind == "audit":
        kept = sum(one[name] for name in ("proved", "checked", "overtaken"))
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
    if kind == "migration":
        return f"version {one['version']}: {one['name']}"
    numbers = ", ".join(map(str, one["sequence"][:8])) + (", …" if len(one["sequence"]) > 8 else "")
    return f"{numbers}: {one['reason']}" if kind == "release" else numbers


def _opened(place: str, key_file: Path | None = None) -> Ledger:
    """The ledger, which has to be there."""
    key = None if key_file is None else read_key(key_file)
    check_ledger(place)
    return vt.Ledger(place, create=False, key=key)


def verify(
    ledger: LedgerPlace,
    head: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="A head that issue printed once.", show_default=False),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check every entry of a ledger; exit with 1 if anything is not as it was written.

    Any changed byte is found. With a head that was noted elsewhere it is also found if the ledger's end was
    cut off, or the whole rewritten.
    """
    check_ledger(ledger)
    with patience("verifying", quiet=quiet), vt.Ledger(ledger, create=False) as opened:
        found = opened.verify(head)
    if as_json:
        findings, notes = ([one._asdict() for one in some] for some in (found.findings, found.notes))
        names = ("entries", "promises", "erased", "head", "count", "noted", "newer")
        numbers = {name: getattr(found, name) for name in names}
        print_json({"ok": found.ok, **numbers, "findings": findings, "notes": notes})
    elif not quiet:
        print_summary(found, noted=head is not None)
    if not found.ok:
        raise typer.Exit(CHANGED)


def print_summary(found: Verification, *, noted: bool) -> None:
    """Print what was looked at, and what was found."""
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
    """A line for each of the first, and how many more there are."""
    where = [f"entry {finding.sequence:,}: " if finding.sequence else "" for finding in some[:MAX_FINDINGS]]
    lines = [before + place + finding.what for place, finding in zip(where, some, strict=False)]
    more = count - len(lines)
    return lines + ([f"{before}and {more:,} more"] if more else [])
