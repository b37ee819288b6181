"""Promises of a table: ended at every step and repeated, nobody is promised twice, and no result is lost.

The tests end the process, repeat the command, and look at the ledger and at the files.
"""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from crashing import KILLED, WAYS
from ledger_cases import undecided
from postgres_server import Server
from run_cases import assert_same, explained, issued, people, without_promises, written

import veritracer as vt
from processes import THREE_PARTS, Done, assert_refused, run
from recourse_tables import SCHEMA, applicants
from veritracer.engines import Processes
from veritracer.errors import DataError, LedgerError

HERE = Path(__file__).parent
ISSUE = ["issue", "model", "people.csv", "--id-column", "who", "--kappa", "0.005", "--out", "recourse.csv"]
ISSUE += ["--original", "commitment", "--batch-rows", "12", "--no-refine", "--no-radius"]
COMMITS = ("the commit fails", "the commit is kept and its answer lost", "killed after the commit")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and thirty people."""
    folder = tmp_path_factory.mktemp("crash") / "made"
    frame, y = applicants(200)
    model = vt.VeriTraCER(schema=SCHEMA, method="standard", panel=None, hidden=(6,), epochs=1)
    model.fit(frame, y)
    model.classifier_ = undecided(model.encoding_, model.encoding_.encode(frame))
    model.save(folder / "model")
    people = applicants(30, seed=9)[0]
    people.assign(who=[f"p{i}" for i in range(30)]).to_csv(folder / "people.csv", index=False)
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, tmp_path / "work")
    return tmp_path / "work"


def issue(work: Path, ledger: str, *more: str, way: str | None = None) -> Done:
    """The command, in a process of its own, ended in some way or left alone."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    before = "" if way is None else f"import crashing; crashing.install({way!r})"
    return run(*ISSUE, "--ledger", ledger, *more, before=before, env={"PYTHONPATH": path}, cwd=work)


def promised(ledger: str) -> dict[int, str]:
    """Who was promised something, by the numbers of the promises."""
    with vt.Ledger(ledger) as place:
        assert place.verify().ok
        pieces = [(piece.sequence.tolist(), piece.ids) for piece in place.promises()]
    return {number: who for numbers, ids in pieces for number, who in zip(numbers, ids, strict=True)}


def assert_whole(work: Path, ledger: str) -> None:
    """Nothing; everybody is promised something once, has the result of exactly that, and nothing is left."""
    numbers = promised(ledger)
    assert len(set(numbers.values())) == len(numbers) > 2
    people, found = (pd.read_csv(work / name) for name in ("people.csv", "recourse.csv"))
    assert found["who"].tolist() == people["who"].tolist()
    opening = found.set_index("who")["recourse.opening"]
    assert sorted(opening.dropna().index) == sorted(numbers.values())
    with vt.Ledger(ledger) as place:
        for number, who in numbers.items():
            row = place.opened(number, b64decode(opening[who]))["row"]
            assert row["income"] == people.set_index("who")["income"][who]
    names = {path.name for path in work.iterdir()} - {"promises.db", "promises.db-wal", "promises.db-shm"}
    assert names == {"model", "people.csv", "recourse.csv", "recourse.csv.run"}
    assert {path.name for path in (work / "recourse.csv.run").iterdir()} == {"_run.json", "_batches"}
    assert found["recourse.promise"].dropna().astype(int).tolist() == sorted(numbers)
    by_number = found.dropna(subset="recourse.promise").set_index("recourse.promise")["who"]
    assert {int(number): who for number, who in by_number.items()} == numbers


