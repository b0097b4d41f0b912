"""Streams that move to the quiet reader and back deliver each record once and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.completion import Completion
from backend.kafka.clients.bridge import Bridge
from backend.kafka.clients.reader_thread import QUIET_FETCH_WAIT_MS, StreamChunk
from backend.kafka.engine import readers as module
from backend.kafka.engine.readers import QUIET_S, STREAMS_PER_READER, Readers
from backend.kafka.engine.streams import KafkaQueue
from backend.kafka.options import KafkaOptions
from backend.port import ReadCall, Wait
from backend.records import QueueRef, ReadBatch, ReadStatus
from ddmq_common.clock import ManualClock
from ddmq_common.errors import RemoteError
from tests.unit.kafka.test_kafka_streams import Plain

READERS = 2


class PlainBridge:
    """Calls at once, as the hub would a moment later."""

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)

    def report_error(self, function: object, error: Exception) -> None:
        raise error


class PlainThread:
    """Reads partitions that are lists of offsets, when the test says so."""

    threads: dict[str, PlainThread]

    def __init__(
        self,
        options: Any,
        bridge: Any,
        on_chunks: Callable[[list[StreamChunk]], object],
        name: str,
        wait_ms: int,
    ) -> None:
        self.is_quiet = wait_ms == QUIET_FETCH_WAIT_MS
        self.on_chunks = on_chunks
        self.positions: dict[tuple[str, int], list[int]] = {}  # serial, next offset
        self.threads[name] = self

    def begin_stream(self, partition: tuple[str, int], serial: int, offset: int, topic_id: bytes) -> None:
        assert partition not in self.positions, "one thread can read a partition at one position only"
        self.positions[partition] = [serial, offset]

    def end_stream(self, partition: tuple[str, int], serial: int) -> None:
        if partition in self.positions and self.positions[partition][0] == serial:
            del self.positions[partition]

    def set_paused(self, partition: tuple[str, int], serial: int, paused: bool) -> None:
        pass

    def report_high(
        self, partition: tuple[str, int], serial: int, report: Callable[[int, int], object]
    ) -> None:
        report(serial, 0)

    def request_stop(self) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass

    def answer(self, partition: tuple[str, int], log: list[int], count: int) -> None:
        """Bring the next records of a partition, or its end if there are none."""
        if partition not in self.positions:
            return
        serial, position = self.positions[partition]
        chunk = StreamChunk(serial)
        following = [offset for offset in log if offset >= position][:count]
        if following:
            chunk.records = cast(Any, [Plain(offset) for offset in following])
            self.positions[partition][1] = following[-1] + 1
        else:
            chunk.end = max(position, log[-1] + 1 if log else 0)
        self.on_chunks([chunk])


class QueueReadingKit:
    """One queue, and one caller that reads it in order: it reads, and waits where nothing is left."""

    def __init__(self) -> None:
        PlainThread.threads = {}
        self.clock = ManualClock()
        options = KafkaOptions(readers=READERS)
        self.readers = Readers(options, cast(Bridge, PlainBridge()), self.clock)
        self.queue = KafkaQueue(QueueRef("t", 1, 0), "t", b"id")
        self.log: list[int] = []
        self.received: list[int] = []
        self.reads = 0
        self.next = 0
        self.pending: Completion[ReadBatch] | Wait | None = None

    @property
    def reader_names(self) -> list[str]:
        """The threads that read the partition."""
        return ["quiet" if one.is_quiet else "fast" for one in PlainThread.threads.values() if one.positions]

    def read(self) -> None:
        if self.pending is not None and not self.pending.done:
            return
        self.reads += 1
        completion: Completion[ReadBatch] = Completion()
        self.pending = completion
        completion.then(self.on_read)
        self.readers.read(self.queue, ReadCall(self.queue.queue, self.next, 3, 1 << 20, None), completion)

    def on_read(self, answer: Completion[ReadBatch]) -> None:
        if isinstance(answer.error, RemoteError):  # no broker answered in time: the caller reads again
            return
        batch = answer.result()
        self.received += batch.offsets
        self.next = batch.next_offset
        if batch.status is ReadStatus.NONE:
            wait = Wait()
            self.pending = wait
            wait.then(lambda _: None)
            self.readers.wait(self.queue, self.next, self.clock.monotonic() + 1e6, wait)

    def answer_all(self, count: int = 5) -> None:
        for thread in list(PlainThread.threads.values()):
            thread.answer(("t", 0), self.log, count)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.readers.expire(self.clock.monotonic())


@pytest.fixture(autouse=True)
def plain_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ReaderThread", PlainThread)


def test_a_stream_at_the_end_moves_to_the_quiet_reader_and_back_with_the_first_record() -> None:
    world = QueueReadingKit()
    world.read()
    world.answer_all()
    assert world.reader_names == ["fast"]
    world.pass_time(QUIET_S)
    assert sorted(world.reader_names) == ["fast", "quiet"]  # both, until the quiet reader answers
    world.answer_all()
    assert world.reader_names == ["quiet"]
    world.log.append(0)
    world.answer_all()
    world.read()
    world.read()  # nothing is known of what follows: the end must be found soon
    assert sorted(world.reader_names) == ["fast", "quiet"]
    world.answer_all()
    assert world.reader_names == ["fast"]
    assert world.received == [0]


def test_streams_that_wake_at_the_same_time_are_spread_over_the_readers() -> None:
    clock = ManualClock()
    readers = Readers(KafkaOptions(readers=READERS), cast(Bridge, PlainBridge()), clock)
    PlainThread.threads = {}
    queues = [KafkaQueue(QueueRef("t", 1, number), "t", b"id") for number in range(2 * STREAMS_PER_READER)]

    def answer_all(log: list[int]) -> None:
        for thread in list(PlainThread.threads.values()):
            for partition in list(thread.positions):
                thread.answer(partition, log, 1)

    def loads() -> list[int]:
        return [len(thread.positions) for thread in PlainThread.threads.values()]

    for queue in queues:
        readers.read(queue, ReadCall(queue.queue, 0, 3, 1 << 20, None), Completion())
        readers.wait(queue, 0, 1e6, Wait())
    assert loads() == [STREAMS_PER_READER, STREAMS_PER_READER]
    answer_all([])
    clock.advance(QUIET_S)
    readers.expire(clock.monotonic())
    answer_all([])
    assert loads() == [0, 0, len(queues)]
    answer_all([0])
    answer_all([0])
    assert loads() == [STREAMS_PER_READER, STREAMS_PER_READER, 0]
    readers.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("answer"), st.integers(0, READERS)),
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("pass"), st.integers(1, 20)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(steps)
def test_every_record_is_delivered_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    world = QueueReadingKit()
    for step, number in steps:
        if step == "append":
            start = world.log[-1] if world.log else -1
            world.log += [start + 1 + gap for gap in range(number)]
        elif step == "answer":
            threads = deque(PlainThread.threads.values())
            if threads:
                threads[number % len(threads)].answer(("t", 0), world.log, 2)
        elif step == "read":
            world.read()
        else:
            world.pass_time(number)
        assert world.received == world.log[: len(world.received)]
        assert len(world.reader_names) <= 2
    for _ in range(len(world.log) + 10):
        world.answer_all()
        world.read()
    assert world.received == world.log
    for _ in range(4):
        world.pass_time(QUIET_S)
        world.answer_all()
    assert world.reader_names in (["quiet"], [])


def test_ended_streams_fail_their_reads_and_know_nothing_of_the_queue_any_more() -> None:
    world = QueueReadingKit()
    world.log = [0, 1]
    world.readers.set_next_offset(world.queue.queue, 9)
    world.read()
    world.readers.end_streams(RemoteError("another cluster"))
    assert (world.reader_names, world.received) == ([], [])
    for _ in range(2):
        world.read()
        world.answer_all()
    assert world.received == [0, 1]
    world.read()
    world.answer_all()
    assert isinstance(world.pending, Wait), "the end is found: no record below 9 is waited for"
