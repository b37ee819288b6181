"""Runs over tables: the same rows whatever the batches, stopped and continued, one process at a time."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import EVERYTHING
from run_cases import QUICK, REFINED, assert_same, certified, explained, model, people, written

import veritracer as vt
from veritracer.engines import Processes, Serial
from veritracer.errors import DataError
from veritracer.tables import Batch, Job, RunFolder, TableSource, do_batch, open_output, paired, run_table
from veritracer.tables.batches import load_model
from veritracer.tables.jobs import ROW
from veritracer.tables.reading import compact, rebatched, rows_digest


@pytest.fixture(scope="session")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """What one process writes of all people, in one batch."""
    out = tmp_path_factory.mktemp("alone") / "out"
    explained(folder, out, rows=1000)
    return written(out)


class Backwards:
    """An engine that does the last batch first."""

    def map(self, task: Any, items: Any) -> Any:
        return map(task, reversed(list(items)))


# ---------------------------------------------------------------- the same rows


@pytest.fixture(scope="session")
def refined(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The same, with refined answers."""
    out = tmp_path_factory.mktemp("refined") / "out"
    explained(folder, out, rows=1000, **REFINED)
    return written(out)


@settings(max_examples=4)
@given(rows=st.integers(3, 60), backwards=st.booleans())
def test_batches_of_any_size_and_order_say_the_same(
    rows: int, backwards: bool, folder: Path, refined: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("batches") / "out"
    outcome = explained(folder, out, rows=rows, engine=Backwards() if backwards else None, **REFINED)
    assert len(outcome.results) == -(-len(people()) // rows)
    assert outcome.counts["rows"] == len(people())
    assert_same(written(out), refined)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), rows=st.integers(1, 12))
