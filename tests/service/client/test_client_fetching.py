"""The low-level consumer, blocking and asyncio."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ddmq_client import ClosedError, FetchConsumer, FetchedQueue, OptionError, PullError, RangeReader
from ddmq_client.aio import AsyncFetchConsumer
from tests.service.client.standin import BEFORE, HOLD, Standin

REFUSE = HOLD._replace(kind="refused")


class Blocking:
    """Both kinds look the same to a test: this one calls."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.consumer = self.make(*args, **named)

    def make(self, *args: Any, **named: Any) -> Any:
        return FetchConsumer(*args, **named)

    def fetch(self, *args: Any, **named: Any) -> list[FetchedQueue]:
        return self.consumer.fetch(*args, **named)  # type: ignore[no-any-return]

    def ack(self, *args: Any) -> bool:
        return self.consumer.ack(*args)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.consumer.close()


class WithAsyncio(Blocking):
    """This one runs a loop of its own."""

    def make(self, *args: Any, **named: Any) -> Any:
        self.loop = asyncio.new_event_loop()
        return AsyncFetchConsumer(*args, **named)

    def fetch(self, *args: Any, **named: Any) -> list[FetchedQueue]:
        return self.loop.run_until_complete(self.consumer.fetch(*args, **named))

    def ack(self, *args: Any) -> bool:
        return self.loop.run_until_complete(self.consumer.ack(*args))

    def close(self) -> None:
        self.consumer.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@pytest.fixture(params=[Blocking, WithAsyncio])
def connect(request: pytest.FixtureRequest) -> Any:
    clients: list[Blocking] = []

    def make(*args: Any, **named: Any) -> Blocking:
        clients.append(request.param(*args, **named))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def bodies(queues: list[FetchedQueue]) -> list[bytes]:
    return [message.body for queue in queues for message in queue.messages]


def last(proxy: Standin, method: str) -> Any:
    return next(args for name, args in reversed(proxy.calls) if name == method)


def test_a_fetch_continues_after_the_last_and_acknowledges(
    proxy: Standin, connect: Callable[..., Blocking]
) -> None:
    proxy.put("t", b"a", b"b", b"c")
    client = connect(proxy.address, "g", consumer_id="me")
    (queue,) = client.fetch(2, linger_ms=20)
    assert (queue.topic, queue.queue, queue.next_offset) == ("t", "q0", 2)
    message = queue.messages[1]
    assert (message.body, message.offset, message.topic, message.group) == (b"b", 1, "t", "g")
    assert not message.ack(), "fetched messages are acknowledged by offset"
    assert bodies(client.fetch(linger_ms=20)) == [b"c"]
    assert client.fetch(linger_ms=20) == []
    assert client.ack()
    assert proxy.acked == {"t": 3}
    assert client.consumer.assignments == [("t", "q0")]
    request = last(proxy, "fetch").request
    assert (request.consumerId, request.clientId, request.model) == ("me", "me", "clustering")
    assert request.fetchOffset == {"t": {"q0": 3}}
    proxy.acked.clear()
    assert client.ack(), "nothing new"
    assert proxy.acked == {}


def test_acknowledge_less_than_was_fetched(proxy: Standin, connect: Callable[..., Blocking]) -> None:
    proxy.put("t", b"a", b"b", b"c")
    client = connect(proxy.address, "g")
    client.fetch(linger_ms=20)
    assert client.ack({"t": {"q0": 1}, "not mine": {"q9": 4}})
    assert proxy.acked == {"t": 1}
    assert bodies(connect(proxy.address, "g").fetch(linger_ms=20)) == [b"b", b"c"]


def test_seek(proxy: Standin, connect: Callable[..., Blocking]) -> None:
    proxy.put("t", b"a", b"b", b"c")
    client = connect(proxy.address, "g")
    client.fetch(linger_ms=20)
    client.consumer.seek("t", "q0", 1)
    assert bodies(client.fetch(linger_ms=20)) == [b"b", b"c"]
    assert client.fetch(linger_ms=20) == []


def test_an_ack_is_tried_three_times(proxy: Standin, connect: Callable[..., Blocking]) -> None:
    proxy.put("t", b"a")
    client = connect(proxy.address, "g")
    client.fetch(linger_ms=20)
    proxy.faults["ack"].extend([REFUSE, BEFORE])
    assert client.ack()
    proxy.put("t", b"b")
    client.fetch(linger_ms=20)
    proxy.faults["ack"].extend([REFUSE] * 3)
    assert not client.ack()
    assert client.ack(), "it is still owed"
    assert proxy.acked == {"t": 2}


def test_a_queue_that_went_elsewhere_is_forgotten(proxy: Standin, connect: Callable[..., Blocking]) -> None:
    proxy.put("t", b"a")
    client = connect(proxy.address, "g")
    client.fetch(linger_ms=20)
    proxy.assigned = False
    assert client.fetch(linger_ms=20) == []
    assert client.consumer.assignments == []
    assert client.ack()
    assert proxy.acked == {}


