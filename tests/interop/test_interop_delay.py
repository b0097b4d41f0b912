"""Delay messages as an independent client sends and gets them, on the real server."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest

from tests.interop.apache_client import Client, DelayResult, Delivered, done
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

ADD, CANCEL, RESCHEDULE, FIRE = 1, 2, 100, 101
ADDED, CANCELLED, FIRED, UNKNOWN, PENDING = 1, 2, 3, 4, 6
HOUR_MS = 3_600_000
BINARY = bytes(range(256)) * 4
CHRONOS = {"from_chronos": "from_chronos"}


def now_ms() -> int:
    return round(time.time() * 1_000)


def added(producer: Client, topic: str, **fields: Any) -> str:
    """The id of an add that was taken."""
    arguments = {"action": ADD, "dmsgtype": 2, "body": b"body", **fields}
    answer = producer.delay(topic, **arguments)
    assert answer.code == 0, answer
    return str(answer.uniqDelayMsgId)


def delivered(consumer: Client, group: str, count: int = 1) -> list[Delivered]:
    """So many messages, all acknowledged."""
    delivered_messages: list[Delivered] = []

    def enough() -> bool:
        answer = consumer.pull(group, maxBatchSize=8, maxLingerTime=500)
        delivered_messages.extend(answer.messages)
        consumer.submit(done(answer)) if answer.messages else None
        return len(delivered_messages) >= count

    until(enough, f"{count} messages")
    return delivered_messages


def stored(server: RealServer, topic: str) -> int:
    return len(server.messages(topic))


def test_once(producer: Client, consumer: Client, topic: str, group: str) -> None:
    """Never early; the occurrence's id as key; the body byte for byte; tags and properties as they were."""
    due = int(time.time()) + 2
    fields = {"body": BINARY, "tags": "A||B", "properties": {"traceId": "t-1", "ä": "ü"}}
    ident = added(producer, topic, timestamp=due, uuid=str(uuid4()), **fields)
    (message,) = delivered(consumer, group)
    assert time.time() >= due
    assert (message.key, message.value, message.tag) == (ident, BINARY, "A||B")
    assert message.properties == {"traceId": "t-1", "ä": "ü", **CHRONOS}
    assert message.set_fields().keys() == {"key", "value", "tag", "offset", "properties"}


def test_what_is_past_fires_at_once(producer: Client, consumer: Client, topic: str, group: str) -> None:
    ident = added(producer, topic, timestamp=1_000_000_000)
    (message,) = delivered(consumer, group)
    assert message.key == ident


def test_a_loop_of_the_past_catches_up_with_ids_of_its_own(
    producer: Client, consumer: Client, topic: str, group: str
) -> None:
    first = int(time.time()) - 10
    loop = {"dmsgtype": 3, "timestamp": first, "interval": 3, "times": 3, "expire": first + 3_600}
    ident = added(producer, topic, **loop)
    head, uuid = ident.split("-", 6), ident.split("-", 6)[6]
    expected = [
        "-".join((str(first + 3 * timed), *head[1:4], str(timed), head[5], uuid)) for timed in range(3)
    ]
    assert sorted(message.key for message in delivered(consumer, group, 3)) == expected


def test_a_resent_add_is_stored_once(server: RealServer, producer: Client, topic: str, group: str) -> None:
    uuid, due = str(uuid4()), int(time.time()) + 1
    assert added(producer, topic, timestamp=due, uuid=uuid) == added(
        producer, topic, timestamp=due, uuid=uuid
    )
    until(lambda: stored(server, topic), "the delivery")
    ident = added(producer, topic, timestamp=due, uuid=uuid)
    until(lambda: server.admin("GET", "delay", "messages", ident)["state"] == "fired", "the end")
    assert cancel(producer, topic, ident).outcome == FIRED, "all orders before this one have been decided"
    assert stored(server, topic) == 1


def test_a_resent_add_is_answered_with_the_stored_state(producer: Client, topic: str) -> None:
    """With a field of ours, and unless it says that nobody can know its uuid."""
    fields = {"action": ADD, "dmsgtype": 2, "body": b"body", "uuid": str(uuid4()), "clientId": "me"}
    due = int(time.time()) + 3_600
    first = producer.delay(topic, timestamp=due, **fields)
    resent = producer.delay(topic, timestamp=due + 99, **fields)
    assert [(answer.outcome, answer.dueMs) for answer in (first, resent)] == [(ADDED, due * 1_000)] * 2
    cancel(producer, topic, first.uniqDelayMsgId)
    over = producer.delay(topic, timestamp=due, **fields)
    assert (over.code, over.outcome, over.dueMs) == (0, CANCELLED, None)
    unanswered = producer.delay(topic, timestamp=due, fresh=True, **fields)
    assert (unanswered.outcome, unanswered.dueMs) == (ADDED, due * 1_000)


def cancel(producer: Client, topic: str, ident: str) -> DelayResult:
    """With the topic, as every old client states it; with a field of ours: waits for the outcome."""
    return producer.delay(topic, uniqDelayMsgId=ident, action=CANCEL, clientId="me")


