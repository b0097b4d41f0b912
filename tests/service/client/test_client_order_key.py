"""`Consumer(order_key=…)`: what it states to the proxy, what it rejects, and what a group has after it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from standin import Standin

from ddmq_client import Consumer, OptionError, PullError, SubscriptionError
from ddmq_client.aio import AsyncConsumer
from tests.service.consumer.consumer_server import ConsumerServer
from tests.support.waits import loop_until, until

KINDS = pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])


def stated(proxy: Standin) -> set[str | None]:
    return {args.request.orderKey for method, args in proxy.calls if method == "pull"}


@pytest.mark.parametrize("order_key", ["KEY", "QID", "$.order.id", None])
def test_each_pull_carries_the_order_key(proxy: Standin, order_key: str | None) -> None:
    with Consumer(proxy.address, "g", ["t", "u"], order_key=order_key) as consumer:
        consumer.pull(timeout_ms=20)
        proxy.wait(lambda: len(proxy.calls) > 1)
    assert stated(proxy) == {order_key}


def test_a_pull_in_asyncio_carries_the_order_key(proxy: Standin) -> None:
    async def pull() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", order_key="KEY") as consumer:
            await consumer.pull(timeout_ms=20)
            await loop_until(lambda: bool(proxy.calls))

    asyncio.run(pull())
    assert stated(proxy) == {"KEY"}


@KINDS
@pytest.mark.parametrize("order_key", ["", 7, b"KEY", True])
def test_anything_else_is_rejected_at_once(kind: Any, order_key: Any) -> None:
    with pytest.raises(OptionError, match=r"order_key=.*; allowed: 'KEY', 'QID', a JSONPath"):
        kind("127.0.0.1", "g", "t", order_key=order_key)


@KINDS
@pytest.mark.parametrize(
    ("order_key", "allowed"),
    [
        ("key", "KEY for the message key, $.key for the field"),
        ("Qid", "QID for the queue, $.Qid for the field"),
    ],
)
def test_a_path_that_looks_like_the_key_is_rejected_at_once(kind: Any, order_key: str, allowed: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"order_key={order_key!r}; allowed: {allowed}")):
        kind("127.0.0.1", "g", "t", order_key=order_key)


@KINDS
def test_broadcasting_keeps_no_order(kind: Any) -> None:
    with pytest.raises(OptionError, match="order_key is set with model='broadcasting'"):
        kind("127.0.0.1", "g", "t", order_key="KEY", model="broadcasting")


@pytest.fixture
def server() -> Any:
    server = ConsumerServer()
    server.topic("t", queues=2)
    server.send("t", [b"one", b"two"])
    yield server
    server.stop()


def test_a_new_group_has_it(server: ConsumerServer) -> None:
    address = f"127.0.0.1:{server.port}"
    with Consumer(address, "g", "t", start="first", order_key="QID") as consumer:
        assert until(lambda: consumer.pull(timeout_ms=1_000))
    other = Consumer(address, "g", "t", order_key="KEY")
    with other, pytest.raises(SubscriptionError, match="order key KEY, the subscription has order key QID"):
        until(lambda: other.pull(timeout_ms=200))


@pytest.mark.parametrize("error", [OptionError, PullError])
def test_run_raises_when_the_group_has_another_one(server: ConsumerServer, error: type[Exception]) -> None:
    server.subscribe("g", "t")
    consumer = Consumer(f"127.0.0.1:{server.port}", "g", "t", handler=print, order_key="$.order.id")
    with pytest.raises(error, match=r"states order key \$\.order\.id, the subscription has no order key"):
        consumer.run()


def test_an_invalid_path_is_rejected_by_the_proxy(server: ConsumerServer) -> None:
    consumer = Consumer(f"127.0.0.1:{server.port}", "g", "t", handler=print, order_key="$.[")
    with pytest.raises(SubscriptionError, match=r"order_key is '\$\.\['"):
        consumer.run()
