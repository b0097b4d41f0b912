"""Replies of the client library on a real server: stored with a message's acknowledgement, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from ddmq_client import (
    Consumer,
    InvalidMessageError,
    LeaseOverError,
    Message,
    Producer,
    SendError,
    SendResult,
    UnknownOutcomeError,
)
from ddmq_client.aio import AsyncConsumer
from tests.scenarios.real_server import RealServer
from tests.support.delays import wait_for_delays
from tests.support.lossy_relay import LossyRelay
from tests.support.waits import loop_until, until

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000


@pytest.fixture
def out(server: RealServer, topic: str) -> str:
    """Where the replies go."""
    name = f"{topic}-out"
    server.admin("POST", "topics", name, body={"create": True, "queues": 3})
    return name


@pytest.fixture
def relay(server: RealServer) -> Iterator[LossyRelay]:
    relay = LossyRelay(server.ports["consumer"])
    yield relay
    relay.close()


def fed(server: RealServer, topic: str, *bodies: str) -> None:
    with Producer(server.address("producer"), timeout_ms=PATIENCE_MS) as producer:
        for body in bodies:
            producer.send(topic, body, key=body[0], shard_key=body[0])


def test_a_handler_s_replies_are_there_once(server: RealServer, topic: str, group: str, out: str) -> None:
    """Also of a handler that failed when it had sent, and of one whose answers get lost."""
    done: list[tuple[str, list[SendResult]]] = []
    failed = Counter[str]()

    def handle(message: Message) -> None:
        with message.replies(timeout_ms=PATIENCE_MS) as tx:
            tx.send(out, f"{message.text()}-one", key=message.key, shard_key=message.key)
            tx.send(out, f"{message.text()}-two", tags="t", properties={"a": "b"})
            failed[message.text()] += 1
            if failed[message.text()] == 1 and message.text().endswith("3"):
                raise ZeroDivisionError
        assert not message.ack(), "it is settled"
        done.append((message.text(), list(tx.results)))

    names = [f"{key}{number}" for key in "abc" for number in range(10)]
    fed(server, topic, *names)
    with Consumer(server.address("consumer"), group, topic, handler=handle) as consumer:
        until(lambda: len(done) == len(names))
        assert consumer.counts().acked == len(names)
    assert server.bodies(out) == sorted(f"{name}-{which}" for name in names for which in ("one", "two"))
    assert all(len(results) == 2 for _, results in done)
    assert {failed[name] for name in names if name.endswith("3")} == {2}


def test_answers_that_are_lost_change_nothing(
    server: RealServer, topic: str, group: str, out: str, relay: LossyRelay, engine: str
) -> None:
    relay.every = 3  # of pulls and acknowledgements alike
    server.admin("POST", "groups", group, "topics", topic, body={"ack_timeout_ms": 1_000})
    has_results: list[bool] = []

    def handle(message: Message) -> None:
        with message.replies(timeout_ms=PATIENCE_MS) as tx:
            tx.send(out, message.body)
        has_results.append(bool(tx.results))

    names = [f"k{number:02}" for number in range(40)]
    fed(server, topic, *names)
    with Consumer(relay.address, group, topic, handler=handle, lease_ms=2_000):
        until(lambda: server.bodies(out) == names, lambda: server.bodies(out))
        until(lambda: len(has_results) >= len(names))
    assert relay.lost > 10
    assert server.bodies(out) == names
    assert all(has_results), "one proxy remembers"


def test_a_rejected_reply_raises_and_the_handler_continues(
    server: RealServer, topic: str, group: str, out: str
) -> None:
    errors: list[Exception] = []

    def handle(message: Message) -> None:
        try:
            with message.replies() as tx:
                tx.send(out, b"x")
                tx.send("no/name", b"x")
        except SendError as error:
            errors.append(error)
        with message.replies(timeout_ms=PATIENCE_MS) as tx:
            tx.send(out, b"instead")

    fed(server, topic, "one")
    with Consumer(server.address("consumer"), group, topic, handler=handle):
        until(lambda: server.bodies(out) == ["instead"])
    (error,) = errors
    assert isinstance(error, InvalidMessageError)
    assert error.code == 11
    assert "no/name" in str(error)


def test_a_lease_that_is_over_stores_nothing(server: RealServer, topic: str, out: str) -> None:
    server.admin("POST", "topics", topic, body={"create": True})
    server.admin("POST", "groups", "over", body={"topics": [topic], "start": "first", "ack_timeout_ms": 300})
    late, errors = threading.Event(), list[Exception]()

    def handle(message: Message) -> None:
        try:
            with message.replies(timeout_ms=PATIENCE_MS) as tx:
                tx.send(out, f"attempt {message.attempt}")
                if message.attempt == 1:
                    late.wait(PATIENCE_MS / 1_000)
        except LeaseOverError as error:
            errors.append(error)

    fed(server, topic, "one")
    with Consumer(server.address("consumer"), "over", topic, handler=handle, extend_for_ms=0, threads=2):
        until(lambda: len(server.bodies(out)) == 1)
        late.set()
        until(lambda: errors)
    assert server.bodies(out) == ["attempt 2"]


def test_replies_that_wait(server: RealServer, topic: str, group: str, out: str) -> None:
    wait_for_delays(server.address("producer"), out)

    def handle(message: Message) -> None:
        with message.replies(timeout_ms=PATIENCE_MS) as tx:
            tx.send(out, b"soon", delay=timedelta(milliseconds=300))
            tx.send(out, b"level", level=1)
            tx.send(out, b"now")
        results.extend(tx.results)

    results: list[SendResult] = []
    fed(server, topic, "one")
    with Consumer(server.address("consumer"), group, topic, handler=handle):
        until(lambda: results)
        soon, level, now = results
        assert soon.delay_id
        assert (soon.delayed, level.delayed, now.delayed) == (True, True, False)
        until(lambda: {"soon", "level", "now"} <= set(server.bodies(out)))
    assert Counter(server.bodies(out)) == Counter(["first", "level", "now", "soon"])


def test_one_topic_s_messages_by_hand(server: RealServer, topic: str, group: str, out: str) -> None:
    """Without a handler, and with an order key: the next is given out behind the acknowledgement."""
    path = ("groups", group, "topics", topic)
    server.admin("POST", *path, body={"order_key": "KEY", "order_scope": "topic"})
    fed(server, topic, "a1", "a2", "a3")
    order: list[str] = []
    with Consumer(server.address("consumer"), group, topic) as consumer:
        while len(order) < 3:
            for message in consumer.pull(timeout_ms=PATIENCE_MS):
                with message.replies(timeout_ms=PATIENCE_MS) as tx:
                    tx.send(out, message.body, shard_key="a")
                assert [result.stored for result in tx.results] == [True]
                order.append(message.text())
    assert order == ["a1", "a2", "a3"]
    assert server.bodies(out) == order


def test_replies_by_asyncio(server: RealServer, topic: str, group: str, out: str) -> None:
    names = [f"k{number:02}" for number in range(30)]
    failed = set[str]()

    async def handle(messages: list[Message]) -> None:
        for message in messages:
            async with message.replies(timeout_ms=PATIENCE_MS) as tx:
                tx.send(out, message.body)
                if message.text() == "k07" and message.text() not in failed:
                    failed.add(message.text())
                    raise ZeroDivisionError

    async def main() -> None:
        async with AsyncConsumer(server.address("consumer"), group, topic, batch_handler=handle, max_batch=7):
            await loop_until(lambda: server.bodies(out) == names)

    fed(server, topic, *names)
    asyncio.run(main())
    assert server.bodies(out) == names


def test_a_resent_reply_whose_outcome_is_forgotten_is_uncertain(
    server: RealServer, topic: str, group: str, out: str
) -> None:
    """Acknowledged by somebody without replies: that is said, and they are not stored."""
    fed(server, topic, "one")
    with (
        Consumer(server.address("consumer"), group, topic) as first,
        Consumer(server.address("consumer"), group, topic) as second,
    ):
        (message,) = until(lambda: first.pull(timeout_ms=1_000))
        resent = Message()
        resent.offset, resent.lease_id, resent.delivery = message.offset, message.lease_id, message.delivery
        assert message.ack()
        until(lambda: server.metric("ddmq_acked_total", group=group) == 1)
        with pytest.raises(UnknownOutcomeError, match="is finished"), resent.replies() as tx:
            tx.send(out, b"x")
        assert second.counts().acked == 0
    assert server.bodies(out) == []
