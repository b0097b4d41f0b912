"""Calls between processes of one engine, over loopback: what arrives, and what certainly did not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from backend.completion import Completion, failed, succeeded
from ddmq_common.clock import SystemClock
from ddmq_common.errors import CallerError, RemoteError, TryLaterError
from proxy_producer.engine_calls import EngineCalls
from tests.service.producer.producer_client import Client
from tests.service.producer.producer_server import ProducerServer
from tests.support.ports import port_of, reserved
from tests.support.waits import until


class PeerServer(ProducerServer):
    """A proxy whose engine answers calls with their data, reversed; `silent` ones never."""

    def open(self) -> Any:
        service = super().open()
        self.taken: list[tuple[bytes, float]] = []

        def take(data: bytes, deadline: float) -> Completion[bytes]:
            self.taken.append((data, deadline - time.monotonic()))
            if data == b"rejected":
                return failed(CallerError("no call of an engine"))
            return Completion() if data == b"silent" else succeeded(data[::-1])

        self.backend.take_peer_call = take  # type: ignore[method-assign]
        return service


@pytest.fixture(scope="module")
def server() -> Iterator[PeerServer]:
    server = PeerServer()
    yield server
    server.stop()


@pytest.fixture
def calls() -> Iterator[EngineCalls]:
    backend: Any = None
    calls = EngineCalls(backend, SystemClock(), 10_000)
    yield calls
    calls.close()


def call(calls: EngineCalls, address: str, data: bytes, wait_s: float = 10.0) -> Completion[bytes]:
    answer = calls.call(address, data, time.monotonic() + wait_s)
    until(lambda: answer.done, "it is answered")
    return answer


def test_data_of_any_kind_arrives_with_its_deadline(server: PeerServer, calls: EngineCalls) -> None:
    data = bytes(range(256)) * 8_000
    assert call(calls, f"127.0.0.1:{server.port}", data).value == data[::-1]
    assert 5.0 < server.taken[-1][1] <= 10.0


def test_an_error_says_whether_the_call_may_have_arrived(server: PeerServer, calls: EngineCalls) -> None:
    address = f"127.0.0.1:{server.port}"
    assert isinstance(call(calls, address, b"rejected").error, RemoteError)
    assert isinstance(call(calls, address, b"silent", 0.2).error, RemoteError)
    assert isinstance(call(calls, address, b"late", 0.0).error, TryLaterError)
    with reserved() as placeholder:
        assert isinstance(
            call(calls, f"127.0.0.1:{port_of(placeholder)}", b"none there").error, TryLaterError
        )
    assert [data for data, _ in server.taken[-2:]] == [b"rejected", b"silent"]


def test_other_libraries_may_call_too(client: Client, server: PeerServer) -> None:
    assert client.call("callEngine", data=b"abc", timeout=500) == b"cba"


def test_the_configured_address_is_published() -> None:
    server = ProducerServer(advertise="proxy.example:9613")
    published: list[str] = []
    server.backend.serve_peers = lambda address, peers: published.append(address)  # type: ignore[method-assign]
    try:
        server.do(lambda: server.proxy.advertise("127.0.0.1:1"))
    finally:
        server.stop()
    assert published == ["proxy.example:9613"]
