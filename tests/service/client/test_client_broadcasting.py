"""Broadcasting consumers, blocking and asyncio: everything from the newest on, their place in a file."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, Message, OptionError, PullError
from ddmq_client.aio import AsyncConsumer
from tests.service.client.standin import AFTER, HOLD, Standin
from tests.support.waits import loop_until

BROADCASTING: Any = {"model": "broadcasting", "linger_ms": 20}


def stored(path: Path) -> Any:
    return json.loads(path.read_text())["offsets"]


def begun(proxy: Standin) -> Callable[[], bool]:
    return lambda: sum(method == "fetch" for method, _ in proxy.calls) >= 2


def blocking(
    proxy: Standin, got: list[bytes], count: int, more: Any = BROADCASTING, fail: bool = False
) -> Consumer:
    """Consume until `count` messages were handled; three are sent once it has begun."""

    def handle(message: Message) -> None:
        got.append(message.body)
        assert (message.topic, message.queue, message.group) == ("t", "q0", "g")
        assert not message.extend()
        if fail:
            raise ValueError("told to fail")

    with Consumer(proxy.address, "g", "t", handler=handle, **more) as consumer:
        proxy.wait(begun(proxy))
        proxy.put("t", b"n0", b"n1", b"n2")
        proxy.wait(lambda: len(got) >= count)
    return consumer


def with_asyncio(
    proxy: Standin, got: list[bytes], count: int, more: Any = BROADCASTING, fail: bool = False
) -> AsyncConsumer:
    async def handle(message: Message) -> None:
        got.append(message.body)
        await asyncio.sleep(0)
        if fail:
            raise ValueError("told to fail")

    async def run() -> AsyncConsumer:
        async with AsyncConsumer(proxy.address, "g", "t", handler=handle, **more) as consumer:
            await loop_until(begun(proxy))
            proxy.put("t", b"n0", b"n1", b"n2")
            await loop_until(lambda: len(got) >= count)
        return consumer

    return asyncio.run(run())


@pytest.fixture(params=[blocking, with_asyncio])
def consume(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_it_starts_at_the_newest_and_gets_everything_after(proxy: Standin, consume: Any) -> None:
    proxy.put("t", b"old")
    got: list[bytes] = []
    consumer = consume(proxy, got, 3)
    assert got == [b"n0", b"n1", b"n2"]
    assert (consumer.counts().acked, consumer.counts().results_dropped) == (3, 0)
    assert {method for method, _ in proxy.calls} == {"fetch"}, "no results are sent"
    request = proxy.calls[0][1].request
    assert (request.model, request.topics, request.consumerId) == ("broadcasting", ["t"], consumer.client_id)


def test_a_failed_message_is_counted_and_not_redelivered(proxy: Standin, consume: Any) -> None:
    proxy.put("t", b"old")
    got: list[bytes] = []
    consumer = consume(proxy, got, 3, fail=True)
    assert len(got) == consumer.counts().failed == 3


def test_its_offsets_last_in_a_file(proxy: Standin, consume: Any, tmp_path: Path) -> None:
    path = tmp_path / "place.json"
    more = {**BROADCASTING, "instance": "web-1", "offsets_file": path}
    proxy.put("t", b"old")
    got: list[bytes] = []
    consume(proxy, got, 3, more)
    assert stored(path) == {"t": {"q0": 4}}
    proxy.put("t", b"while away")
    consume(proxy, got, 7, more)
    assert got == [b"n0", b"n1", b"n2", b"while away", b"n0", b"n1", b"n2"]
    assert stored(path) == {"t": {"q0": 8}}
    assert {file.name for file in tmp_path.iterdir()} == {"place.json", "place.json.lock"}, (
        "nothing else is left"
    )


def test_unsettled_messages_are_redelivered_after_a_restart(proxy: Standin, tmp_path: Path) -> None:
    path = tmp_path / "place.json"
    consumer = Consumer(
        proxy.address, "g", "t", model="broadcasting", instance="i", offsets_file=path, linger_ms=20
    )
    proxy.put("t", b"old")
    while not begun(proxy)():  # the first fetch is answered, however long that takes
        assert consumer.pull(10, timeout_ms=100) == []
    proxy.put("t", b"n0", b"n1", b"n2")
    messages = []
    while len(messages) < 3:
        messages += consumer.pull(10)
    messages[0].ack()
    messages[2].ack()
    consumer.stop()
    assert stored(path) == {"t": {"q0": 2}}


def test_a_slow_application_loses_nothing_to_a_lease(proxy: Standin) -> None:
    proxy.put("t", b"old")
    got: list[bytes] = []
    consumer = blocking(proxy, got, 3, {**BROADCASTING, "lease_ms": 10, "threads": 1})
    assert consumer.counts().expired == 0
    assert len(got) == 3


def test_another_proxy_is_used_when_one_fails(proxy: Standin, other: Standin) -> None:
    for each in (proxy, other):
        each.put("t", b"old")
    got: list[bytes] = []
    more = {**BROADCASTING, "handler": lambda message: got.append(message.body)}
    with Consumer([proxy.address, other.address], "g", "t", **more):
        proxy.wait(begun(proxy))
        assert not other.calls, "one proxy at a time: each gives everything"
        proxy.stop()
        other.wait(begun(other))
        other.put("t", b"new")
        other.wait(lambda: got == [b"new"])


def test_a_lost_answer_is_fetched_once_more(proxy: Standin) -> None:
    proxy.put("t", b"old")
    got: list[bytes] = []
    with Consumer(proxy.address, "g", "t", handler=lambda message: got.append(message.body), **BROADCASTING):
        proxy.wait(begun(proxy))
        proxy.put("t", b"new")
        proxy.faults["fetch"].append(AFTER)
        proxy.wait(lambda: got == [b"new"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has not the format 1"),
        ('{"format": 1, "group": "h", "instance": "i"}', "belongs to group 'h', not 'g'"),
        ('{"format": 1, "group": "g", "instance": "j"}', "belongs to instance 'j', not 'i'"),
        ('{"format": 1, "group": "g", "instance": "i", "offsets": {"t": {"q": -1}}}', "has no offsets"),
    ],
)
def test_an_invalid_offsets_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "place.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as error:
        Consumer("127.0.0.1:1", "g", "t", model="broadcasting", instance="i", offsets_file=path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model": "both"}, "model='both'; allowed: clustering, broadcasting"),
        ({"instance": "i"}, "for model='broadcasting' only"),
        ({"offsets_file": "f"}, "for model='broadcasting' only"),
        ({"model": "broadcasting", "offsets_file": "f"}, "instance is not"),
        ({"model": "broadcasting", "tags": "a"}, "tags and sql do not exist"),
    ],
)
def test_what_does_not_go_together(more: Any, message: str) -> None:
    for kind in (Consumer, AsyncConsumer):
        with pytest.raises(OptionError, match=message):
            kind("127.0.0.1:1", "g", "t", **more)


@pytest.mark.slow
def test_a_rejection_reaches_the_caller(proxy: Standin) -> None:
    consumer = Consumer(proxy.address, "g", "t", **BROADCASTING)
    proxy.faults["fetch"].extend([HOLD._replace(kind="refused")] * 50)
    with pytest.raises(PullError, match="told to refuse"):
        consumer.pull(1, timeout_ms=2_000)
    consumer.stop()


def test_a_file_that_cannot_be_written_is_reported(proxy: Standin, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "place.json"
    consumer = Consumer(proxy.address, "g", "t", instance="i", offsets_file=path, **BROADCASTING)
    proxy.put("t", b"old")
    while len(proxy.calls) < 2:  # the first fetch is answered, however long that takes
        assert consumer.pull(1, timeout_ms=100) == []
    assert consumer.stop() is False
    assert "cannot be written" in str(consumer.last_error)


def test_a_file_is_one_consumers_at_a_time(proxy: Standin, tmp_path: Path) -> None:
    """Two would start each other at places where the other one has not been."""
    path = tmp_path / "place.json"
    more = {**BROADCASTING, "instance": "i", "offsets_file": path}
    message = f"{path}' is in use by another consumer"

    async def run() -> None:
        second = AsyncConsumer(proxy.address, "g", "t", **more)
        with pytest.raises(OptionError, match=message):
            await second.start()
        await second.stop()

    proxy.put("t", b"old")
    with Consumer(proxy.address, "g", "t", handler=lambda _: None, **more):
        proxy.wait(begun(proxy))
        asyncio.run(run())
        second = Consumer(proxy.address, "g", "t", **more)
        with pytest.raises(OptionError, match=message):
            second.start()
        second.stop()
        asyncio.run(run())  # those who were refused have let nobody in
    for _ in range(2):
        got: list[bytes] = []
        blocking(proxy, got, 3, more)
        with_asyncio(proxy, got, 6, more)
    assert stored(path) == {"t": {"q0": 13}}
