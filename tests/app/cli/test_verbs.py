"""What the verbs do when all is well: files in and out, pipes, JSON, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import veritracer as vt
from optional import posix
from processes import CLEAN, Done, assert_refused, run, run_many

FEATURES = vt.datasets.loans(rows=1).X.columns.tolist()


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model and the tables, to write into."""
    place = tmp_path_factory.mktemp("verbs") / "w"
    shutil.copytree(made, place)
    people = pd.read_csv(place / "people.csv")
    people.insert(0, "id", [f"p{i}" for i in range(len(people))])
    people.to_csv(place / "named.csv", index=False)
    people.drop(columns="id").to_csv(place / "semicolons.csv", index=False, sep=";")
    (place / "people16.csv").write_bytes((place / "people.csv").read_text().encode("utf-16"))
    people.assign(id='two\nlines, "quoted"').to_csv(place / "lines.csv", index=False)
    with sqlite3.connect(place / "people.db") as connection:
        people.drop(columns="id").reset_index().to_sql("people", connection, index=False)
    (place / "people.csv.gz").write_bytes(gzip.compress((place / "people.csv").read_bytes()))
    text = (place / "model.schema.json").read_text()
    schema = json.loads(text)
    for feature in schema["features"]:
        if feature["name"] == "income":
            feature["action"] = "immutable"
    (place / "edited.json").write_text(json.dumps(schema))
    return place


MULTILINE = ["--multiline-cells", "--keep", "id"]
QUERY = ["--ignore", "index", "--query", 'select * from people order by "index"']
HOPELESS = ["explain", "model", "people.csv", "--kappa", "50", "--no-refine"]
COMMANDS = {
    "plain": ["explain", "model", "people.csv", "--out", "plain.csv"],
    "again": ["explain", "model", "people.csv", "--out", "again.csv", "--quiet"],
    "parquet": ["explain", "model", "people.parquet", "--out", "out.parquet", "--json"],
    "lines": ["explain", "model", "people.csv", "--out", "out.jsonl", "--sentences", "--quiet"],
    "gzip": ["explain", "model", "people.csv.gz", "--out", "gzip.csv", "--quiet"],
    "semicolons": ["explain", "model", "semicolons.csv", "--out", "semi.csv", "--quiet"],
    "utf-16": ["explain", "model", "people16.csv", "--encoding", "utf-16", "--out", "16.csv", "--quiet"],
    "multiline": ["explain", "model", "lines.csv", *MULTILINE, "--out", "lines_out.csv", "--quiet"],
    "multiline again": ["certify", "model", "lines.csv", "lines_out.csv", *MULTILINE, "--json"],
    "database": ["explain", "model", "sqlite:///people.db", *QUERY, "--out", "database.csv", "--quiet"],
    "bulk": ["explain", "model", "people.csv", "--no-refine", "--no-radius", "--out", "bulk.csv", "--quiet"],
    "all": ["explain", "model", "people.csv", "--all", "--no-refine", "--out", "all.csv", "--json"],
    "several": ["explain", "model", "people.csv", "--n", "2", "--out", "several.csv", "--quiet"],
    "one change": ["explain", "model", "people.csv", "--max-changes", "1", "--out", "one.csv", "--json"],
    "rules": ["explain", "model", "people.csv", "--schema", "edited.json", "--out", "rules.csv", "--quiet"],
    "prices": ["explain", "model", "people.csv", "--cost", "income=inf", "--out", "prices.csv", "--quiet"],
    "keep": ["explain", "model", "named.csv", "--keep", "id", "--out", "keep.csv", "--quiet"],
    "hopeless": [*HOPELESS, "--out", "hopeless.csv", "--json"],
    "certify": ["certify", "model", "people.csv", "plain.csv", "--out", "certificates.csv", "--json"],
    "certify nothing": ["certify", "model", "people.csv", "people.parquet"],
    "certify too far": ["certify", "model", "people.csv", "plain.csv", "--kappa", "50", "--json"],
    "inspect": ["inspect", "model"],
    "inspect json": ["inspect", "model", "--json"],
    "inspect table": ["inspect", "people.csv"],
    "inspect schema": ["inspect", "edited.json", "--json"],
    "refit once": [
        "fit",
        "train.csv",
        "--target",
        "approved",
        "--favourable",
        "yes",
        "--epochs",
        "1",
        "--no-panel",
        "--out",
        "second",
        "--quiet",
    ],
    "refit": [
        "fit",
        "train.csv",
        "--schema",
        "edited.json",
        "--epochs",
        "2",
        "--no-panel",
        "--out",
        "second",
        "--force",
        "--json",
    ],
}


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    """All of them, in one process."""
    return dict(zip(COMMANDS, run_many(list(COMMANDS.values()), folder), strict=True))


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def test_exit_codes(done: dict[str, Done], folder: Path) -> None:
    codes = {name: answer.returncode for name, answer in done.items()}
    uncertified = bool((read(folder / "plain.csv")["recourse.status"] == "valid").any())
    failed = {"certify too far": 1}
    failed |= dict.fromkeys(("certify", "multiline again"), int(uncertified))
    assert codes == {name: failed.get(name, 0) for name in COMMANDS}, done


