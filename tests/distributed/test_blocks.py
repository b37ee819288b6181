"""Runs in blocks: the same rows whatever the blocks, stopped and gone on with, and promised once."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from distributed_cases import QUICK, REFINED, assert_same, explained, model, people, question, written
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import EVERYTHING

import veritracer as vt
from veritracer.distributed import (
    Block,
    Inputs,
    Outcome,
    Question,
    RunFolder,
    certify_blocks,
    issue_blocks,
)
from veritracer.distributed.blocks import cut, rebatched
from veritracer.engines import Processes, Serial
from veritracer.errors import DataError, LedgerError
from veritracer.ledger.requests import Request
from veritracer.streaming import IssueTerms
from veritracer.tables import TableSource


@pytest.fixture(scope="session")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """What one process writes of all people, in one block."""
    out = tmp_path_factory.mktemp("alone") / "out"
    explained(folder, out, rows=1000)
    return written(out)


class Backwards:
    """An engine that does the last block first."""

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
def test_blocks_of_any_size_and_order_say_the_same(
    rows: int, backwards: bool, folder: Path, refined: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("blocks") / "out"
    outcome = explained(folder, out, rows=rows, engine=Backwards() if backwards else None, **REFINED)
    assert outcome.blocks == -(-len(people()) // rows)
    assert outcome.ended.rows == len(people())
    assert_same(written(out), refined)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), rows=st.integers(1, 12))
def test_blocks_do_not_depend_on_the_chunks_of_a_file(sizes: list[int], rows: int) -> None:
    whole = pa.table(
        {"x": list(range(sum(sizes))), "y": ["a", None] * (sum(sizes) // 2) + [""] * (sum(sizes) % 2)}
    )
    chunks, at = [], 0
    for size in sizes:
        chunks += whole.slice(at, size).combine_chunks().to_batches()
        at += size
    found = list(rebatched(chunks, rows))
    assert pa.Table.from_batches(found).equals(whole)
    assert all(batch.num_rows == rows for batch in found[:-1])


def test_a_block_travels_alone_and_knows_all_of_itself() -> None:
    def blocks(words: list[str]) -> list[Block]:
        column = pa.DictionaryArray.from_arrays([0, 1] * 5_000, words)
        (batch,) = pa.table({"x": list(range(10_000)), "word": column}).to_batches()
        return list(cut(TableSource("t", ("x", "word"), iter([batch])), "t", rows=100))

    one, other = blocks(["a", "b"]), blocks(["a", "c"])
    assert len(pickle.dumps(one[5], protocol=5)) < 5_000
    assert pickle.loads(pickle.dumps(one[5])).batches[0].equals(one[5].batches[0])
    assert one[5].digest == blocks(["a", "b"])[5].digest != other[5].digest


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


def test_a_finished_block_is_not_done_again(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "out"
    explained(folder, out)
    files = sorted(out.rglob("*.parquet"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[1].unlink()
    outcome = explained(folder, out)
    assert (outcome.blocks, outcome.skipped, outcome.ended.rows) == (3, 2, 60)
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
    with pytest.raises(DataError, match="got another block rows"):
        explained(folder, tmp_path / "out", place=str(table), rows=10)
    people().iloc[::-1].to_parquet(table, index=False)
    with pytest.raises(DataError, match="the rows that this run began with, got others"):
        explained(folder, tmp_path / "out", place=str(table))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("mine")
    with pytest.raises(DataError, match="the folder of a run"):
        explained(folder, tmp_path / "mine", place=str(table))


# ---------------------------------------------------------------- promises


def issued(
    folder: Path, out: Path | str, ledger: Path, original: Any = "plain", engine: Any = None
) -> Outcome:
    asked, inputs = question(folder), Inputs(str(folder / "people.parquet"), rows=25)
    run = RunFolder.open(out, asked.asked("issue", inputs), "parquet")
    terms = IssueTerms("id", original=original)
    return issue_blocks(asked, inputs, run, engine or Serial(), str(ledger), terms)


def numbers(ledger: Path) -> list[str]:
    with vt.Ledger(ledger) as place:
        assert place.verify().ok
        return sorted(one for piece in place.promises() for one in piece.ids)


@pytest.mark.parametrize("original", ["plain", "commitment"])
def test_nothing_is_promised_twice(original: str, folder: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "promises.db"
    first = issued(folder, out, ledger, original)
    told, promised = written(out), numbers(ledger)
    assert len(promised) == len(set(promised)) == first.promises > 10
    for record in (out / "_blocks").iterdir():  # as if the driver had been killed before it noted them
        record.unlink()
    again = issued(folder, out, ledger, original)
    assert (again.skipped, again.promises, numbers(ledger)) == (0, first.promises, promised)
    assert_same(written(out), told)
    assert [p.name for p in out.iterdir() if p.name == "_prepared" and any(p.iterdir())] == []
    if original == "commitment":
        opening = "recourse.opening"
        assert written(out)[opening].tolist() == told[opening].tolist()
        next(out.glob("*.parquet")).unlink()
        with pytest.raises(LedgerError, match="restore the file"):
            issued(folder, out, ledger, original)


def test_a_file_that_was_not_in_its_place_yet_is_found(folder: Path, tmp_path: Path) -> None:
    """Killed between the ledger's commit and the renaming: the prepared file is the one that was issued."""
    out, ledger = tmp_path / "out", tmp_path / "promises.db"
    issued(folder, out, ledger, "commitment")
    told = written(out)
    file = sorted(out.glob("*.parquet"))[0]
    record = json.loads((out / "_blocks" / f"{file.stem}.json").read_text())
    with vt.Ledger(ledger) as place:
        run = json.loads((out / "_run.json").read_text())["run"]
        kept = place.requested(Request(f"{run}/{record['name']}", record["digest"].encode()))
    digest = "" if kept is None or kept.answer is None else kept.answer["file"]
    (out / "_prepared").mkdir(exist_ok=True)
    file.rename(out / "_prepared" / f"{record['name']}.{digest}")
    issued(folder, out, ledger, "commitment")
    assert written(out)["recourse.opening"].tolist() == told["recourse.opening"].tolist()


