"""What confluent-kafka does by itself: the floors, each a process of its own.

    python -m bench.kafka.bare WHAT BOOTSTRAP ARGUMENT…

Says `ready` when it is connected and warm, then one line of JSON with its figures. `cpu_us` is its own
processor time for each message, librdkafka's threads included. Producers and consumers are set like ours
(acks of all, idempotent, no linger), but for what a plain program has no need of.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (  # type: ignore[attr-defined]
    Consumer,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from bench.harness import percentiles

MARK = b"\xfeDUE\xfe"
STAMP = struct.Struct("d")
GIVE_UP_S = 60.0
PRODUCER: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}


def main() -> None:
    what, bootstrap, *arguments = sys.argv[1:]
    WHAT[what](bootstrap, *arguments)


def print_figures(figures: dict[str, float]) -> None:
    print(json.dumps(figures), flush=True)


def ready() -> None:
    print("ready", flush=True)


# --- producing


def produce(bootstrap: str, topic: str, queues: str, lanes: str, batch: str, body: str, count: str) -> None:
    """`lanes` times `batch` messages under way: a lane sends its next ones when all of these are stored."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap})
    load = ProducerLoad(producer, topic, int(queues), int(lanes), int(batch), bytes(int(body)))
    load.run(int(lanes) * int(batch) * 4)
    ready()
    began, cpu = time.perf_counter(), time.process_time()
    latencies = load.run(int(count))
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    print_figures(
        {"per_s": int(count) / seconds} | percentiles(latencies) | {"cpu_us": spent / int(count) * 1e6}
    )


class ProducerLoad:
    """Raises when one is not stored."""

    def __init__(
        self, producer: Producer, topic: str, queues: int, lanes: int, batch: int, body: bytes
    ) -> None:
        self._producer, self._topic, self._queues = producer, topic, queues
        self._batch, self._body = batch, body
        self._remaining = [0] * lanes
        self._free: list[int] = []
        self._reports = [self._reporter(lane) for lane in range(lanes)]

    def run(self, count: int) -> list[float]:
        """Seconds that each batch took."""
        lanes, self._free = len(self._remaining), []
        started, latencies = [0.0] * lanes, []
        batches, answered = count // self._batch, 0
        sent = min(lanes, batches)
        for lane in range(sent):
            started[lane] = self._send(lane)
        while answered < batches:
            self._producer.poll(1.0)
            free, self._free = self._free, []
            for lane in free:
                latencies.append(time.perf_counter() - started[lane])
                answered += 1
                if sent < batches:
                    started[lane] = self._send(lane)
                    sent += 1
        return latencies

    def _send(self, lane: int) -> float:
        began = time.perf_counter()
        self._remaining[lane] = self._batch
        produce, report = self._producer.produce, self._reports[lane]
        for number in range(self._batch):
            at = (lane + number) % self._queues
            produce(self._topic, self._body, b"k%d" % number, at, on_delivery=report)
        return began

    def _reporter(self, lane: int) -> Callable[[Any, Any], None]:
        def reported(error: Any, _: Any) -> None:
            if error is not None:
                raise AssertionError(f"not stored: {error}")
            self._remaining[lane] -= 1
            if not self._remaining[lane]:
                self._free.append(lane)

        return reported


# --- consuming


def consume(bootstrap: str, topic: str, queues: str, group: str, first: str, count: str, how: str) -> None:
    """From `first` (an offset of each queue, commas between) on, 100 at a time, each committed (`how`:
    `sync`, before it goes on, or `async`)."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False,
         "isolation.level": "read_committed", "auto.offset.reset": "error"}
    )  # fmt: skip
    begins = [int(each) for each in first.split(",")]
    partitions = [TopicPartition(topic, number, begins[number]) for number in range(int(queues))]
    _commit_first(consumer, partitions)
    ready()
    began, cpu = time.perf_counter(), time.process_time()
    consumer.assign(partitions)
    following, came = dict(enumerate(begins)), 0
    while came < int(count):
        messages = consumer.consume(100, 1.0)
        for message in messages:
            came += _next_is(following, message)
        if messages:
            partitions = [TopicPartition(topic, number, offset) for number, offset in following.items()]
            consumer.commit(offsets=partitions, asynchronous=how == "async")  # type: ignore[call-overload]
        elif time.perf_counter() - began > GIVE_UP_S:
            raise AssertionError(f"{count} stored, {came} came")
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    print_figures({"per_s": int(count) / seconds, "cpu_us": spent / int(count) * 1e6})


def _commit_first(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Brokers that have just started say for a while that nobody keeps the group, or somebody else.

    Nothing marks such a refusal as one that passes (`retriable()` is False), so each is taken for one.
    """
    give_up = time.monotonic() + GIVE_UP_S
    while True:
        try:
            consumer.commit(offsets=partitions, asynchronous=False)
            return
        except KafkaException:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def _next_is(following: dict[int, int], message: Message) -> int:
    number, offset = message.partition(), message.offset()
    if message.error() or number is None or offset is None or offset < following[number]:
        raise AssertionError(f"{message.error() or offset} of queue {number}, {following} was to come")
    following[number] = offset + 1
    return 1