def ended_and_repeated(work: Path, ledger: str, way: str) -> None:
    first = issue(work, ledger, way=way)
    if way.startswith("killed"):
        assert first.returncode == KILLED, first
    else:
        assert first.returncode == 2, first
        said = first.stderr.splitlines(keepends=True)
        assert THREE_PARTS.fullmatch(said[-1]), first.stderr
        assert "nothing was kept" not in first.stderr
    if "commit" in way and not way.startswith("killed"):
        assert "unknown: repeat the command" in first.stderr
    again = issue(work, ledger)
    assert again.returncode == 0, again
    assert re.search(r"\d promises were issued", again.stdout), again.stdout
    assert_whole(work, ledger)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_that_was_ended_is_repeated(way: str, work: Path) -> None:
    ended_and_repeated(work, str(work / "promises.db"), way)


@pytest.mark.long
@pytest.mark.parametrize("way", COMMITS)
def test_so_it_is_with_postgres(way: str, work: Path, postgres: Server) -> None:
    ended_and_repeated(work, postgres.new(), way)


def test_what_is_repeated_has_to_be_the_same(work: Path) -> None:
    """Other rows, another question or another ledger are refused by name, and nothing is lost by that."""
    ledger = str(work / "promises.db")
    assert issue(work, ledger, way="killed after the record").returncode == KILLED
    table = pd.read_csv(work / "people.csv")
    changed = {
        "shortened": table[:5],
        "lengthened at its start": pd.concat([table[:1].assign(who="new"), table]),
        "reordered": table[::-1],
    }
    for rows in changed.values():
        rows.to_csv(work / "people.csv", index=False)
        done = issue(work, ledger)
        assert done.returncode == 2
        assert "the rows that this run began with, got others" in done.stderr
    table.to_csv(work / "people.csv", index=False)
    for more, said in (
        (["--overshoot", "0.1"], "another options"),
        (["--expires", "90d"], "another expires"),
    ):
        done = issue(work, ledger, *more)
        assert_refused(done)
        assert said in done.stderr
    vt.Ledger(work / "other.db").close()
    done = issue(work, str(work / "other.db"))
    assert_refused(done)
    assert "another ledger" in done.stderr
    (work / "other.db").unlink()
    assert issue(work, ledger).returncode == 0
    assert_whole(work, ledger)
    table[::-1].to_csv(work / "people.csv", index=False)
    done = issue(work, ledger)
    assert done.returncode == 2  # also when it is finished
    assert "the rows that this run began with, got others" in done.stderr
    table.to_csv(work / "people.csv", index=False)
    assert_whole(work, ledger)


@pytest.mark.parametrize("original", ["plain", "commitment"])
def test_a_finished_command_that_is_repeated_leaves_its_file_as_it_is(original: str, work: Path) -> None:
    ledger, out = str(work / "promises.db"), work / "recourse.csv"
    first = issue(work, ledger, "--original", original)
    content, promises = out.read_bytes(), promised(ledger)
    assert b"recourse.promise" in content
    again = issue(work, ledger, "--original", original)
    assert (first.returncode, again.returncode) == (0, 0), again
    assert "The recourse: recourse.csv, complete before and left as it is" in again.stdout
    assert "left as it is" not in first.stdout
    assert (out.read_bytes(), promised(ledger)) == (content, promises)


def test_a_file_that_is_there_is_not_written_over_without_force(work: Path) -> None:
    ledger, out = str(work / "promises.db"), work / "recourse.csv"
    for other in ("recourse.status\ncertified\n", "notes\n"):
        out.write_text(other)
        done = issue(work, ledger)
        assert_refused(done)
        assert "expected a new file, got recourse.csv" in done.stderr
        assert out.read_text() == other
    assert issue(work, ledger, "--force").returncode == 0
    assert_whole(work, ledger)
    promises = promised(ledger)
    done = issue(work, ledger, "--force")  # a run that is finished begins anew
    assert "0 promises were issued" in done.stdout
    assert promised(ledger) == promises
    out.unlink()
    done = issue(work, ledger)
    assert_refused(done)
    assert "expected recourse.csv, which this run finished, got no such file" in done.stderr