def test_several_processes_say_the_same_in_one_chain(
    folder: Path, alone: pd.DataFrame, tmp_path: Path
) -> None:
    outcome = issued(folder, tmp_path / "out", tmp_path / "promises.db", engine=Processes(2))
    promised = numbers(tmp_path / "promises.db")
    assert len(promised) == len(set(promised)) == outcome.promises
    assert_same(written(tmp_path / "out"), alone)


# ---------------------------------------------------------------- certificates and audits


def test_pairs_are_certified_in_blocks(folder: Path, alone: pd.DataFrame, tmp_path: Path) -> None:
    alone[[*people().columns]].drop(columns="id").to_parquet(tmp_path / "answers.parquet", index=False)
    ends = []
    for rows in (7, 1000):
        asked = question(folder)
        tables = [
            Inputs(str(p), rows=rows) for p in (folder / "people.parquet", tmp_path / "answers.parquet")
        ]
        run = RunFolder.open(tmp_path / str(rows), asked.asked("certify", tables[0]), "parquet")
        ends.append(certify_blocks(asked, *tables, run, Serial()).ended)
    assert ends[0] == ends[1]
    assert ends[0].certified == (alone["recourse.status"] == "certified").sum()
    assert_same(written(tmp_path / "7"), written(tmp_path / "1000"))


def test_tables_of_different_lengths_are_no_pairs(folder: Path, tmp_path: Path) -> None:
    people().iloc[:50].drop(columns="id").to_parquet(tmp_path / "answers.parquet", index=False)
    asked = question(folder)
    tables = [Inputs(str(p), rows=30) for p in (folder / "people.parquet", tmp_path / "answers.parquet")]
    run = RunFolder.open(tmp_path / "out", asked.asked("certify", tables[0]), "parquet")
    with pytest.raises(DataError, match=r"more rows in .*people\.parquet"):
        certify_blocks(asked, *tables, run, Serial())


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


def test_a_block_names_its_rows() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    table = Block("t.csv.000001", 10, (batch,), ("t.csv",), (False,), "").table()
    assert (table.start, table.columns, sum(batch.num_rows for batch in table.batches)) == (10, ("x",), 2)


