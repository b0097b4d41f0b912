"""Messages that end otherwise than by firing: damaged orders, what is passed over, dead letters."""

from __future__ import annotations

from uuid import UUID

import pytest

from backend.internal_topics import read_dead_letter, resent_record
from backend.progress.ack_map import AckMap
from backend.records import StoredRecord
from ddmq_common.delays.command import (
    ADD,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    LOOP,
    ONCE,
    RESCHEDULE,
    SCHEDULE,
    DelayCommand,
    Schedule,
    encode_command,
)
from ddmq_common.delivery import decode, encode
from ddmq_common.queue_choice import choose_queue
from delay_service.core import decider
from delay_service.core.commands import DEAD_TEXT, CommandRecord, DecisionContext
from delay_service.core.due_scans import DueScans, SliceLimits
from delay_service.core.fire_command import FireCommand, SkippedMessage, dead_fire, fire_command
from delay_service.due.backend import TOPIC_DELETED, UNREADABLE, TargetTopic
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import IdKind, IdState, Pending, StoreChanges

NOW = 1_700_000_000_000
UUID_TEXT = "00000000-0000-0000-0000-000000000007"
IDS_KEPT_MS = 3_600_000


def waiting(order: str, due_ms: int, occurrence: int = 0) -> Pending:
    delivery = encode(b"", b"x", b"", None)
    return Pending(due_ms, 7, occurrence, "t", UUID(UUID_TEXT).bytes, order, bytes(16), 1, 0, b"", delivery)


def lanes_over(message: Pending, acks: AckMap, catch_up_max: int = 1_000) -> DueScans:
    store = MemoryDelayStore()
    store.write(StoreChanges(added=[message], ids={message.uuid: IdState(IdKind.PENDING, message.due_ms, 7)}))
    return DueScans(
        store, acks, lambda _: TargetTopic(1, True), SliceLimits(64, 1 << 20, IDS_KEPT_MS, catch_up_max)
    )


def loop(times: int = 1_000_000) -> str:
    second = NOW // 1_000 - 3_000
    order = DelayCommand(ADD, UUID_TEXT, "t", LOOP, second * 1_000, second, second + 10**8, 3, times)
    return encode_command(order)


def test_a_damaged_order_that_was_to_catch_up_is_one_dead_letter() -> None:
    acks = AckMap(0)
    acks.record_attempts(7, 3)
    lanes = lanes_over(waiting("{nothing", NOW - 5), acks)
    plan = lanes.plan_fires(NOW)
    assert [one.reason for one in plan.fires] == [UNREADABLE]
    changes = lanes.changes_of(plan.fires, NOW)
    assert changes.ids[UUID(UUID_TEXT).bytes].kind is IdKind.DEAD
    lanes.on_commit_done(plan.fires, True)
    assert not lanes.busy


def test_a_missing_time_zone_is_one_dead_letter() -> None:
    schedule = Schedule(cron="0 9 * * *", zone="Mars/Olympus")
    order = DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW - 5, schedule=schedule)
    plan = lanes_over(waiting(encode_command(order), NOW - 5), AckMap(0)).plan_fires(NOW)
    assert [one.reason for one in plan.fires] == [UNREADABLE]


def test_how_many_missed_ones_fire_is_a_setting() -> None:
    fire = fire_command(waiting(loop(), NOW - 3_000_000), 1, lambda _: 0, NOW, False, catch_up_max=10)
    assert isinstance(fire, FireCommand)
    assert fire.following is not None
    assert fire.following.due_ms == NOW - 9 * 3_000
    acks = AckMap(0)
    acks.record_attempts(7, 5)
    plan = lanes_over(waiting(loop(), NOW - 3_000_000), acks, catch_up_max=10).plan_fires(NOW)
    assert plan.changes is not None
    assert [one.due_ms for one in plan.changes.added] == [NOW - 9 * 3_000]


