"""Spent messages on their way out: the first step of the retry path, retry queues, what fails on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from backend.completion import Completion, failed
from backend.internal_topics import read_dead_letter
from backend.records import AppendStatus, CommitBatch, QueueRef, StoredRecord, TopicInfo
from ddmq_common.delivery import decode
from ddmq_common.errors import CallerError, DdmqError, RemoteError, StorageError, TryLaterError
from ddmq_common.names import SCHEDULE_TOPIC, retry_qid
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.retries import publisher as publishing
from proxy_consumer.retries.publisher import MessageMove, MoveSettings
from proxy_consumer.retries.retry_queues import RetryQueueGrant, group_concerned, retry_queue_of
from tests.service.consumer.consumer_rig import METHODS, ConsumerRig, result
from tests.support.waits import until

ONCE = SubscriptionDefaults(start="first", retry_intervals_ms=())


def ready(count: int = 1, config: SubscriptionDefaults = ONCE) -> ConsumerRig:
    return ConsumerRig(ConsumerConfig()).ready(count, config)


def scheduled(rig: ConsumerRig, level: int = 3) -> list[StoredRecord]:
    """What waits in a level, as stored."""
    info = rig.backend.topic(SCHEDULE_TOPIC)
    if info is None:
        return []
    queue = QueueRef(info.name, info.incarnation, level - 1)
    batch = rig.wait(rig.backend.read(queue, 0, 1_000, 1 << 24))
    return [batch.record(index) for index in range(len(batch.offsets))]


def letters(rig: ConsumerRig, group: str = "G") -> list[StoredRecord]:
    if rig.backend.topic(f"%DLQ%{group}") is None:
        return []
    batch = rig.wait(rig.backend.read(rig.ref(0, f"%DLQ%{group}"), 0, 1_000, 1 << 24))
    return [batch.record(index) for index in range(len(batch.offsets))]


def fail_all(rig: ConsumerRig, count: int, topic: str = "T") -> None:
    assert len(rig.pull(topic=topic.encode()).offsets) == count
    rig.submit(result(fail=range(count), topic=topic))
    rig.settle()


def fail_and_meet(rig: ConsumerRig, offset: int, error: DdmqError, *, stored: bool, counted: int = 1) -> None:
    """Fail one; the commit that moves it meets `error`."""
    publisher = rig.subscription().retries
    publisher._retry_at = rig.clock.monotonic() + 1.0
    rig.submit(result(fail=[offset]))
    rig.backend.fail_next(error, AppendStatus.UNKNOWN, times=1, stored=stored)
    rig.clock.advance(1.0)
    publisher.start_moves(rig.clock.monotonic())
    rig.settle()
    assert rig.counted("ddmq_progress_failed_total") == counted


def test_a_spent_message_takes_the_first_step_and_is_finished_with_it() -> None:
    rig = ready(3)
    sent_ms = rig.clock.wall_ms()
    rig.pull()
    rig.submit(result([0, 2], [1]))
    rig.settle()
    (record,) = scheduled(rig)
    assert rig.progress().committed == 3
    assert record.due_ms == record.stored_ms + 10_000
    assert dict(record.system) == {
        "REAL_TOPIC": "%RETRY%G",
        "REAL_QID": "0",
        "RECONSUME_TIME": "1",
        "RETRY_TOPIC": "T",
        "retry-queue": "0",
        "retry-offset": "1",
        "retry-deliveries": "1",
        "retry-since-ms": str(rig.clock.wall_ms()),
        "retry-life": str(rig.service.subscription_source("G", "T").created_ms),
    }
    assert (record.message_id, record.born_ms) == (bytes(15) + b"\x01", sent_ms)
    assert letters(rig) == []
    assert rig.counted("ddmq_retry_steps_total", topic="T", step="1") == 1
    assert rig.counted("ddmq_dead_letters_total") == 0


def test_quick_retries_and_time_outs_are_counted_as_deliveries() -> None:
    rig = ready(1, SubscriptionDefaults(start="first", ack_timeout_ms=1_000, max_timeout_redeliveries=1))
    rig.pull()
    rig.submit(result(fail=[0]))
    rig.advance(0.11)
    for _ in range(2):
        rig.pull()
        rig.advance(1.01)
    (record,) = scheduled(rig)
    assert record.system["retry-deliveries"] == "3"


def test_every_topic_of_a_group_has_its_own_retry_queue() -> None:
    rig = ready(1)
    for topic in ("A", "B"):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=ONCE)
        rig.send(1, topic=topic)
        fail_all(rig, 1, topic)
    fail_all(rig, 1)
    assert [(each.system["RETRY_TOPIC"], each.system["REAL_QID"]) for each in scheduled(rig)] == [
        ("A", "0"),
        ("B", "1"),
        ("T", "2"),
    ]
    runtime = rig.service._runtime
    for number, topic in enumerate("ABT"):
        assert retry_queue_of(runtime, "G", topic) == rig.ref(number, "%RETRY%G")
    assert retry_queue_of(runtime, "G", "other") is None
    assert retry_queue_of(runtime, "other", "T") is None
    assert msgspec.json.decode(rig.backend.setting("retry/G") or b"") == {"A": 0, "B": 1, "T": 2}
    info = rig.backend.topic("%RETRY%G")
    assert info is not None
    assert info.queues == 3


def test_proxies_that_give_numbers_at_once_give_different_ones() -> None:
    rig = ready(0)
    grants = [RetryQueueGrant(rig.service._runtime, "G", f"topic-{number % 5}") for number in range(15)]
    for grant in grants:
        grant.start()
    queue_ids = [rig.wait(grant).queue_id for grant in grants]
    numbers = {f"topic-{number % 5}": queue_ids[number] for number in range(5)}
    assert sorted(numbers.values()) == [0, 1, 2, 3, 4]
    assert queue_ids == [*numbers.values()] * 3


def test_a_number_whose_retry_queue_is_missing_creates_the_queue() -> None:
    rig = ready(0)
    rig.topic("%RETRY%G")
    rig.backend._store.settings["retry/G"] = b'{"X": 0, "T": 3}'
    grant = RetryQueueGrant(rig.service._runtime, "G", "T")
    grant.start()
    assert rig.wait(grant).queue_id == 3
    rig.backend._store.settings["retry/G"] = b"[]"
    broken = RetryQueueGrant(rig.service._runtime, "G", "T")
    broken.start()
    until(lambda: broken.done)
    assert isinstance(broken.error, StorageError)
    assert retry_queue_of(rig.service._runtime, "G", "T") is None


def test_settings_that_concern_retry_queues() -> None:
    assert group_concerned("retry/G") == group_concerned("topic/%RETRY%G") == "G"
    assert group_concerned("topic/T") is group_concerned("group/G") is None
    assert retry_qid("R_default", 2) == "R_default_%RETRY%_2"


def test_what_cannot_be_stored_stays_unfinished_and_is_retried() -> None:
    for error in (StorageError("disk"), TryLaterError("full")):
        rig = ready(2)
        fail_all(rig, 2)
        assert len(scheduled(rig)) == 2
        rig.send(1)
        assert rig.pull().offsets == [2]
        fail_and_meet(rig, 2, error, stored=False)
        assert rig.progress().committed == 2
        for _ in range(5):
            rig.advance(1.0)
        assert rig.progress().committed == 3
        assert len(scheduled(rig)) == 3
        rig.close()


def test_an_outcome_that_was_unknown_makes_no_second_copy() -> None:
    for stored in (True, False):
        rig = ready(1)
        rig.topic("%RETRY%G")
        rig.wait(rig.backend.put_topic(TopicInfo(SCHEDULE_TOPIC, 0, 18), rig.deadline()))
        grant = RetryQueueGrant(rig.service._runtime, "G", "T")
        grant.start()
        rig.wait(grant)
        assert rig.pull().offsets == [0]
        fail_and_meet(rig, 0, RemoteError("gone"), stored=stored)
        assert (rig.progress().committed == 1) is stored
        for _ in range(5):
            rig.advance(1.0)
        assert rig.progress().committed == 1
        assert len(scheduled(rig)) == 1
        assert rig.counted("ddmq_retry_steps_total", step="1") == 1
        rig.close()


@pytest.mark.parametrize("steps", [16, 0])
def test_a_late_result_of_an_uncertain_move_is_not_stored_twice(steps: int) -> None:
    """The engine is silent past the deadline, more than once, and then does what it was given."""
    rig = ready(2, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=steps))
    fail_all(rig, 2)
    moved = scheduled if steps else letters
    assert len(moved(rig)) == 2
    rig.send(1)
    assert rig.pull().offsets == [2]
    rig.backend.pause_writes()
    rig.call("submit", METHODS["submit"].args[0](result=result(fail=[2])))
    publisher = rig.subscription().retries
    for _ in range(3):
        rig.settle()
        assert publisher.next_event() == NEVER, "it is tried"
        rig.clock.advance(11.0)
        until(lambda: publisher.next_event() < NEVER, "its deadline has passed")
        rig.advance(1.1)
    rig.backend.resume_writes()
    metric = "ddmq_retry_steps_total" if steps else "ddmq_dead_letters_total"

    def is_decided() -> bool:
        rig.advance(1.0)
        return rig.counted(metric) == 3

    until(is_decided, "what became of it is known")
    assert rig.progress().committed == 3
    assert len(moved(rig)) == 3


def test_an_ordered_subscription_goes_to_the_dead_letters_directly() -> None:
    config = SubscriptionDefaults(
        start="first", order_key="KEY", retry_intervals_ms=(), ordered_deliveries_max=1
    )
    rig = ready(1, config)
    fail_all(rig, 1)
    assert scheduled(rig) == []
    (letter,) = letters(rig)
    assert read_dead_letter(letter).topic == "T"


def test_a_restart_between_spent_and_moved_moves_it_once() -> None:
    rig = ready(2)
    rig.pull()
    rig.submit(result(fail=[0, 1]))
    rig.restart()
    rig.start_pull(linger=30_000)
    for _ in range(5):
        rig.advance(1.0)
    assert rig.progress().committed == 2
    assert sorted(each.system["retry-offset"] for each in scheduled(rig)) == ["0", "1"]


def test_many_at_once_are_all_moved() -> None:
    rig = ready(500, SubscriptionDefaults(start="first", retry_intervals_ms=(), batch_max=500))
    fail_all(rig, 500)
    until(lambda: rig.progress().committed == 500)
    assert len({each.message_id for each in scheduled(rig)}) == 500
    assert rig.counted("ddmq_retry_steps_total") == 500


def test_a_message_that_retention_took_is_finished() -> None:
    rig = ready(2)
    rig.pull()
    rig.submit(result([1]))
    fail_and_meet(rig, 0, TryLaterError("full"), stored=False)
    rig.backend.expire(rig.ref(), 1)
    for _ in range(5):
        rig.advance(1.0)
    assert rig.progress().committed == 2


def test_without_atomic_commits_the_copy_is_durable_first_and_stored_once() -> None:
    rig = ready(1)
    rig.backend.capabilities = replace(rig.backend.capabilities, atomic=False)
    fail_all(rig, 1)
    assert (rig.progress().committed, len(scheduled(rig))) == (1, 1)
    rig.send(1)
    assert rig.pull().offsets == [1]
    commit = rig.backend.commit

    def appended_only(batch: CommitBatch, *rest: Any, **named: Any) -> Completion[Any]:
        """The finish after the append is refused, once."""
        if not batch.progress[0].finished:
            return commit(batch, *rest, **named)
        rig.backend.commit = commit  # type: ignore[method-assign]
        return failed(StorageError("disk"))

    rig.backend.commit = appended_only  # type: ignore[method-assign]
    rig.call("submit", METHODS["submit"].args[0](result=result(fail=[1])))
    rig.settle()
    assert (rig.progress().committed, len(scheduled(rig))) == (1, 2)
    for _ in range(5):
        rig.advance(1.0)
    assert (rig.progress().committed, len(scheduled(rig))) == (2, 2)


def test_a_letter_rejected_for_its_properties_is_stored_without_them() -> None:
    rig = ready(2, SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0))
    assert rig.pull().offsets == [0, 1]
    fail_and_meet(rig, 0, CallerError("delivery of too many bytes"), stored=False, counted=0)
    rig.submit(result(fail=[1]))
    rig.settle()
    assert rig.progress().committed == 2
    bare, complete = letters(rig)
    assert decode(bare.delivery).properties == {b"p": b"v"}
    assert bare.system["dead-letter-topic"] == "T"
    assert complete.system == {}
    assert [read_dead_letter(each).offset for each in (bare, complete)] == [0, 1]


def test_large_messages_are_moved_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "BYTES_AT_ONCE_MAX", 2_500)
    rig = ready(0)
    rig.send(20, size=1_000)
    publisher = rig.subscription().retries
    most = 0

    def started(move: MessageMove, settings: MoveSettings) -> None:
        nonlocal most
        most = max(most, publisher._busy)
        start(move, settings)

    start = MessageMove.start
    monkeypatch.setattr(MessageMove, "start", started)
    fail_all(rig, 20)
    until(lambda: rig.progress().committed == 20)
    assert most == 2
    assert publisher._busy == publisher._busy_bytes == 0