def test_explain_says_what_it_found(done: dict[str, Done], folder: Path) -> None:
    table = read(folder / "plain.csv")
    certified = int((table["recourse.status"] == "certified").sum())
    favourable = int((table["recourse.reason"] == "already favourable").sum())
    assert certified > 10
    assert f"120 rows, {favourable} of them already favourable" in done["plain"].stdout
    assert f"{certified} certified at kappa = 0.2 (linf, mean-abs)" in done["plain"].stdout
    assert (done["again"].stdout, done["again"].stderr) == ("", "")


def test_explain_is_what_the_library_says(done: dict[str, Done], folder: Path) -> None:
    assert done
    X = vt.datasets.loans(rows=120, random_state=7).X
    expected = vt.load(folder / "model").explain(X)
    written = read(folder / "plain.csv")
    assert written["recourse.status"].tolist() == expected.status.tolist()
    for name in FEATURES:
        shown = expected.frame[name].reset_index(drop=True)
        pd.testing.assert_series_equal(written[name], shown, check_dtype=False)
    assert written["recourse.radius"].tolist() == pytest.approx(expected.radius.tolist())


def test_the_same_answers_from_every_format(done: dict[str, Done], folder: Path) -> None:
    plain = read(folder / "plain.csv")
    assert (folder / "again.csv").read_bytes() == (folder / "plain.csv").read_bytes()
    assert (folder / "gzip.csv").read_bytes() == (folder / "plain.csv").read_bytes()
    for name in ("semi.csv", "16.csv", "database.csv"):
        assert (folder / name).read_bytes() == (folder / "plain.csv").read_bytes()
    lines = read(folder / "lines_out.csv")
    assert set(lines["id"]) == {'two\nlines, "quoted"'}
    pd.testing.assert_frame_equal(lines.drop(columns="id"), read(folder / "plain.csv"))
    assert json.loads(done["multiline again"].stdout)["invalid"] == 0
    parquet = pd.read_parquet(folder / "out.parquet")
    assert parquet["recourse.status"].tolist() == plain["recourse.status"].tolist()
    assert parquet["income"].dtype.kind in "if"
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [line["recourse.status"] for line in lines] == plain["recourse.status"].tolist()
    told = json.loads(done["parquet"].stdout)
    assert told["certified"] == int((plain["recourse.status"] == "certified").sum())
    assert told["rows"] == told["favourable"] + told["certified"] + told["valid"] + told["none"]
    sentence = next(x["recourse.sentence"] for x in lines if x["recourse.status"] == "certified")
    assert "stays valid for any later version of the model" in sentence


def test_options_of_explain(done: dict[str, Done], folder: Path) -> None:
    own = read(folder / "people.csv")
    assert (read(folder / "one.csv")["recourse.n_changes"] <= 1).all()
    for name in ("rules.csv", "prices.csv"):
        pd.testing.assert_series_equal(read(folder / name)["income"], own["income"], check_dtype=False)
    assert read(folder / "keep.csv")["id"].tolist() == [f"p{i}" for i in range(120)]
    assert json.loads(done["all"].stdout)["favourable"] == 0
    several = read(folder / "several.csv")
    assert several["recourse.row"].nunique() == 120
    assert several["recourse.alternative"].max() == 2
    bulk = read(folder / "bulk.csv")
    certified = bulk["recourse.status"] == "certified"
    assert (bulk.loc[certified, "recourse.radius"] == 0.2).all()


def test_what_is_not_achieved_is_said(done: dict[str, Done], folder: Path) -> None:
    told = json.loads(done["hopeless"].stdout)
    assert (told["certified"], told["kappa"]) == (0, 50.0)
    assert (folder / "hopeless.csv").exists()
    assert json.loads(done["certify too far"].stdout)["unknown"] > 0