def test_a_fire_that_only_the_log_knows_of_does_not_swallow_the_next() -> None:
    """`fire_once`: the second delivery was missed while the store was away; it comes, once."""
    schedule = Schedule(period_ms=60_000, repeat=5)
    order = encode_command(DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW - 100_000, schedule=schedule))
    acks = AckMap(0)
    acks.record_attempts(7, 1)
    plan = lanes_over(waiting(order, NOW - 100_000), acks).plan_fires(NOW)
    assert plan.changes is not None
    assert [one.due_ms for one in plan.changes.added] == [NOW - 40_000]


@pytest.mark.parametrize("op", [RESCHEDULE, FIRE])
def test_a_move_is_of_the_delivery_that_waits_as_the_log_knows(op: str) -> None:
    """The process was killed when the first delivery had fired, and before its store knew."""
    schedule = Schedule(period_ms=60_000, repeat=5, catch_up="all")
    order = encode_command(DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW - 50_000, schedule=schedule))
    acks = AckMap(0)
    acks.record_attempts(7, 1)
    lanes = lanes_over(waiting(order, NOW - 50_000), acks)
    command = DelayCommand(op, UUID_TEXT, due_ms=NOW + 5_000)
    moving = CommandRecord(9, command, UUID(UUID_TEXT).bytes, "", bytes(16), NOW, 0, b"")
    lanes._store.write(
        decider.decide_commands(DecisionContext(lanes._store, acks, {}, IDS_KEPT_MS), [moving], NOW).changes
    )
    [fired] = lanes.plan_fires(NOW + 5_000).fires
    assert fired.message.occurrence > 0
    assert fired.following is not None
    assert fired.following.due_ms == NOW + 70_000


def test_a_reread_move_does_not_move_a_later_delivery() -> None:
    """It was carried out, and what it moved has fired since: a store that was lost is filled from the log."""
    schedule = Schedule(period_ms=60_000, repeat=5, catch_up="all")
    order = encode_command(DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW + 50_000, schedule=schedule))
    acks = AckMap(0)
    acks.record_attempts(7, 1)
    acks.finish([(9, 10)])  # with the delivery that it moved
    lanes = lanes_over(waiting(order, NOW + 50_000), acks)
    command = DelayCommand(RESCHEDULE, UUID_TEXT, due_ms=NOW + 5_000)
    reread = CommandRecord(9, command, UUID(UUID_TEXT).bytes, "", bytes(16), NOW, 0, b"")
    decisions = DecisionContext(lanes._store, acks, {}, IDS_KEPT_MS, reread_to=10, lost_position=True)
    lanes._store.write(decider.decide_commands(decisions, [reread], NOW + 6_000).changes)
    plan = lanes.plan_fires(NOW + 6_000)
    assert not plan.fires
    assert plan.changes is not None
    assert [one.due_ms for one in plan.changes.added] == [NOW + 110_000]


def test_assumptions_from_before_a_kill_are_discarded() -> None:
    """The store was lost, and its owner killed between reading the add again and reading its cancel."""
    order = DelayCommand(ADD, UUID_TEXT, "t", due_ms=NOW + 50_000)
    uuid, delivery = UUID(UUID_TEXT).bytes, encode(b"", b"x", b"", None)
    add = CommandRecord(7, order, uuid, encode_command(order), bytes(16), NOW, 0, delivery)
    command = DelayCommand(CANCEL, UUID_TEXT, reply_queue=0, reply_id=1)
    cancel = CommandRecord(9, command, uuid, "", bytes(16), NOW + 1_000, 0, b"")
    acks, store = AckMap(0), MemoryDelayStore()
    acks.finish([(7, 8), (9, 10)])

    def owner() -> DecisionContext:
        return DecisionContext(store, acks, {}, IDS_KEPT_MS, reread_to=10, lost_position=True)

    store.write(decider.decide_commands(owner(), [add], NOW + 2_000).changes)
    next_owner = owner()
    store.write(decider.decide_commands(next_owner, [add], NOW + 3_000).changes)
    [reply] = decider.decide_commands(next_owner, [cancel], NOW + 3_000).replies
    assert reply.outcome.code == CANCELLED


