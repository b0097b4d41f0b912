"""Producer and Consumer, with threads, asyncio and gevent, through the real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddmq_client import (
    Consumer,
    Durability,
    InvalidMessageError,
    Message,
    NoSuchTopicError,
    OutgoingMessage,
    Producer,
)
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.installations import Installation
from tests.support.waits import until

COUNT = 300


def address(server: RealServer, component: str) -> str:
    return f"127.0.0.1:{server.ports[component]}"


def sent(server: RealServer, topic: str, count: int = COUNT) -> list[bytes]:
    """So many messages, some of each key; their bodies."""
    bodies = [b"body %d" % number for number in range(count)]
    with Producer(address(server, "producer")) as producer:
        messages = [
            OutgoingMessage(
                topic, body, key=f"k{n}", tags=f"t{n % 3}", properties={"n": str(n)}, shard_key=n % 7
            )
            for n, body in enumerate(bodies)
        ]
        assert all(result.stored for result in producer.send_batch(messages))
    return bodies


class HandledMessages:
    """What a consumer was given, from any thread."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        with self._lock:
            return sorted(message.body for message in self.messages)


def lag(server: RealServer, group: str) -> int:
    subscriptions = server.admin("GET", "groups", group)["subscriptions"]
    return sum(int(each["lag"]) for each in subscriptions)


def test_every_sent_message_is_handled_once(server: RealServer, topic: str, group: str) -> None:
    bodies = sent(server, topic)
    handled = HandledMessages()
    with Consumer(address(server, "consumer"), group, [topic], handler=handled, threads=4, linger_ms=100):
        until(lambda: len(handled.messages) >= COUNT, "all messages")
    assert handled.bodies == sorted(bodies)
    assert lag(server, group) == 0, "the last results were submitted by stop"
    one = min(handled.messages, key=lambda message: int(message.properties["n"]))
    assert (one.topic, one.group, one.key, one.tags, one.attempt) == (topic, group, "k0", "t0", 1)


def test_a_result_names_the_position_of_the_message(server: RealServer, topic: str, group: str) -> None:
    with Producer(address(server, "producer")) as producer:
        results = [producer.send(topic, b"x", queue=3) for _ in range(3)]
    assert [(result.queue_id, result.offset) for result in results] == [(3, 0), (3, 1), (3, 2)]
    assert {result.durability for result in results} == {Durability.DURABLE}
    consumer = Consumer(address(server, "consumer"), group, [topic], linger_ms=100)
    with consumer:
        messages = consumer.pull(3, timeout_ms=20_000)
        assert [message.message_id for message in messages] == [result.message_id for result in results]
        for message in messages:
            assert message.ack()


def test_one_shard_key_keeps_its_order(server: RealServer, topic: str, group: str) -> None:
    sent(server, topic)
    handled = HandledMessages()
    with Consumer(address(server, "consumer"), group, [topic], handler=handled, threads=1, linger_ms=100):
        until(lambda: len(handled.messages) >= COUNT, "all messages")
    for key in range(7):
        numbers = [n for m in handled.messages if (n := int(m.properties["n"])) % 7 == key]
        assert numbers == sorted(numbers)


def test_asynchronous_sends_and_their_callbacks(server: RealServer, topic: str) -> None:
    called: list[int] = []
    with Producer(address(server, "producer"), async_workers=3) as producer:
        futures = [
            producer.send_async(
                OutgoingMessage(topic, b"%d" % n), on_done=lambda result: called.append(result.code)
            )
            for n in range(100)
        ]
        assert producer.flush(30_000)
        assert len({future.result().message_id for future in futures}) == 100
    assert called == [0] * 100


def test_oneway_sends_arrive(server: RealServer, topic: str, group: str) -> None:
    with Producer(address(server, "producer")) as producer:
        for number in range(20):
            producer.send_oneway(OutgoingMessage(topic, b"%d" % number, queue=0))
        until(lambda: lag(server, group) == 20, "all are stored")


def test_a_failing_message_is_redelivered_and_becomes_a_dead_letter(
    server: RealServer, topic: str, group: str
) -> None:
    sent(server, topic, 3)
    attempts: list[int] = []

    def handle(message: Message) -> None:
        if message.properties["n"] == "1":
            attempts.append(message.attempt or 0)
            raise RuntimeError("on purpose")

    group = f"once-{group}"
    server.admin("POST", "groups", group, body={"topics": [topic], "start": "first", "retry_steps": 0})
    with Consumer(address(server, "consumer"), group, [topic], handler=handle, linger_ms=50):
        until(lambda: lag(server, group) == 0, "nothing is left")
    assert attempts == [1, 2, 3, 4], "the first and three retries"
    with Consumer(address(server, "consumer"), f"dead-{group}", [], linger_ms=50) as dead:
        server.admin("POST", "groups", f"dead-{group}", body={"topics": [f"%DLQ%{group}"], "start": "first"})
        letters: list[Message] = until(lambda: dead.pull(1, timeout_ms=200), "the dead letter")
        assert letters[0].body == b"body 1"
        assert letters[0].properties["dead-letter-topic"] == topic
        letters[0].ack()