def test_a_lost_draft_is_not_replaced(work: Path) -> None:
    """Its promises are in the ledger: other openings would fit none of them."""
    ledger = str(work / "promises.db")
    assert issue(work, ledger, way="killed after the commit").returncode == KILLED
    (draft,) = (work / "recourse.csv.run" / "_prepared").iterdir()
    draft.rename(work / "elsewhere")
    before = promised(ledger)
    done = issue(work, ledger)
    assert done.returncode == 2
    assert "restore the file" in done.stderr
    assert promised(ledger) == before
    (work / "elsewhere").rename(draft)
    assert issue(work, ledger).returncode == 0
    assert_whole(work, ledger)


def test_where_nothing_is_promised_the_ledger_stays_as_it_is(work: Path) -> None:
    ledger = str(work / "promises.db")
    first, again = issue(work, ledger), issue(work, ledger, "--out", "none.csv")
    assert (first.returncode, again.returncode) == (0, 0), again
    assert "0 promises were issued" in again.stdout
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]  # the head
    assert len(pd.read_csv(work / "none.csv")) == len(pd.read_csv(work / "people.csv"))
    (work / "none.csv").unlink()
    shutil.rmtree(work / "none.csv.run")
    assert_whole(work, ledger)


def test_a_row_that_cannot_be_read_comes_before_all_promises(work: Path) -> None:
    table = pd.read_csv(work / "people.csv").astype({"income": object})
    table.loc[29, "income"] = "abc"
    table.to_csv(work / "people.csv", index=False)
    done = issue(work, "promises.db")
    assert_refused(done)
    assert "in row 30 of people.csv" in done.stderr
    assert not (work / "promises.db").exists()
    assert not (work / "recourse.csv.run").exists()


# ---------------------------------------------------------------- runs


def numbers(ledger: Path) -> list[str]:
    with vt.Ledger(ledger) as place:
        assert place.verify().ok
        return sorted(one for piece in place.promises() for one in piece.ids)