def test_rejections_and_silence_raise(proxy: Standin, connect: Callable[..., Blocking]) -> None:
    client = connect(proxy.address, "g", timeout_ms=1_000)
    proxy.faults["fetch"].append(REFUSE)
    with pytest.raises(PullError, match="told to refuse") as refused:
        client.fetch(linger_ms=20)
    assert refused.value.code == 11
    assert refused.value.proxy == proxy.address
    proxy.stop()
    with pytest.raises(PullError, match="no proxy answers"):
        client.fetch(linger_ms=20)
    proxy.restart()
    assert client.fetch(linger_ms=20) == []


def test_all_proxies_are_fetched_from(
    proxy: Standin, other: Standin, connect: Callable[..., Blocking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddmq_client.core.fetching.SETTLE_S", 20.0)  # however late the answers come
    proxy.put("t", b"a")
    other.put("u", b"b")
    client = connect([proxy.address, other.address], "g")
    messages = client.fetch(linger_ms=40)
    assert sorted(bodies(messages)) == [b"a", b"b"]
    assert client.ack()
    assert (proxy.acked, other.acked) == ({"t": 1}, {"u": 1})
    other.stop()
    assert client.fetch(linger_ms=40) == [], "one answers: that is no failure"
    assert client.consumer.assignments == [("t", "q0")]


def test_options_and_the_end(connect: Callable[..., Blocking]) -> None:
    client = connect("127.0.0.1:1", "g")
    for bad in ({"max_messages": 0}, {"linger_ms": 0}, {"linger_ms": 30_001}):
        with pytest.raises(OptionError):
            client.fetch(**bad)
    client.consumer.close()
    with pytest.raises(ClosedError):
        client.fetch()
    with pytest.raises(OptionError):
        connect("127.0.0.1:1", "")
    with pytest.raises(OptionError):
        connect("127.0.0.1:1", "g", consumer_id="x" * 256)


def fetches(proxy: Standin) -> int:
    return sum(method == "fetch" for method, _ in proxy.calls)


@pytest.mark.parametrize("late", [0, 1])
def test_a_message_does_not_wait_for_proxies_that_have_nothing(
    proxy: Standin, other: Standin, connect: Callable[..., Blocking], late: int
) -> None:
    proxies = [proxy, other]
    client = connect([proxy.address, other.address], "g")

    def put(where: Standin, body: bytes) -> None:
        for each in proxies:
            each.wait(lambda each=each: fetches(each) >= 1)
        where.put("t", body)

    started = time.monotonic()
    for where, body in ((proxies[late], b"a"), (proxies[late], b"b"), (proxies[1 - late], b"c")):
        putting = threading.Thread(target=put, args=(where, body))
        putting.start()
        assert bodies(client.fetch(linger_ms=20_000)) == [body]
        putting.join(20)
    assert time.monotonic() - started < 10
    assert fetches(proxies[1 - late]) == 1, "it was still being asked"


def test_a_proxy_that_hangs_does_not_delay_the_others(
    proxy: Standin, other: Standin, connect: Callable[..., Blocking]
) -> None:
    client = connect([proxy.address, other.address], "g", timeout_ms=20_000)
    proxy.faults["fetch"].append(HOLD)
    started = time.monotonic()
    for body in (b"a", b"b"):
        other.put("t", body)
        assert bodies(client.fetch(linger_ms=20)) == [body]
        assert client.fetch(linger_ms=20) == []
    assert client.ack()
    assert time.monotonic() - started < 10
    proxy.put("u", b"c")
    proxy.release()
    proxy.wait(lambda: bodies(client.fetch(linger_ms=20)) == [b"c"])


def test_seek_does_not_wait_for_a_fetch_under_way(
    proxy: Standin, other: Standin, connect: Callable[..., Blocking]
) -> None:
    proxy.put("t", b"a")
    client = connect([proxy.address, other.address], "g")
    assert bodies(client.fetch(linger_ms=20_000)) == [b"a"]
    other.put("u", b"b")
    assert bodies(client.fetch(linger_ms=20_000)) == [b"b"]  # while the first one has nothing
    started = time.monotonic()
    client.consumer.seek("t", "q0", 0)
    assert bodies(client.fetch(linger_ms=20_000)) == [b"a"]
    assert time.monotonic() - started < 10


def test_an_interrupted_fetch_delivers_nothing(
    proxy: Standin, other: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.put("t", b"a")
    other.faults["fetch"].append(HOLD)

    async def test() -> None:
        async with AsyncFetchConsumer([proxy.address, other.address], "g") as consumer:
            with monkeypatch.context() as patient:  # however late the first one's answer comes
                patient.setattr("ddmq_client.core.fetching.SETTLE_S", 60.0)
                fetching = asyncio.create_task(consumer.fetch(linger_ms=20_000))
                while consumer._since.keys() != {other.address}:  # the first one's answer was taken
                    await asyncio.sleep(0)
                fetching.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await fetching
            assert await consumer.ack()
            assert proxy.acked == {}
            assert bodies(await consumer.fetch(linger_ms=20)) == [b"a"]

    asyncio.run(test())
    other.release()


def test_a_range_reader_takes_one_topic_as_text(proxy: Standin) -> None:
    proxy.put("orders", b"x")
    reader = RangeReader(proxy.address, "g", "orders")
    with pytest.raises(PullError, match="too old"):  # a stand-in knows no exact fetches
        reader.bounds()
    reader.close()
    assert last(proxy, "fetch").request.topics == ["orders"]
