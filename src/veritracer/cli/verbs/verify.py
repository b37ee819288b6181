"""``veritracer verify``: whether a ledger is what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import veritracer as vt
from veritracer.cli.options import AsJson, LedgerPlace, Quiet, check_ledger
from veritracer.cli.printing import patience, print_json, say

if TYPE_CHECKING:
    from veritracer.ledger import Finding, Verification

CHANGED = 1
MAX_SHOWN = 20


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
    where = [f"entry {finding.sequence:,}: " if finding.sequence else "" for finding in some[:MAX_SHOWN]]
    lines = [before + place + finding.what for place, finding in zip(where, some, strict=False)]
    more = count - len(lines)
    return lines + ([f"{before}and {more:,} more"] if more else [])
