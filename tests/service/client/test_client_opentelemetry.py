"""Spans of the library against a real server: from the send over the delivery to the handler's end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from ddmq_client import Consumer, InvalidMessageError, Message, OutgoingMessage, Producer
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from tests.scenarios.real_server import RealServer, running
from tests.support.lossy_relay import LossyRelay
from tests.support.spans import Spans, linked, parent, span_ids, traceparent
from tests.support.waits import loop_until, until

pytestmark = pytest.mark.slow
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("spans")) as started:
        yield started


@pytest.fixture
def topic(server: RealServer, request: pytest.FixtureRequest) -> str:
    """With a group `g-TOPIC` that reads it from its first message and tries a message again at once."""
    name = request.node.name.replace("_", "-").replace("[", "-").strip("]")
    server.admin("POST", "topics", name, body={"create": True})
    server.admin("POST", "groups", f"g-{name}", body={"topics": [name], "start": "first"})
    return str(name)


@pytest.fixture
def spans() -> Spans:
    return Spans()


def producer(server: RealServer, spans: Spans, **settings: Any) -> Producer:
    address = f"127.0.0.1:{server.ports['producer']}"
    return Producer(address, timeout_ms=PATIENCE_MS, client_id="me", observer=spans.observer, **settings)


def consumer(server: RealServer, topic: str, spans: Spans | None, **settings: Any) -> Consumer:
    observer = None if spans is None else spans.observer
    address = f"127.0.0.1:{server.ports['consumer']}"
    return Consumer(address, f"g-{topic}", topic, client_id="you", observer=observer, **settings)


def received(server: RealServer, topic: str, count: int = 1) -> list[Message]:
    """By a consumer that makes no spans."""
    messages: list[Message] = []
    with consumer(server, topic, None) as client:
        while len(messages) < count:
            messages += client.pull(timeout_ms=PATIENCE_MS)
        for message in messages:
            message.ack()
    return messages


def test_from_the_send_to_the_end_of_the_handler(server: RealServer, topic: str, spans: Spans) -> None:
    current: list[Any] = []

    def handle(message: Message) -> None:
        current.append(trace.get_current_span().get_span_context())

    before_ns = time.time_ns()
    with producer(server, spans) as client, spans.tracer.start_as_current_span("shop"):
        result = client.send(topic, b"one espresso", key="k")
    with consumer(server, topic, spans, handler=handle):
        until(lambda: spans.all(f"process {topic}"), "the handler's end")
    assert spans.names() == sorted(["shop", f"send {topic}", f"deliver {topic}", f"process {topic}"])
    shop, sent = spans.one("shop"), spans.one(f"send {topic}")
    delivered, handled = spans.one(f"deliver {topic}"), spans.one(f"process {topic}")
    assert parent(sent) == span_ids(shop)
    assert parent(delivered) == parent(handled) == span_ids(sent)
    assert linked(handled) == [span_ids(sent)]
    assert [span_ids(one) for one in current] == [span_ids(handled)]
    assert sent.kind is trace.SpanKind.PRODUCER
    assert handled.kind is trace.SpanKind.CONSUMER
    common = {
        "messaging.system": "ddmq",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(result.queue_id),
        "messaging.message.id": result.message_id,
        "messaging.ddmq.message.offset": result.offset,
    }
    assert dict(sent.attributes or {}) == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.client.id": "me",
        "messaging.message.body.size": 12,
        "server.address": "127.0.0.1",
        "server.port": server.ports["producer"],
    }
    attributes = dict(handled.attributes or {})
    waited_ms = attributes.pop("messaging.ddmq.message.waited_ms")
    assert attributes == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": "you",
        "messaging.consumer.group.name": f"g-{topic}",
        "messaging.message.body.size": 12,
        "messaging.ddmq.message.delivery_count": 1,
        "messaging.ddmq.message.outcome": "acked",
    }
    assert delivered.start_time is not None
    assert delivered.end_time is not None
    assert before_ns - 1_000_000 <= delivered.start_time <= delivered.end_time <= time.time_ns()
    assert isinstance(waited_ms, int)
    assert waited_ms >= 0


def test_properties_carry_it_for_readers_old_and_new(server: RealServer, topic: str, spans: Spans) -> None:
    with producer(server, spans) as client:
        client.send(topic, b"m0", properties={"p": "1"})
        client.send(topic, b"m1", properties={"traceId": "mine"})
    first, second = spans.all(f"send {topic}")
    properties = {message.text(): dict(message.properties) for message in received(server, topic, 2)}
    trace_id, span_id = span_ids(first)
    assert properties["m0"] == {
        "p": "1",
        "traceparent": traceparent(first),
        "traceId": f"{trace_id:032x}",
        "spanId": f"{span_id:016x}",
    }
    assert properties["m1"] == {"traceId": "mine", "traceparent": traceparent(second)}


def test_a_batch_has_a_span_for_each_message_and_handlers_of_batches_link(
    server: RealServer, topic: str, spans: Spans
) -> None:
    received: list[str] = []

    def handle(messages: list[Message]) -> None:
        received.extend(message.text() for message in messages)

    with producer(server, spans) as client:
        results = client.send_batch([OutgoingMessage(topic, f"m{at}", shard_key="s") for at in range(5)])
    sent, created = spans.one(f"send {topic}"), spans.all(f"create {topic}")
    assert sent.kind is trace.SpanKind.CLIENT
    assert (sent.attributes or {})["messaging.batch.message_count"] == 5
    assert linked(sent) == [span_ids(each) for each in created]
    assert [(each.attributes or {})["messaging.message.id"] for each in created] == [
        result.message_id for result in results
    ]
    with consumer(server, topic, spans, batch_handler=handle):
        until(
            lambda: len(received) == 5 and sum(len(each.links) for each in spans.all(f"process {topic}")) == 5
        )
    handled = spans.all(f"process {topic}")
    assert [parent(each) for each in handled] == [None] * len(handled)
    assert sorted(ids for each in handled for ids in linked(each)) == sorted(map(span_ids, created))
    assert sorted(map(parent, spans.all(f"deliver {topic}"))) == sorted(map(span_ids, created))
    ids = {(link.attributes or {})["messaging.message.id"] for each in handled for link in each.links}
    assert ids == {result.message_id for result in results}


def test_what_fails_says_so_and_each_delivery_has_its_number(
    server: RealServer, topic: str, spans: Spans
) -> None:
    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise ZeroDivisionError("no change")
        if message.attempt == 2:
            message.fail(delay_ms=1)

    with producer(server, spans) as client:
        client.send(topic, b"m0")
    with consumer(server, topic, spans, handler=handle):
        until(lambda: len(spans.all(f"process {topic}")) == 3, "the third delivery")
    handled = spans.all(f"process {topic}")
    attributes = [dict(each.attributes or {}) for each in handled]
    assert [one["messaging.ddmq.message.delivery_count"] for one in attributes] == [1, 2, 3]
    assert [one["messaging.ddmq.message.outcome"] for one in attributes] == ["failed", "failed", "acked"]
    assert [one.get("error.type") for one in attributes] == ["ZeroDivisionError", "failed", None]
    assert [event.name for event in handled[0].events] == ["exception"]
    assert [parent(each) for each in handled] == [span_ids(spans.one(f"send {topic}"))] * 3


def test_a_resend_belongs_to_the_span_of_its_send(server: RealServer, topic: str, spans: Spans) -> None:
    """Also with a key of the application; the same key once more is a call of its own."""
    relay = LossyRelay(server.ports["producer"])
    try:
        with Producer(relay.address, timeout_ms=PATIENCE_MS, observer=spans.observer) as client:
            client.send(topic, b"m0")
            relay.every = 2
            results = [client.send(topic, f"m{at}", idempotency_key=f"k{at}") for at in (1, 2, 3)]
            relay.every = 0
            client.send(topic, b"m3", idempotency_key="k3")
        assert any(result.duplicate for result in results)
    finally:
        relay.close()
    sent = spans.all(f"send {topic}")
    assert len(sent) == 5
    assert (sent[4].attributes or {})["messaging.ddmq.message.duplicate"] is True
    carried = {message.text(): message.properties["traceparent"] for message in received(server, topic, 4)}
    assert carried == {f"m{at}": traceparent(sent[at]) for at in range(4)}


def test_background_oneway_and_rejected_sends_have_spans(
    server: RealServer, topic: str, spans: Spans
) -> None:
    with producer(server, spans) as client:
        future = client.send_async(OutgoingMessage(topic, b"m0"))
        client.send_oneway(OutgoingMessage(topic, b"m1"))
        assert future.result(60).stored
        until(lambda: len(spans.all(f"send {topic}")) == 2)
        with pytest.raises(InvalidMessageError):
            client.send(topic, b"m2", properties={"PGROUP": "reserved"})
        with pytest.raises(InvalidMessageError):
            client.send_async(OutgoingMessage(topic, b""))
    assert len(received(server, topic, 2)) == 2
    error_types = sorted(str((one.attributes or {}).get("error.type")) for one in spans.all(f"send {topic}"))
    assert error_types == ["None", "None"] + ["ddmq_client.errors.InvalidMessageError"] * 2


def test_a_transaction(server: RealServer, topic: str, spans: Spans) -> None:
    with producer(server, spans, producer_group="shop") as client:
        with client.transaction(reference="order 17") as tx:
            tx.send(topic, b"m0")
            tx.send_batch([OutgoingMessage(topic, b"m1"), OutgoingMessage(topic, b"m2")])
        broken = client.transaction()
        broken.send(topic, b"m3")
        broken.rollback()
    single, many, lost = spans.all(f"send {topic}")
    created = spans.all(f"create {topic}")
    assert [(one.attributes or {})["messaging.ddmq.transaction.id"] for one in (single, many, lost)] == [
        tx.id, tx.id, broken.id,
    ]  # fmt: skip
    carried = {message.text(): message.properties["traceparent"] for message in received(server, topic, 3)}
    assert carried == {
        "m0": traceparent(single), "m1": traceparent(created[0]), "m2": traceparent(created[1]),
    }  # fmt: skip


def test_a_delayed_message_is_linked_to_the_span_of_its_send(
    server: RealServer, topic: str, spans: Spans
) -> None:
    handled: list[Message] = []
    with producer(server, spans) as client:
        sent = client.send(topic, b"m0", delay=timedelta(milliseconds=100))
    with consumer(server, topic, spans, handler=handled.append):
        until(lambda: spans.all(f"process {topic}"), "the delayed message")
    span, process = spans.one(f"send {topic}"), spans.one(f"process {topic}")
    assert (span.attributes or {})["messaging.ddmq.delay.id"] == sent.delay_id
    assert linked(process) == [span_ids(span)]
    assert parent(process) is None
    assert spans.all(f"deliver {topic}") == []


def test_messages_that_are_pulled(server: RealServer, topic: str, spans: Spans) -> None:
    with producer(server, spans) as client:
        client.send_batch([OutgoingMessage(topic, f"m{at}", shard_key="s") for at in range(3)])
    created = spans.all(f"create {topic}")
    with consumer(server, topic, spans) as client, spans.tracer.start_as_current_span("job"):
        pulled = 0
        while pulled < 3:
            for message in client.pull(3 - pulled, timeout_ms=PATIENCE_MS):
                pulled += 1
                with spans.observer.handling([message]):
                    message.ack()
    job, handled = spans.one("job"), spans.all(f"process {topic}")
    assert [parent(one) for one in handled] == [span_ids(job)] * 3
    assert [linked(one) for one in handled] == [[span_ids(one)] for one in created]
    got = spans.all(f"receive {topic}")
    assert {one.kind for one in got} == {trace.SpanKind.CLIENT}
    assert {parent(one) for one in got} == {span_ids(job)}
    assert sum(len(one.links) for one in got) == 3


def test_tasks_have_spans_of_their_own(server: RealServer, topic: str, spans: Spans) -> None:
    """A handler has its own span, not that of who started the consumer."""
    current: dict[str, Any] = {}

    async def handle(message: Message) -> None:
        await asyncio.sleep(0)
        current[message.text()] = trace.get_current_span().get_span_context()

    async def test() -> None:
        addresses = [f"127.0.0.1:{server.ports[component]}" for component in ("producer", "consumer")]
        with spans.tracer.start_as_current_span("main"):
            async with (
                AsyncProducer(
                    addresses[0], timeout_ms=PATIENCE_MS, producer_group="g", observer=spans.observer
                ) as client,
                AsyncConsumer(addresses[1], f"g-{topic}", topic, handler=handle, observer=spans.observer),
            ):
                await asyncio.gather(*[client.send(topic, f"m{at}") for at in range(20)])
                await client.send_batch([OutgoingMessage(topic, "m20")])
                await client.send_oneway(OutgoingMessage(topic, "m21"))
                async with client.transaction() as tx:
                    await tx.send(topic, "m22")
                await loop_until(lambda: len(spans.all(f"process {topic}")) == 23)

    asyncio.run(test())
    sent = [*spans.all(f"send {topic}"), *spans.all(f"create {topic}")]
    handled = spans.all(f"process {topic}")
    assert len(sent) == 24
    assert {parent(one) for one in sent} == {span_ids(spans.one("main"))}
    assert {parent(one) for one in handled} <= set(map(span_ids, sent))
    assert sorted(map(span_ids, handled)) == sorted(map(span_ids, current.values()))


def test_threads_keep_their_spans_apart(server: RealServer, topic: str, spans: Spans) -> None:
    current: list[bool] = []
    together = threading.Barrier(4)

    def handle(message: Message) -> None:
        together.wait(60)
        own = trace.get_current_span()
        current.append((getattr(own, "attributes", None) or {})["messaging.message.id"] == message.message_id)

    with producer(server, spans) as client:
        for at in range(8):
            client.send(topic, f"m{at}")
    with consumer(server, topic, spans, handler=handle, threads=4):
        until(lambda: len(spans.all(f"process {topic}")) == 8)
    assert current == [True] * 8


HOSTILE = (
    {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
    {"traceparent": "00-" + "f" * 4_000},
    {"traceparent": "\u2028ü-💥", "tracestate": "=,=,,"},
    {"traceparent": "ff-" + "1" * 32 + "-" + "2" * 16 + "-01"},
    {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "tracestate": "a=" + "b" * 20_000},
    {"traceId": "not hex", "spanId": "7"},
    {"traceId": "1" * 32, "spanId": "2" * 16},
    {"traceId": "٣" * 32, "spanId": "٣" * 16},
)


def test_what_strangers_put_there_stops_no_delivery(server: RealServer, topic: str, spans: Spans) -> None:
    with Producer(f"127.0.0.1:{server.ports['producer']}", timeout_ms=PATIENCE_MS) as client:
        for at, properties in enumerate(HOSTILE):
            client.send(topic, f"m{at}", properties=properties)
    received: dict[str, Message] = {}

    def handle(message: Message) -> None:
        received[message.text()] = message

    with consumer(server, topic, spans, handler=handle):
        until(lambda: len(spans.all(f"process {topic}")) == len(HOSTILE))
    assert sorted(received) == sorted(f"m{at}" for at in range(len(HOSTILE)))
    links = {ids for one in spans.all(f"process {topic}") for ids in linked(one)}
    assert links == {(int("1" * 32, 16), int("2" * 16, 16))}


def test_a_message_at_the_limit_goes_without(server: RealServer, topic: str, spans: Spans) -> None:
    large = {"p": "x" * (32 * 1024 - 1)}
    with producer(server, spans) as client:
        client.send(topic, b"m0", properties=large)
    (message,) = received(server, topic)
    assert message.properties == large
    assert (spans.one(f"send {topic}").attributes or {})["messaging.ddmq.context_left_out"] is True
    assert spans.observer.not_carried == 1


def test_nothing_of_it_is_loaded_where_it_is_not_used() -> None:
    script = (
        "import sys; from ddmq_client import Consumer, Producer; from ddmq_client.aio import AsyncProducer\n"
        "Producer('127.0.0.1:1').close(); Consumer('127.0.0.1:1', 'g', 't')\n"
        "assert not [name for name in sys.modules if 'opentelemetry' in name]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    import ddmq_client.opentelemetry\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    project = Path(__file__).resolve().parents[3] / "packaging" / "client" / "pyproject.toml"
    (requirement,) = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["opentelemetry"]
    assert f"pip install '{requirement}'" in done.stdout