def test_batches_do_not_depend_on_the_chunks_of_a_file(sizes: list[int], rows: int) -> None:
    whole = pa.table(
        {"x": list(range(sum(sizes))), "y": ["a", None] * (sum(sizes) // 2) + [""] * (sum(sizes) % 2)}
    )
    chunks, at = [], 0
    for size in sizes:
        chunks += whole.slice(at, size).combine_chunks().to_batches()
        at += size
    found = [batch.rows for batch in rebatched(numbered(chunks), rows)]
    assert pa.Table.from_batches(found).drop_columns([ROW]).equals(whole)
    assert [n for batch in found for n in batch[ROW].to_pylist()] == list(range(1, len(whole) + 1))
    assert all(batch.num_rows == rows for batch in found[:-1])


def numbered(chunks: list[pa.RecordBatch]) -> Iterator[Batch]:
    """Chunks of a table as they are read."""
    number = 0
    for chunk in chunks:
        numbers = pa.array(range(number + 1, number + 1 + len(chunk)), pa.int64())
        yield Batch("t", chunk.append_column(ROW, numbers))
        number += len(chunk)


def test_a_batch_travels_alone_and_its_digest_knows_all_of_it(tmp_path: Path) -> None:
    def slices(words: list[str]) -> list[pa.RecordBatch]:
        column = pa.DictionaryArray.from_arrays([0, 1] * 5_000, words)
        (batch,) = pa.table({"x": list(range(10_000)), "word": column}).to_batches()
        return [one.rows for one in rebatched(numbered([batch]), 100)]

    one, other = slices(["a", "b"]), slices(["a", "c"])
    assert len(pickle.dumps(one[5], protocol=5)) < 5_000
    assert pickle.loads(pickle.dumps(one[5])).equals(one[5])
    assert rows_digest(one[5]) == rows_digest(slices(["a", "b"])[5]) != rows_digest(other[5])


def test_a_folder_of_tables_is_gone_through(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    people().iloc[:30].to_parquet(tmp_path / "in" / "b.parquet", index=False)
    people().iloc[30:].to_csv(tmp_path / "in" / "deep" / "a.csv", index=False)
    (tmp_path / "in" / "_notes.csv").write_text("not,a,table\n")
    explained(folder, tmp_path / "out", place=str(tmp_path / "in"))
    assert_same(written(tmp_path / "out"), alone)
    assert sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.parquet")
    ) == [
        "b.parquet.000000.parquet",
        "b.parquet.000001.parquet",
        "deep/a.csv.000000.parquet",
        "deep/a.csv.000001.parquet",
    ]


# ---------------------------------------------------------------- stopped, and gone on with


def test_a_finished_batch_is_not_done_again(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "out"
    explained(folder, out)
    files = sorted(out.rglob("*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[1].unlink()
    outcome = explained(folder, out)
    assert (len(outcome.results), outcome.done_before, outcome.counts["rows"]) == (3, 2, 60)
    assert [path for path in files if path.stat().st_mtime_ns != before[path]] == [files[1]]
    assert_same(written(out), alone)


def test_a_run_that_failed_keeps_what_it_finished(folder: Path, tmp_path: Path) -> None:
    broken = people().assign(savings=people()["savings"].astype(object))
    broken.loc[55, "savings"] = "a lot"
    broken.to_csv(tmp_path / "people.csv", index=False)
    with pytest.raises(DataError, match="row 56"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "people.csv"))
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 2
    assert not list((tmp_path / "out").rglob("*.partial"))


def test_a_run_goes_on_only_with_what_it_began_with(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "people.parquet"
    people().to_parquet(table, index=False)
    explained(folder, tmp_path / "out", place=str(table))
    with pytest.raises(DataError, match="got another batch rows"):
        explained(folder, tmp_path / "out", place=str(table), rows=10)
    people().iloc[::-1].to_parquet(table, index=False)
    with pytest.raises(DataError, match="the rows that this run began with, got others"):
        explained(folder, tmp_path / "out", place=str(table))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("mine")
    with pytest.raises(DataError, match="the folder of a run"):
        explained(folder, tmp_path / "mine", place=str(table))


# ---------------------------------------------------------------- certificates and audits


def test_pairs_are_certified_in_batches(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    answers = tmp_path / "answers.parquet"
    alone[[*people().columns]].drop(columns="id").to_parquet(answers, index=False)
    table = folder / "people.parquet"
    ends = [certified(folder, table, answers, tmp_path / str(rows), rows).counts for rows in (7, 1000)]
    assert ends[0] == ends[1]
    assert ends[0]["certified"] == (alone["recourse.status"] == "certified").sum()
    assert_same(written(tmp_path / "7"), written(tmp_path / "1000"))


def test_tables_of_different_lengths_are_no_pairs(folder: Path, tmp_path: Path) -> None:
    people().iloc[:50].drop(columns="id").to_parquet(tmp_path / "answers.parquet", index=False)
    with pytest.raises(DataError, match=r"more rows in .*people\.parquet"):
        certified(folder, folder / "people.parquet", tmp_path / "answers.parquet", tmp_path / "out", 30)


def test_an_audit_by_workers_says_the_same(folder: Path, tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        found = model().explain(people().drop(columns="id"), **QUICK)
        ledger.issue(found, model().classifier_, ids=people()["id"].tolist(), **EVERYTHING)
        model(1).save(tmp_path / "later")
        later = vt.load(tmp_path / "later")
        plain = vt.audit(ledger, later, recourse=0, chunk=7, at=2e9)
        apart = vt.audit(ledger, later, recourse=0, chunk=7, at=2e9, engine=Backwards())
        away = vt.audit(ledger, later, recourse=0, chunk=7, at=2e9, engine=Processes(2))
    assert plain.counts["broken"] > 0
    assert apart.to_plain() == away.to_plain() == plain.to_plain()


def test_a_folder_is_left_as_it_was_where_nothing_was_begun(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in (tmp_path / "new", tmp_path / "there"):
        with pytest.raises(KeyError), RunFolder(place, {"verb": "explain"}, "csv"):
            raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    run = RunFolder(tmp_path / "there", {"verb": "explain"}, "csv")
    (tmp_path / "there" / "a.csv").touch()
    with pytest.raises(KeyError), run:
        raise KeyError
    assert len(list((tmp_path / "there").iterdir())) == 2  # to continue with


def test_a_document_that_cannot_be_read_is_not_continued_with(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out", {"verb": "explain"}, "csv"):
        pass
    for content in ("{", "{}", '{"run": "ab", "request": 3}'):
        (tmp_path / "out" / "_run.json").write_text(content)
        with pytest.raises(DataError, match=r"a document of a run in .*remove it, or name a new folder"):
            RunFolder(tmp_path / "out", {"verb": "explain"}, "csv")


def test_an_infinite_price_is_remembered(tmp_path: Path) -> None:
    for _ in range(2):
        with RunFolder(tmp_path / "out", {"cost": {"age": float("inf")}}, "csv"):
            pass
    with pytest.raises(DataError, match="got another cost"):
        RunFolder(tmp_path / "out", {"cost": {"age": 1.0}}, "csv")


# ---------------------------------------------------------------- one process at a time

HOLD = """
import sys, time
from veritracer.tables import RunFolder
with RunFolder(sys.argv[1], {"verb": "explain"}, "csv"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(DataError, match="for this process alone, got another process"):
            RunFolder(out, {"verb": "explain"}, "csv")
        first.kill()
    with RunFolder(out, {"verb": "explain"}, "csv") as run:
        assert run.count() == 0


def command(folder: Path, out: Path) -> list[str]:
    """Explain the people of the folder in small batches."""
    options = ["--kappa", "0.05", "--no-refine", "--no-radius", "--keep", "id", "--batch-rows", "2"]
    place = str(folder / "people.parquet")
    return [
        sys.executable,
        "-m",
        "veritracer",
        "explain",
        str(folder / "model"),
        place,
        *options,
        "--out",
        str(out),
    ]


@pytest.mark.parametrize("name", ["out", "out.parquet"])
def test_a_killed_run_continues(name: str, folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / name
    parts = out if name == "out" else tmp_path / "out.parquet.run"
    with subprocess.Popen([*command(folder, out), "--workers", "2"], start_new_session=True) as first:
        deadline = time.monotonic() + 120
        while len(list((parts / "_batches").glob("*.json"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
    done = len(list((parts / "_batches").glob("*.json")))
    assert 3 <= done < 30
    again = subprocess.run([*command(folder, out), "--json"], capture_output=True, text=True, check=True)
    assert f'"done_before": {done}' in again.stdout
    assert_same(written(out) if name == "out" else pd.read_parquet(out), alone)
    assert (tmp_path / "out.parquet.run").exists() is False


# ---------------------------------------------------------------- elsewhere


def fetched(url: str, to: Path) -> Path:
    """A copy of the folder behind a URL."""
    files, path = fsspec.core.url_to_fs(url)
    files.get(path, str(to), recursive=True)
    return to


@pytest.mark.parametrize("scheme", ["memory", "local", "file"])
def test_a_run_may_write_behind_a_url(scheme: str, folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    url = f"{scheme}://{tmp_path}/out"
    engine = Serial() if scheme == "memory" else Processes(2)  # a process has a memory of its own
    first = explained(folder, url, engine=engine)
    assert_same(written(fetched(url, tmp_path / "first")), alone)
    files, path = fsspec.core.url_to_fs(url)
    files.rm(f"{path}/_batches/{first.results[1].name}.json")
    again = explained(folder, url)
    assert (len(again.results), again.done_before) == (len(first.results), len(first.results) - 1)
    assert_same(written(fetched(url, tmp_path / "second")), alone)
    with pytest.raises(DataError, match="another options"):
        explained(folder, url, overshoot=0.1)


def test_what_is_no_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, said in {
        tmp_path / "file": "got the file",
        "sqlite:///people.db?table=people": "a database",
        "nosuchscheme://bucket/out": "nosuchscheme",
    }.items():
        with pytest.raises(DataError, match=said):
            explained(folder, place)


def test_a_folder_of_something_else_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    files, path = fsspec.core.url_to_fs(f"memory://{tmp_path}/out")
    files.pipe_file(f"{path}/notes.txt", b"mine")
    with pytest.raises(DataError, match="which is there and is not one"):
        explained(folder, f"memory://{tmp_path}/out")
    files.rm(f"{path}/notes.txt")


def test_what_fails_before_its_first_batch_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunFolder(f"local://{tmp_path}/out", {}, "csv"):
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- what must not be mixed


def test_another_model_in_the_folder_is_noticed_by_every_worker(folder: Path, tmp_path: Path) -> None:
    """A worker that replaces a killed one reads the folder again."""
    own = tmp_path / "model"
    model().save(own)
    asked = Job("explain", str(own), QUICK, keep=("id",))
    model(1).save(tmp_path / "other")
    own.rename(tmp_path / "before")
    (tmp_path / "other").rename(own)
    with pytest.raises(DataError, match=r"expected the model that was in .* at the start, got another one"):
        load_model(asked.model, pickle.loads(pickle.dumps(asked)).digest)


def test_other_tables_have_a_run_of_their_own(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "out")
    people().to_parquet(tmp_path / "others.parquet", index=False)
    with pytest.raises(DataError, match=r"expected what the run in .* was asked, got another table"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "others.parquet"))


# ---------------------------------------------------------------- tables as they come


@given(
    cells=st.lists(st.tuples(st.none() | st.text(max_size=4), st.none() | st.booleans()), min_size=6),
    at=st.integers(1, 5),
)
def test_the_digest_of_rows_is_theirs_alone(cells: list[tuple[Any, Any]], at: int) -> None:
    texts, truths = zip(*cells, strict=True)
    text, truth = pa.array(texts, pa.string()), pa.array(truths, pa.bool_())
    whole = pa.record_batch([text, truth, text.dictionary_encode()], ["a", "b", "c"])
    few = pa.record_batch(
        [text[:at].take(pa.array(range(at))), truth[:at], text[:at].dictionary_encode()], ["a", "b", "c"]
    )
    assert rows_digest(compact(whole.slice(0, at))) == rows_digest(compact(few))


def test_a_row_that_was_mended_is_gone_on_with(folder: Path, tmp_path: Path) -> None:
    bad = people().astype({"income": object})
    bad.loc[26, "income"] = "abc"
    bad.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"'abc' in row 27 of .*t\.csv"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "t.csv"))
    people().to_csv(tmp_path / "t.csv", index=False)
    assert explained(folder, tmp_path / "out", place=str(tmp_path / "t.csv")).done_before == 1


def test_tables_without_rows_are_passed_over(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "parts"
    place.mkdir()
    for name, part in (("a", people()[:0]), ("b", people()), ("c", people()[:0])):
        part.to_csv(place / f"{name}.csv", index=False)
    explained(folder, tmp_path / "out", place=str(place))
    assert_same(written(tmp_path / "out"), alone)
    (place / "b.csv").unlink()
    with pytest.raises(DataError, match="at least one row"):
        explained(folder, tmp_path / "none", place=str(place))


def test_pairs_need_not_be_cut_alike(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "answers", rows=7)
    table, answers = folder / "people.parquet", tmp_path / "answers"
    found = certified(folder, table, answers, tmp_path / "out")
    assert (len(found.results), found.counts["rows"]) == (3, len(people()))
    some = answers / "people.parquet.000000.parquet"
    for name, one, other in (("few", table, some), ("many", some, table)):
        with pytest.raises(DataError, match="expected one counterfactual for each row"):
            certified(folder, one, other, tmp_path / name)


# ---------------------------------------------------------------- rows that cannot be read


def rejecting(folder: Path, table: Path, out: Path, rows: int, engine: Any = None) -> Any:
    asked = Job("explain", str(folder / "model"), QUICK, keep=("id",), collect_rejects=True)
    tables = TableSource(str(table), batch_rows=rows, collect_rejects=True)
    with open_output(str(out), {**asked.document(), **tables.document()}) as output:
        task = partial(do_batch, asked)
        rejects = out.with_suffix(".rejects.csv")
        return run_table(task, tables.batches, output, engine or Serial(), rejects=rejects)


def test_rejected_rows_are_collected_whatever_the_batches_and_engines(folder: Path, tmp_path: Path) -> None:
    """A row without a cell, and one with a word for a number, in every way of doing it."""
    bad = people().astype({"income": object})
    bad.loc[[0, 26, 59], "income"] = "abc"
    lines = bad.to_csv(index=False).splitlines()
    for row in (5, 30, 59):
        lines[row] = lines[row].rpartition(",")[0]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    ways = {"one": (1000, None), "small": (7, None), "apart": (7, Processes(2))}
    found = {name: rejecting(folder, tmp_path / "t.csv", tmp_path / name, *how) for name, how in ways.items()}
    for name, summary in found.items():
        assert (summary.counts["rows"], len(summary.rejects)) == (54, 6)
        told = pd.read_csv(tmp_path / f"{name}.rejects.csv", dtype=str)
        assert told["recourse.row"].tolist() == ["1", "5", "27", "30", "59", "60"]
        assert_same(written(tmp_path / name), written(tmp_path / "one"))
        assert (tmp_path / f"{name}.rejects.csv").read_bytes() == (tmp_path / "one.rejects.csv").read_bytes()
    again = rejecting(folder, tmp_path / "t.csv", tmp_path / "small", 7)
    assert (again.done_before, len(again.results)) == (8, 9)  # of the last one no row is left
    assert again.rejects == found["small"].rejects


def test_pairs_of_which_one_cannot_be_read_are_left_out(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "answers.csv")
    answers = (tmp_path / "answers.csv").read_text().splitlines()
    answers[9] = answers[9].rpartition(",")[0]
    (tmp_path / "answers.csv").write_text("\n".join(answers) + "\n")
    bad = people().astype({"income": object})
    bad.loc[26, "income"] = "abc"
    bad.to_csv(tmp_path / "t.csv", index=False)
    asked = Job("certify", str(folder / "model"), QUICK, keep=("id",), collect_rejects=True)
    for rows in (4, 1000):
        left, right = (
            TableSource(str(tmp_path / name), batch_rows=rows, collect_rejects=True)
            for name in ("t.csv", "answers.csv")
        )
        with open_output(str(tmp_path / str(rows)), {"rows": rows}) as output:
            found = run_table(
                partial(do_batch, asked),
                partial(paired, left, right),
                output,
                Serial(),
                rejects=tmp_path / "r.csv",
            )
        told = pd.read_csv(tmp_path / "r.csv", dtype=str)
        assert told["recourse.row"].tolist() == ["9", "27"]
        assert found.counts["rows"] == 58
        assert written(tmp_path / str(rows))["id"].tolist() == [
            name for i, name in enumerate(people()["id"]) if i not in (8, 26)
        ]
