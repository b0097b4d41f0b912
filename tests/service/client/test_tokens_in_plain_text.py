"""No token leaves this machine in plain text: neither that of a client nor that of a server's process.

The address of the recording server counts as one of another machine.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Any

import click
import gevent
import pytest

from ddmq.address import HostPort
from ddmq.cli.admin_client import AdminClient, open_connection
from ddmq.console.gateway import ConsoleGateway
from ddmq.server.admin.figures import fetch_answers
from ddmq.server.http.routing import AdminRequest, forward_request
from ddmq_client import Admin, ClientError, Producer
from ddmq_client.aio import AsyncAdmin, AsyncProducer
from ddmq_common.errors import TryLaterError
from ddmq_rpc.links import CallLink, LinkBounds
from tests.support.waits import until

TOKEN = "ddmq_" + "0" * 24 + "_" + "a" * 64
EXPOSED = "not sent in plain text"


class Recorder:
    """A server in another thread that only reads."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = HostPort(*self._listener.getsockname())
        self.received = b""
        self.ended = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65_536):
                    self.received += data
            self.ended += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    monkeypatch.setattr(IPv4Address, "is_loopback", False)
    monkeypatch.setenv("DDMQ_TOKEN", TOKEN)
    server = Recorder()
    yield server
    until(lambda: server.ended, "the connection was made, and ended")
    server.close()
    assert TOKEN.encode() not in server.received


def test_clients_send_none(recorder: Recorder) -> None:
    at = str(recorder.address)
    with Producer(at, token=TOKEN, timeout_ms=1_000) as producer, pytest.raises(ClientError, match=EXPOSED):
        producer.send("orders", b"x")
    with Admin(at, token=TOKEN) as admin, pytest.raises(ClientError, match=EXPOSED):
        admin.list_topics()

    async def call() -> None:
        async with AsyncProducer(at, token=TOKEN, timeout_ms=1_000) as producer:
            with pytest.raises(ClientError, match=EXPOSED):
                await producer.send("orders", b"x")
        async with AsyncAdmin(at, token=TOKEN) as admin:
            with pytest.raises(ClientError, match=EXPOSED):
                await admin.list_topics()

    asyncio.run(call())


def test_commands_and_the_console_of_servers_send_none(recorder: Recorder) -> None:
    with pytest.raises(click.ClickException, match=EXPOSED):
        AdminClient(recorder.address).get("topics")
    gateway = ConsoleGateway(
        [str(recorder.address)], lambda _, timeout_s: open_connection(recorder.address, timeout_s),
        lambda: TOKEN, "code",
    )  # fmt: skip
    with pytest.raises(OSError, match=EXPOSED):
        gateway.fetch_json(str(recorder.address), "/health")


def test_processes_send_none_to_each_other(recorder: Recorder) -> None:
    address, token = str(recorder.address), TOKEN.encode()
    request = AdminRequest({}, {}, {}, "GET", "/stats")
    with pytest.raises(TryLaterError, match=EXPOSED):
        gevent.get_hub().threadpool.apply(forward_request, (address, request, token))
    answers = fetch_answers({"b": recorder.address}, "/stats", token=token)
    assert (answers.answers, answers.silent) == ([], {"b": address})
    link = RecordingLink(address, token)
    link.put("a call")
    until(lambda: link.errors, "the call has failed")
    assert EXPOSED in str(link.errors[0])
    link.close()
    assert recorder.received == b""


class RecordingLink(CallLink[str]):
    """A link whose calls fail, because it gets no connection."""

    port = "producer"

    def __init__(self, address: str, token: bytes) -> None:
        super().__init__(address, LinkBounds(1, 1, 1, 1.0), lambda: token)
        self.errors: list[Exception | None] = []

    def call(self, connection: Any, batch: list[str]) -> None:
        raise AssertionError("there is a connection")

    def on_calls_done(self, calls: list[str], error: Exception | None) -> None:
        self.errors.append(error)
