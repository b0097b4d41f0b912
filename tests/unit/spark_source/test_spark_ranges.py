"""One partition read from a queue that has gaps, loses its oldest messages, shrinks or says nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from ddmq_client import FetchedQueue, Message
from metrics_job.sparksource import source
from metrics_job.sparksource.offsets import OffsetRange
from metrics_job.sparksource.options import DataLossError, SourceError, read_options


class Shelf:
    """A queue with messages at the offsets `stored`; `[first, end)` is readable, at most `most` at a time."""

    def __init__(self, stored: range | list[int], first: int, end: int, most: int = 3) -> None:
        self.stored = list(stored)
        self.first, self.end, self.most = first, end, most
        self.reads: list[int] = []
        self.before_read: Callable[[], None] = lambda: None

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, topic: str, queue: str, offset: int, most: int, linger_ms: int) -> FetchedQueue:
        self.reads.append(offset)
        self.before_read()
        if not self.first <= offset <= self.end:
            return self._answer(min(max(offset, self.first), self.end), [])
        offsets_read = [at for at in self.stored if at >= max(offset, self.first)][: min(self.most, most)]
        return self._answer(offsets_read[-1] + 1 if offsets_read else self.end, offsets_read)

    def _answer(self, next_offset: int, offsets: list[int]) -> FetchedQueue:
        messages = []
        for at in offsets:
            message = Message()
            message.offset, message.body, message.stored_ms = at, b"%d" % at, 1_700_000_000_123
            messages.append(message)
        return FetchedQueue("t", "R_default_t_0", next_offset, messages, self.first, self.end)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Callable[[Shelf], Shelf]:
    def placed(shelf: Shelf) -> Shelf:
        monkeypatch.setattr(source, "open_reader", lambda options: shelf)
        return shelf

    return placed


def offsets(start: int, end: int, **options: str) -> list[int]:
    read_settings = read_options({"servers": "s", "topic": "t", "timeoutMs": "1"} | options)
    batches: list[Any] = list(
        source.read_range(read_settings, OffsetRange("t", 0, "R_default_t_0", start, end))
    )
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_exactly_the_range_is_read_whatever_an_answer_contains(put: Any) -> None:
    shelf = put(Shelf(range(20), 0, 20))
    assert offsets(4, 12) == list(range(4, 12))
    assert shelf.reads == [4, 7, 10]


def test_gaps_are_no_loss(put: Any) -> None:
    put(Shelf([1, 5, 6, 11], 0, 20))
    assert offsets(0, 9) == [1, 5, 6]
    assert offsets(12, 20) == []


def test_messages_deleted_by_retention_during_a_read_are_an_error(put: Any) -> None:
    shelf = put(Shelf(range(20), 0, 20))

    def clean() -> None:
        if len(shelf.reads) == 3:
            shelf.first = 10

    shelf.before_read = clean
    with pytest.raises(DataLossError, match=r"4 messages of topic t, queue 0 \(offsets 6 to 9\).*retention"):
        offsets(0, 20)


def test_or_the_loss_is_skipped_and_logged(put: Any, caplog: pytest.LogCaptureFixture) -> None:
    put(Shelf(range(20), 10, 20))
    with caplog.at_level(logging.WARNING, "ddmq.spark"):
        assert offsets(6, 14, failondataloss="false") == [10, 11, 12, 13]
    assert [getattr(record, "count", None) for record in caplog.records] == [4]
    message = caplog.records[0].getMessage()
    for fragment in ("4 messages lost: ", "topic t, queue 0", "offsets 6 to 9", "retention"):
        assert fragment in message, "without its fields, too, a line tells what is lost"


def test_messages_read_before_the_bounds_moved_are_not_lost(put: Any) -> None:
    shelf = put(Shelf(range(20), 0, 20, most=8))
    answer = shelf._answer
    shelf._answer = lambda at, offsets_read: answer(at, offsets_read)._replace(
        first_offset=5
    )  # looked up after the read
    assert offsets(0, 8) == list(range(8))


def test_a_queue_that_ends_before_the_range_is_a_loss(put: Any) -> None:
    put(Shelf(range(5), 0, 5))
    with pytest.raises(DataLossError, match="the queue ends before them now"):
        offsets(7, 9)
    assert offsets(7, 9, failondataloss="false") == []


def test_a_silent_queue_is_abandoned(put: Any) -> None:
    put(Shelf([], 0, 5))
    with pytest.raises(SourceError, match="gave nothing at offset 5 for 1 ms"):
        offsets(5, 9)
