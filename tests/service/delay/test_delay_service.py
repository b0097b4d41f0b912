"""Any due time over the memory engine with a moved clock: never early, each once, cancels tell the truth."""

from __future__ import annotations

import pytest

from backend.records import AppendStatus, NewRecord, StoredRecord, short_record
from ddmq_common.delays.command import (
    ADDED,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    COMMAND_PROPERTY,
    LOOP,
    SCHEDULE,
    TOO_OLD,
    UNKNOWN,
    DelayCommand,
    encode_command,
)
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import RemoteError
from ddmq_common.names import DELAY_DLQ_TOPIC, DELAY_TOPIC
from delay_service.core import decider
from delay_service.core.commands import CommandRecord, command_of
from delay_service.ingest import BUSY, LINGER_S
from tests.service.delay.delay_rig import DelayRig, uuid_of

HOUR_MS = 3_600_000


def test_a_message_fires_when_it_is_due_and_not_a_millisecond_before(delay: DelayRig) -> None:
    due = delay.clock.wall_ms() + 1_500
    delay.add(1, due, b"\x00body")
    delay.settle()
    delay.advance(1.499)
    assert delay.bodies() == []
    delay.advance(0.001)
    [record] = delay.stored()
    content = decode(record.delivery)
    assert content.value == b"\x00body"
    assert content.tag == b"red"
    assert content.properties == {b"a": b"b"}
    assert content.key.decode() == f"{due // 1000}-2-0000000000-0-0-0-0-{uuid_of(1)}"
    assert record.message_id == (1).to_bytes(16, "big")
    matches = delay.backend.find("orders", key=content.key).wait(5)
    assert len(matches) == 1, "it is found by its id"
    assert delay.fired_to() == 1, "nothing is pending below"


def test_an_earlier_message_moves_the_alarm(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + 200)
    delay.settle()
    assert min(alarm.seconds for alarm in delay.alarms.created if alarm.seconds is not None) == pytest.approx(
        0.2
    )
    delay.add(2, now + 50)
    delay.settle()
    assert min(alarm.seconds for alarm in delay.alarms.created if alarm.seconds is not None) == pytest.approx(
        0.05
    )


def test_a_cancel_in_time_and_one_too_late(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + 1_000)
    delay.add(2, now + 1_000)
    delay.cancel(1, now + 1_000, reply_queue=0, reply_id=7)
    delay.settle()
    delay.advance(1)
    assert delay.bodies() == [b"2"]
    delay.cancel(2, reply_queue=0, reply_id=8)
    delay.cancel(3, reply_queue=0, reply_id=9)
    delay.cancel(4, now - 100 * HOUR_MS, reply_queue=0, reply_id=10)
    delay.settle()
    outcomes = {outcome.reply_id: outcome for outcome in delay.outcomes()}
    assert {number: one.code for number, one in outcomes.items()} == {
        7: CANCELLED, 8: ALREADY_FIRED, 9: UNKNOWN, 10: TOO_OLD,
    }  # fmt: skip
    assert outcomes[8].fired_at_ms == now + 1_000
    assert delay.fired_to() == 6, "orders and messages are all done"