def test_certify_goes_on_without_pairs_that_can_not_be_read(done: dict[str, Done], folder: Path) -> None:
    """Bad cells and bad lines on either side, the last pair among them."""
    lines, others = ((folder / name).read_text().splitlines() for name in ("people.csv", "plain.csv"))
    region = lines[0].split(",").index("region")
    lines[3] = ",".join("nowhere" if k == region else cell for k, cell in enumerate(lines[3].split(",")))
    lines[7] += ",and more"
    own = others[0].split(",").index("income")
    others[5] = ",".join("a lot" if k == own else cell for k, cell in enumerate(others[5].split(",")))
    others[120] = others[120].partition(",")[0]
    (folder / "rough.csv").write_text("\n".join(lines) + "\n")
    (folder / "answers.csv").write_text("\n".join(others) + "\n")
    command = ["certify", "model", "rough.csv", "answers.csv", "--out", "left.csv"]
    shorter = "\n".join(others[:100]) + "\n"
    (folder / "short.csv").write_text(shorter)
    short = ["certify", "model", "rough.csv", "short.csv", "--rejects", "short_rejects.csv"]
    (folder / "long.csv").write_text("\n".join([*others, others[120]]) + "\n")
    long = ["certify", "model", "rough.csv", "long.csv", "--rejects", "long_rejects.csv"]
    strict, lenient, refused, longer = run_many(
        [command, [*command, "--rejects", "pairs.csv", "--json"], short, long], folder
    )
    assert_refused(longer)
    assert "more rows in long.csv" in longer.stderr
    assert_refused(strict)
    told = json.loads(lenient.stdout)
    assert (told["rows"], told["rejected"]) == (116, 4)
    pairs = read(folder / "pairs.csv")
    assert sorted(pairs["recourse.row"]) == [3, 5, 7, 120]
    reasons = dict(zip(pairs["recourse.row"], pairs["recourse.reason"], strict=True))
    assert [reasons[row].startswith("its counterfactual: ") for row in (3, 5, 7, 120)] == [False, True] * 2
    whole = read(folder / "certificates.csv").drop(index=[2, 4, 6, 119]).reset_index(drop=True)
    pd.testing.assert_frame_equal(read(folder / "left.csv"), whole)
    assert_refused(refused)
    assert "more rows in rough.csv" in refused.stderr
    assert not (folder / "short_rejects.csv").exists()


def test_what_predict_notices_is_a_note(folder: Path) -> None:
    people = pd.read_csv(folder / "people.csv")
    people.assign(income=people["income"].where(people.index != 3, 10**9)).to_csv(
        folder / "rich.csv", index=False
    )
    predict = ["predict", "model", "rich.csv", "--out", "decided.csv", "--force"]
    plain, as_json, quiet = run_many([predict, [*predict, "--json"], [*predict, "--quiet"]], folder)
    for done in (plain, as_json):
        assert done.returncode == 0
        assert done.stderr.startswith("note: expected values inside the fitted ranges, got 1 in 'income'")
        assert done.stderr.count("\n") == 1
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_certify_agrees_with_explain(done: dict[str, Done], folder: Path) -> None:
    explained = read(folder / "plain.csv")["recourse.status"]
    told = json.loads(done["certify"].stdout)
    assert told["certified"] == int((explained == "certified").sum())
    assert (told["kappa"], told["models"]) == (0.2, "kappa = 0.2 (linf, mean-abs)")
    assert told["center_digest"] == json.loads(done["inspect json"].stdout)["model_digest"]
    assert told["unchanged"] == int((explained == "none").sum())
    certificates = read(folder / "certificates.csv")
    assert ((certificates["recourse.status"] == "certified") == (explained == "certified")).all()
    assert "120 unchanged" in done["certify nothing"].stdout


def test_inspect_shows_model_schema_and_digests(done: dict[str, Done], folder: Path) -> None:
    told = json.loads(done["inspect json"].stdout)
    model = vt.load(folder / "model")
    assert told["encoding_digest"] == model.encoding_.digest
    assert told["kappa"] == 0.2
    assert len(told["history"]["epoch"]) == told["epochs"] == 6
    assert [f["name"] for f in told["schema"]["features"]] == FEATURES
    assert "kappa = 0.2 (linf, mean-abs)" in done["inspect"].stdout
    for text in ("years_employed", "increase_only", told["encoding_digest"], "'yes' is favourable"):
        assert text in done["inspect"].stdout
    assert "savings" in done["inspect table"].stdout
    schema = json.loads(done["inspect schema"].stdout)
    assert {f["name"]: f["action"] for f in schema["features"]}["income"] == "immutable"


def test_an_edited_schema_is_taken_back(done: dict[str, Done], folder: Path) -> None:
    told = json.loads(done["refit"].stdout)
    assert told["epochs"] == 2
    model = vt.load(folder / "second")
    assert model.schema_["income"].action == "immutable"
    assert model.schema_["age"].action == "immutable"
    assert vt.Schema.from_json((folder / told["schema"]).read_text()) == model.schema_


