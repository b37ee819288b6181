"""What can be said of the image without Docker: its stages, its user, its limits, its commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from veritracer.app.cli import EXTRAS
from veritracer.app.cli.app import app

ROOT = Path(__file__).parents[3]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    pairs = [line.strip().partition(" ") for line in text.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in pairs]


def options_of_serve() -> set[str]:
    command: Any = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {flag for param in command.params for flag in param.opts}


def test_the_image_has_two_stages_and_runs_as_nobody() -> None:
    found = instructions()
    stages = [rest for name, rest in found if name == "FROM"]
    assert [stage.rpartition(" ")[2] for stage in stages] == ["build", "run"]
    last = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    run = found[last:]
    (user,) = [rest for name, rest in run if name == "USER"]
    assert int(user.partition(":")[0]) > 0
    assert not any("pip install" in rest for _, rest in run)
    assert not any(name == "ADD" for name, _ in found)
    assert ":latest" not in (ROOT / "Dockerfile").read_text() + (ROOT / "compose.yaml").read_text()
    copied = [part for name, rest in found[:last] if name == "COPY" for part in shlex.split(rest)[:-1]]
    assert all((ROOT / part).exists() for part in copied)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) <= allowed
    (extras,) = re.findall(r"\.\[([\w,]+)\]", (ROOT / "Dockerfile").read_text())
    assert {"cli", "serve", "postgres"} <= set(extras.split(",")) <= set(EXTRAS.values())


def test_the_commands_have_only_options_that_there_are() -> None:
    known = options_of_serve()
    (command,) = [json.loads(rest) for name, rest in instructions() if name == "CMD"]
    composed = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["service"]["command"]
    for words in (command, composed):
        assert {word for word in words if word.startswith("--")} <= known


def test_the_service_may_write_nowhere_else() -> None:
    document = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = document["services"]["service"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["depends_on"]["ledger"]["condition"] == "service_healthy"
    assert "POSTGRES_PASSWORD" not in document["services"]["ledger"]["environment"]
    assert set(document["secrets"]) == {"postgres_password", "ledger_url"}


def test_only_the_proxy_is_reached_from_outside() -> None:
    document = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services = document["services"]
    assert [name for name, one in services.items() if "ports" in one] == ["proxy"]
    assert set(services["proxy"]["networks"]) & set(services["ledger"]["networks"]) == set()
    assert document["networks"]["stored"]["internal"] is True
    assert services["service"]["environment"]["FORWARDED_ALLOW_IPS"] == "*"
    assert services["proxy"]["environment"]["PROXY_TO"] == "${PROXY_TO:-service:8080}"
    content = document["configs"]["proxy"]["content"]
    assert content.count("{") == content.count("}")
    assert "reverse_proxy {$$PROXY_TO}" in content
    assert "max_size 1MB" in content