def test_reschedule_and_fire_now(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    for number in (1, 2, 3):
        delay.add(number, now + 1_000)
    delay.reschedule(1, now + 2_000, reply_queue=0, reply_id=1)
    delay.fire_now(2, reply_queue=0, reply_id=2)
    delay.reschedule(9, now + 1, reply_queue=0, reply_id=3)
    delay.settle()
    assert delay.bodies() == [b"2"]
    delay.advance(1)
    assert delay.bodies() == [b"2", b"3"]
    delay.advance(1)
    assert delay.bodies() == [b"2", b"3", b"1"]
    outcomes = {
        outcome.reply_id: (outcome.code, outcome.due_ms, outcome.fired_at_ms) for outcome in delay.outcomes()
    }
    assert outcomes == {1: (ADDED, now + 2_000, 0), 2: (ALREADY_FIRED, 0, now), 3: (UNKNOWN, 0, 0)}


def test_a_fire_now_gets_its_outcome_also_at_the_second_try(delay: DelayRig) -> None:
    """Of a message whose topic is gone: that it is a dead letter; of one that waited for its topic: fired."""
    from dataclasses import replace

    info = delay.make("closed")
    delay.make("gone")
    now = delay.clock.wall_ms()
    delay.add(1, now + 9_000, topic="gone")
    delay.add(2, now + 9_000, topic="closed")
    delay.add(3, now + 9_000)
    delay.settle()
    delay.delete("gone")
    delay.change(replace(info, writable=False))
    for number in (1, 2, 3):
        delay.fire_now(number, reply_queue=0, reply_id=number)
    delay.settle()
    delay.change(replace(info, writable=True))
    delay.advance(2)
    assert {one.reply_id: (one.code, bool(one.text)) for one in delay.outcomes()} == {
        1: (ALREADY_FIRED, True), 2: (ALREADY_FIRED, False), 3: (ALREADY_FIRED, False),
    }  # fmt: skip


def test_a_loop_fires_its_times_with_its_own_ids_until_it_is_cancelled(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now, kind=LOOP, timestamp_s=now // 1000, interval_s=3, times=10, expire_s=now // 1000 + 100)
    delay.settle()
    assert len(delay.bodies()) == 1
    for _ in range(9):
        delay.advance(1)
    assert len(delay.bodies()) == 4
    keys = [decode(record.delivery).key.split(b"-") for record in delay.stored()]
    assert [(int(key[0]) - now // 1000, int(key[4])) for key in keys] == [(0, 0), (3, 1), (6, 2), (9, 3)]
    assert len({record.message_id for record in delay.stored()}) == 4
    delay.cancel(1, reply_queue=0)
    delay.settle()
    delay.advance(100)
    assert len(delay.bodies()) == 4
    assert [one.code for one in delay.outcomes()] == [CANCELLED]
    assert delay.fired_to() == 2


def test_a_schedule_keeps_its_own_key(delay: DelayRig) -> None:
    from ddmq_common.delays.command import ADD, DelayCommand, Schedule
    from ddmq_common.delivery import encode

    now = delay.clock.wall_ms()
    order = DelayCommand(
        ADD, uuid_of(1), "orders", SCHEDULE, now + 10, schedule=Schedule(delay_ms=10, period_ms=20, repeat=2)
    )
    delay.append(order, encode(b"my key", b"x", b"", None))
    delay.settle()
    for _ in range(20):
        delay.advance(0.01)
    assert [decode(record.delivery).key for record in delay.stored()] == [b"my key"] * 3


# --- restarts


# --- what goes wrong


def test_messages_of_a_deleted_topic_become_dead_letters_and_the_others_fire(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.make("gone")
    for number in range(20):
        delay.add(number, now + 100, topic="gone" if number % 2 else "orders")
    delay.settle()
    delay.delete("gone")
    delay.advance(0.1)
    delay.advance(0.1)
    assert len(delay.bodies()) == 10
    letters = [decode(record.delivery) for record in delay.stored(DELAY_DLQ_TOPIC)]
    assert len(letters) == 10
    assert letters[0].properties[b"dead-letter-reason"] == b"topic gone"
    assert letters[0].properties[b"dead-letter-topic"] == b"gone"
    assert letters[0].properties[b"a"] == b"b"
    assert delay.fired_to() == 20


@pytest.mark.parametrize(
    "command",
    [
        "",
        '{"op":"add","uuid":"00000000-0000-0000-0000-000000000001","topic":"t","due_ms":18446744073709551615}',
        '{"op":"cancel","uuid":"00000000-0000-0000-0000-000000000001","due_ms":18446744073709551615}',
        '{"op":"cancel","uuid":"00000000-0000-0000-0000-000000000001","timestamp_s":18446744073709551615}',
    ],
    ids=["nothing", "due too late", "cancel of what is due too late", "cancel of such an id"],
)
def test_a_record_without_a_valid_command_is_a_dead_letter(delay: DelayRig, command: str) -> None:
    """A time that the store cannot keep is none: the shard would fail at it again and again."""
    from backend.records import NewRecord
    from ddmq_common.delivery import encode
    from ddmq_common.names import DELAY_TOPIC

    system = {COMMAND_PROPERTY: command} if command else None
    record = NewRecord(DELAY_TOPIC, 0, bytes(16), 1, encode(b"", b"who?", b"", None), system=system)
    delay.backend.append([record], delay.clock.monotonic() + 60).wait(5)
    delay.settle()
    [letter] = [decode(one.delivery) for one in delay.stored(DELAY_DLQ_TOPIC)]
    assert letter.value == b"who?"
    assert letter.properties[b"dead-letter-reason"] == b"unreadable"


# --- what nobody knows


def test_the_outcome_of_an_uncertain_commit_is_looked_up(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    for stored in (True, False):
        number = 1 + stored
        delay.add(number, delay.clock.wall_ms() + 100)
        delay.settle()
        delay.memory.fail_next(RemoteError("no answer"), AppendStatus.UNKNOWN, stored=stored)
        delay.advance(0.1)
        assert delay.value("ddmq_delay_failed_total", what="fire") == 1 + (not stored)
        delay.advance(1)
        delay.until(delay.ready, "the shard is had anew")
        delay.advance(1)
        assert delay.bodies().count(b"%d" % number) == 1
    assert delay.clock.wall_ms() > now


def test_a_cancel_while_the_message_is_being_committed_waits_for_the_outcome(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + 100)
    delay.settle()
    delay.memory.pause_writes()
    delay.clock.advance(0.1)
    delay.alarms.ring()
    shard = delay.service.shards[0]
    assert shard.context is not None
    lanes = shard.context.due_scans
    delay.until(lambda: lanes.busy, "its commit is under way")
    orders = [
        (number, DelayCommand(CANCEL, uuid_of(number), reply_queue=0, reply_id=number)) for number in (1, 2)
    ]
    decisions = decider.decide_commands(
        shard.context.decisions, [order_at(number, order) for number, order in orders], now + 100
    )
    assert (decisions.commands, decisions.replies) == (0, []), "nor does what stands behind it overtake"
    delay.memory.resume_writes()
    delay.settle()
    decisions = decider.decide_commands(
        shard.context.decisions, [order_at(number, order) for number, order in orders], now + 100
    )
    assert [reply.outcome.code for reply in decisions.replies] == [ALREADY_FIRED, UNKNOWN]


def test_the_clock_is_set_back_and_forward(delay: DelayRig) -> None:
    due = delay.clock.wall_ms() + 10_000
    delay.add(1, due)
    delay.settle()
    delay.clock.step_wall(-600)
    delay.advance(10)
    assert delay.bodies() == []
    delay.clock.step_wall(599)
    delay.ring()
    assert delay.bodies() == []
    delay.clock.step_wall(1)
    delay.advance(0.25)
    assert delay.bodies() == [b"1"]
    [record] = delay.stored()
    assert record.stored_ms >= due


def test_where_orders_come_thick_the_next_ones_gather_for_a_moment(delay: DelayRig) -> None:
    due = delay.clock.wall_ms() + HOUR_MS

    def read_count() -> int:
        return delay.service.pending_counts()["orders"]

    for round_number in range(3):
        together(delay, [DelayCommand("add", one, "orders", due_ms=due) for one in uuids_of(round_number)])
        delay.settle()
        assert read_count() == max(round_number, 1) * BUSY, "only the first are read at once"
        delay.advance(LINGER_S)
        assert read_count() == (round_number + 1) * BUSY
    delay.add(1_000, due)
    delay.settle()
    delay.advance(LINGER_S)
    delay.add(1_001, due)
    delay.settle()
    assert read_count() == 3 * BUSY + 2, "a single order does not wait"


def test_who_waits_for_an_outcome_does_not_wait_for_others(delay: DelayRig) -> None:
    due = delay.clock.wall_ms() + HOUR_MS
    together(delay, [DelayCommand("add", one, "orders", due_ms=due) for one in uuids_of(0) + uuids_of(1)])
    delay.settle()
    delay.add(1_000, due)
    delay.settle()
    delay.advance(LINGER_S)
    for round_number in (0, 1):
        cancels = [
            DelayCommand(CANCEL, one, reply_queue=0, reply_id=round_number) for one in uuids_of(round_number)
        ]
        together(delay, cancels)
        delay.settle()
        assert [one.code for one in delay.outcomes()] == [CANCELLED] * BUSY * (round_number + 1)


def uuids_of(round_number: int) -> list[str]:
    return [uuid_of(round_number * BUSY + number) for number in range(BUSY)]


def together(delay: DelayRig, commands: list[DelayCommand]) -> None:
    """Append them so that one read has them all."""
    records = [
        NewRecord(
            DELAY_TOPIC, 0, bytes(16), 0, encode(b"", b"x", b"", {}),
            system={COMMAND_PROPERTY: encode_command(one)},
        )
        for one in commands
    ]  # fmt: skip
    delay.backend.append(records, delay.clock.monotonic() + 60).wait(30)


def order_at(offset: int, order: DelayCommand) -> CommandRecord:
    record = StoredRecord(
        DELAY_TOPIC,
        0,
        100 + offset,
        -1,
        bytes(16),
        1,
        1,
        0,
        0,
        b"",
        {COMMAND_PROPERTY: encode_command(order)},
    )
    return command_of(short_record(record, COMMAND_PROPERTY))