def test_an_own_delay_and_skip(server: RealServer, topic: str, group: str) -> None:
    sent(server, topic, 2)
    handled: list[tuple[str, int | None]] = []

    def handle(message: Message) -> None:
        handled.append((message.properties["n"], message.attempt))
        if message.properties["n"] == "0":
            message.skip()
        elif message.attempt == 1:
            message.fail(delay_ms=1)

    with Consumer(address(server, "consumer"), group, [topic], handler=handle, linger_ms=50) as consumer:
        until(lambda: lag(server, group) == 0 and len(handled) == 3, "nothing is left")
        assert consumer.counts().skipped == 1
    assert sorted(handled) == [("0", 1), ("1", 1), ("1", 2)]


def test_two_consumers_share_and_two_groups_each_get_all(server: RealServer, topic: str, group: str) -> None:
    server.admin("POST", "groups", f"2-{group}", body={"topics": [topic], "start": "first"})
    bodies = sorted(sent(server, topic))
    one, two, other = HandledMessages(), HandledMessages(), HandledMessages()
    where = address(server, "consumer")
    options = {"linger_ms": 50, "max_batch": 8}
    with (
        Consumer(where, group, [topic], handler=one, **options),  # type: ignore[arg-type]
        Consumer(where, group, [topic], handler=two, **options),  # type: ignore[arg-type]
        Consumer(where, f"2-{group}", [topic], handler=other, **options),  # type: ignore[arg-type]
    ):
        until(lambda: len(one.messages) + len(two.messages) >= COUNT and len(other.messages) >= COUNT, "all")
    assert sorted(one.bodies + two.bodies) == other.bodies == bodies


def test_errors_of_senders(installation: Installation, tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", proxy_producer={"auto_create_topics": False})
    with (
        running(tmp_path, config, installation=installation) as strict,
        Producer(address(strict, "producer")) as producer,
    ):
        with pytest.raises(NoSuchTopicError, match="unheard-of"):
            producer.send("unheard-of", b"x")
        with pytest.raises(InvalidMessageError):
            producer.send("a/b", b"x")


def test_a_restart_is_survived_by_both_clients(installation: Installation, tmp_path: Path) -> None:
    """kill -9 in the middle: sends are repeated until they are stored, the consumer finds its way back."""
    with running(tmp_path, installation=installation) as server:
        server.admin("POST", "topics", "t", body={"create": True})
        server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})
        handled = HandledMessages()
        with (
            Producer(address(server, "producer"), timeout_ms=30_000, retry_unknown=True) as producer,
            Consumer(address(server, "consumer"), "g", ["t"], handler=handled, linger_ms=50),
        ):
            bodies = {b"before %d" % number for number in range(50)}
            assert all(producer.send("t", body).stored for body in bodies)
            server.kill()
            late = [producer.send_async(OutgoingMessage("t", b"after %d" % n)) for n in range(50)]
            server.start()
            assert all(future.result(60).stored for future in late)
            bodies |= {b"after %d" % number for number in range(50)}
            until(lambda: set(handled.bodies) == bodies, "everything")


def test_asyncio(server: RealServer, topic: str, group: str) -> None:
    asyncio.run(_asyncio(server, topic, group))


async def _asyncio(server: RealServer, topic: str, group: str) -> None:
    got: list[bytes] = []
    everything = asyncio.Event()

    async def handle(message: Message) -> None:
        got.append(message.body)
        if len(got) == 100:
            everything.set()

    async with AsyncProducer(address(server, "producer")) as producer:
        results = await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(100)))
        assert len({result.message_id for result in results}) == 100
    async with AsyncConsumer(address(server, "consumer"), group, [topic], handler=handle, linger_ms=100):
        await asyncio.wait_for(everything.wait(), 60)
    assert sorted(got) == sorted(b"%d" % n for n in range(100))
    assert lag(server, group) == 0


def test_gevent(server: RealServer, topic: str, group: str) -> None:
    """In a process of its own, everything patched."""
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            _GEVENT,
            address(server, "producer"),
            address(server, "consumer"),
            topic,
            group,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "200 stored, 200 handled\n", result.stderr
    assert lag(server, group) == 0


_GEVENT = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from gevent.event import Event
from ddmq_client import Consumer, Producer
producer_at, consumer_at, topic, group = sys.argv[1:]
stored, handled, everything = [], [], Event()
def handle(message):
    gevent.sleep(0)
    handled.append(message.body)
    if len(handled) == 200:
        everything.set()
with Producer(producer_at) as producer:
    def send(n):
        stored.extend(producer.send(topic, b"%d/%d" % (n, m)).message_id for m in range(10))
    gevent.joinall([gevent.spawn(send, n) for n in range(20)], raise_error=True)
with Consumer(consumer_at, group, [topic], handler=handle, threads=8, linger_ms=100):
    everything.wait(50)
print(f"{len(set(stored))} stored, {len(set(handled))} handled")
"""
