"""One real server on each engine for the command line's tests, whose configuration they may reload.

Every answer of its admin API, to commands and to tests, must be as /openapi.json describes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from ddmq.cli.admin_client import AdminClient
from ddmq.cli.root import run
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.admin_contract import check_answer
from tests.support.installations import installed


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("cli")
    config = write_config(folder / "conf", topics={"topics": {"owned": {"queues": 2}}})
    with installed(engine) as installation, running(folder, config, installation=installation) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest, engine: str) -> str:
    """A topic's name of the test's own; without the engine, for tables grow with the names of a session."""
    name = request.node.name.replace(engine, "")
    return re.sub(r"[^A-Za-z0-9]+", "-", name)[:100].strip("-")


class Shell:
    """Runs commands in this process; the server's addresses are in the environment."""

    def __init__(self, server: RealServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self._capsys = capsys
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Standard output; asserts the exit code."""
        exit_code = run(arguments)
        captured = self._capsys.readouterr()
        assert exit_code == code, captured
        self.error = captured.err
        return captured.out

    def lines(self, *arguments: str, code: int = 0) -> list[Any]:
        """The documents that `--json` prints, one a line; nothing but those is there."""
        return [json.loads(line) for line in self(*arguments, "--json", code=code).splitlines()]

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The only one."""
        (document,) = self.lines(*arguments, code=code)
        return document

    def error_of(self, *arguments: str, code: int) -> str:
        """Standard error of a command that prints nothing else."""
        assert self(*arguments, code=code) == ""
        return self.error

    def refused(self, *arguments: str, code: int = 1) -> str:
        """The one line that says why."""
        assert self(*arguments, code=code) == ""
        lines = self.error.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("Error: "), lines
        return lines[0].removeprefix("Error: ")


@pytest.fixture(autouse=True)
def described_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every answer that a test gets from a real server."""
    request = RealServer.request

    def checked(self: RealServer, method: str, target: str, *arguments: Any, **named: Any) -> tuple[int, Any]:
        status, answer = request(self, method, target, *arguments, **named)
        check_answer(method, target, status, answer)
        return status, answer

    monkeypatch.setattr(RealServer, "request", checked)


def check_commands(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every answer that a command gets from `server`."""

    def check_method(name: str) -> None:
        call = getattr(AdminClient, name)

        def checked(self: AdminClient, *path: str, **named: Any) -> Any:
            answer = call(self, *path, **named)
            if self.address.port == server.ports["admin"]:
                form = f"?form={named.get('form', 1)}"
                target = "/" + "/".join(quote(segment, safe="") for segment in path) + form
                check_answer(name.upper(), target, 200, answer)
            return answer

        monkeypatch.setattr(AdminClient, name, checked)

    for name in ("get", "post", "delete"):
        check_method(name)


@pytest.fixture
def shell(server: RealServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    for service, port in server.ports.items():
        monkeypatch.setenv(f"DDMQ_{service.upper()}", f"127.0.0.1:{port}")
    monkeypatch.setenv("COLUMNS", "80")
    check_commands(server, monkeypatch)
    return Shell(server, capsys)