def test_a_cancel_that_wants_to_know(producer: Client, consumer: Client, topic: str, group: str) -> None:
    ident = added(producer, topic, timestamp=int(time.time()) + 3_600)
    answer = cancel(producer, topic, ident)
    assert answer.set_fields() == {"code": 0, "msg": "OK", "uniqDelayMsgId": ident, "outcome": CANCELLED}
    soon = added(producer, topic, timestamp=int(time.time()) + 1)
    delivered(consumer, group)
    answer = cancel(producer, topic, soon)
    assert (answer.code, answer.outcome) == (0, FIRED)
    assert int(soon[:10]) * 1_000 <= answer.firedAtMs <= now_ms()


def test_a_cancel_without_a_topic_is_for_clients_that_may_send_to_every_topic(
    producer: Client, topic: str
) -> None:
    """No old client sends one. With rights on, the identity of these clients has the rule `send *`."""
    ident = added(producer, topic, timestamp=int(time.time()) + 3_600)
    answer = producer.delay(uniqDelayMsgId=ident, action=CANCEL, clientId="me")
    assert (answer.code, answer.outcome) == (0, CANCELLED)


def test_a_cancel_before_its_add(
    server: RealServer, producer: Client, topic: str, group: str, access: str
) -> None:
    """The client fixed the uuid; the cancel comes first; the add is answered 0 and never fires."""
    uuid = str(uuid4())
    shards = len(server.admin("GET", "delay")["shards"])
    due = int(time.time()) + 1
    ident = f"{due}-2-{due + 172_800}-0-0-0-{crc32(uuid.encode()) % shards}-{uuid}"
    assert cancel(producer, topic, ident).outcome == UNKNOWN
    assert added(producer, topic, timestamp=due, uuid=uuid) == ident
    state = server.admin("GET", "delay", "messages", ident)["state"]
    assert state == ("cancelled before it was known" if access == "open" else "unknown"), (
        "it is for one topic"
    )
    assert not stored(server, topic)


def test_milliseconds(producer: Client, consumer: Client, topic: str, group: str) -> None:
    due = now_ms() + 350
    answer = producer.delay(topic, action=ADD, dmsgtype=2, body=b"b", dueMs=due)
    assert (answer.outcome, answer.dueMs) == (ADDED, due)
    assert int(answer.uniqDelayMsgId[:10]) == due // 1_000
    delivered(consumer, group)
    assert due <= cancel(producer, topic, answer.uniqDelayMsgId).firedAtMs <= now_ms()


def test_a_schedule_keeps_its_key_and_its_queue(
    server: RealServer, producer: Client, consumer: Client, topic: str, group: str
) -> None:
    fields = {"delayMs": 10, "periodMs": 1_000, "repeat": 1, "key": "order-17", "partitionId": 2}
    answer = producer.delay(topic, action=ADD, dmsgtype=5, body=BINARY, **fields)
    assert answer.code == 0, answer
    messages = delivered(consumer, group, 2)
    assert {(message.key, message.value) for message in messages} == {("order-17", BINARY)}
    assert [row["queue"] for row in server.messages(topic)] == [2, 2]


def test_reschedule_and_fire_now(producer: Client, consumer: Client, topic: str, group: str) -> None:
    ident = added(producer, topic, timestamp=int(time.time()) + 3_600)
    due = now_ms() + 2 * HOUR_MS
    moved = producer.delay(topic, uniqDelayMsgId=ident, action=RESCHEDULE, dueMs=due)
    assert (moved.outcome, moved.dueMs) == (ADDED, due)
    fired = producer.delay(topic, uniqDelayMsgId=ident, action=FIRE, clientId="me")
    assert fired.outcome == FIRED
    assert fired.firedAtMs <= now_ms()
    (message,) = delivered(consumer, group)
    assert message.key == ident
    assert cancel(producer, topic, ident).outcome == FIRED


# --- an old delay server that still drains


def old_server_sends(producer: Client, topic: str, key: str) -> None:
    assert producer.send(topic, b"late", key=key, properties=CHRONOS).set_fields() == {"code": 0, "msg": "OK"}


def test_a_delivery_of_an_old_server_is_dropped_once_it_was_cancelled_here(
    server: RealServer, producer: Client, consumer: Client, topic: str, group: str
) -> None:
    """Its pending messages were never known here; the cancel left a tombstone. Shard 13 is one of its own.

    What it sends twice comes twice: it is at-least-once, and nothing else that is answered 0 is dropped.
    """
    due = int(time.time())
    uncancelled, cancelled = (f"{due}-3-{due + 3_600}-9-{{timed}}-3-13-{uuid4()}" for _ in range(2))
    assert cancel(producer, topic, cancelled.format(timed=0)).outcome == UNKNOWN
    for timed in range(3):
        old_server_sends(producer, topic, cancelled.format(timed=timed))
        old_server_sends(producer, topic, uncancelled.format(timed=timed))
        old_server_sends(producer, topic, uncancelled.format(timed=timed))  # it resends, too
    keys = sorted(message.key for message in delivered(consumer, group, 6))
    assert keys == [uncancelled.format(timed=timed) for timed in range(3) for _ in range(2)]
    assert cancel(producer, topic, uncancelled.format(timed=0)).outcome == UNKNOWN, (
        "all that came before is decided"
    )
    assert stored(server, topic) == 6


@pytest.mark.parametrize("key", ["k", None])
def test_from_chronos_without_an_id_is_a_plain_send(
    producer: Client, consumer: Client, topic: str, group: str, key: str | None
) -> None:
    assert producer.send(topic, b"plain", key=key, properties=CHRONOS).code == 0
    (message,) = delivered(consumer, group)
    assert (message.key, message.value) == (key, b"plain")
