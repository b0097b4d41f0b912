"""QueueReader: what an answer means, and reads and waits on a backend that the test plays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backend.completion import Completion
from backend.ownership.reader import QueueReader, ReadAnswer, interpret_answer
from backend.port import Wait
from backend.records import Bounds, QueueRef, ReadStatus, StoredRecord
from ddmq_common.errors import DamagedError, RemoteError, StorageError, TryLaterError

QUEUE = QueueRef("t", 1, 3)


def batch(
    status: ReadStatus, next_offset: int, *offsets: int, damaged: int = -1, bounds: Bounds | None = None
) -> Any:
    def record(index: int) -> StoredRecord:
        if offsets[index] == damaged:
            raise DamagedError("its checksum is wrong")
        return StoredRecord("t", 0, offsets[index], -1, bytes(16), 1, 1, 0, 0, b"", {})

    return SimpleNamespace(
        status=status, next_offset=next_offset, offsets=list(offsets), record=record, bounds=bounds
    )


def settled(value: Any = None, error: Exception | None = None) -> Completion[Any]:
    completion: Completion[Any] = Completion()
    if error is None:
        completion.succeed(value)
    else:
        completion.fail(error)
    return completion


def interpret(gapless: bool, *arguments: Any, **options: Any) -> ReadAnswer:
    return interpret_answer(QUEUE, 2, settled(batch(*arguments, **options)), gapless)


@pytest.mark.parametrize(
    ("gapless", "next_offset", "offsets", "damaged", "missing"),
    [
        (True, 5, (2, 3, 4), -1, 0),
        (True, 5, (2, 4), -1, 1),
        (True, 5, (2, 3, 4), 3, 1),
        (False, 5, (2, 4), -1, 0),  # a marker of a transaction lies between
        (False, 5, (), -1, 0),  # and markers alone
        (False, 5, (2, 4), 4, 1),
    ],
)
def test_missing_records_are_those_that_an_engine_should_have(
    gapless: bool, next_offset: int, offsets: tuple[int, ...], damaged: int, missing: int
) -> None:
    status = ReadStatus.DATA if offsets else ReadStatus.NONE
    read = interpret(gapless, status, next_offset, *offsets, damaged=damaged)
    assert read.expected - len(read.records()) == missing
    assert read.next_offset == next_offset
    assert read.at_end == (not offsets)


def test_a_queue_without_its_oldest_records_reports_its_first_offset() -> None:
    read = interpret(True, ReadStatus.OUT_OF_RANGE, 2, bounds=Bounds(7, 9))
    assert (read.oldest, read.next_offset, read.error, read.at_end) == (7, 7, None, False)
    assert read.records() == []


def test_a_queue_that_ends_before_its_reader_is_an_error_of_the_storage() -> None:
    read = interpret(True, ReadStatus.OUT_OF_RANGE, 2, bounds=Bounds(0, 1))
    assert isinstance(read.error, StorageError)
    assert "queue 3 of t ends before offset 2" in str(read.error)
    assert (read.next_offset, read.oldest, read.bounds) == (2, None, Bounds(0, 1))


@pytest.mark.parametrize("status", [ReadStatus.UNKNOWN_QUEUE, ReadStatus.MOVED])
def test_a_queue_that_is_not_here_is_read_later(status: ReadStatus) -> None:
    read = interpret(True, status, 2)
    assert isinstance(read.error, TryLaterError)
    assert str(read.error) == f"queue 3 of t is {status.value}"
    assert read.next_offset == 2


def test_the_backends_error_is_passed_on() -> None:
    error = RemoteError("no answer")
    assert interpret_answer(QUEUE, 2, settled(error=error), True) == ReadAnswer(2, 2, error=error)


class ReadBackend:
    """Answers reads at once from `answers`, or leaves them pending when there are none."""

    gapless = True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.reads: list[tuple[int, Completion[Any]]] = []
        self.waits: list[tuple[int, Wait]] = []

    def read(self, queue: QueueRef, start: int, count_max: int, bytes_max: int) -> Completion[Any]:
        assert queue == QUEUE
        answer = settled(self.answers.pop(0)) if self.answers else Completion[Any]()
        self.reads.append((start, answer))
        return answer

    def wait(self, queue: QueueRef, start: int, deadline: float) -> Wait:
        self.waits.append((start, Wait()))
        return self.waits[-1][1]


class Reading:
    """A reader, and what it notified."""

    def __init__(self, backend: ReadBackend, reads_on: bool = False) -> None:
        self.reader = QueueReader(backend, QUEUE, self.on_read, self.on_data)  # type: ignore[arg-type]
        self.reads: list[ReadAnswer] = []
        self.waits: list[tuple[bool, Exception | None]] = []
        self.reads_on = reads_on
        self.depth = self.depth_max = 0

    def on_read(self, read: ReadAnswer) -> None:
        self.depth += 1
        self.depth_max = max(self.depth, self.depth_max)
        self.reads.append(read)
        if self.reads_on and not read.at_end:
            self.reader.read(read.next_offset, 10, 100)
        self.depth -= 1

    def on_data(self, arrived: bool, error: Exception | None) -> None:
        self.waits.append((arrived, error))


def test_a_long_queue_that_is_answered_at_once_is_read_without_recursion() -> None:
    length = 5_000
    answers = [batch(ReadStatus.DATA, offset + 1, offset) for offset in range(length)]
    reading = Reading(ReadBackend(*answers, batch(ReadStatus.NONE, length)), reads_on=True)
    reading.reader.read(0, 10, 100)
    assert [read.start for read in reading.reads] == list(range(length + 1))
    assert reading.depth_max == 1
    assert not reading.reader.reading


def test_nothing_is_notified_after_a_stop() -> None:
    backend = ReadBackend()
    reading = Reading(backend)
    reading.reader.read(0, 10, 100)
    reading.reader.wait(0, 1.0)
    assert reading.reader.reading
    assert reading.reader.waiting
    reading.reader.stop()
    reading.reader.stop()
    assert backend.waits[0][1].cancelled
    backend.reads[0][1].succeed(batch(ReadStatus.DATA, 1, 0))
    reading.reader.read(0, 10, 100)
    reading.reader.wait(0, 1.0)
    assert (reading.reads, reading.waits, len(backend.reads), len(backend.waits)) == ([], [], 1, 1)


def test_a_wait_ends_the_one_before_it() -> None:
    backend = ReadBackend()
    reading = Reading(backend)
    reading.reader.wait(4, 1.0)
    reading.reader.wait(5, 2.0)
    (_, first), (_, second) = backend.waits
    assert first.cancelled
    first.succeed(True)
    assert reading.waits == []
    second.succeed(True)
    assert reading.waits == [(True, None)]
    assert not reading.reader.waiting


@pytest.mark.parametrize("error", [None, RemoteError("no answer")])
def test_a_wait_ends_with_data_or_with_the_reason_why_not(error: Exception | None) -> None:
    backend = ReadBackend()
    reading = Reading(backend)
    reading.reader.wait(4, 1.0)
    if error is None:
        backend.waits[0][1].succeed(False)
    else:
        backend.waits[0][1].fail(error)
    assert reading.waits == [(False, error)]
