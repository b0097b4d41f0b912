"""A server whose whole configuration is in the environment, as in a container."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.real_server import ddmq_command

VARIABLES = {
    "DDMQ__PRODUCER": "127.0.0.1:0",
    "DDMQ__CONSUMER": "127.0.0.1:0",
    "DDMQ__ADMIN": "127.0.0.1:0",
    "DDMQ__LOG_FORMAT": "json",
    "DDMQ__SAMPLES__ENABLED": "false",
    "DDMQ_TOPICS__TOPICS": "{orders: {queues: 2}}",
    "DDMQ_GROUPS__GROUPS": "{billing: {topics: {orders: {start: first, order_key: KEY}}}}",
}


class EnvironmentServer:
    """A `ddmq serve` without options."""

    def __init__(self, folder: Path) -> None:
        self.variables = {**os.environ, **VARIABLES, "DDMQ__DATA_DIR": str(folder / "data")}
        self._log = (folder / "server.log").open("w+")
        self.process = subprocess.Popen(
            ddmq_command("serve"), stdout=subprocess.PIPE, stderr=self._log, text=True, env=self.variables
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], self.log
        self.addresses = dict(word.split("=", 1) for word in ready[1:])

    @property
    def log(self) -> str:
        """What it wrote on standard error."""
        return Path(self._log.name).read_text()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command against the server, in its environment."""
        where = {
            f"DDMQ_{component.upper()}": self.addresses[component]
            for component in ("producer", "consumer", "admin")
        }
        return subprocess.run(
            ddmq_command(*arguments), env=self.variables | where, capture_output=True, text=True, check=False
        )

    def end(self) -> int:
        """Stop it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentServer]:
    server = EnvironmentServer(tmp_path_factory.mktemp("environment"))
    yield server
    assert server.end() == 0


def test_a_server_is_configured_by_the_environment_alone(server: EnvironmentServer) -> None:
    assert server.run("send", "orders", "hello", "--key", "k").returncode == 0
    pulled = server.run("pull", "orders", "--group", "billing")
    assert "hello" in pulled.stdout, pulled.stderr
    assert server.addresses["data-dir"] == server.variables["DDMQ__DATA_DIR"]
    assert '"event":"starting"' in server.log, "log_format is json"


def test_topics_and_groups_of_a_variable_belong_to_it(server: EnvironmentServer) -> None:
    changed = server.run("topic", "update", "orders", "--queues", "3")
    assert changed.returncode == 1
    assert "DDMQ_TOPICS__TOPICS" in changed.stderr
    changed = server.run("group", "set", "billing", "--topic", "orders", "--batch-max", "3")
    assert changed.returncode == 1
    assert "DDMQ_GROUPS__GROUPS" in changed.stderr


def test_config_show_agrees(server: EnvironmentServer) -> None:
    shown = server.run("config", "show", "--changed").stdout
    sources = {line.split()[0]: line.split()[2] for line in shown.splitlines()[1:]}
    assert sorted(sources.values()) == sorted([*VARIABLES, "DDMQ__DATA_DIR"])
