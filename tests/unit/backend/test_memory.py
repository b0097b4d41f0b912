"""What the memory engine does beyond the port: its test hooks, its bounds, answers that come later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from backend.memory import MemoryOptions
from backend.port import Join, Sharing
from backend.records import (
    AppendStatus,
    Bounds,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    QueueRef,
    ReadStatus,
    TopicInfo,
)
from ddmq_common.clock import ManualClock
from ddmq_common.errors import BoundReachedError, CallerError, DrainingError, RemoteError, StorageError
from tests.played_memory import PlayedMemory
from tests.support.recording_listener import RecordingListener
from tests.support.waits import until

FAR = 1e12


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Iterator[PlayedMemory]:
    engine = PlayedMemory(clock, MemoryOptions(bytes_max=10_000, entries_max=5, waits_max=3, writes_max=4))
    engine.put_topic(TopicInfo("t", 0, 2), FAR).wait(5)
    yield engine
    engine.close()


def ref(engine: PlayedMemory, queue_id: int = 0) -> QueueRef:
    info = engine.topic("t")
    assert info is not None
    return QueueRef("t", info.incarnation, queue_id)


def record(size: int = 1) -> NewRecord:
    return NewRecord("t", 0, b"i" * 16, 1, b"d" * size)


def test_nothing_is_settled_inside_the_call(engine: PlayedMemory) -> None:
    queue = ref(engine)
    engine.append([record()], FAR).wait(5)
    calls: list[Any] = [
        engine.append([record()], FAR),
        engine.commit(CommitBatch(), FAR),
        engine.read(queue, 0, 1, 1),
        engine.wait(queue, 0, FAR),
        engine.bounds([queue]),
        engine.offset_for_time(queue, 0),
        engine.find("t", key=b"k"),
        engine.progress("g", [queue]),
        engine.put_topic(TopicInfo("u", 0, 1), FAR),
    ]
    assert not any(call.done for call in calls)
    for call in calls:
        call.wait(5)


def test_paused_writes_are_not_visible_and_take_effect_in_order(engine: PlayedMemory) -> None:
    engine.pause_writes()
    calls = [engine.append([record(n + 1)], FAR) for n in range(3)]
    assert engine.bounds([ref(engine)]).wait(5) == [Bounds(0, 0)]
    assert not any(call.done for call in calls)
    engine.resume_writes()
    assert [call.wait(5)[0].offset for call in calls] == [0, 1, 2]
    assert [len(body) for body in engine.read(ref(engine), 0, 9, 999).wait(5).deliveries] == [1, 2, 3]


def test_a_write_paused_past_its_deadline_is_uncertain_and_stored(
    engine: PlayedMemory, clock: ManualClock
) -> None:
    engine.pause_writes()
    append = engine.append([record(), record()], clock.monotonic() + 2)
    commit = engine.commit(CommitBatch([record()]), clock.monotonic() + 2)
    patient = engine.append([record()], FAR)
    clock.advance(3)
    results = append.wait(5)
    assert [result.status for result in results] == [AppendStatus.UNKNOWN] * 2
    assert isinstance(results[0].error, RemoteError)
    with pytest.raises(RemoteError, match="deadline"):
        commit.wait(5)
    assert not patient.done
    engine.resume_writes()
    assert patient.wait(5)[0].offset == 3


def test_a_requested_failure_affects_only_the_next_writes(engine: PlayedMemory) -> None:
    engine.fail_next(StorageError("no disk"), times=2)
    first, second = engine.append([record()] * 2, FAR), engine.commit(CommitBatch([record()]), FAR)
    third = engine.append([record()], FAR)
    assert [result.status for result in first.wait(5)] == [AppendStatus.NOT_STORED] * 2
    with pytest.raises(StorageError, match="no disk"):
        second.wait(5)
    assert third.wait(5)[0].offset == 0


def test_an_unknown_outcome_may_be_stored(engine: PlayedMemory) -> None:
    engine.fail_next(RemoteError("gone"), AppendStatus.UNKNOWN, stored=True)
    assert engine.append([record()], FAR).wait(5)[0].status is AppendStatus.UNKNOWN
    assert engine.bounds([ref(engine)]).wait(5) == [Bounds(0, 1)]


def test_expired_offsets_are_out_of_range(engine: PlayedMemory) -> None:
    engine.append([record()] * 5, FAR).wait(5)
    engine.expire(ref(engine), 3)
    batch = engine.read(ref(engine), 2, 9, 999).wait(5)
    assert (batch.status, batch.bounds) == (ReadStatus.OUT_OF_RANGE, Bounds(3, 5))
    assert list(engine.read(ref(engine), 3, 9, 999).wait(5).offsets) == [3, 4]


def test_a_lost_record_is_a_gap(engine: PlayedMemory) -> None:
    engine.append([record()] * 4, FAR).wait(5)
    engine.lose(ref(engine), 1)
    batch = engine.read(ref(engine), 0, 2, 999).wait(5)
    assert (list(batch.offsets), batch.next_offset) == ([0, 2], 3)
    engine.lose(ref(engine), 3)
    batch = engine.read(ref(engine), 3, 2, 999).wait(5)
    assert (batch.status, batch.next_offset) == (ReadStatus.NONE, 4)


def test_waits_end_by_the_clock_of_the_engine(engine: PlayedMemory, clock: ManualClock) -> None:
    soon = engine.wait(ref(engine), 0, clock.monotonic() + 10)
    late = engine.wait(ref(engine), 0, clock.monotonic() + 30)
    clock.advance(11)
    assert soon.wait(5) is False
    assert not late.done
    clock.advance(20)
    assert late.wait(5) is False


def test_every_bound_is_named_when_it_is_reached(engine: PlayedMemory) -> None:
    for name in "abcd":
        engine.put_topic(TopicInfo(name, 0, 1), FAR).wait(5)
    with pytest.raises(BoundReachedError, match="there are 5 topics; topics_max is 5"):
        engine.put_topic(TopicInfo("e", 0, 1), FAR).wait(5)
    with pytest.raises(BoundReachedError, match="there are 0 settings, this makes 6 more; settings_max is 5"):
        engine.commit(CommitBatch(settings={str(n): b"" for n in range(6)}), FAR).wait(5)
    engine.commit(CommitBatch(settings={str(n): b"" for n in range(5)}), FAR).wait(5)
    engine.commit(CommitBatch(settings={"0": b"changed", "1": None, "2": None}), FAR).wait(5)
    deltas = [ProgressDelta(str(n), ref(engine), 0, 0) for n in range(6)]
    with pytest.raises(BoundReachedError, match="5 pairs"):
        engine.commit(CommitBatch(progress=deltas), FAR).wait(5)
    waits = [engine.wait(ref(engine), 0, FAR) for _ in range(4)]
    with pytest.raises(BoundReachedError, match="3 waits"):
        waits[3].wait(5)
    waits[0].cancel()
    until(lambda: not engine.wait(ref(engine), 0, FAR).done)
    for n in range(5):
        engine.join(Join(f"g{n}", "t"), RecordingListener())
    with pytest.raises(BoundReachedError, match="5 groups"):
        engine.join(Join("g5", "t"), RecordingListener())


def test_more_writes_than_the_bound_are_refused(engine: PlayedMemory) -> None:
    engine.pause_writes()
    calls = [engine.append([record()], FAR) for _ in range(5)]
    result = calls[4].wait(5)[0]
    assert result.status is AppendStatus.REFUSED
    assert isinstance(result.error, BoundReachedError)
    engine.resume_writes()
    assert [call.wait(5)[0].offset for call in calls[:4]] == [0, 1, 2, 3]


def test_bytes_are_bounded_and_freed(engine: PlayedMemory) -> None:
    engine.append([record(6000)], FAR).wait(5)
    full = engine.append([record(6000)], FAR).wait(5)[0]
    assert (full.status, type(full.error)) == (AppendStatus.REFUSED, BoundReachedError)
    with pytest.raises(BoundReachedError, match="the bound is 10000"):
        engine.commit(CommitBatch([record(3000), record(3000)]), FAR).wait(5)
    engine.expire(ref(engine), 1)
    assert engine.append([record(6000)], FAR).wait(5)[0].status is AppendStatus.STORED


def test_a_record_over_the_limit_is_the_caller_s_mistake() -> None:
    engine = PlayedMemory(ManualClock(), MemoryOptions(body_bytes_max=100, properties_bytes_max=10))
    engine.put_topic(TopicInfo("t", 0, 1), FAR).wait(5)
    result = engine.append([record(121)], FAR).wait(5)[0]
    assert (result.status, type(result.error)) == (AppendStatus.REFUSED, CallerError)
    engine.close()


def test_a_revoked_holder_has_until_the_deadline(engine: PlayedMemory, clock: ManualClock) -> None:
    first, second = RecordingListener(), RecordingListener()
    engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), first)
    engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), second)
    engine.revoke("g", "t", clock.monotonic() + 5)
    until(lambda: first.deadlines == [clock.monotonic() + 5])
    assert second.events == []
    clock.advance(6)
    until(lambda: second.events == [("assigned", [0, 1])])
    assert second.epochs == [2]
    assert first.events[-1] == ("lost", [0, 1])


def test_a_revoked_holder_that_releases_hands_over(engine: PlayedMemory) -> None:
    first, second = RecordingListener(), RecordingListener()
    membership = engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), first)
    engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), second)
    engine.revoke("g", "t", FAR)
    until(lambda: len(first.events) == 2)
    membership.release([ref(engine, 0)])
    gevent.sleep(0)
    assert second.events == []
    membership.release([ref(engine, 1)])
    until(lambda: second.events == [("assigned", [0, 1])])
    assert second.epochs == [2]
    assert first.events[-1][0] == "revoked"


def test_a_deposed_holder_loses_all_at_once(engine: PlayedMemory) -> None:
    first, second = RecordingListener(), RecordingListener()
    engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), first)
    engine.join(Join("g", "t", Sharing.WHOLE_TOPIC), second)
    engine.depose("g", "t")
    until(lambda: second.events == [("assigned", [0, 1])])
    assert second.epochs == [2]
    assert (first.epochs, first.events) == ([1], [("assigned", [0, 1]), ("lost", [0, 1])])


def test_draining_ends_waits_and_joins(engine: PlayedMemory) -> None:
    wait = engine.wait(ref(engine), 0, FAR)
    gevent.sleep(0)
    assert engine.drain(FAR).wait(5) is None
    with pytest.raises(DrainingError):
        wait.wait(5)
    with pytest.raises(DrainingError):
        engine.join(Join("g", "t"), RecordingListener())


def test_a_drain_that_cannot_end_says_so(engine: PlayedMemory, clock: ManualClock) -> None:
    engine.pause_writes()
    engine.append([record()], FAR)
    drained = engine.drain(clock.monotonic() + 1)
    clock.advance(2)
    with pytest.raises(RemoteError, match="deadline"):
        drained.wait(5)
