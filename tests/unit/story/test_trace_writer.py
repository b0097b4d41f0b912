"""Trace events on their way into the log: bounded, and never in anyone's way."""

from __future__ import annotations

import tracemalloc

import pytest

from backend import traces
from backend.records import AppendStatus, CommitBatch, Durability, QueueRef
from backend.traces import TraceWriter, queue_of
from ddmq_common import delivery
from ddmq_common.clock import ManualClock
from ddmq_common.errors import DiskFullError, StorageError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import TRACE_TOPIC
from ddmq_common.trace.events import TEXT_MAX, WAITS_MAX, Fact, TraceBatch, TraceKind, decode_batch
from tests.played_memory import PlayedMemory
from tests.support.rig import Rig
from tests.support.rung_by_hand import RungByHand
from tests.support.waits import done, until

ONE, TWO = b"o" * 16, b"t" * 16


class TraceRig(Rig):
    """A writer over the memory engine."""

    def __init__(self, bytes_per_day: int = 1 << 30) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.backend = PlayedMemory(self.clock)
        self.metrics = Registry()
        self.timer = RungByHand()
        self.writer = TraceWriter(
            self.backend, self.metrics, self.clock, "here", "i1", bytes_per_day, self.timer
        )

    def close(self) -> None:
        self.writer.close()
        self.backend.close()

    def stored(self, message_id: bytes) -> list[TraceBatch]:
        """The batches of a message, oldest first."""
        if self.backend.topic(TRACE_TOPIC) is None:
            return []
        records = done(self.backend.find(TRACE_TOPIC, message_id=message_id, count_max=1_000))
        return [decode_batch(delivery.decode(each.delivery).value) for each in reversed(records)]

    def count(self, reason: str = "") -> float:
        cell = self.metrics.cell
        return cell(catalogue.TRACE_DROPPED, reason).value if reason else cell(catalogue.TRACE_STORED).value

    def flushed(self, expected: int) -> None:
        self.writer.flush()
        until(lambda: self.count() == expected, "they are stored")


def test_events_of_a_message_are_one_record_found_by_its_id() -> None:
    rig = TraceRig()
    rig.writer.add(ONE, TraceKind.SENT, "", {"client": "c", "nothing": ""})
    rig.writer.add(TWO, TraceKind.SENT, "", {})
    rig.clock.advance(0.25)
    rig.writer.add(ONE, TraceKind.STORED, "", {"offset": 7}, later=lambda: {"client": "known later"})
    assert rig.timer.seconds == traces.FLUSH_S
    rig.flushed(3)
    (batch,) = rig.stored(ONE)
    assert (batch.process, batch.instance) == ("here", "i1")
    assert [(each.number, each.kind) for each in batch.events] == [(1, TraceKind.SENT), (3, TraceKind.STORED)]
    assert batch.events[0].facts == {"client": "c"}
    assert batch.events[1].facts == {"offset": 7, "client": "known later"}
    assert batch.events[1].at_ms - batch.events[0].at_ms == 250, "on the store's clock"
    info = rig.backend.topic(TRACE_TOPIC)
    assert info is not None
    assert info.durability is Durability.WRITTEN, "no send waits for a sync of a trace"
    ref = QueueRef(TRACE_TOPIC, info.incarnation, queue_of(ONE, traces.QUEUES))
    (bounds,) = done(rig.backend.bounds([ref]))
    assert bounds is not None
    assert bounds.next >= 1, "in the queue that its id says"


def test_memory_is_bounded_and_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "EVENTS_MAX", 10)
    rig = TraceRig()
    for number in range(25):
        rig.writer.add(number.to_bytes(16, "big"), TraceKind.SENT, "", {})
    assert rig.count("memory") == 15
    rig.flushed(10)
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.flushed(11)


