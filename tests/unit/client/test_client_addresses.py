"""Addresses of servers: what no server can have is rejected at construction, and a time-out is named."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ddmq_client import Admin, Consumer, FetchConsumer, NotStoredError, OptionError, OutgoingMessage, Producer
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncFetchConsumer, AsyncProducer
from ddmq_client.core.nodes import ProxyAddress, parse_addresses
from ddmq_client.dramatiq import DdmqBroker
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sender import JobSender
from ddmq_client.ranges import RangeReader

NOWHERE = "127.0.0.1:9"
CONSTRUCTORS: dict[str, Callable[[Any], object]] = {
    "Producer": Producer,
    "AsyncProducer": AsyncProducer,
    "Consumer": lambda address: Consumer(address, "billing"),
    "AsyncConsumer": lambda address: AsyncConsumer(address, "billing"),
    "FetchConsumer": lambda address: FetchConsumer(address, "billing"),
    "AsyncFetchConsumer": lambda address: AsyncFetchConsumer(address, "billing"),
    "RangeReader": lambda address: RangeReader(address, "billing", "orders"),
    "Admin": Admin,
    "AsyncAdmin": AsyncAdmin,
    "DdmqBroker": DdmqBroker,
    "admin of DdmqBroker": lambda address: DdmqBroker(admin=address),
}


@pytest.mark.parametrize("construct", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
@pytest.mark.parametrize("address", ["http://127.0.0.1:19613", "redis://mq-1", "::1:19613", "mq 1:9613"])
def test_an_address_that_no_server_can_have_is_rejected_at_construction(
    construct: Callable[[Any], object], address: str
) -> None:
    with pytest.raises(
        OptionError, match=r"'.*' is not an address; allowed: host:port .* or \[::1\]:port"
    ) as raised:
        construct(address)
    assert repr(address) in str(raised.value)


def test_the_argument_is_named_with_the_address() -> None:
    with pytest.raises(OptionError, match=r"^producers: 'redis://mq-1' .* for IPv6, without a scheme$"):
        Admin("mq-1", producers="redis://mq-1")
    with pytest.raises(OptionError, match=r"^consumer_proxies: '::1:19713' is not an address"):
        DdmqBroker("mq-1", "::1:19713")


@pytest.mark.parametrize("text", ["mq_1.example", "münchen", "::1", "fe80::1%eth0", "192.0.2.1"])
def test_a_host_without_a_port_has_the_default_port(text: str) -> None:
    assert parse_addresses(text, 9613) == (ProxyAddress(text, 9613),)


@pytest.mark.parametrize(
    "text", ["[::1", "[::1]9613", "[mq-1]:9613", "[]:9613", "mq-1/x", "me@mq-1", "a:1:2"]
)
def test_other_forms_are_rejected(text: str) -> None:
    with pytest.raises(OptionError):
        parse_addresses([text], 9613)


def test_a_time_out_before_the_addresses_are_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def getaddrinfo(*args: Any, **named: Any) -> Any:
        assert is_over.wait(60)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    router = ProxyRouter([ProxyAddress("mq-1.example", 9)], 4, b"\x00")
    text = r"the time is up \(timeout_ms\) before the addresses of mq-1\.example:9 were known"
    with pytest.raises(NotStoredError, match=text):
        JobSender(router).oneway(lambda at, number: b"", time.monotonic() - 1)
    is_over.set()
    router.close(time.monotonic())


def test_a_time_out_of_a_send_is_named() -> None:
    with Producer(NOWHERE, timeout_ms=1) as producer:
        for _ in range(2):
            with pytest.raises(NotStoredError, match=r"timeout_ms|refused"):
                producer.send("orders", b"x")
            with pytest.raises(NotStoredError, match=r"timeout_ms|refused"):
                producer.send_oneway(OutgoingMessage("orders", b"x"))


def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*args: Any, **named: Any) -> Any:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def send() -> None:
        async with AsyncProducer("mq-1.invalid") as producer:
            await producer.send("orders", b"x")

    with pytest.raises(NotStoredError, match=r"no name resolves of mq-1\.invalid:9613"):
        asyncio.run(send())
