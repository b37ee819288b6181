"""Flags are derived from the options types: same names, bounds and defaults as in Python and HTTP."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import TypeAdapter
from typer.testing import CliRunner

import veritracer as vt
from veritracer.app.cli.explain import explain
from veritracer.app.cli.issue import issue
from veritracer.app.cli.options import FLAGS, ReadOptions, amounts, flags_of, with_flags
from veritracer.app.cli.serve import serve
from veritracer.app.serve.settings import Settings
from veritracer.errors import DataError
from veritracer.options import ExplainOptions, IssueOptions

FIELDS = [field.name for field in dataclasses.fields(ExplainOptions)]


def given_by(options: Any, *typed: str) -> Any:
    """Return the options that a command with these arguments receives."""
    app: typer.Typer = typer.Typer()
    received: list[Any] = []
    app.command()(with_flags(_taking(options, received)))
    done = CliRunner().invoke(app, list(typed))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    (found,) = received
    return found


def _taking(options: Any, received: list[Any]) -> Any:
    def command(options: Any) -> None:
        received.append(options)

    command.__annotations__ = {"options": options, "return": None}
    return command


def test_python_http_and_the_command_line_list_the_same_options() -> None:
    python = list(inspect.signature(vt.Recourse.explain).parameters)[2:]
    http = list(TypeAdapter(ExplainOptions).json_schema()["properties"])
    flags = [flag.name for flag in flags_of(ExplainOptions)]
    assert python == flags == FIELDS
    assert sorted(http) == sorted(FIELDS)
    for command, options in ((explain, ExplainOptions), (issue, IssueOptions)):
        shown = inspect.signature(command).parameters
        python_only = {"key", "now"} if options is IssueOptions else set()
        assert {field.name for field in dataclasses.fields(options)} - python_only <= set(shown)
        assert not python_only & set(shown)


@pytest.mark.parametrize("options", [ExplainOptions, IssueOptions])
def test_every_flag_has_the_help_and_the_bounds_of_its_field(options: Any) -> None:
    fields = options.__pydantic_fields__
    for flag in flags_of(options):
        _, option = flag.annotation.__args__[0], flag.annotation.__metadata__[0]
        assert option.help.startswith(fields[flag.name].description)
        bounds = {one.__class__.__name__: one for one in fields[flag.name].metadata}
        assert option.min == (bounds["Ge"].ge if "Ge" in bounds else None)
        assert option.max == (bounds["Le"].le if "Le" in bounds else None)


def test_no_flag_means_the_defaults_of_python() -> None:
    assert given_by(ExplainOptions) == ExplainOptions()
    issued = given_by(IssueOptions, "--id-column", "application", "--ledger", "promises.db")
    assert issued == IssueOptions(ids="application", ledger="promises.db")


def test_values_are_parsed_by_their_types() -> None:
    typed = ["--kappa", "0.1", "--all", "--no-radius", "--plausible", "--n", "3", "--no-refine"]
    assert given_by(ExplainOptions, *typed[:-3]) == ExplainOptions(
        kappa=0.1, only_unfavourable=False, search_radius=False, plausible=True
    )
    typed = ["--cost", "age=inf", "--cost", "income=2,savings=1", "--limit", "income=0.3"]
    assert given_by(ExplainOptions, *typed, "--drift", "age=0:2,savings=100") == ExplainOptions(
        cost={"age": float("inf"), "income": 2.0, "savings": 1.0},
        limits={"income": 0.3},
        drift={"age": (0.0, 2.0), "savings": 100.0},
    )
    terms = ["--id-column", "a", "--ledger", "l.db", "--expires", "52w", "--uncertified", "promise"]
    found = given_by(IssueOptions, *terms, "--original", "commitment", "--allow-duplicate")
    assert found.expires == timedelta(weeks=52)
    assert (found.uncertified, found.original, found.allow_duplicate) == ("promise", "commitment", True)
    assert given_by(IssueOptions, *terms[:4], "--expires", "never").expires is None


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("age", True),
        ("=2", True),
        ("age=nan", True),
        ("age=0:1:2", True),
        ("age=0:2", 0),
        ("age=x", True),
    ],
)
def test_what_is_no_amount_is_refused(text: str, ranges: int) -> None:
    with pytest.raises(DataError, match="a name and a number for --drift"):
        amounts("--drift", [text], ranges=bool(ranges))


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(DataError, match="expected refine=True, got refine=False with 'n'"):
        given_by(ExplainOptions, "--no-refine", "--n", "2")
    with pytest.raises(DataError, match="separator"):
        given_by(ReadOptions, "--separator", "long")


def test_a_group_of_our_own_has_one_flag_for_each_field() -> None:
    @dataclass(frozen=True)
    class Group:
        needed: str
        count: int = 3

    assert [(flag.name, flag.default) for flag in flags_of(Group)] == [
        ("needed", inspect.Parameter.empty),
        ("count", 3),
    ]


def test_flags_with_other_names_belong_to_fields() -> None:
    groups = IssueOptions, Settings
    assert set(FLAGS) <= {field.name for group in groups for field in dataclasses.fields(group)}


def test_the_service_has_a_flag_for_each_of_its_settings(tmp_path: Path) -> None:
    assert given_by(Settings) == Settings()
    given = ["--ledger", "l.db", "--window", "7", "--batch", "3", "--field", "institution=Bank, of Oz"]
    given += [
        "--allowed-host",
        "bank.example,www.example",
        "--codes",
        str(tmp_path),
        "--original",
        "encrypted",
    ]
    assert given_by(Settings, *given, "--replace") == Settings(
        ledger="l.db",
        window=7.0,
        batch_rows=3,
        fields={"institution": "Bank, of Oz"},
        allowed_hosts=("bank.example", "www.example"),
        codes=tmp_path,
        original="encrypted",
        replace=True,
    )
    shown = {flag.name for flag in flags_of(Settings)}
    hidden = {"model", "most_rows", "most_bytes", "body_timeout", "ledger_key"}
    assert shown | hidden == {field.name for field in dataclasses.fields(Settings)}
    assert shown <= set(inspect.signature(serve).parameters)