def test_bytes_are_bounded_and_many_of_them_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "BYTES_MAX", 20_000)
    monkeypatch.setattr(traces, "FLUSH_BYTES", 5_000)
    rig = TraceRig()
    rig.writer.add(ONE, TraceKind.FAILED, "g", {"error": "x" * 100})
    assert rig.timer.seconds == traces.FLUSH_S
    for _ in range(30):
        rig.writer.add(ONE, TraceKind.FAILED, "g", {"error": "x" * 100})
    assert rig.timer.seconds == 0.0
    assert rig.count("memory") == 31 - 19
    rig.flushed(19)
    rig.writer.add(ONE, TraceKind.FAILED, "g", {"error": "y" * 100_000})
    rig.flushed(20)
    assert rig.stored(ONE)[-1].events[0].facts["error"] == "y" * TEXT_MAX


@pytest.mark.parametrize("waits", [0, WAITS_MAX])
def test_what_is_kept_takes_no_more_memory_than_is_said(waits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "BYTES_MAX", 2 << 20)
    rig = TraceRig()
    tracemalloc.start()
    try:
        number = 0
        while not rig.count("memory"):
            number += 1
            noted = [("no_pull", number * 1_000 + at, number * 1_000 + at + 1) for at in range(waits)]
            facts: dict[str, Fact] = {
                "queue": number + 1_000, "offset": number + 1_000_000, "attempt": 1, "lease": str(number),
                "until_ms": number + 10**12, "key": f"key {number}", "waits": noted,
            }  # fmt: skip
            key = number.to_bytes(16, "big")
            rig.writer.add(
                key,
                TraceKind.HANDED_OUT,
                "g",
                facts,
                number + 10**12,
                lambda facts=facts: facts,
            )
        allocated_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert allocated_bytes < traces.BYTES_MAX * 1.2


def test_a_day_takes_so_many_bytes() -> None:
    rig = TraceRig(bytes_per_day=1_000)
    for number in range(100):
        rig.writer.add(number.to_bytes(16, "big"), TraceKind.SENT, "", {"client": "c" * 50})
    rig.writer.flush()
    until(lambda: rig.count() + rig.count("day") == 100, "all are stored or dropped")
    assert 0 < rig.count() < 20
    rig.clock.advance(24 * 3_600)
    before = rig.count()
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.flushed(int(before) + 1)


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        (AppendStatus.REFUSED, DiskFullError("full"), "refused"),
        (AppendStatus.UNKNOWN, StorageError("broken"), "failed"),
    ],
)
def test_what_the_store_does_not_take_is_dropped(
    status: AppendStatus, error: StorageError | DiskFullError, reason: str
) -> None:
    rig = TraceRig()
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.flushed(1)
    rig.backend.fail_next(error, status)
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.writer.add(ONE, TraceKind.STORED, "", {})
    rig.writer.flush()
    until(lambda: rig.count(reason) == 2, "both are counted")
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.flushed(2)


def test_one_append_at_a_time_and_drain_waits_for_all() -> None:
    rig = TraceRig()
    rig.writer.add(ONE, TraceKind.SENT, "", {})
    rig.flushed(1)
    rig.backend.pause_writes()
    rig.writer.add(ONE, TraceKind.READ, "g", {})
    rig.writer.flush()
    rig.writer.add(ONE, TraceKind.ACKED, "g", {})
    rig.writer.flush()
    drained = rig.writer.drain(rig.clock.monotonic() + 60)
    assert not drained.done
    rig.backend.resume_writes()
    until(lambda: rig.count() == 2, "the first one is stored")
    rig.backend.resume_writes()
    until(lambda: drained.done, "drained")
    assert [len(each.events) for each in rig.stored(ONE)] == [1, 1, 1]
    assert done(rig.writer.drain(0.0)) is None, "nothing is left"


@pytest.mark.parametrize(
    ("value", "limit"), [(b"1", 1 << 32), (b"1000", 4_294_968), (b"x", None), (b"", None)]
)
def test_topics_are_switched_by_settings(value: bytes, limit: int | None) -> None:
    rig = TraceRig()
    done(rig.backend.commit(CommitBatch(settings={"trace/orders": value}), rig.clock.monotonic() + 60))
    assert rig.writer.limits.get("orders") == limit
    done(rig.backend.commit(CommitBatch(settings={"trace/orders": None}), rig.clock.monotonic() + 60))
    assert rig.writer.limits == {}
