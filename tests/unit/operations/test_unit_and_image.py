"""conf/systemd and conf/docker agree with what the server takes and with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from ddmq.cli.root import root
from ddmq.server.config import ServeConfig
from ddmq_common.errors import ConfigError
from ddmq_common.private_files import make_private
from tools import server_lock

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
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["ddmq"]
    return services


def test_the_unit_starts_the_server_in_its_state_directory() -> None:
    settings = unit()
    program, *arguments = shlex.split(settings["ExecStart"])
    assert program == "/opt/ddmq/bin/ddmq"
    options = parsed(arguments)
    assert str(options["data_dir"]) == f"/var/lib/{settings['StateDirectory']}"
    assert (settings["User"], settings["StateDirectoryMode"], settings["UMask"]) == ("ddmq", "0700", "0077")
    assert int(settings["TimeoutStopSec"]) > DRAIN_S + 10
    assert int(settings["LimitNOFILE"]) >= 2 * 10_000 + 2_048, (
        "both proxies' connections, and the log's files"
    )


HARDENING = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "AmbientCapabilities": "", "PrivateTmp": "yes",
    "PrivateDevices": "yes", "PrivateUsers": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
    "ProtectKernelTunables": "yes", "ProtectKernelModules": "yes", "ProtectKernelLogs": "yes",
    "ProtectControlGroups": "yes", "ProtectClock": "yes", "ProtectHostname": "yes",
    "ProtectProc": "invisible",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6", "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes", "RestrictSUIDSGID": "yes", "LockPersonality": "yes",
    "MemoryDenyWriteExecute": "yes", "RemoveIPC": "yes", "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
}  # fmt: skip
EXPOSURE_MAX = 1.5  # as `systemd-analyze security` counts: 10 is a service without any of it


def test_the_unit_removes_unneeded_privileges() -> None:
    settings = unit()
    assert {name: settings.get(name) for name in HARDENING} == HARDENING
    filters = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert filters == ["@system-service", "~@privileged @resources"]
    assert "ProcSubset" not in settings, "the log paces its writes by Dirty in /proc/meminfo"


@pytest.mark.slow
def test_systemd_reports_a_low_exposure_level() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (package systemd)")
    command = [analyze, "security", "--offline=true", "--no-pager", UNIT]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result)
    assert exposure is not None, result
    assert float(exposure[1]) <= EXPOSURE_MAX


@pytest.mark.slow
def test_systemd_reports_no_problem_in_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze (package systemd)")
    copy, program = tmp_path / UNIT.name, shutil.which("true")
    assert program is not None
    copy.write_text(UNIT.read_text().replace("/opt/ddmq/bin/ddmq", program))
    result = subprocess.run(
        [analyze, "verify", copy], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in result.stderr.splitlines() if UNIT.name in line] == []
    assert result.returncode == 0, result.stderr


def test_the_image_starts_the_server_on_its_exposed_ports() -> None:
    program, *arguments = json.loads(instruction("ENTRYPOINT"))
    assert program == "ddmq"
    options = parsed(arguments)
    ports = [str(options[component]).rpartition(":")[2] for component in ("producer", "consumer", "admin")]
    assert instruction("EXPOSE").split() == ports
    assert options["data_dir"].parent == Path(instruction("VOLUME")), "the volume may belong to others"
    assert instruction("USER") == "ddmq"
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    assert f":{ports[2]}/health" in check[2]


def test_the_image_needs_security_or_permission_to_listen_beyond_loopback(tmp_path: Path) -> None:
    """Without: one line that names the option, and no server. The compose file says it."""
    _, *arguments = json.loads(instruction("ENTRYPOINT"))
    assert parsed(arguments)["insecure"] is not True
    assert "/etc/ddmq" in DOCKERFILE.partition("install -d")[2].splitlines()[0]
    arguments[arguments.index("/etc/ddmq")] = str(tmp_path)
    started = CliRunner().invoke(root, arguments)
    assert isinstance(started.exception, ConfigError)
    assert "or give --insecure" in str(started.exception)
    assert parsed([*arguments, *service()["command"]])["insecure"] is True
    assert service()["networks"] == list(yaml.safe_load(COMPOSE.read_text())["networks"])


def test_the_data_goes_below_a_volume_of_others(tmp_path: Path) -> None:
    """As a cluster's volume is: of root, 2775, writable by a group of the server."""
    tmp_path.chmod(0o2775)
    with pytest.raises(ConfigError, match="2775"):
        make_private(tmp_path)
    make_private(tmp_path / "data")
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) & 0o777 == 0o700


def test_the_image_installs_by_the_hashes_of_the_lock_and_nothing_else() -> None:
    pip = re.findall(r"\bpip (?:install|wheel) [^&\n]*", DOCKERFILE.replace("\\\n", " "))
    assert len(pip) == 4
    for command in pip:
        assert "--only-binary :all: --require-hashes -r conf/docker/" in command or "--no-deps" in command
    assert [command for command in pip if "--no-index" in command or "--no-build-isolation" in command] == [
        command for command in pip if "--no-deps" in command
    ]
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE), "an exact tag"
    for name, text in server_lock.locks().items():
        assert (ROOT / "conf/docker" / name).read_text() == text
        assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=[a-z])", text)[1:])
        lock = (ROOT / "requirements.lock").read_text()
        assert all(line in lock.splitlines() for line in text.splitlines()[1:])
    assert {".git", ".venv", "data"} <= set(
        (ROOT / "conf/docker/Dockerfile.dockerignore").read_text().split()
    )


def test_compose_publishes_to_loopback_only_and_waits_for_the_drain() -> None:
    compose = service()
    ports = instruction("EXPOSE").split()
    assert compose["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    assert int(compose["stop_grace_period"].removesuffix("s")) > DRAIN_S + 10
    volume, _, mount_point = compose["volumes"][0].partition(":")
    assert mount_point == instruction("VOLUME")
    assert volume in yaml.safe_load(COMPOSE.read_text())["volumes"]
    build = compose["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert (context, (context / build["dockerfile"]).is_file()) == (ROOT, True)
    assert (compose["read_only"], compose["cap_drop"]) == (True, ["ALL"])