def test_a_folder_is_left_as_it_was_where_nothing_was_begun(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in (tmp_path / "new", tmp_path / "there"):
        run = RunFolder.open(place, {"verb": "explain"}, "csv")
        with pytest.raises(KeyError), run.unless_begun():
            raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    run = RunFolder.open(tmp_path / "there", {"verb": "explain"}, "csv")
    (tmp_path / "there" / "a.csv").touch()
    with pytest.raises(KeyError), run.unless_begun():
        raise KeyError
    assert len(list((tmp_path / "there").iterdir())) == 2  # to go on with


def test_a_document_that_can_not_be_read_is_not_gone_on_with(tmp_path: Path) -> None:
    RunFolder.open(tmp_path / "out", {"verb": "explain"}, "csv")
    for content in ("{", "{}", '{"run": "ab", "asked": 3}'):
        (tmp_path / "out" / "_run.json").write_text(content)
        with pytest.raises(DataError, match=r"a document of a run in .*remove it, or name a new folder"):
            RunFolder.open(tmp_path / "out", {"verb": "explain"}, "csv")


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
    files.rm(f"{path}/_blocks/{first.records[1].name}.json")
    again = explained(folder, url)
    assert (again.blocks, again.skipped) == (first.blocks, first.blocks - 1)
    assert_same(written(fetched(url, tmp_path / "second")), alone)
    with pytest.raises(DataError, match="another options"):
        explained(folder, url, overshoot=0.1)


@pytest.mark.parametrize("original", ["plain", "commitment"])
def test_nothing_is_promised_twice_from_elsewhere(original: str, folder: Path, tmp_path: Path) -> None:
    url, ledger = f"memory://{tmp_path}/out", tmp_path / "promises.db"
    first = issued(folder, url, ledger, original)
    told, promised = written(fetched(url, tmp_path / "first")), numbers(ledger)
    files, path = fsspec.core.url_to_fs(url)
    files.rm(f"{path}/_blocks", recursive=True)
    again = issued(folder, url, ledger, original)
    assert (again.skipped, again.promises, numbers(ledger)) == (0, first.promises, promised)
    assert_same(written(fetched(url, tmp_path / "second")), told)
    assert files.find(f"{path}/_prepared") == []
    if original == "commitment":
        opening = "recourse.opening"
        assert written(tmp_path / "second")[opening].tolist() == told[opening].tolist()
        files.rm(f"{path}/{first.records[0].file}")
        with pytest.raises(LedgerError, match="restore the file"):
            issued(folder, url, ledger, original)


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


def test_what_fails_before_its_first_block_leaves_nothing_elsewhere(folder: Path, tmp_path: Path) -> None:
    url = f"local://{tmp_path}/out"
    asked, inputs = question(folder), Inputs(str(folder / "people.parquet"))
    run = RunFolder.open(url, asked.asked("explain", inputs), "parquet")
    with pytest.raises(KeyboardInterrupt), run.unless_begun():
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- what must not be mixed


def test_another_model_in_the_folder_is_noticed_by_every_worker(folder: Path, tmp_path: Path) -> None:
    """A worker that replaces a killed one reads the folder again."""
    own = tmp_path / "model"
    model().save(own)
    asked = Question(str(own), QUICK, keep=("id",))
    model(1).save(tmp_path / "other")
    own.rename(tmp_path / "before")
    (tmp_path / "other").rename(own)
    with pytest.raises(DataError, match=r"expected the model that was in .* at the start, got another one"):
        pickle.loads(pickle.dumps(asked)).recourse()


def test_other_tables_have_a_run_of_their_own(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "out")
    people().to_parquet(tmp_path / "others.parquet", index=False)
    with pytest.raises(DataError, match=r"expected what the run in .* was asked, got another table"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "others.parquet"))


def test_what_is_written_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    people().to_parquet(tmp_path / "people.parquet", index=False)
    with pytest.raises(DataError, match=r"expected a folder outside of .*, got .*out — "):
        explained(folder, tmp_path / "out", place=str(tmp_path))


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
    asked, inputs = question(folder), Inputs(str(tmp_path / "people.parquet"))
    run = RunFolder.open(tmp_path / "out", asked.asked("issue", inputs), "parquet")
    with pytest.raises(DataError):
        issue_blocks(asked, inputs, run, Serial(), str(tmp_path / "l.db"), IssueTerms("id"))
    assert not (tmp_path / "l.db").exists()


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

    def first(batch: pa.RecordBatch) -> str:
        table = TableSource("t", ("a", "b", "c"), iter([batch]))
        return next(iter(cut(table, "t", at))).digest

    assert first(whole) == first(few)


def test_a_row_that_was_mended_is_gone_on_with(folder: Path, tmp_path: Path) -> None:
    bad = people().astype({"income": object})
    bad.loc[26, "income"] = "abc"
    bad.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"'abc' in row 27 of .*t\.csv"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "t.csv"))
    people().to_csv(tmp_path / "t.csv", index=False)
    assert explained(folder, tmp_path / "out", place=str(tmp_path / "t.csv")).skipped == 1


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
    asked, left = question(folder), Inputs(str(folder / "people.parquet"), rows=25)
    right = Inputs(str(tmp_path / "answers"), rows=25)
    run = RunFolder.open(tmp_path / "out", asked.asked("certify", left), "parquet")
    found = certify_blocks(asked, left, right, run, Serial())
    assert (found.blocks, found.ended.rows) == (3, len(people()))
    some = Inputs(str(tmp_path / "answers" / "people.parquet.000000.parquet"), rows=25)
    for name, one, other in (("few", left, some), ("many", some, left)):
        run = RunFolder.open(tmp_path / name, asked.asked("certify", one), "parquet")
        with pytest.raises(DataError, match="expected one counterfactual for each row"):
            certify_blocks(asked, one, other, run, Serial())
