"""The window of a stream beside a plain list of all that ever came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from backend.completion import Completion
from backend.kafka.engine.streams import KafkaQueue, ParkedWait, PendingRead, Stream
from backend.kafka.records import KafkaRecord
from backend.port import ReadCall, Wait
from backend.records import QueueRef, ReadStatus

QUEUE = QueueRef("t", 1, 0)
BYTES_MAX = 4_000  # some eight records


@dataclass
class Plain:
    """What a stream looks at of a record."""

    offset: int
    delivery: bytes = b"x" * 100
    tag_hash: int = 0
    flags: int = 0
    stored_ms: int = 0


@dataclass
class PartitionModel:
    """All records of the partition, and how far the stream has heard."""

    records: dict[int, Plain] = field(default_factory=dict)
    received: int = 0
    next: int = 0
    at_end: bool = False

    def matches(self, call: ReadCall) -> list[int]:
        offsets = [n for n in sorted(self.records) if call.offset <= n < self.received]
        return [n for n in offsets if call.tags is None or self.records[n].tag_hash in call.tags]


def call(offset: int, count_max: int = 1000, tags: frozenset[int] | None = None) -> ReadCall:
    return ReadCall(QUEUE, offset, count_max, 1 << 20, tags)


def add(stream: Stream, *records: Plain) -> None:
    stream.window.add(cast(list[KafkaRecord], records))


def stream_at(offset: int) -> Stream:
    return Stream(KafkaQueue(QUEUE, "t", b""), 1, 0, offset, BYTES_MAX)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(1, 4), st.integers(0, 2)),  # gap before it, tag
        st.tuples(st.just("end"), st.integers(0, 3), st.just(0)),  # markers behind the last
        st.tuples(st.just("read"), st.integers(0, 40), st.integers(1, 5)),  # from how far back, count
        st.tuples(st.just("tagged"), st.integers(0, 40), st.integers(0, 2)),
    ),
    max_size=120,
)


@given(steps)
def test_a_window_gives_what_came_in_order_and_never_less(steps: list[tuple[str, int, int]]) -> None:
    stream, model = stream_at(0), PartitionModel()
    for what, first, second in steps:
        if what == "come":
            record = Plain(model.next + first - 1, tag_hash=second)
            model.records[record.offset] = record
            model.next = model.received = record.offset + 1
            model.at_end = False
            add(stream, record)
        elif what == "end":
            model.next = model.received = model.next + first
            model.at_end = True
            stream.window.set_end(model.next)
        else:
            read(stream, model, what, max(model.next - first, 0), second)


def read(stream: Stream, model: PartitionModel, what: str, offset: int, second: int) -> None:
    if not stream.window.covers_offset(offset):
        assert stream.window.bytes > BYTES_MAX / 2, "only what has no room any more is gone"
        return
    request = call(offset, second) if what == "read" else call(offset, tags=frozenset([second]))
    batch, matches = stream.answer_read(request, 0), model.matches(request)
    if batch is None:
        assert not matches
        assert not model.at_end
        return
    assert list(batch.offsets) == matches[: request.count_max]
    assert batch.next_offset >= offset
    assert not [n for n in matches[request.count_max :] if n < batch.next_offset], (
        "passed over what was wanted"
    )
    if batch.status is ReadStatus.NONE:
        assert (batch.next_offset, model.at_end) == (max(model.next, offset), True)


def test_a_reader_after_an_append_does_not_get_an_empty_answer() -> None:
    stream = stream_at(0)
    stream.window.set_end(0)
    nothing = stream.answer_read(call(0), 0)
    assert nothing is not None
    assert nothing.status is ReadStatus.NONE
    assert stream.answer_read(call(0), 1) is None
    add(stream, Plain(0))
    batch = stream.answer_read(call(0), 1)
    assert batch is not None
    assert list(batch.offsets) == [0]


def test_unread_records_are_never_dropped_and_fill_the_window() -> None:
    stream = stream_at(0)
    for n in range(50):
        add(stream, Plain(n))
    assert stream.window.is_full
    batch = stream.answer_read(call(0, 47), 0)
    assert batch is not None
    assert len(batch.offsets) == 47
    assert stream.window.is_half_empty
    assert stream.window.bytes <= BYTES_MAX
    assert not stream.window.covers_offset(0)


def test_a_wait_is_notified_once_and_cancelled_ones_are_dropped() -> None:
    stream, waits = stream_at(0), [Wait(), Wait(), Wait()]
    stream.parked_waits = [ParkedWait(0, waits[0]), ParkedWait(7, waits[1]), ParkedWait(0, waits[2])]
    waits[2].cancel()
    add(stream, Plain(3))
    assert stream.take_arrived() == [waits[0]]
    assert [one.wait for one in stream.parked_waits] == [waits[1]]
    waits[1].cancel()
    assert stream.is_idle


def test_reads_wait_until_they_can_be_answered() -> None:
    stream = stream_at(0)
    completion: Completion[Any] = Completion()
    stream.pending_reads.append(PendingRead(call(0), completion, 0.0))
    assert (stream.take_answerable(0), stream.is_idle) == ([], False)
    add(stream, Plain(2))
    [(request, batch)] = stream.take_answerable(0)
    assert (request.completion, list(batch.offsets), batch.next_offset) == (completion, [2], 3)
    assert stream.is_idle


def test_a_read_after_a_full_window_frees_space() -> None:
    stream = stream_at(0)
    for n in range(50):
        add(stream, Plain(n))
    assert stream.window.is_full
    assert stream.answer_read(call(50), 60) is None
    assert stream.window.is_half_empty


def test_a_read_behind_an_open_transaction_says_so() -> None:
    stream = stream_at(0)
    assert "no broker has answered" in stream.why_unanswered(10.0)
    add(stream, Plain(0), Plain(1))
    stream.high = 5
    assert "no broker has answered" in stream.why_unanswered(10.0), "there may be more to come"
    stream.window.set_end(2)
    text = stream.why_unanswered(10.0)
    assert "a transaction has been open for 10 s or longer" in text
    assert "no record from offset 2 on can be read, and 3 are there" in text
