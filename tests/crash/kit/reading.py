"""What is in topics, read by a client that remembers nothing at the servers, or from an open log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend.port import Backend
from backend.records import QueueRef, StoredRecord
from ddmq_client import Message
from ddmq_client.ranges import QueueBounds, RangeReader

READ_S = 240.0  # for one answer, in which all that was killed may come back
Reached = dict[tuple[str, str], int]  # topic and queue; the next offset


def read_on(
    consumers: Sequence[str], topics: Sequence[str], reached: Reached | None = None
) -> Iterator[tuple[QueueBounds, Message]]:
    """Every message and its queue: from the first one, or from where `reached` says, and goes on with it."""
    reached = {} if reached is None else reached
    with RangeReader(consumers, "run-reader", topics, timeout_ms=int(READ_S * 1_000)) as reader:
        for queue in reader.bounds():
            queue_key = queue.topic, queue.queue
            at = reached.get(queue_key, queue.first)
            while at < queue.end:
                read = reader.read(queue.topic, queue.queue, at)
                for each in read.messages:
                    yield queue, each
                at = reached[queue_key] = read.next_offset


def read_records(log: Backend, topic: str, queue: int = 0) -> Iterator[StoredRecord]:
    """Yield every record of a queue; a topic that is not there has none."""
    info = log.topic(topic)
    at = 0
    while info is not None:
        batch = log.read(QueueRef(topic, info.incarnation, queue), at, 1_000, 1 << 24).wait(READ_S)
        if not batch.offsets:
            return
        yield from (batch.record(index) for index in range(len(batch.offsets)))
        at = batch.next_offset