@pytest.mark.parametrize("original", ["plain", "commitment"])
def test_nothing_is_promised_twice(original: Any, folder: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "promises.db"
    first = issued(folder, out, ledger, original=original)
    told, ids = written(out), numbers(ledger)
    assert len(ids) == len(set(ids)) == first.counts["promises"] > 10
    again = issued(folder, out, ledger, original=original)
    assert (again.done_before, len(again.results), numbers(ledger)) == (3, 3, ids)
    assert again.counts == first.counts
    pd.testing.assert_frame_equal(written(out), told)
    assert not (out / "_prepared").exists()


def test_several_processes_say_the_same_in_one_chain(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "alone", rows=1000)
    done = issued(folder, tmp_path / "out", tmp_path / "promises.db", engine=Processes(2))
    ids = numbers(tmp_path / "promises.db")
    assert len(ids) == len(set(ids)) == done.counts["promises"]
    assert_same(without_promises(written(tmp_path / "out")), written(tmp_path / "alone"))


def test_the_same_person_twice_in_a_table_is_promised_once(folder: Path, tmp_path: Path) -> None:
    twice = pd.concat([people(), people()], ignore_index=True)
    twice.to_parquet(tmp_path / "twice.parquet", index=False)
    done = issued(folder, tmp_path / "out", tmp_path / "l.db", place=str(tmp_path / "twice.parquet"))
    ids = numbers(tmp_path / "l.db")
    assert len(ids) == len(set(ids)) == done.counts["promises"] == done.counts["repeated"] > 10


def test_what_others_promise_meanwhile_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch begins again with what is left, and every number is that of its own row."""
    real, meanwhile = vt.Ledger.append, []

    def append(self: vt.Ledger, *given: Any, **more: Any) -> Any:
        if not meanwhile:
            meanwhile.append(True)
            issued(folder, tmp_path / "theirs", tmp_path / "l.db", rows=7)
        return real(self, *given, **more)

    whole = people().assign(id=[name if i % 2 else f"other {i}" for i, name in enumerate(people()["id"])])
    whole.to_parquet(tmp_path / "mine.parquet", index=False)
    vt.Ledger(tmp_path / "l.db").close()
    monkeypatch.setattr(vt.Ledger, "append", append)
    done = issued(folder, tmp_path / "out", tmp_path / "l.db", place=str(tmp_path / "mine.parquet"))
    assert done.counts["repeated"] > 0
    told = written(tmp_path / "out").dropna(subset="recourse.promise").set_index("recourse.promise")["id"]
    assert len(told) == done.counts["promises"] > 0
    with vt.Ledger(tmp_path / "l.db") as place:
        assert {int(n): place.shown(int(n))["id"] for n in told.index} == {
            int(n): who for n, who in told.items()
        }


def test_a_ledger_that_does_not_know_the_promises_is_another_one(folder: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "promises.db"
    issued(folder, out, ledger)
    ledger.rename(tmp_path / "elsewhere.db")
    with pytest.raises(LedgerError):
        issued(folder, out, ledger)
    assert not ledger.exists()
    vt.Ledger(ledger).close()
    with pytest.raises(LedgerError, match=r"the ledger that the run in .* issued to, got one without"):
        issued(folder, out, ledger)


def test_a_ledger_is_made_when_there_is_somebody_to_promise_something(folder: Path, tmp_path: Path) -> None:
    people().drop(columns="id").to_parquet(tmp_path / "people.parquet", index=False)
    with pytest.raises(DataError, match="a column that identifies the rows"):
        issued(folder, tmp_path / "out", tmp_path / "l.db", place=str(tmp_path / "people.parquet"))
    assert not (tmp_path / "l.db").exists()


# ---------------------------------------------------------------- ids


def test_a_person_has_one_id_in_every_kind_of_table(folder: Path, tmp_path: Path) -> None:
    numbers = 1000001 + np.arange(10)
    typed = people().head(10).assign(id=numbers.astype(float))
    typed.to_parquet(tmp_path / "floats.parquet", index=False)
    typed.to_csv(tmp_path / "floats.csv", index=False)  # writes 1000001.0
    typed.assign(id=numbers).to_csv(tmp_path / "integers.csv", index=False)
    typed.assign(id=numbers.astype(str)).to_parquet(tmp_path / "text.parquet", index=False)
    ledger = tmp_path / "ledger.db"
    for name in ("integers.csv", "floats.csv", "floats.parquet", "text.parquet"):
        issued(folder, tmp_path / f"out-{name}", ledger, place=str(tmp_path / name))
    with vt.Ledger(ledger) as opened:
        promised = opened.listing()
        assert 0 < len(promised) <= 10
        assert set(promised["id"]) <= set(numbers.astype(str))
        assert opened.sequences_of(float(promised["id"][0])) == opened.sequences_of(promised["id"][0])
        assert len(opened.erase(np.float32(promised["id"][0]))) == 1


def test_text_ids_stay_as_they_are_and_bad_numbers_are_refused(folder: Path, tmp_path: Path) -> None:
    ids = ["007", "1.10", "A-1", "1e3"]
    frame = people().head(4)
    frame.assign(id=ids).to_csv(tmp_path / "text.csv", index=False)
    frame.assign(id=ids).to_parquet(tmp_path / "text.parquet", index=False)
    for name in ("text.csv", "text.parquet"):
        issued(folder, tmp_path / f"out-{name}", tmp_path / f"{name}.db", place=str(tmp_path / name))
        with vt.Ledger(tmp_path / f"{name}.db") as opened:
            assert set(opened.listing()["id"]) <= set(ids)
    for name, bad in {"fractions": np.arange(4) + 0.5, "large": np.full(4, 2**25, np.float32)}.items():
        frame.assign(id=bad).to_parquet(tmp_path / f"{name}.parquet", index=False)
        with pytest.raises(DataError, match=r"expected ids .* of .*parquet — read the column as whole"):
            issued(folder, tmp_path / name, tmp_path / f"{name}.db", place=str(tmp_path / f"{name}.parquet"))
        assert not (tmp_path / f"{name}.db").exists()
