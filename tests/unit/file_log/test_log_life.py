"""Deadlines, bounds, draining and closing of the file log, and what a restart finds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from backend.completion import Completion
from backend.file_log import FileLogOptions, open_log
from backend.file_log.lock import DirectoryInUseError
from backend.port import Assignment, Join
from backend.records import (
    AppendStatus,
    CommitBatch,
    Durability,
    ProgressDelta,
    QueueRef,
    ReadStatus,
    TopicInfo,
)
from ddmq_common.clock import ManualClock
from ddmq_common.errors import (
    BoundReachedError,
    CallerError,
    ConfigError,
    DrainingError,
    FencedError,
    RemoteError,
    TryLaterError,
)
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from tests.support.waits import done, until
from tests.unit.file_log.log_rig import LogRig, record


@pytest.fixture
def rig(tmp_path: Path) -> LogRig:
    return LogRig(tmp_path / "log")


# --- deadlines


def test_an_append_past_its_deadline_before_the_commit_is_not_stored(rig: LogRig) -> None:
    ref = rig.make()
    first = rig.append_blocked(b"first")
    late = rig.append(b"late", deadline=rig.clock.monotonic() + 5)
    rig.clock.advance(6)
    result = done(late)[0]
    assert (result.status, result.offset) == (AppendStatus.NOT_STORED, -1)
    assert isinstance(result.error, TryLaterError)
    assert not first.done
    rig.storage.unblock()
    assert done(first)[0].status is AppendStatus.STORED
    assert done(rig.append(b"next"))[0].offset == 1
    assert rig.bodies(ref) == [b"first", b"next"]


def test_an_append_past_its_deadline_during_the_commit_is_unknown_and_answered_once(rig: LogRig) -> None:
    ref = rig.make()
    flying = rig.append_blocked(b"flying", deadline=rig.clock.monotonic() + 5)
    rig.clock.advance(6)
    result = done(flying)[0]
    assert result.status is AppendStatus.UNKNOWN
    assert isinstance(result.error, RemoteError)
    assert rig.bodies(ref) == []
    rig.storage.unblock()
    assert done(rig.append(b"next"))[0].offset == 1
    assert rig.bodies(ref) == [b"flying", b"next"], "unknown may well be stored"


def test_a_commit_past_its_deadline(rig: LogRig) -> None:
    ref = rig.make()
    rig.storage.block()
    batch = CommitBatch([record(b"a")], [ProgressDelta("g", ref, 0, 0, [(0, 1)])])
    flying = rig.log.commit(batch, rig.clock.monotonic() + 5)
    rig.wait_for_pending_commit()
    waiting = rig.log.commit(batch, rig.clock.monotonic() + 5)
    rig.clock.advance(6)
    with pytest.raises(RemoteError):
        done(flying)
    with pytest.raises(TryLaterError):
        done(waiting)
    assert done(rig.log.progress("g", [ref]))[0].committed is None, "it may still come"
    behind = rig.log.commit(CommitBatch(progress=[ProgressDelta("g", ref, 0, 0)]), rig.soon)
    rig.storage.unblock()
    done(behind)
    assert done(rig.log.progress("g", [ref]))[0].committed == 1, "it has come"
    assert rig.bodies(ref) == [b"a"]


# --- bounds


def test_calls_that_wait_for_the_disk_are_bounded(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, pending_bytes_max=10_000, request_bytes_max=6_000, body_bytes_max=6_000)
    rig.make()
    rig.append_blocked(b"x")
    calls = [rig.append(b"%d" % n + bytes(3000)) for n in range(5)]
    refused = [done(call)[0] for call in calls[3:]]
    assert all(isinstance(result.error, BoundReachedError) for result in refused)
    large = done(rig.append(bytes(7000)))[0]
    assert (large.status, type(large.error)) == (AppendStatus.REFUSED, BoundReachedError)
    rig.storage.unblock()
    assert [done(call)[0].offset for call in calls[:3]] == [1, 2, 3]


def test_topics_of_clients_leave_capacity_for_system_topics(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, topics_max=2)
    rig.make("a")
    rig.make("b")
    with pytest.raises(BoundReachedError, match="there are 2 topics; topics_max is 2"):
        rig.make("c")
    rig.make("%DLQ%g")
    rig.make("%RETRY%g")
    with pytest.raises(BoundReachedError):
        rig.make("c")


def test_topics_that_share_a_commit_are_bounded_together(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, topics_max=3)
    rig.make()
    rig.append_blocked(b"x")

    def put(name: str) -> Completion[TopicInfo]:
        return rig.log.put_topic(TopicInfo(name, 0, 1), rig.soon)

    calls = [put("a"), put("b")]
    refused = put("c")
    deletion = rig.log.delete_topic("a", rig.soon)
    calls.append(put("c"))
    still_refused = put("d")
    rig.storage.unblock()
    assert [done(call).name for call in calls] == ["a", "b", "c"]
    done(deletion)
    for call in (refused, still_refused):
        with pytest.raises(BoundReachedError, match="3 topics"):
            done(call)
    assert sorted(rig.log.topics()) == ["b", "c", "orders"]


def test_what_was_stored_goes_its_way_in_the_system_s_topics_under_a_lower_limit(tmp_path: Path) -> None:
    """Retries and dead letters that were refused would hold up a delay level, or be tried for ever."""
    rig = LogRig(tmp_path / "log")
    ref = rig.make()
    done(rig.append(bytes(300_000)))
    rig.close()
    rig = LogRig(tmp_path / "log", body_bytes_max=1_000, properties_bytes_max=100)
    finished = [ProgressDelta("g", ref, 0, 0, [(0, 1)])]
    for topic in ("%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX"):
        rig.make(topic)
        moved = record(bytes(300_000), topic=topic)
        (result,) = done(rig.log.commit(CommitBatch([moved], finished), rig.soon))
        assert (result.status, result.offset) == (AppendStatus.STORED, 0)
    sent = done(rig.append(bytes(300_000)))[0]
    assert (sent.status, type(sent.error)) == (AppendStatus.REFUSED, CallerError)


def test_pairs_with_progress_are_bounded_and_those_there_go_on(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, progress_max=2)
    ref = rig.make()

    def finish(group: str, offset: int) -> None:
        delta = ProgressDelta(group, ref, 0, 0, [(offset, offset + 1)])
        done(rig.log.commit(CommitBatch((), [delta]), rig.soon))

    finish("a", 0)
    finish("b", 0)
    with pytest.raises(BoundReachedError, match="2 pairs"):
        finish("c", 0)
    finish("a", 1)
    rig.reopen()
    with pytest.raises(BoundReachedError, match="2 pairs"):
        finish("c", 0)
    finish("b", 1)
    assert done(rig.log.progress("b", [ref]))[0].committed == 2


def test_at_the_bound_of_settings_those_there_are_changed_and_deleted(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, settings_max=2)

    def put(**settings: bytes | None) -> None:
        done(rig.log.commit(CommitBatch(settings=settings), rig.soon))

    put(a=b"1", b=b"1")
    with pytest.raises(BoundReachedError, match="2 settings"):
        put(c=b"1")
    put(a=b"2", b=None, never=None)
    put(c=b"1")
    assert dict(rig.log.settings("")) == {"a": b"2", "c": b"1"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"message_id": b"short"}, "message id"),
        ({"key": bytes(70_000)}, "key"),
        ({"flags": 256}, "flags"),
        ({"born_ms": 1 << 63}, "born_ms"),
        ({"due_ms": -(1 << 64)}, "due_ms"),
        ({"queue_id": -1}, "queue"),
        ({"queue_id": 9}, "queue"),
        ({"delivery": bytes(3 << 20)}, "bytes"),
        ({"system": {"a": "\ud800"}}, "system"),
    ],
)
def test_an_unstorable_record_is_rejected_alone(rig: LogRig, change: dict, word: str) -> None:  # type: ignore[type-arg]
    ref = rig.make()
    bad = record(b"bad")
    for name, value in change.items():
        setattr(bad, name, value)
    results = done(rig.log.append([record(b"before"), bad, record(b"after")], rig.soon))
    assert [result.offset for result in results] == [0, -1, 1]
    assert isinstance(results[1].error, CallerError)
    assert word in str(results[1].error)
    with pytest.raises(CallerError, match=word):
        done(rig.log.commit(CommitBatch([record(b"x"), bad]), rig.soon))
    assert rig.bodies(ref) == [b"before", b"after"]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="idempotency_keys_max is 1; allowed: at least 2"):
        FileLogOptions(idempotency_keys_max=1)
    with pytest.raises(ConfigError, match="segment_bytes is 0"):
        FileLogOptions(segment_bytes=0)
    for size in (10, 4095, 1 << 40):
        with pytest.raises(ConfigError, match=f"segment_bytes is {size}; allowed: 4096 to 2147483648"):
            FileLogOptions(segment_bytes=size)


# --- the end, and the next start


def test_a_drain_finishes_pending_work_and_accepts_nothing_new(rig: LogRig) -> None:
    rig.make()
    rig.storage.block()
    before = [rig.append(b"a"), rig.append(b"b")]
    drained = rig.log.drain(rig.soon)
    after = done(rig.append(b"c"))[0]
    assert isinstance(after.error, DrainingError)
    rig.storage.unblock()
    done(drained)
    assert all(call.done for call in before)
    rig.reopen()
    assert rig.log.recovered.checkpoint == rig.log.recovered.end > 0, "nothing is left to read"


def test_a_drain_that_cannot_finish_raises(rig: LogRig) -> None:
    rig.make()
    rig.append_blocked(b"a")
    drained = rig.log.drain(rig.clock.monotonic() + 5)
    rig.clock.advance(6)
    with pytest.raises(TryLaterError):
        done(drained)


def test_closing_answers_every_pending_call(rig: LogRig) -> None:
    ref = rig.make()
    flying = rig.append_blocked(b"flying")
    waiting = rig.append(b"waiting")
    wait = rig.log.wait(ref, 5, rig.soon)
    rig.storage.unblock()
    rig.log.close()
    assert flying.done
    assert isinstance(done(waiting)[0].error, DrainingError)
    until(lambda: wait.done, "answer to a wait")
    with pytest.raises(DrainingError):
        done(rig.log.read(ref, 0, 1, 1))


def test_a_second_opening_is_rejected(rig: LogRig) -> None:
    with pytest.raises(DirectoryInUseError):
        open_log(rig.directory, clock=ManualClock(), metrics=Registry())


def test_many_segments_and_checkpoints(rig: LogRig) -> None:
    ref = rig.make(queues=2)
    sent = []
    for number in range(60):
        sent.append(b"%04d" % number + bytes(5000))
        assert done(rig.append(sent[-1]))[0].offset == number
        if number % 7 == 0:
            rig.checkpoint()
        if number % 11 == 0:
            rig.reopen()
    assert rig.bodies(ref) == sent
    assert len(list((rig.directory / "commitlog").iterdir())) > 3
    rig.reopen()
    assert rig.bodies(ref) == sent
    assert rig.stored(ref)[41].offset == 41


def test_only_the_log_behind_the_checkpoint_is_read_at_the_start(rig: LogRig) -> None:
    ref = rig.make()
    done(rig.append(*(b"%d" % n for n in range(100))))
    done(
        rig.log.commit(
            CommitBatch((), [ProgressDelta("g", ref, 0, 0, [(0, 7)], [(9, 2)])], {"a": b"1"}), rig.soon
        )
    )
    rig.checkpoint()
    position = rig.log.durable_position
    done(rig.append(b"tail"))
    rig.reopen()
    assert rig.log.recovered.checkpoint == position
    assert rig.log.setting("a") == b"1"
    view = done(rig.log.progress("g", [ref]))[0]
    assert (view.committed, dict(view.attempts)) == (7, {9: 2})
    assert len(rig.bodies(ref)) == 101


def test_a_deleted_topic_leaves_nothing_in_the_consume_queues(rig: LogRig) -> None:
    rig.make(queues=2)
    folder = rig.directory / "consumequeue"
    for queue in (0, 1):
        done(rig.append(b"x", queue=queue))
    rig.checkpoint()
    assert (folder / "orders" / "1").is_dir()
    done(rig.log.delete_topic("orders", rig.soon))
    until(lambda: not list(folder.iterdir()), "empty folder")
    recreated = rig.make(queues=2)
    done(rig.append(b"y"))
    rig.checkpoint()
    assert rig.bodies(recreated) == [b"y"]
    assert rig.metrics.cell(catalogue.LOG_CHECKPOINTS, "failed").value == 0


def test_a_topic_deleted_by_the_commit_of_its_last_messages_leaves_nothing(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, tail_ms=3_600_000)
    rig.make("other")
    rig.make(queues=2)
    done(rig.append(b"waits in memory"))
    rig.append_blocked(b"first", topic="other")
    last = [rig.append(b"last", queue=queue) for queue in (0, 1)]
    deletion = rig.log.delete_topic("orders", rig.soon)
    rig.storage.unblock()
    assert [done(call)[0].offset for call in last] == [1, 0]
    done(deletion)
    rig.checkpoint()
    folder = rig.directory / "consumequeue"
    until(lambda: [path.name for path in folder.iterdir()] == ["other"], "removal of the topic's folder")
    tails = rig.log._opened.tails
    tails.flush()
    until(lambda: not tails._busy, "entries in their files")
    assert tails.bytes == 0


@pytest.mark.interpreted
def test_a_topic_deleted_while_its_entries_are_written_leaves_nothing(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.make()
    files = rig.log._opened.files
    write, started, go, finished = files.write, threading.Event(), threading.Event(), threading.Event()

    def slow(ref: QueueRef, offset: int, data: bytes) -> None:
        started.set()
        assert go.wait(20)
        write(ref, offset, data)
        finished.set()

    monkeypatch.setattr(files, "write", slow)
    done(rig.append(b"x"))
    rig.log._opened.tails.flush()
    until(started.is_set, "entries on their way")
    done(rig.log.delete_topic("orders", rig.soon))
    go.set()
    until(finished.is_set, "entries in their file")
    folder = rig.directory / "consumequeue"
    until(lambda: not list(folder.iterdir()), "removal of the topic's folder")


def test_a_recreated_topic_starts_empty(rig: LogRig) -> None:
    old = rig.make()
    done(rig.append(b"old"))
    done(rig.log.commit(CommitBatch((), [ProgressDelta("g", old, 0, 0, [(0, 1)])]), rig.soon))
    done(rig.log.delete_topic("orders", rig.soon))
    new = rig.make()
    assert new.incarnation > old.incarnation
    done(rig.append(b"new"))
    for _ in range(2):
        assert rig.bodies(new) == [b"new"]
        assert done(rig.log.read(old, 0, 1, 1)).status is ReadStatus.UNKNOWN_QUEUE
        assert done(rig.log.progress("g", [new]))[0].committed is None
        rig.reopen()


def test_written_records_become_durable_by_themselves(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, written_sync_ms=1)
    ref = rig.make("events", durability=Durability.WRITTEN)
    before = rig.log.durable_position
    result = done(rig.append(b"a", topic="events"))[0]
    assert (result.status, result.durability) == (AppendStatus.STORED, Durability.WRITTEN)
    assert rig.bodies(ref) == [b"a"]
    until(lambda: rig.log.durable_position > before, "sync of what was only written")


class Listener:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def assigned(self, assignment: Assignment) -> None:
        self.epochs.append(assignment.epoch)

    def revoked(self, queues: object, deadline: float) -> None:
        raise AssertionError("nobody revokes here")

    def lost(self, queues: object) -> None:
        self.epochs.append(-1)


def test_epochs_rise_over_restarts_and_fence_former_owners(rig: LogRig) -> None:
    ref = rig.make()
    first, second = Listener(), Listener()
    membership = rig.log.join(Join("g", "orders"), first)
    until(lambda: first.epochs, "assignment")
    rig.log.join(Join("g", "orders"), second)
    membership.leave()
    until(lambda: second.epochs, "hand-over")
    assert second.epochs[0] > first.epochs[0]
    delta = ProgressDelta("g", ref, first.epochs[0], 0, [(0, 1)])
    with pytest.raises(FencedError):
        done(rig.log.commit(CommitBatch((), [delta]), rig.soon))
    rig.reopen()
    third = Listener()
    rig.log.join(Join("g", "orders"), third)
    until(lambda: third.epochs, "assignment after a restart")
    assert third.epochs[0] > second.epochs[0]
    with pytest.raises(FencedError):
        done(rig.log.commit(CommitBatch((), [replace(delta, epoch=second.epochs[0])]), rig.soon))


def test_offsets_for_times_over_gaps_and_segments(rig: LogRig) -> None:
    ref = rig.make()
    start = rig.clock.wall_ms()
    for _ in range(30):
        done(rig.append(bytes(4000), bytes(10)))
        rig.clock.advance(1)
    for second in (0, 1, 17, 29):
        assert done(rig.log.offset_for_time(ref, start + second * 1000)) == second * 2
        assert done(rig.log.offset_for_time(ref, start + second * 1000 - 500)) == second * 2
    assert done(rig.log.offset_for_time(ref, start + 10**9)) == 60
    assert done(rig.log.offset_for_time(ref, 0)) == 0


def test_find_returns_the_newest_matches_first(rig: LogRig) -> None:
    rig.make()
    rig.make("bills")
    for number in range(5):
        new = record(b"%016d" % number, key=b"k")
        done(rig.log.append([new, record(b"other", key=b"x"), record(b"bill", "bills", key=b"k")], rig.soon))
    matches = done(rig.log.find("orders", key=b"k", count_max=3))
    assert [one.delivery for one in matches] == [b"%016d" % number for number in (4, 3, 2)]
    assert done(rig.log.find("orders", message_id=b"%016d" % 1))[0].offset == 2
    assert done(rig.log.find("orders", key=b"nobody")) == []


def test_cold_reads_come_through_the_native_threads(tmp_path: Path) -> None:
    rig = LogRig(tmp_path, hot_bytes=1, warm_blocks_max=1)
    ref = rig.make(queues=3)
    bodies = [b"%04d" % n + bytes(900) for n in range(300)]
    done(rig.append(*bodies))
    done(rig.append(*bodies, queue=1))
    for _ in range(2):
        bodies_read = []
        while len(bodies_read) < 300:
            batch = done(rig.log.read(QueueRef("orders", ref.incarnation, 1), len(bodies_read), 50, 20_000))
            assert batch.status is ReadStatus.DATA
            bodies_read += batch.deliveries
        assert bodies_read == bodies


@pytest.mark.parametrize("name", ["request_bytes_max", "pending_bytes_max"])
def test_bounds_below_the_largest_message_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 1000; allowed: at least body_bytes_max"):
        FileLogOptions(**{name: 1000})
