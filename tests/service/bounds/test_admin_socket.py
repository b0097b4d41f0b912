"""The Unix socket of the admin API: who connects, what is in the way of its file, who uses it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from gevent import get_hub

from ddmq.cli.admin_client import AdminType
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.local_socket import open_local_socket
from ddmq.server.http.oversight import find_caller
from ddmq.server.http.routing import AdminRequest, AdminRouter
from ddmq_client import Admin
from ddmq_client.aio import AsyncAdmin
from ddmq_common.errors import ConfigError
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.policy import ADMIN, IdentityEntry, Policy


@pytest.fixture
def callers() -> CallerTable:
    table = CallerTable(lambda: 0)
    table.apply(Policy({"billing": IdentityEntry()}, users={"4711": "billing"}), {})
    return table


@pytest.fixture
def path(tmp_path: Path, callers: CallerTable) -> Iterator[Path]:
    """The socket of a server that says who asks."""
    router = AdminRouter(callers=callers)

    def show(request: AdminRequest) -> dict[str, Any]:
        assert request.caller is not None
        return {"items": [], "identity": request.caller.name, "address": request.address}

    router.add("GET", "/topics", show)
    path = tmp_path / "admin.sock"
    server = AdminServer(open_local_socket(path, 0o600), router)
    server.start()
    yield path
    server.stop(timeout=0)


def exchange(path: Path, host: str) -> bytes:
    """The answer to one request; in a thread beside the server's hub."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(f"GET /topics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while data := client.recv(4096):
            answer += data
        return answer


def test_the_own_user_is_administrator_without_a_token(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    answer = get_hub().threadpool.apply(exchange, (path, "localhost"))
    assert b"@local" in answer
    assert f"uid-{os.geteuid()}".encode() in answer


def test_a_page_of_another_site_is_rejected_there_too(path: Path) -> None:
    answer = get_hub().threadpool.apply(exchange, (path, "evil.example"))
    assert answer.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("uid", "name", "kind"),
    [
        (4711, "billing", "client"),
        (4712, "", "client"),
        (0, "@local", ADMIN),
        (os.geteuid(), "@local", ADMIN),
    ],
)
def test_a_user_has_the_identity_of_its_rule(callers: CallerTable, uid: int, name: str, kind: str) -> None:
    caller = find_caller(callers, {"ddmq.uid": uid, "REMOTE_ADDR": f"uid-{uid}"}).caller
    assert caller is not None
    assert (caller.name, caller.kind) == (name, kind)


def test_a_rule_also_applies_to_root_and_to_the_own_user(callers: CallerTable) -> None:
    callers.apply(Policy({"less": IdentityEntry()}, users={"0": "less", str(os.geteuid()): "less"}), {})
    names = {callers.of_user(uid).name for uid in (0, os.geteuid())}  # type: ignore[union-attr]
    assert names == {"less"}


@pytest.mark.parametrize("uid", ["root", "-1", "1.5", str(1 << 32), ""])
def test_only_user_ids_have_rules(uid: str) -> None:
    with pytest.raises(ValueError, match="is no user id; allowed: a number"):
        Policy({"a": IdentityEntry()}, users={uid: "a"})
    with pytest.raises(ValueError, match="there is no identity 'b'"):
        Policy({"a": IdentityEntry()}, users={"7": "b"})


def test_the_file_of_a_server_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    opened = open_local_socket(path, 0o660)
    assert path.stat().st_mode & 0o777 == 0o660
    with pytest.raises(ConfigError, match="belongs to another server that runs"):
        open_local_socket(path, 0o600)
    opened.close()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is no socket"):
        open_local_socket(path, 0o600)
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot be opened: No such file"):
        open_local_socket(tmp_path / "absent" / "admin.sock", 0o600)


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(ConfigError, match=r"has \d+ bytes; allowed: up to 107"):
        open_local_socket(path, 0o600)


def test_clients_and_commands_use_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDMQ_CA", "system")  # TLS is for ports
    pool = get_hub().threadpool
    with Admin(f"unix:{path}") as admin:
        assert list(pool.apply(admin.list_topics)) == []
    command = AdminType().convert(f"unix:{path}", None, None)
    assert "@local" in str(pool.apply(command.get, ("topics",)))
    absent = AdminType().convert(f"unix:{path}.absent", None, None)
    with pytest.raises(click.ClickException, match="no server answers at unix:"):
        absent.get("topics")

    async def call() -> list[Any]:
        async with AsyncAdmin(f"unix:{path}") as client:
            return list(await client.list_topics())

    assert pool.apply(asyncio.run, (call(),)) == []