def test_a_rescheduled_one_is_late_by_its_new_due_time() -> None:
    """`skip`: its first due time is long past, the one that it was given is not."""
    schedule = Schedule(period_ms=60_000, repeat=5, catch_up="skip")
    order = encode_command(DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW - 100_000, schedule=schedule))
    assert isinstance(fire_command(waiting(order, NOW - 1), 1, lambda _: 0, NOW, False), FireCommand)
    assert isinstance(fire_command(waiting(order, NOW - 100_000), 1, lambda _: 0, NOW, False), SkippedMessage)


def test_a_cancel_of_a_dead_letter_is_answered_as_such() -> None:
    message = waiting(encode_command(DelayCommand(ADD, UUID_TEXT, "t", due_ms=NOW - 5)), NOW - 5)
    acks = AckMap(0)
    lanes = lanes_over(message, acks)
    store = lanes._store
    store.write(lanes.changes_of([dead_fire(message, TOPIC_DELETED, NOW, False)], NOW))
    command = DelayCommand(CANCEL, UUID_TEXT, reply_queue=0, reply_id=1)
    cancel = CommandRecord(9, command, message.uuid, "", bytes(16), 1, 0, b"")
    [reply] = decider.decide_commands(
        DecisionContext(store, acks, {}, IDS_KEPT_MS), [cancel], NOW + 50
    ).replies
    assert (reply.outcome.code, reply.outcome.fired_at_ms) == (ALREADY_FIRED, NOW)
    assert reply.outcome.text == DEAD_TEXT
    assert "%DLQ%%DELAY" in DEAD_TEXT


@pytest.mark.parametrize(
    ("partition", "hash_id", "position"),
    [
        (6, 0, "6"),
        (-1, -13, "13"),
        (-1, -(1 << 63), "0"),
        (-1, (1 << 63) - 1, str((1 << 63) - 1)),
        ((1 << 31) - 1, 0, str((1 << 31) - 1)),
        (-2, 5, None),
    ],
)
def test_a_dead_letter_goes_to_the_target_queue_of_its_message(
    partition: int, hash_id: int, position: str | None
) -> None:
    order = DelayCommand(ADD, UUID_TEXT, "t", ONCE, NOW, NOW // 1_000, partition=partition, hash_id=hash_id)
    record = dead_fire(waiting(encode_command(order), NOW), TOPIC_DELETED, NOW, False).record
    property_value = decode(record.delivery).properties.get(b"dead-letter-place")
    assert property_value == (None if position is None else position.encode())
    letter = read_dead_letter(
        StoredRecord(record.topic, 0, 4, 4, record.message_id, 1, 1, 0, 0, record.delivery, {})
    )
    resent = resent_record(letter, 3)
    assert (resent.topic, resent.queue_id) == ("t", choose_queue(partition, hash_id, 3, 4))
    assert b"dead-letter-place" not in decode(resent.delivery).properties


@pytest.mark.parametrize(("by_key", "queue"), [(True, (-973932308 & 0x7FFFFFFF) % 7), (False, 5)])
def test_a_delayed_message_without_a_queue_goes_by_its_key(by_key: bool, queue: int) -> None:
    """The key's hash is that of Kafka's own producers."""
    order = DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW - 1, partition=-2, schedule=Schedule())
    message = waiting(encode_command(order), NOW - 1)._replace(delivery=encode(b"21", b"x", b"", None))
    fire = fire_command(message, 7, lambda _: 5, NOW, False, by_key=by_key)
    assert isinstance(fire, FireCommand)
    assert (fire.record.key, fire.record.queue_id) == (b"21", queue)


def test_a_dead_letter_with_a_key_goes_where_the_key_belongs() -> None:
    order = DelayCommand(ADD, UUID_TEXT, "t", SCHEDULE, NOW, partition=-2, schedule=Schedule())
    message = waiting(encode_command(order), NOW)._replace(delivery=encode(b"21", b"x", b"", None))
    record = dead_fire(message, TOPIC_DELETED, NOW, False).record
    letter = read_dead_letter(
        StoredRecord(record.topic, 0, 4, 4, record.message_id, 1, 1, 0, 0, record.delivery, {})
    )
    assert resent_record(letter, 7).queue_id == choose_queue(-2, 0, 7, 0, b"21")
