"""Reads and waits against a real broker; another program writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.engine import readers
from backend.kafka.engine.readers import Readers
from backend.kafka.engine.streams import KafkaQueue
from backend.kafka.options import KafkaOptions
from backend.port import ReadCall, Wait
from backend.records import Bounds, QueueRef, ReadBatch, ReadStatus, tag_hash
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import value_of
from ddmq_common.errors import RemoteError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer
from tests.support.kafka import broker, fresh_name
from tests.support.waits import done, until

pytestmark = pytest.mark.slow


class ReadersKit:
    """A topic of two queues, somebody who writes it, and the readers."""

    def __init__(self, **options: Any) -> None:
        self.bootstrap = broker()
        self.topic = fresh_name()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)
        self.clock = SystemClock()
        self.bridge = Bridge()
        self.readers = Readers(KafkaOptions(self.bootstrap, **options), self.bridge, self.clock)
        self.timer = HubTimer(ref=False)
        self.timer.every(0.005, lambda: self.readers.expire(self.clock.monotonic()))
        self._producer = self.producer()

    def producer(self, **more: str) -> Producer:
        return Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "enable.idempotence": True, **more}
        )

    def kafka_queue(self, number: int = 0) -> KafkaQueue:
        return KafkaQueue(QueueRef(self.topic, 7, number), self.topic, b"id")

    def write(self, *bodies: bytes, number: int = 0, tag: bytes = b"") -> None:
        for body in bodies:
            headers = [("ddmq-tag", tag)] if tag else None
            self._producer.produce(self.topic, body, partition=number, headers=headers)
        assert self._producer.flush(30) == 0

    def begin_read(
        self, offset: int, number: int = 0, count_max: int = 1000, **more: Any
    ) -> Completion[ReadBatch]:
        kafka_queue, completion = self.kafka_queue(number), Completion[ReadBatch]()
        bytes_max = more.pop("bytes_max", 1 << 24)
        self.readers.read(
            kafka_queue, ReadCall(kafka_queue.queue, offset, count_max, bytes_max, **more), completion
        )
        return completion

    def read(self, offset: int, number: int = 0, count_max: int = 1000, **more: Any) -> ReadBatch:
        return done(self.begin_read(offset, number, count_max, **more))

    def waits(self, offset: int, seconds: float = 60.0) -> Wait:
        wait = Wait()
        self.readers.wait(self.kafka_queue(), offset, self.clock.monotonic() + seconds, wait)
        return wait

    def close(self) -> None:
        self.timer.stop()
        self.readers.close()
        self.bridge.close()


@pytest.fixture
def kit() -> Iterator[ReadersKit]:
    kit = ReadersKit()
    yield kit
    kit.close()


def bodies(batch: ReadBatch) -> list[bytes]:
    return [value_of(delivery) for delivery in batch.deliveries]


def test_what_there_is_and_what_comes(kit: ReadersKit) -> None:
    assert kit.read(0).status is ReadStatus.NONE
    kit.write(b"a", b"b", b"c")
    kit.readers.set_next_offset(kit.kafka_queue().queue, 3)
    until(lambda: kit.read(0).next_offset == 3)  # they may come one by one
    batch = kit.read(0)
    assert (bodies(batch), list(batch.offsets), batch.next_offset) == ([b"a", b"b", b"c"], [0, 1, 2], 3)
    assert bodies(kit.read(1, count_max=1)) == [b"b"]
    assert bodies(kit.read(0, bytes_max=0)) == [b"a"]
    assert (kit.read(3).status, kit.read(3).next_offset) == (ReadStatus.NONE, 3)


def test_what_this_process_appended_is_waited_for(kit: ReadersKit) -> None:
    assert kit.read(0).status is ReadStatus.NONE
    for n in range(20):
        kit.write(b"%d" % n)
        kit.readers.set_next_offset(kit.kafka_queue().queue, n + 1)
        assert bodies(kit.read(n)) == [b"%d" % n]


def test_a_wait_ends_with_a_record_or_at_its_deadline(kit: ReadersKit) -> None:
    first, second, late = kit.waits(0), kit.waits(1), kit.waits(5, 0.05)
    dropped = kit.waits(0)
    dropped.cancel()
    assert done(late) is False
    kit.write(b"a")
    assert done(first) is True
    assert not second.done
    kit.write(b"b")
    assert done(second) is True
    assert not dropped.done


def test_outside_of_what_there_is(kit: ReadersKit) -> None:
    kit.write(b"a", b"b")
    batch = kit.read(9)
    assert (batch.status, batch.bounds) == (ReadStatus.OUT_OF_RANGE, Bounds(0, 2))
    assert bodies(kit.read(0)) == [b"a", b"b"]


def test_groups_at_many_offsets(kit: ReadersKit) -> None:
    kit.write(*(b"%d" % n for n in range(1000)))
    kit.readers.set_next_offset(kit.kafka_queue().queue, 1000)
    for start in (900, 0, 500, 300, 700, 100, 901, 1):
        assert bodies(kit.read(start, count_max=3)) == [b"%d" % n for n in range(start, start + 3)]


def test_tags_are_passed_over(kit: ReadersKit) -> None:
    kit.write(b"a", tag=b"x")
    kit.write(b"b", tag=b"y")
    kit.write(b"c")
    kit.readers.set_next_offset(kit.kafka_queue().queue, 3)
    assert bodies(kit.read(0, tags=frozenset([tag_hash(b"y")]))) == [b"b"]
    none = frozenset([tag_hash(b"z")])
    until(lambda: kit.read(0, tags=none).status is ReadStatus.NONE)
    assert kit.read(0, tags=none).next_offset == 3


def test_transactions_leave_gaps_and_what_was_aborted_is_not_read(kit: ReadersKit) -> None:
    writer = kit.producer(**{"transactional.id": kit.topic})
    writer.init_transactions(30)
    for n, keep in enumerate((True, False, True)):
        writer.begin_transaction()
        writer.produce(kit.topic, b"%d" % n, partition=0)
        assert writer.flush(30) == 0  # what is aborted is in the log as well
        (writer.commit_transaction if keep else writer.abort_transaction)(30)
    until(lambda: kit.read(0).next_offset == 6)
    batch = kit.read(0)
    assert (bodies(batch), list(batch.offsets)) == ([b"0", b"2"], [0, 4])
    assert (kit.read(batch.next_offset).status, kit.read(5).next_offset) == (ReadStatus.NONE, 6)


def test_a_topic_that_goes(kit: ReadersKit) -> None:
    waiting, reading = kit.waits(0), kit.begin_read(0)
    kit.readers.set_next_offset(kit.kafka_queue().queue, 1)
    kit.readers.on_topic_deleted(kit.topic, 7)
    assert done(reading).status in (ReadStatus.UNKNOWN_QUEUE, ReadStatus.NONE)
    with pytest.raises(UnknownTopicError):
        done(waiting)


def test_a_full_window_pauses_and_resumes() -> None:
    kit = ReadersKit(window_bytes=64 << 10, windows_bytes_max=128 << 10)
    kit.write(*(b"%04d" % n + bytes(1000) for n in range(2000)))
    kit.readers.set_next_offset(kit.kafka_queue().queue, 2000)
    prefixes, offset = [], 0
    while offset < 2000:
        batch = kit.read(offset, count_max=37)
        prefixes += [body[:4] for body in bodies(batch)]
        offset = batch.next_offset
    assert prefixes == [b"%04d" % n for n in range(2000)]
    kit.close()


def test_a_close_fails_who_waits(kit: ReadersKit) -> None:
    waiting = kit.waits(0)
    kit.close()
    assert waiting.error is not None


def test_a_stream_that_was_full_leaves_its_thread_able_to_read_elsewhere() -> None:
    kit = ReadersKit(window_bytes=64 << 10, windows_bytes_max=128 << 10, readers=1)
    kit.write(*(b"%04d" % n + bytes(1000) for n in range(500)))
    kit.readers.set_next_offset(kit.kafka_queue().queue, 500)
    for start in (0, 400, 0, 300):
        assert bodies(kit.read(start, count_max=1))[0][:4] == b"%04d" % start
        until(lambda: all(stream.paused for stream in kit.readers._streams.values()))
    kit.close()


def test_a_read_behind_an_open_transaction_names_it(kit: ReadersKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READ_S", 2.0)
    other = kit.producer(**{"transactional.id": kit.topic})
    other.init_transactions(30)
    kit.write(b"before")
    assert bodies(kit.read(0)) == [b"before"]
    other.begin_transaction()
    other.produce(kit.topic, b"open", partition=0)
    other.flush(30)
    kit.write(b"behind")
    kit.readers.set_next_offset(kit.kafka_queue().queue, 3)
    with pytest.raises(RemoteError, match=r"transaction has been open.*from offset 1 on.* 2 are there"):
        kit.read(1)
    other.abort_transaction(30)
    assert bodies(kit.read(1)) == [b"behind"]
