"""Stored answers for 300 rows of two tables: status, counterfactual, radius and verdicts are what they were.

Statuses, verdicts and counterfactuals are compared exactly. An answer that depends on the last bits of one
machine is left out when it is recorded; see ``record.py``, which also says when it may be run again. Logits
are not compared: their last digits are nobody's contract.
"""

from __future__ import annotations

from functools import cache

import golden_cases
import numpy as np
import pandas as pd
import pytest
from golden_cases import COLUMNS, PEOPLE, TABLES, Answers, Inputs

RADIUS = 1e-6
"""Relative tolerance of a radius. It is kappa times a power of 2^(1/32), so that the next step of its grid is
2 % away; the tolerance allows for rounding in that power, about 1e-15."""

CASES = [(name, case) for name in TABLES for case in golden_cases.questions(name)]


@cache
def given(name: str) -> Inputs:
    return golden_cases.inputs(name)


@cache
def stored(name: str) -> Answers:
    return golden_cases.recorded(name)


def expected(name: str, case: str) -> Answers:
    table = stored(name)
    return table[table["case"] == case].drop(columns="case").reset_index(drop=True)


def differences(found: Answers, wanted: Answers) -> list[str]:
    """Describe every recorded row that is answered otherwise now; rows that were not recorded are free."""
    now = _by_row(found[found["row"].isin(wanted["row"])])
    then = _by_row(wanted)
    said = [f"row {key}: no answer now" for key in then.keys() - now.keys()]
    said += [f"row {key}: an answer that was not recorded" for key in now.keys() - then.keys()]
    for key in sorted(now.keys() & then.keys()):
        said += [
            f"row {key}: {column} {new!r}, recorded {old!r}"
            for column, new, old in zip(COLUMNS[2:], now[key], then[key], strict=True)
            if not _same(column, new, old)
        ]
    return said


def _by_row(table: Answers) -> dict[tuple[int, int], list[object]]:
    """Return the answers of each row and alternative, an absent one as empty text."""
    cells = table[list(COLUMNS)].astype(object)
    lines = cells.where(cells.notna(), "").to_numpy().tolist()
    return {(line[0], line[1]): line[2:] for line in lines}


def _same(column: str, now: object, then: object) -> bool:
    if column == "radius" and "" not in (now, then):
        return bool(np.isclose(float(now), float(then), rtol=RADIUS, atol=0.0))
    return str(now) == str(then)


@pytest.mark.filterwarnings("ignore::veritracer.errors.VeriTracerWarning")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_answers_are_what_they_were(name: str, case: str) -> None:
    found = differences(golden_cases.answers(given(name), case), expected(name, case))
    assert not found, f"{len(found)} differences, the first:\n" + "\n".join(found[:10])


@pytest.mark.parametrize("name", TABLES)
def test_enough_is_recorded(name: str) -> None:
    """Leaving out what is unstable must not empty a case, and every kind of answer has to occur."""
    table = stored(name)
    assert set(table["case"]) == set(golden_cases.questions(name))
    explained = {key: case.rows for key, case in golden_cases.explain_cases(name).items()}
    asked = {**explained, **dict.fromkeys(golden_cases.CERTIFY, PEOPLE)}
    for case, rows in asked.items():
        assert table.loc[table["case"] == case, "row"].nunique() >= 0.9 * rows, case
    assert {"certified", "valid", "none", "kept", "broken"} <= set(table["status"].dropna())
    assert {"ibp", "crown-ibp", "simul-crown"} <= set(table["method"].dropna())
    certified = table.loc[table["case"] == "certify conditional", "conditional"].dropna()
    assert set(certified.astype(str)) == {"True", "False"}


def test_differences_are_noticed() -> None:
    """The comparison itself: another status, value, radius, a lost row and a new alternative are all told."""
    wanted = expected("loans", "two alternatives")
    assert differences(wanted, wanted) == []
    moved = wanted.copy()
    moved["radius"] *= 1 + 1e-9
    assert differences(moved, wanted) == []
    at = int((wanted["status"] == "certified").to_numpy().nonzero()[0][0])
    for column, value in {
        "status": "valid",
        "changes": "savings = 1",
        "radius": 0.1,
        "certified": False,
    }.items():
        other = wanted.astype({column: object})
        other.loc[at, column] = value
        assert len(differences(other, wanted)) == 1, column
    assert len(differences(wanted.drop(index=at), wanted)) == 1
    assert len(differences(pd.concat([wanted, wanted.loc[[at]].assign(alternative=7)]), wanted)) == 1
