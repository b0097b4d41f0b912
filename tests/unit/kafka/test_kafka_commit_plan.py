"""CommitPlan: commits checked one after the other against a state that nothing changes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from backend.kafka.clients.admin import SystemTopics
from backend.kafka.commits.plan import CommitPlan, OffsetEntry
from backend.kafka.records import ProducerRecord
from backend.kafka.state.tables import ProgressState, SettingsState
from backend.kafka.targets import UnavailableTopics
from backend.records import CommitBatch, Durability, NewRecord, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import BoundReachedError, FencedError, UnknownTopicError

QUEUE = QueueRef("orders", 7, 0)
KEY = ("g", QUEUE)


class State:
    """What a plan sees of KafkaState."""

    progress_partitions = 4
    system_topics = SystemTopics("settings", "progress", "coordination")

    def __init__(self) -> None:
        self.offset = 0
        self.progress = ProgressState()
        self._settings = SettingsState()
        self.settings = self._settings.settings

    def apply_written_setting(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        self._settings.apply(key, value)

    def holds_setting(self, key: bytes, value: bytes) -> bool:
        return self._settings.holds_record(key, value)


class Topics:
    """One topic, whose records are no more than their bytes."""

    def __init__(self) -> None:
        self.unavailable = UnavailableTopics(lambda: 0.0)

    def name_of(self, kafka_name: str) -> str | None:
        return kafka_name if kafka_name in ("orders", "dead") else None

    def kafka_name(self, name: str) -> str:
        return f"prefix.{name}"

    def to_producer_record(self, record: NewRecord) -> ProducerRecord:
        return ProducerRecord(record.topic, record.queue_id, None, record.delivery)

    def rejection_of(self, record: NewRecord) -> Exception | None:
        return None if record.topic in ("orders", "dead") else UnknownTopicError(record.topic)

    def find_queue_topic(self, queue: QueueRef) -> object:
        return self if queue.topic == "orders" else None

    def durability_of(self, topic: str) -> Durability:
        return Durability.WRITTEN


def plan(state: State, floor: int = 0) -> CommitPlan:
    anything: Any = state
    topics: Any = Topics()
    return CommitPlan(anything, topics, lambda key, epoch: floor)


def delta(epoch: int = 1, generation: int = 0, **rest: Any) -> ProgressDelta:
    return ProgressDelta("g", QUEUE, epoch, generation, **rest)


def store(state: State, commit_plan: CommitPlan) -> list[ProducerRecord]:
    writes = commit_plan.to_producer_records()
    commit_plan.apply_stored(list(range(state.offset, state.offset + len(writes))))
    state.offset += len(writes)
    return writes


def test_many_commits_of_one_queue_are_one_record() -> None:
    state = State()
    commit_plan = plan(state)
    for offset in range(10):
        commit_plan.add(CommitBatch(progress=[delta(finished=((offset, offset + 1),))]))
    assert not commit_plan.needs_transaction
    assert state.progress.view(KEY).committed is None, "nothing counts before it is stored"
    (write,) = store(state, commit_plan)
    assert write.topic == "progress"
    assert state.progress.view(KEY) == ProgressView(10, (), {}, 1, 0)
    assert commit_plan.is_stored()


def test_each_is_checked_against_what_those_before_it_leave() -> None:
    state = State()
    commit_plan = plan(state)
    commit_plan.add(CommitBatch(progress=[delta(epoch=5)]))
    with pytest.raises(FencedError):
        commit_plan.add(CommitBatch(progress=[delta(epoch=4, finished=((0, 9),))], settings={"k": b"1"}))
    commit_plan.add(
        CommitBatch(progress=[delta(epoch=5, finished=((0, 2),))], settings={"j": b"1"}, absent=["j"])
    )
    with pytest.raises(FencedError):
        commit_plan.add(CommitBatch(settings={"j": b"2"}, absent=["j"]))
    commit_plan.add(CommitBatch(settings={"j": None}))
    commit_plan.add(CommitBatch(settings={"j": b"3"}, absent=["j"]))
    store(state, commit_plan)
    assert state.settings == {"j": b"3"}
    assert state.progress.view(KEY) == ProgressView(2, (), {}, 5, 0)


def test_what_is_refused_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.kafka.commits.plan.SETTINGS_MAX", 1)
    monkeypatch.setattr("backend.kafka.commits.plan.PROGRESS_MAX", 1)
    commit_plan = plan(State())
    nowhere = ProgressDelta("g", QueueRef("nowhere", 1, 0), 1, 0)
    with pytest.raises(UnknownTopicError):
        commit_plan.add(CommitBatch(progress=[delta(), nowhere], settings={"k": b"1"}))
    with pytest.raises(UnknownTopicError):
        commit_plan.add(CommitBatch([NewRecord("nowhere", 0, bytes(16), 1, b"")], [delta()]))
    with pytest.raises(BoundReachedError):
        commit_plan.add(CommitBatch(progress=[delta()], settings={"k": b"1", "j": b"2"}))
    assert not commit_plan
    assert commit_plan.to_producer_records() == []


def test_a_lost_epoch_is_rejected() -> None:
    commit_plan = plan(State(), floor=6)
    with pytest.raises(FencedError):
        commit_plan.add(CommitBatch(progress=[delta(epoch=5, finished=((0, 1),))]))
    commit_plan.add(CommitBatch(progress=[delta(epoch=6)]))


def test_older_keys_are_deleted_by_the_next_commit_once_the_newer_one_counts() -> None:
    state = State()
    for epoch in (1, 2):
        commit_plan = plan(state)
        commit_plan.add(CommitBatch(progress=[delta(epoch=epoch, finished=((0, epoch),))]))
        assert [write.value is None for write in store(state, commit_plan)] == [False]
    commit_plan = plan(state)
    commit_plan.add(CommitBatch(progress=[delta(epoch=2, finished=((2, 3),))]))
    assert [write.value is None for write in store(state, commit_plan)] == [False, True]
    assert state.progress.find_outdated([KEY]) == []
    assert state.progress.view(KEY).committed == 3


def test_a_state_that_grows_too_large_is_rejected_and_not_truncated() -> None:
    """Every second offset of 18 million: more than two MiB of bits; finishing the lowest ones still goes."""
    state = State()
    commit_plan = plan(state)
    refused = None
    for start in range(1, 18_000_000, 8192):
        ranges = tuple((offset, offset + 1) for offset in range(start, start + 8192, 4096))
        try:
            commit_plan.add(CommitBatch(progress=[delta(finished=ranges)]))
        except BoundReachedError as error:
            refused = error
            break
    assert refused is not None
    assert "offset 0" in str(refused)
    commit_plan.add(CommitBatch(progress=[delta(finished=((0, 1_000_000),))]))
    commit_plan.add(CommitBatch(progress=[delta(finished=((start, start + 1),))]))


def entry(queue: QueueRef = QUEUE, is_current: bool = True) -> OffsetEntry:
    return OffsetEntry(queue, lambda offsets: repr(list(offsets)).encode(), lambda: is_current)


def test_an_entry_states_the_offsets_of_its_own_records() -> None:
    state = State()
    commit_plan = plan(state)
    records = [NewRecord("orders", 0, bytes(16), 1, b"%d" % number) for number in range(3)]
    commit_plan.add(CommitBatch(records[:1]))
    assert not commit_plan.has_entries
    commit_plan.add(CommitBatch(records[1:], [delta(finished=((0, 1),))]), entry())
    writes = commit_plan.to_producer_records()
    assert len(writes) == 4, "the records and one state"
    (late,) = commit_plan.to_entry_records([10, 20, 30, 5])
    assert late == ProducerRecord("prefix.orders", 0, None, b"[20, 30]")
    commit_plan.apply_stored([10, 20, 30, 5, 40])
    assert state.progress.view(KEY).committed == 1


def test_an_entry_that_is_over_rejects_its_commit() -> None:
    commit_plan = plan(State())
    record = NewRecord("orders", 0, bytes(16), 1, b"")
    with pytest.raises(FencedError):
        commit_plan.add(CommitBatch([record], [delta()]), entry(is_current=False))
    with pytest.raises(UnknownTopicError):
        commit_plan.add(CommitBatch([record], [delta()]), entry(QueueRef("nowhere", 1, 0)))
    assert not commit_plan
    assert not commit_plan.has_entries


def test_all_progress_of_a_deleted_topic_is_deleted() -> None:
    state = State()
    for generation in (0, 1):
        commit_plan = plan(state)
        reset = 4 if generation else None
        commit_plan.add(CommitBatch(progress=[delta(epoch=3, generation=generation, reset_to=reset)]))
        store(state, commit_plan)
    commit_plan = plan(state)
    commit_plan.drop_progress("orders", 7)
    assert [write.value for write in store(state, commit_plan)] == [None, None]
    assert len(state.progress) == 0
