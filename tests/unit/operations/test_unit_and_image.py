"""conf/systemd and conf/docker agree with what the server takes and with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ddmq.cli.root import root
from ddmq.server.config import ServeConfig

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "conf/systemd/ddmq.service"
DOCKERFILE = (ROOT / "conf/docker/Dockerfile").read_text()
COMPOSE = ROOT / "conf/docker/compose.yaml"
DRAIN_S = ServeConfig().drain_ms / 1000


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of `ddmq serve …` as the command line reads them. Raises click.UsageError."""
    name, *rest = arguments
    command = root.get_command(click.Context(root), name)
    assert command is not None
    return dict(command.make_context(name, list(rest)).params)


def unit() -> dict[str, str]:
    return dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"\w+=", line))


def instruction(name: str) -> str:
    """The last one of that name, its lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)[-1].strip()


def service() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["ddmq"]
    return found


def test_the_unit_starts_the_server_in_the_directory_that_it_gives_it() -> None:
    found = unit()
    program, *arguments = shlex.split(found["ExecStart"])
    assert program == "/opt/ddmq/bin/ddmq"
    options = parsed(arguments)
    assert str(options["data_dir"]) == f"/var/lib/{found['StateDirectory']}"
    assert (found["User"], found["StateDirectoryMode"], found["UMask"]) == ("ddmq", "0700", "0077")
    assert int(found["TimeoutStopSec"]) > DRAIN_S + 10
    assert int(found["LimitNOFILE"]) >= 2 * 10_000 + 2_048, "both proxies' connections, and the log's files"


@pytest.mark.slow
def test_systemd_finds_nothing_wrong_in_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (package systemd)")
    copy, program = tmp_path / UNIT.name, shutil.which("true")
    assert program is not None
    copy.write_text(UNIT.read_text().replace("/opt/ddmq/bin/ddmq", program))
    said = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in said.stderr.splitlines() if UNIT.name in line] == []
    assert said.returncode == 0, said.stderr


def test_the_image_starts_the_server_on_what_it_exposes() -> None:
    program, *arguments = json.loads(instruction("ENTRYPOINT"))
    assert program == "ddmq"
    options = parsed(arguments)
    ports = [str(options[part]).rpartition(":")[2] for part in ("producer", "consumer", "admin")]
    assert instruction("EXPOSE").split() == ports
    assert str(options["data_dir"]) == instruction("VOLUME")
    assert options["beyond_loopback"] is True
    assert instruction("USER") == "ddmq"
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    assert f":{ports[2]}/health" in check[2]


def test_the_image_installs_the_versions_of_the_lock() -> None:
    """The Dockerfile's own pattern, over the lock as it is."""
    pattern = re.search(r"grep -oE '([^']+)' requirements.lock", DOCKERFILE)
    assert pattern is not None
    lock = (ROOT / "requirements.lock").read_text()
    found = re.findall(pattern[1], lock, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[a-zA-Z0-9]", lock, re.MULTILINE)) > 40
    assert {".git", ".venv", "data"} <= set(
        (ROOT / "conf/docker/Dockerfile.dockerignore").read_text().split()
    )


def test_compose_publishes_to_loopback_only_and_waits_for_the_drain() -> None:
    found = service()
    ports = instruction("EXPOSE").split()
    assert found["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    assert int(found["stop_grace_period"].removesuffix("s")) > DRAIN_S + 10
    volume, _, place = found["volumes"][0].partition(":")
    assert place == instruction("VOLUME")
    assert volume in yaml.safe_load(COMPOSE.read_text())["volumes"]
    build = found["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert (context, (context / build["dockerfile"]).is_file()) == (ROOT, True)
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
