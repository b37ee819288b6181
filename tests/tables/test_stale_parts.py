"""A folder is exactly the result of its tables, whatever becomes of them between two runs; so is a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_cases import certified, explained, issued, people, written

import veritracer as vt
from processes import run_here
from veritracer.errors import DataError
from veritracer.tables import RunSummary

ROWS = 15  # of a batch; each of the two tables has two


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with two tables of thirty people each."""
    place = tmp_path / "in"
    place.mkdir()
    people()[:30].to_csv(place / "a.csv", index=False)
    people()[30:60].to_csv(place / "b.csv", index=False)
    return place


def explain(folder: Path, tables: Path, out: Path) -> RunSummary:
    return explained(folder, out, place=str(tables), rows=ROWS)


def certify(folder: Path, tables: Path, out: Path) -> RunSummary:
    return certified(folder, tables, tables, out, rows=ROWS)


def issue(folder: Path, tables: Path, out: Path) -> RunSummary:
    return issued(folder, out, out.parent / "promises.db", place=str(tables), rows=ROWS)


VERBS = {"explain": explain, "certify": certify, "issue": issue}


def renamed(tables: Path) -> None:
    (tables / "b.csv").rename(tables / "c.csv")


def removed(tables: Path) -> None:
    (tables / "b.csv").unlink()


def rewritten(rows: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def change(tables: Path) -> None:
        rows(people()[30:60]).to_csv(tables / "b.csv", index=False)

    return change


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "renamed": (renamed, r"b\.csv\.000000.*, a part of b\.csv, which is not among the tables"),
    "removed": (removed, r"b\.csv\.000000.*, a part of b\.csv, which is not among the tables"),
    "shortened by a batch": (
        rewritten(lambda rows: rows[:15]),
        r"b\.csv\.000001.*, a part of b\.csv, which has fewer rows",
    ),
    "shortened": (rewritten(lambda rows: rows[:20]), r"others in .*b\.csv from row 16 on"),
    "lengthened at its start": (rewritten(lambda rows: pd.concat([rows[-1:], rows])), "from row 1 on"),
    "reordered": (rewritten(lambda rows: rows[::-1]), r"others in .*b\.csv from row 1 on"),
}


def state(out: Path) -> dict[str, Any]:
    """All files of the result, and the promises."""
    files = {str(path): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    if not (out.parent / "promises.db").exists():
        return files
    with vt.Ledger(out.parent / "promises.db") as ledger:
        return {**files, "ledger": ledger.head}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_with_parts_of_other_tables_is_refused_by_name(
    verb: str, folder: Path, tables: Path, tmp_path: Path
) -> None:
    run, out = VERBS[verb], tmp_path / "out"
    first = run(folder, tables, out)
    before, rows = state(out), (tables / "b.csv").read_bytes()
    for change, said in REFUSED.values():
        change(tables)
        with pytest.raises(DataError, match=said):
            run(folder, tables, out)
        assert state(out) == before  # and nothing was done, or promised, in the meantime
        (tables / "c.csv").unlink(missing_ok=True)
        (tables / "b.csv").write_bytes(rows)
    again = run(folder, tables, out)
    assert (again.done_before, again.counts["rows"]) == (len(first.results), 60)


@pytest.mark.parametrize("verb", VERBS)
def test_a_part_without_a_record_counts_too(verb: str, folder: Path, tables: Path, tmp_path: Path) -> None:
    """As if the run had been killed between a part and its record."""
    run, out = VERBS[verb], tmp_path / "out"
    run(folder, tables, out)
    for record in (out / "_batches").glob("b.csv.*"):
        record.unlink()
    renamed(tables)
    with pytest.raises(DataError, match=r"b\.csv\.000000.*not among the tables"):
        run(folder, tables, out)


def test_what_was_prepared_and_maybe_promised_counts_too(folder: Path, tables: Path, tmp_path: Path) -> None:
    """As if the run had been killed between the commit and the part: the promises must not be made again."""
    out = tmp_path / "out"
    issue(folder, tables, out)
    (out / "_prepared").mkdir(exist_ok=True)
    for part in out.glob("b.csv.*"):
        part.rename(out / "_prepared" / f"{part.stem}.{'0' * 64}")
        (out / "_batches" / f"{part.stem}.json").unlink()
    before = state(out)
    renamed(tables)
    with pytest.raises(DataError, match=r"_prepared/b\.csv\.000000.*not among the tables"):
        issue(folder, tables, out)
    assert state(out) == before


@pytest.mark.parametrize("verb", VERBS)
def test_more_rows_and_more_tables_are_gone_on_with(
    verb: str, folder: Path, tables: Path, tmp_path: Path
) -> None:
    run, out = VERBS[verb], tmp_path / "out"
    (tables / "b.csv").rename(tmp_path / "b.csv")
    people()[:15].to_csv(tables / "a.csv", index=False)
    run(folder, tables, out)
    people()[:30].to_csv(tables / "a.csv", index=False)
    (tmp_path / "b.csv").rename(tables / "b.csv")
    outcome = run(folder, tables, out)
    assert (len(outcome.results), outcome.done_before, outcome.counts["rows"]) == (4, 1, 60)
    assert sorted(written(out)["id"]) == sorted(people()["id"])


def test_other_peoples_files_are_no_parts(folder: Path, tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    explain(folder, tables, out)
    (out / "_SUCCESS").touch()
    (out / ".crc").touch()
    assert explain(folder, tables, out).done_before == 4
    (out / "all.parquet").touch()
    with pytest.raises(DataError, match=r"all\.parquet"):
        explain(folder, tables, out)


# ---------------------------------------------------------------- a single file

SINGLE = ["--kappa", "0.05", "--json"]


def test_a_file_is_the_result_of_its_table(folder: Path, tables: Path, tmp_path: Path) -> None:
    """It is written anew, and nothing is promised twice."""
    model, quick = str(folder / "model"), ["--no-refine", "--no-radius", "--keep", "id"]
    verbs = {
        "explain": ["explain", model, "a.csv", "--out", "one.csv", *quick, *SINGLE, "--force"],
        "predict": ["predict", model, "a.csv", "--out", "two.csv", "--keep", "id", "--json", "--force"],
    }
    for rows in (people()[:30], people()[:20], people()[:40], people()[:30][::-1]):
        rows.to_csv(tables / "a.csv", index=False)
        done = run_here(list(verbs.values()), tables)
        assert [one.returncode for one in done] == [0, 0], done
        for name in ("one.csv", "two.csv"):
            assert pd.read_csv(tables / name)["id"].tolist() == rows["id"].tolist()
    (tables / "a.csv").unlink()
    done = run_here(list(verbs.values()), tables)
    assert [one.returncode for one in done] == [2, 2], done
    issued = ["issue", model, "b.csv", "--id-column", "id", "--ledger", "l.db", "--out", "i.csv", *SINGLE]
    (first,) = run_here([issued], tables)
    promises = json.loads(first.stdout)["promises"]
    assert promises > 0
    people()[30:50][::-1].to_csv(tables / "b.csv", index=False)
    (refused,) = run_here([issued], tables)
    assert refused.returncode == 2
    assert "the rows that this run began with, got others" in refused.stderr
    assert pd.read_csv(tables / "i.csv")["id"].tolist() == people()[30:60]["id"].tolist()
    (again,) = run_here([[*issued, "--force"]], tables)
    assert json.loads(again.stdout)["promises"] == 0
    assert pd.read_csv(tables / "i.csv")["id"].tolist() == people()[30:50]["id"].tolist()[::-1]
    with vt.Ledger(tables / "l.db") as ledger:
        assert ledger.counts().live == promises
