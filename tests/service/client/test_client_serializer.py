"""`serializer=` of producers and consumers: handlers get objects; a body without a value is a dead letter."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

import pytest
from either import KINDS, Either
from standin import Standin

from ddmq_client import (
    Consumer,
    InvalidMessageError,
    JsonSerializer,
    Message,
    OptionError,
    OutgoingMessage,
    Producer,
)
from ddmq_client.aio import AsyncConsumer
from ddmq_client.received import DEAD_LETTER
from ddmq_client.replies import Replies
from ddmq_client.sql import OutboxRelay, OutboxTable
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_server import ConsumerServer
from tests.support.waits import loop_until, until

GOOD, BAD = b'{"n": 1}', b"{broken"


class UnreachableRegistry:
    """Cannot work now: no fault of the body."""

    def serialize(self, value: Any) -> bytes:
        return b"x"

    def deserialize(self, body: bytes) -> Any:
        raise ConnectionError("no schema registry")


def fails(proxy: Standin) -> dict[int, tuple[int | None, str]]:
    """offset -> (delay, reason) of each fail that the proxy was told."""
    return {
        offset: (delay, reason)
        for result in proxy.results
        for offset, delay, reason in zip(
            result.failOffsets or (),
            result.failDelaysMs or repeat(None),
            result.failReasons or (),
            strict=False,
        )
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_send_serializes_its_body(proxy: Standin, kind: str) -> None:
    producer = Either(kind, proxy.address, serializer=JsonSerializer())
    producer.send("t", {"n": 1})
    producer.send_message(OutgoingMessage("t", [2]))
    results = producer.send_batch([OutgoingMessage("t", 3), OutgoingMessage("t", object())])
    assert [type(result.error) for result in results] == [type(None), InvalidMessageError]
    producer.send("t", "late", delay=timedelta(seconds=9))
    with pytest.raises(
        InvalidMessageError, match="the set to be sent to 't' cannot be serialized: TypeError"
    ):
        producer.send("t", {1})
    producer.end()
    bodies = [message.body for message in proxy.stored]
    assert [json.loads(body) for body in bodies[:3]] == [{"n": 1}, [2], 3]


def test_background_sends_serialize_their_bodies(proxy: Standin) -> None:
    with Producer(proxy.address, serializer=JsonSerializer()) as producer:
        producer.send_async(OutgoingMessage("t", {"n": 1})).result(60)
        with pytest.raises(InvalidMessageError):
            producer.send_async(OutgoingMessage("t", {1}))
    assert [message.body for message in proxy.stored] == [b'{"n":1}']


def test_handlers_get_values_and_a_body_without_one_is_a_dead_letter(
    proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    values: list[Any] = []

    def handle(message: Message) -> None:
        values.append((message.value, message.body))

    proxy.put("t", GOOD, BAD, GOOD)
    with Consumer(proxy.address, "g", "t", handler=handle, serializer=JsonSerializer()) as consumer:
        proxy.wait(lambda: len(proxy.done) == 2 and 1 in fails(proxy))
    assert values == [({"n": 1}, GOOD)] * 2
    delay, reason = fails(proxy)[1]
    assert delay == DEAD_LETTER
    assert reason.startswith("the body cannot be deserialized: Expecting property name")
    assert consumer.counts().handler_errors == 0
    assert "t/q0/1" in caplog.text or "goes to the dead letters" in caplog.text


def test_a_batch_is_without_them(proxy: Standin) -> None:
    batches: list[list[Any]] = []
    proxy.put("t", BAD, GOOD, BAD, GOOD)

    def handle(messages: list[Message]) -> None:
        batches.append([message.value for message in messages])

    with Consumer(proxy.address, "g", "t", batch_handler=handle, serializer=JsonSerializer()):
        proxy.wait(lambda: len(proxy.done) == 2 and fails(proxy).keys() == {0, 2})
    assert list(chain(*batches)) == [{"n": 1}, {"n": 1}]


def test_pulls_and_loops_are_without_them(proxy: Standin) -> None:
    proxy.put("t", BAD, GOOD)
    with Consumer(proxy.address, "g", "t", serializer=JsonSerializer()) as consumer:
        (message,) = until(lambda: consumer.pull(10, timeout_ms=2_000))
        assert message.value == {"n": 1}
        message.ack()
        proxy.put("t", BAD)
        assert consumer.pull(10, timeout_ms=100) == []
        proxy.put("t", GOOD)
        for message in consumer:
            assert message.value == {"n": 1}
            message.ack()
            break
    assert fails(proxy).keys() == {0, 2}


def test_handlers_in_asyncio_get_values(proxy: Standin) -> None:
    values: list[Any] = []

    async def handle(message: Message) -> None:
        values.append(message.value)

    async def consume() -> None:
        async with AsyncConsumer(proxy.address, "g", "t", handler=handle, serializer=JsonSerializer()):
            await loop_until(lambda: bool(values) and 0 in fails(proxy))

    proxy.put("t", BAD, GOOD)
    asyncio.run(consume())
    assert values == [{"n": 1}]
    assert fails(proxy)[0][0] == DEAD_LETTER


def test_another_error_of_the_serializer_is_a_failure_that_is_retried(
    proxy: Standin, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.put("t", GOOD)
    with Consumer(proxy.address, "g", "t", handler=print, serializer=UnreachableRegistry()):
        proxy.wait(lambda: 0 in fails(proxy))
    delay, reason = fails(proxy)[0]
    assert delay != DEAD_LETTER
    assert reason == "ConnectionError: no schema registry"
    assert "the serializer raised" in caplog.text


class Settled:
    """Keeps the encoded replies of a message."""

    inline = True

    def reply(self, message: Any, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        self.encoded = messages
        return ()


def test_replies_are_serialized_too() -> None:
    settling = Settled()
    with Replies(Message(), settling, None, JsonSerializer()) as tx:
        tx.send("t", {"n": 1})
        with pytest.raises(InvalidMessageError, match="cannot be serialized"):
            tx.send_message(OutgoingMessage("t", {1}))
    assert [b'{"n":1}' in data for data in settling.encoded] == [True]


def test_without_a_serializer_there_is_no_value(proxy: Standin) -> None:
    proxy.put("t", GOOD)
    with Consumer(proxy.address, "g", "t") as consumer:
        (message,) = until(lambda: consumer.pull(timeout_ms=2_000))
        assert (message.value, message.serializer) == (None, None)


def test_the_dead_letter_names_the_reason() -> None:
    server = ConsumerServer()
    server.topic("t")
    server.subscribe("g", "t", SubscriptionDefaults(start="first"))
    server.send("t", [BAD])
    address = f"127.0.0.1:{server.port}"
    try:
        with Consumer(address, "g", "t", handler=print, serializer=JsonSerializer()):
            until(lambda: server.committed("g", "t") == 1)
        with Consumer(address, "reader", "%DLQ%g", start="first") as reader:
            (letter,) = until(lambda: reader.pull(timeout_ms=1_000))
        assert letter.body == BAD
        reasons = [text for text in letter.properties.values() if "cannot be deserialized" in text]
        assert reasons, letter.properties
    finally:
        server.stop()


def test_a_relay_takes_no_producer_with_a_serializer(proxy: Standin) -> None:
    producer = Producer(proxy.address, serializer=JsonSerializer())
    with producer, pytest.raises(OptionError, match="the relay's producer has a serializer"):
        OutboxRelay(lambda: None, OutboxTable(), producer)