@pytest.mark.long
def test_a_schema_in_toml(folder: Path) -> None:
    schema = json.loads((folder / "model.schema.json").read_text())
    head = "\n".join(f"{k} = {json.dumps(v)}" for k, v in schema.items() if k != "features" and v is not None)
    blocks = [
        "[[features]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in feature.items() if v is not None)
        for feature in schema["features"]
    ]
    (folder / "schema.toml").write_text("\n\n".join([head, *blocks]))
    asked = [["inspect", "schema.toml", "--json"], ["inspect", "model.schema.json", "--json"]]
    toml, plain = run_many(asked, folder)
    assert json.loads(toml.stdout) == json.loads(plain.stdout)


@pytest.mark.long
def test_pipes(folder: Path, done: dict[str, Done]) -> None:
    assert done
    text = (folder / "people.csv").read_text()
    piped = run("explain", "model", "-", cwd=folder, stdin=text)
    assert (piped.returncode, piped.stdout) == (0, (folder / "plain.csv").read_text())
    packed = run(
        "explain", "model", "-", "--json", cwd=folder, stdin=(folder / "people.parquet").read_bytes()
    )
    lines = [json.loads(line) for line in packed.stdout.splitlines()]
    assert [line["recourse.status"] for line in lines] == read(folder / "plain.csv")[
        "recourse.status"
    ].tolist()


def test_a_reader_that_leaves_is_no_error(folder: Path) -> None:
    program = f"{sys.executable} -m veritracer explain model people.csv --no-refine | head -n 1"
    done = subprocess.run(
        program, shell=True, cwd=folder, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("age,")
    assert "Traceback" not in done.stderr


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    X = vt.datasets.loans(rows=200)
    frame = X.X[["income", "savings", "age"]].assign(ok=(X.y == "yes").astype(int))
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit = [
        "fit",
        "t.csv",
        "--target",
        "ok",
        "--favourable",
        "0",
        "--epochs",
        "1",
        "--no-panel",
        "--out",
        "m",
        "--json",
    ]
    fitted, shown = run_many([fit, ["inspect", "m", "--json"]], tmp_path)
    assert json.loads(fitted.stdout)["favourable"] == 0
    assert json.loads(shown.stdout)["schema"]["unfavourable"] == 1


@posix
@pytest.mark.long
def test_interrupted_explain_leaves_nothing(folder: Path) -> None:
    head, *rows = (folder / "people.csv").read_text().splitlines()
    (folder / "long.csv").write_text("\n".join([head, *rows * 2000]) + "\n")
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{listen}; from veritracer.app.cli import main; main()"
    command = [sys.executable, "-c", program, "explain", "model", "long.csv", "--out", "never.csv"]
    with subprocess.Popen(
        command, cwd=folder, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not (folder / "never.csv.partial").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, ("", "interrupted\n"))
    assert not list(folder.glob("never*"))


@posix
@pytest.mark.long
def test_interrupted_fit_leaves_nothing(folder: Path) -> None:
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = (
        f"{listen}; from veritracer.app.cli import main; import signal as s; s.setitimer(s.ITIMER_REAL, 2); "
    )
    program += "s.signal(s.SIGALRM, lambda *_: s.raise_signal(s.SIGINT)); main()"
    command = [sys.executable, "-c", program, "fit", "train.csv", "--target", "approved", "--out", "half"]
    command += ["--favourable", "yes", "--epochs", "100000"]
    done = subprocess.run(
        command, cwd=folder, env=CLEAN, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (folder / "half").exists()


@pytest.mark.long
def test_progress_on_a_terminal(folder: Path) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "veritracer", "explain", "model", "people.csv", "--out", "seen.csv"]
    env = {**CLEAN, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:  # Linux says so at the end of a terminal
            pass
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert "explaining: 120 rows" in seen.decode()
    assert b"The recourse: seen.csv" in out


def test_completion(tmp_path: Path) -> None:
    env = {"_VERITRACER_COMPLETE": "complete_bash", "COMP_WORDS": "veritracer ex", "COMP_CWORD": "1"}
    done = run(before="sys.argv[0] = 'veritracer'", env=env, cwd=tmp_path)
    assert "explain" in done.stdout
    assert "certify" not in done.stdout


@pytest.mark.long
def test_report(folder: Path) -> None:
    asked = ["report", "model", "people.csv", "--out", "report.html", "--title", "A <title>", "--json"]
    (done,) = run_many([asked], folder)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"report": "report.html", "rows": 120})
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "A &lt;title&gt;" in page
