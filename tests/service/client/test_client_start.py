"""`Consumer(start=…)`: what it says to the proxy, what it refuses, and the warning of a new group."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from ddmq_client import Consumer, OptionError
from ddmq_client.aio import AsyncConsumer
from proxy_consumer.groups import consistency
from tests.service.client.standin import Standin
from tests.service.consumer.consumer_server import ConsumerServer
from tests.support.waits import loop_until, until

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
STARTS = [
    ("first", "first"),
    ("last", "last"),
    (None, None),
    (NOON, "1795348800000"),
    (datetime(2026, 11, 22, 20, tzinfo=ZoneInfo("Asia/Shanghai")), "1795348800000"),
]
NO_STARTS = [
    "",
    "newest",
    "First",
    0,
    True,
    1795348800000,
    date(2026, 11, 22),
    NOON.replace(tzinfo=None),
    b"first",
]


def stated_starts(proxy: Standin) -> set[str | None]:
    return {args.request.start for method, args in proxy.calls if method == "pull"}


@pytest.mark.parametrize(("start", "wire"), STARTS)
def test_each_pull_carries_the_start(proxy: Standin, start: Any, wire: str | None) -> None:
    with Consumer(proxy.address, "g", ["t", "u"], start=start) as consumer:
        consumer.pull(timeout_ms=20)
        proxy.wait(lambda: len(proxy.calls) > 1)
    assert stated_starts(proxy) == {wire}


@pytest.mark.parametrize(("start", "wire"), STARTS)
def test_each_pull_in_asyncio_carries_the_start(proxy: Standin, start: Any, wire: str | None) -> None:
    async def pull() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", start=start) as consumer:
            await consumer.pull(timeout_ms=20)
            await loop_until(lambda: bool(proxy.calls))

    asyncio.run(pull())
    assert stated_starts(proxy) == {wire}


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("start", NO_STARTS)
def test_any_other_start_is_rejected(kind: Any, start: Any) -> None:
    with pytest.raises(OptionError, match="start="):
        kind("127.0.0.1", "g", "t", start=start)


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_start_without_effect_is_rejected(kind: Any) -> None:
    with pytest.raises(OptionError, match="start is set without topics; allowed: beside topics"):
        kind("127.0.0.1", "g", start="first")
    with pytest.raises(OptionError, match="start is set with model='broadcasting'"):
        kind("127.0.0.1", "g", "t", start="first", model="broadcasting")
    with pytest.raises(OptionError, match="before 1970"):
        kind("127.0.0.1", "g", "t", start=datetime(1969, 12, 31, tzinfo=UTC))


@pytest.fixture
def server() -> Any:
    server = ConsumerServer()
    server.topic("t", queues=2)
    server.send("t", [b"one", b"two"])
    yield server
    server.stop()


def test_a_new_group_gets_what_was_there(server: ConsumerServer, caplog: pytest.LogCaptureFixture) -> None:
    with Consumer(f"127.0.0.1:{server.port}", "g", "t", start="first") as consumer:
        bodies = [message.body for message in until(lambda: consumer.pull(timeout_ms=1_000))]
    assert bodies == [b"one", b"two"]
    assert "existing messages" not in caplog.text


def test_a_new_group_that_passes_them_over_is_warned_of_once(
    server: ConsumerServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Consumer(f"127.0.0.1:{server.port}", "g", "t", linger_ms=20) as consumer:
        until(lambda: [*consumer.pull(timeout_ms=20)] or "existing messages" in caplog.text)
        for _ in range(3):
            assert consumer.pull(timeout_ms=20) == []
    client = [each for each in caplog.records if each.name == "ddmq_client.consumer"]
    (warning,) = [each for each in client if "existing messages" in each.message]
    assert warning.levelno == logging.WARNING
    assert "new group g on topic t starts after 2 existing messages; " in warning.message
    assert "start='first'" in warning.message


def test_a_client_whose_connection_has_closed_is_listed_no_more(
    server: ConsumerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> list[str]:
        return [each.client_id for each in server.do(lambda: server.proxy.clients("g"))]

    monkeypatch.setattr(consistency, "RECONNECT_S", 0.0)
    server.subscribe("g", "t")
    consumer = Consumer(f"127.0.0.1:{server.port}", "g", "t", client_id="me", linger_ms=20)
    consumer.start()
    consumer.pull(1)[0].ack()
    assert listed() == ["me"]
    consumer.stop()
    until(lambda: listed() == [])
