"""No command replaces what exists at the place of its output, unless it is forced to or continues a run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from optional import posix
from processes import assert_refused, run, run_many
from veritracer.app.cli.places import check_new, check_new_model, schema_beside
from veritracer.errors import DataError, ModelFileError

TARGET = ["--target", "approved", "--favourable", "yes"]
QUICK = ["--epochs", "1", "--no-panel", "--holdout", "0", "--quiet"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["a file", "an empty file", "a link", "a link to nothing", "a hard link"])
def test_an_existing_file_is_refused(tmp_path: Path, kind: str) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out.csv"
    table.write_text("a,recourse.status\n1,certified\n")
    if kind == "a hard link":
        os.link(table, out)
    elif "link" in kind:
        out.symlink_to(table if kind == "a link" else tmp_path / "nothing")
    else:
        out.write_text("" if "empty" in kind else table.read_text())
    with pytest.raises(DataError, match=r"a new file, got .*out.csv, which exists — .* --force"):
        check_new(out, force=False)
    check_new(out, force=True)


def test_what_replaces_nothing_is_allowed(tmp_path: Path) -> None:
    for place in (None, "-", tmp_path / "new.csv", "s3://bucket/new.csv", "/dev/null", tmp_path):
        check_new(place, force=False)


def test_every_command_refuses_an_existing_output(work: Path) -> None:
    shutil.copytree(work / "model", work / "other")
    for name in ("recourse.csv", "page.html", "report.html", "paper_examples.png"):
        (work / name).write_text("a,recourse.status\n")
    issued = [
        ["issue", "model", "people.csv", "--ledger", "l.db", "--id-column", "age", "--out", "i.csv"],
        ["issue", "model", "ids.csv", "--ledger", "l.db", "--id-column", "id", "--out", "i.csv", "--quiet"],
    ]
    lines = (work / "people.csv").read_text().splitlines()
    rows = [f"{name},{line}" for name, line in zip(["id", *map(str, range(len(lines)))], lines, strict=False)]
    (work / "ids.csv").write_text("\n".join(rows) + "\n")
    assert [done.returncode for done in run_many(issued, work)] == [2, 0]
    commands = [
        ["explain", "model", "people.csv", "--out", "people.csv"],
        ["explain", "model", "people.csv", "--out", "recourse.csv"],
        ["explain", "model", "people.csv", "--rejects", "recourse.csv"],
        ["certify", "model", "people.csv", "train.csv", "--out", "train.csv"],
        ["predict", "model", "people.csv", "--out", "recourse.csv"],
        ["issue", "model", "ids.csv", "--ledger", "l.db", "--id-column", "id", "--out", "recourse.csv"],
        ["report", "model", "people.csv"],
        ["audit", "--model", "model", "--ledger", "l.db", "--out", "page.html"],
        ["datasets", "write", "loans", "--rows", "10", "--out", "recourse.csv"],
        ["demo", "--out", "."],
        ["bench", "figures", "--out", "."],
        ["fit", "train.csv", *TARGET, *QUICK, "--out", "model"],
        ["update", "model", "train.csv", "--out", "other", "--quiet"],
    ]
    before = contents(work)
    for done in run_many(commands, work):
        assert_refused(done)
        assert "--force" in done.stderr, done
    assert contents(work) == before


def test_force_replaces_a_file(work: Path) -> None:
    (work / "other.csv").write_text("somebody's,work\n")
    commands = [
        ["datasets", "write", "loans", "--rows", "10", "--out", "other.csv", "--force", "--quiet"],
        ["predict", "model", "people.csv", "--out", "p.csv", "--quiet"],
        ["predict", "model", "people.csv", "--out", "p.csv", "--quiet", "--force"],
    ]
    assert [done.returncode for done in run_many(commands, work)] == [0, 0, 0]
    assert (work / "other.csv").read_text().count("\n") == 11


def test_a_run_in_a_folder_is_repeated_without_force(work: Path) -> None:
    command = ["predict", "model", "people.csv", "--out", "parts", "--rejects", "bad.csv", "--quiet"]
    people = (work / "people.csv").read_text().splitlines()
    cells = people[1].split(",")
    people[1] = ",".join(["no number", *cells[1:]])
    (work / "people.csv").write_text("\n".join(people) + "\n")
    first, again = run_many([command, command], work)
    assert (first.returncode, again.returncode) == (0, 0), again
    (work / "bad.csv").write_text("somebody's,notes\n")
    (refused,) = run_many([command], work)
    assert_refused(refused)
    assert "bad.csv, which exists" in refused.stderr


# ---------------------------------------------------------------- models


def test_a_model_and_its_schema_are_replaced_by_force_alone(tmp_path: Path) -> None:
    model = tmp_path / "model"
    check_new_model(model, force=False)
    schema_beside(model).write_text("{}")
    with pytest.raises(DataError, match=r"no schema beside the new model, got .*model.schema.json, which"):
        check_new_model(model, force=False)
    check_new_model(model, force=True)
    schema_beside(model).unlink()
    model.mkdir()
    check_new_model(model, force=False)
    (model / "model.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"a new folder, got .*, which holds a model — .* --force"):
        check_new_model(model, force=False)
    check_new_model(model, force=True)


def test_an_update_never_replaces_an_issuing_model(work: Path) -> None:
    shutil.copytree(work / "model", work / "copy")
    (work / "link").symlink_to("model")
    lines = (work / "people.csv").read_text().splitlines()
    rows = [f"{name},{line}" for name, line in zip(["id", *map(str, range(len(lines)))], lines, strict=False)]
    (work / "ids.csv").write_text("\n".join(rows) + "\n")
    issue = ["issue", "model", "ids.csv", "--ledger", "l.db", "--id-column", "id", "--out", "i.csv"]
    update = ["update", "model", "people.csv", "--no-compare", "--epochs", "1", "--force"]
    commands = [
        issue,
        [*update, "--out", "model"],
        [*update, "--out", "link"],
        [*update, "--keep", "l.db", "--out", "copy"],
    ]
    before = contents(work / "model")
    issued, *refused = run_many(commands, work)
    assert issued.returncode == 0, issued
    for done, said in zip(refused, ["model for both", "link for both", "issued promises"], strict=True):
        assert_refused(done)
        assert said in done.stderr
    assert contents(work / "model") == contents(work / "copy") == before


def test_an_update_says_that_it_begins(work: Path) -> None:
    done = run("update", "model", "people.csv", "--no-compare", "--epochs", "1", "--out", "new", cwd=work)
    assert done.returncode == 0, done
    assert done.stderr.startswith("Updating the model with 120 rows ...\n")
    assert json.loads((work / "new.schema.json").read_text())["target"] == "approved"


# ---------------------------------------------------------------- the schema of a model


def test_the_schema_is_beside_the_model(work: Path) -> None:
    assert sorted(path.name for path in (work / "model").iterdir()) == ["model.json", "model.safetensors"]
    content = json.loads((work / "model" / "model.json").read_text())["content"]
    assert json.loads((work / "model.schema.json").read_text()) == content["encoding"]["schema"]


def test_another_schema_in_the_folder_is_refused(work: Path) -> None:
    schema = (work / "model.schema.json").read_text()
    inside = work / "model" / "schema.json"
    inside.write_text(schema)
    assert run("predict", "model", "people.csv", cwd=work).returncode == 0
    for text in (schema.replace("increase_only", "free"), "{", "[" * 10_000):
        inside.write_text(text)
        done = run("predict", "model", "people.csv", cwd=work)
        assert_refused(done)
        assert (
            "move it to model.schema.json beside the folder, and pass it to fit with --schema" in done.stderr
        )


# ---------------------------------------------------------------- what is no model folder


@posix
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_no_files_of_a_model(work: Path, name: str, kind: str) -> None:
    place = work / "model" / name
    place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    commands = [["predict", "model", "people.csv"], ["inspect", "model"], ["report", "model", "people.csv"]]
    for done in run_many(commands, work):
        assert_refused(done)
        assert "a regular file" in done.stderr


@posix
def test_pipes_and_devices_are_no_model_folders(work: Path) -> None:
    os.mkfifo(work / "pipe")
    for place in ("pipe", "/dev/zero"):
        commands = [
            ["predict", place, "people.csv"],
            ["update", place, "people.csv", "--out", "new"],
            ["update", "model", "people.csv", "--out", place],
            ["fit", "train.csv", *TARGET, "--out", place, "--force"],
        ]
        for done in run_many(commands, work):
            assert_refused(done)
            assert "folder" in done.stderr


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000])
def test_deep_json_is_no_model(work: Path, text: str) -> None:
    (work / "model" / "model.json").write_text(text)
    (work / "deep.json").write_text(text)
    for done in run_many([["predict", "model", "people.csv"], ["inspect", "deep.json"]], work):
        assert_refused(done)
        assert "JSON" in done.stderr
