"""A name server that does not answer holds up nobody for longer than the call's own time."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddmq_client import (
    Consumer,
    FetchConsumer,
    NotStoredError,
    OutgoingMessage,
    Producer,
    PullError,
    RangeReader,
)
from ddmq_client.aio import AsyncConsumer, AsyncFetchConsumer, AsyncProducer
from ddmq_client.core.nodes import ProxyAddress
from tests.service.client.standin import Standin

NAME = "slow.example:1"
NOT_IN_TIME = r"time is up \(timeout_ms\) before the addresses of slow\.example:1 were known"


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when the name server answers: that there is no such name."""
    answer = threading.Event()

    def getaddrinfo(*args: Any, **named: Any) -> Any:
        assert answer.wait(60)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield answer
    answer.set()


def in_time(call: Callable[[], object]) -> None:
    started = time.monotonic()
    call()
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_sending() -> None:
    def call() -> None:
        with Producer(NAME, timeout_ms=50) as producer:
            with pytest.raises(NotStoredError, match=NOT_IN_TIME):
                producer.send("t", b"x")
            with pytest.raises(NotStoredError):
                producer.send_oneway(OutgoingMessage("t", b"x"))

    in_time(call)


def test_pulling() -> None:
    def call() -> None:
        with Consumer(NAME, "g", "t") as consumer:
            assert consumer.pull(timeout_ms=50) == []

    in_time(call)


def test_fetching() -> None:
    def call() -> None:
        with FetchConsumer(NAME, "g", timeout_ms=50) as consumer, pytest.raises(PullError, match=NOT_IN_TIME):
            consumer.fetch(linger_ms=20)
        with RangeReader(NAME, "g", "t", timeout_ms=50) as reader, pytest.raises(PullError, match="no name"):
            reader.bounds()

    in_time(call)


def test_asyncio(answers: threading.Event) -> None:
    async def main() -> None:
        async with AsyncProducer(NAME, timeout_ms=50) as producer:
            with pytest.raises(NotStoredError, match=NOT_IN_TIME):
                await producer.send("t", b"x")
        async with AsyncConsumer(NAME, "g", "t") as consumer:
            assert await consumer.pull(timeout_ms=50) == []
        async with AsyncFetchConsumer(NAME, "g", timeout_ms=50) as fetching:
            with pytest.raises(PullError, match=NOT_IN_TIME):
                await fetching.fetch(linger_ms=20)
        answers.set()
        assert len(asyncio.all_tasks()) == 1

    in_time(lambda: asyncio.run(main()))


def test_a_send_that_is_cancelled_while_names_are_resolved_harms_no_other(
    proxy: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving = threading.Event()

    async def main() -> None:
        async def resolve(*args: Any, **named: Any) -> list[ProxyAddress]:
            while not resolving.is_set():
                await asyncio.sleep(0.001)
            return [ProxyAddress("127.0.0.1", proxy.port)]

        monkeypatch.setattr("ddmq_client.aio.router.resolve_addresses", resolve)
        async with AsyncProducer("proxies.example:1") as producer:
            first, second = [asyncio.create_task(producer.send("t", b"x")) for _ in range(2)]
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            resolving.set()
            assert (await second).stored
            assert (await producer.send("t", b"x")).stored

    asyncio.run(main())