def latency(bootstrap: str, topic: str, queues: str, count: str) -> None:
    """From the moment in each body until `poll` has given it here."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bare", "auto.offset.reset": "error"})
    partitions = [TopicPartition(topic, number) for number in range(int(queues))]
    ends = [consumer.get_watermark_offsets(partition, timeout=10) for partition in partitions]
    for partition, end in zip(partitions, ends, strict=True):
        partition.offset = end[1]
    consumer.assign(partitions)
    consumer.poll(0.5)
    ready()
    cpu, latencies = time.process_time(), list[float]()
    silent = time.perf_counter()
    while len(latencies) < int(count):
        message = consumer.poll(1.0)
        now = time.perf_counter()
        if message is not None and not message.error():
            latencies.append(now - STAMP.unpack_from(message.value() or b"", len(MARK))[0])
            silent = now
        elif now - silent > GIVE_UP_S:
            raise AssertionError(f"{count} sent, {len(latencies)} came")
    spent = time.process_time() - cpu
    print_figures(percentiles(latencies) | {"cpu_us": spent / int(count) * 1e6})


# --- share groups (KIP-932)


def share(bootstrap: str, topic: str, group: str, count: str, body: str) -> None:
    """A share group that accepts each message and commits each answer of `poll` before it goes on.

    It fills the topic, which is new, itself. The time begins with the second answer: to join takes seconds.
    """
    consumer = _share_consumer(bootstrap, topic, group)
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(int(count)):
        producer.produce(topic, bytes(int(body)), b"k%d" % (number % 100))
        producer.poll(0)
    producer.flush(GIVE_UP_S)
    ready()
    first, cpu, answers = _accept_next(consumer), time.process_time(), 1
    began, came = time.perf_counter(), 0
    while first + came < int(count):
        came += _accept_next(consumer)
        answers += 1
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    print_figures({"per_s": came / seconds, "cpu_us": spent / came * 1e6, "per_answer": int(count) / answers})


def share_latency(bootstrap: str, topic: str, group: str, count: str) -> None:
    """As `latency`, through a share group that is warm when it says so: it has had a message."""
    consumer = _share_consumer(bootstrap, topic, group)
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap})
    producer.produce(topic, b"warm")
    producer.flush(GIVE_UP_S)
    _accept_next(consumer)
    ready()
    cpu, latencies = time.process_time(), list[float]()
    silent = time.perf_counter()
    while len(latencies) < int(count):
        messages = consumer.poll(1.0)
        now = time.perf_counter()
        for message in messages:
            body = message.value() or b""
            if body.startswith(MARK):
                latencies.append(now - STAMP.unpack_from(body, len(MARK))[0])
                silent = now
            consumer.acknowledge(message)
        if messages:
            consumer.commit_async()
        elif now - silent > GIVE_UP_S:
            raise AssertionError(f"{count} sent, {len(latencies)} came")
    spent = time.process_time() - cpu
    consumer.close()  # else the last messages come again in the next round
    print_figures(percentiles(latencies) | {"cpu_us": spent / int(count) * 1e6})


def _share_consumer(bootstrap: str, topic: str, group: str) -> ShareConsumer:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    start = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[start])
    admin.incremental_alter_configs([resource])[resource].result(GIVE_UP_S)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit",
         "log_level": 2}
    )  # fmt: skip
    consumer.subscribe([topic])
    return consumer


def _accept_next(consumer: ShareConsumer) -> int:
    """Accept the messages of the next answer that has some, and commit that; return their number."""
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up:
        messages = consumer.poll(1.0)
        for message in messages:
            if message.error():
                raise AssertionError(f"a share group was answered {message.error()}")
            consumer.acknowledge(message)
        if messages:
            if any(consumer.commit_sync(GIVE_UP_S).values()):
                raise AssertionError("an acknowledgement of a share group was refused")
            return len(messages)
    raise AssertionError("a share group got nothing")


def member(bootstrap: str, topic: str, group: str) -> None:
    """One of a group, as a plain program is: says each queue that a message came of, and when; commits."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    )  # fmt: skip
    consumer.subscribe([topic])
    ready()
    while True:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            print(f"{message.partition()} {time.perf_counter()}", flush=True)
            consumer.commit(message=message, asynchronous=True)


WHAT: dict[str, Callable[..., None]] = {
    "produce": produce, "consume": consume, "latency": latency, "member": member, "share": share,
    "share_latency": share_latency,
}  # fmt: skip

if __name__ == "__main__":
    main()
