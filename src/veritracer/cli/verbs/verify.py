"""``veritracer verify``: whether a ledger is what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from veritracer.cli.options import AsJson, LedgerPlace, Quiet
from veritracer.cli.printing import patience, print_json, say
from veritracer.ledger import Ledger, Verification

CHANGED = 1
MOST = 20


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
    with patience("verifying", quiet=quiet), Ledger(ledger, create=False) as book:
        found = book.verify(head)
    if as_json:
        findings = [finding._asdict() for finding in found.findings]
        numbers = {name: getattr(found, name) for name in ("entries", "promises", "erased", "head", "count")}
        print_json({"ok": found.ok, **numbers, "findings": findings})
    elif not quiet:
        _tell(found, noted=head is not None)
    if not found.ok:
        raise typer.Exit(CHANGED)


def _tell(found: Verification, *, noted: bool) -> None:
    where = [f"entry {finding.sequence:,}: " if finding.sequence else "" for finding in found.findings]
    lines = [place + finding.what for place, finding in zip(where, found.findings, strict=True)]
    more = found.count - min(len(lines), MOST)
    erased = f", {found.erased:,} of them erased" if found.erased else ""
    say(
        f"{found.entries:,} entries, {found.promises:,} promises{erased}.",
        *lines[:MOST],
        *([f"and {more:,} more"] if more else []),
    )
    if not found.ok:
        say("The ledger is NOT what was written.")
        return
    end = ", and its end is there" if noted else "; without --head a missing end does not show"
    say(f"The ledger is what was written{end}.", f"The head: {found.head}")
