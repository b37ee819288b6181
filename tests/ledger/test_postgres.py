"""What only PostgreSQL can do: rights that differ by who asks."""

from __future__ import annotations

import pytest
from ledger_cases import issue, recourse
from postgres_server import Server

import veritracer as vt
from veritracer.errors import LedgerError


def test_who_issues_needs_no_right_to_change_anything(postgres: Server) -> None:
    owner = postgres.new()
    name = owner.rpartition("%3D")[2]
    vt.Ledger(owner).close()
    with postgres.connect("postgres") as connection:
        connection.execute(f"CREATE ROLE clerk_{name} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA {name} TO clerk_{name}")
        connection.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {name} TO clerk_{name}")
    with vt.Ledger(owner.replace("vt@", f"clerk_{name}@")) as ledger:
        issued = issue(ledger, recourse())
        ledger.release(issued.sequence[:1], "withdrawn")
        assert ledger.counts().live == len(issued) - 1
        with pytest.raises(LedgerError, match=r"expected a ledger in .+, got permission denied .+ — .+"):
            ledger.erase(issued.ids[1])
        assert ledger.verify(issued.head).ok
    with vt.Ledger(owner) as ledger:
        ledger.erase(issued.ids[1])
        assert ledger.verify(issued.head).ok
