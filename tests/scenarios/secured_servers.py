"""Servers with rights on, in each layout that an installation may have, and their audit logs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.real_server import RealServer, write_config
from tests.support.installations import installed
from tests.support.rights import AdminClient, TokenClient, Who, write_rights

LAYOUTS = ("one process", "processes", pytest.param("two servers", marks=pytest.mark.long))
GROUPS = {
    "team": {"topics": {"mine": {"start": "first"}}},
    "crew": {"topics": {"mine": {"model": "broadcasting"}}},
}
CONFIG = {
    "topics": {"topics": {"mine": {"queues": 1}}},
    "groups": {"groups": GROUPS},
    "proxy_consumer": {"idle_ms": 1_000},  # so that a queue is soon another server's
}


class SecuredServers:
    """The servers of one installation, and the token of each identity. A client is one of the first server,
    if nothing else is said."""

    def __init__(self, servers: list[RealServer], tokens: dict[str, str]) -> None:
        self.servers = servers
        self.server = servers[0]
        self.tokens = tokens

    @property
    def conf(self) -> Path:
        assert self.server.config is not None
        return self.server.config

    def client(self, kind: str, who: str = "root", at: int = 0) -> TokenClient:
        port = self.servers[at % len(self.servers)].ports[kind]
        return TokenClient(kind, port, self.tokens[who] if who else "")

    def producer(self, who: str = "root") -> TokenClient:
        return self.client("producer", who)

    def admin(self, who: str = "root", at: int = 0, host: str = "127.0.0.1") -> AdminClient:
        port = self.servers[at % len(self.servers)].ports["admin"]
        return AdminClient(port, self.tokens[who] if who else "", host)

    def audit_lines(self) -> list[dict[str, Any]]:
        """The lines that all processes have written."""
        files = {path for server in self.servers for path in server.data_dir.glob("audit/*.jsonl")}
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def rejections(self) -> set[tuple[str, str, str]]:
        """Identity, action and reason of every rejection in the audit logs."""
        lines = [line for line in self.audit_lines() if line["event"] == "rejected"]
        return {(line.get("who", ""), line["action"], line["reason"]) for line in lines}


@contextmanager
def secured(
    folder: Path, layout: str, people: Iterable[Who], engine: str = "file_log"
) -> Iterator[SecuredServers]:
    """Servers that are ready: in one process, in one for each component, or two over one directory."""
    tokens = write_rights(folder / "conf", people)
    config = write_config(folder / "conf", **CONFIG)
    with ExitStack() as stack:
        installation = stack.enter_context(installed(engine))
        servers = []
        for name in ("a", "b") if layout == "two servers" else ("a",):
            server = RealServer(folder / name, config, layout == "processes", installation=installation)
            if engine == "file_log":
                server.data_dir = folder / "data"
            server.token = tokens["root"]
            stack.callback(server.end)
            servers.append(server.start())
        yield SecuredServers(servers, tokens)
