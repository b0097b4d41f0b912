"""The delay levels over the memory engine with a moved clock: in order, never early, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.completion import failed
from backend.records import AppendStatus, NewRecord
from ddmq_common.delays.levels import DEFAULT_LEVELS
from ddmq_common.delivery import decode
from ddmq_common.errors import BoundReachedError, CallerError, RemoteError
from ddmq_common.names import SCHEDULE_TOPIC, dlq_topic
from delay_service.config import DelayConfig
from tests.service.delay.levels_rig import LevelsRig
from tests.support.waits import until

DEAD = dlq_topic(SCHEDULE_TOPIC)


def bodies(rig: LevelsRig, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [decode(record.delivery).value for record in rig.stored(topic, queue_id)]


def test_all_levels_fire_in_order_and_never_early(rig: LevelsRig) -> None:
    began = rig.clock.wall_ms()
    for level in range(len(DEFAULT_LEVELS), 0, -1):
        rig.send(level, [b"%d" % level])
    for level, wait_ms in enumerate(DEFAULT_LEVELS.waits, 1):
        rig.advance((began + wait_ms - 1 - rig.clock.wall_ms()) / 1_000)
        assert len(rig.stored()) == level - 1, "a millisecond before it is due"
        rig.advance(0.001)
        assert bodies(rig)[-1] == b"%d" % level
        assert rig.stored()[-1].stored_ms == began + wait_ms
    assert rig.value("ddmq_levels_fired_total") == 18
    assert rig.value("ddmq_levels_pending") == 0
    [lateness] = rig.metrics.snapshot()["ddmq_levels_lateness_us"]
    assert (lateness["count"], lateness["mean"]) == (18, 0)


def test_a_fired_message_is_what_was_sent(rig: LevelsRig) -> None:
    sent = rig.record("orders", b"\x00body", 1)
    rig.send(1, [b"\x00body"], queue_id=1)
    rig.advance(1)
    [record] = rig.stored("orders", 1)
    assert (record.delivery, record.born_ms, record.due_ms, record.system) == (
        sent.delivery, sent.born_ms, 0, {},
    )  # fmt: skip
    assert int.from_bytes(record.message_id, "big") == 2, "the message keeps its id"
    matches = rig.backend.find("orders", key=b"k").wait(5)
    assert [one.message_id for one in matches] == [record.message_id], "its key is indexed"


def test_a_level_is_first_in_first_out_over_many_batches(rig: LevelsRig) -> None:
    expected = [b"%d" % number for number in range(3_000)]
    rig.send(2, expected)
    rig.advance(5)
    until(lambda: len(rig.stored()) == 3_000, "all are fired")
    assert bodies(rig) == expected
    assert rig.position(2) == 3_000


def test_a_waiting_level_sleeps_and_reads_nothing(rig: LevelsRig) -> None:
    rig.send(18, [b"late"])
    assert rig.alarm.seconds == 1.0, "no longer than the clock may go unwatched"
    reads = []
    read = rig.backend.read
    rig.backend.read = lambda *args, **rest: reads.append(args) or read(*args, **rest)  # type: ignore
    for _ in range(100):
        rig.advance(60)
    assert not reads
    rig.send(1, [b"soon"])
    assert rig.alarm.seconds == pytest.approx(1.0)
    rig.advance(0.4)
    assert rig.alarm.seconds == pytest.approx(0.6), "until it is due, not a full second more"


def test_without_messages_there_is_no_timer(rig: LevelsRig) -> None:
    rig.settle()
    assert rig.alarm.seconds is None


def test_a_restart_resumes_at_the_committed_offset(rig: LevelsRig) -> None:
    rig.send(1, [b"a", b"b"])
    rig.send(3, [b"c"])
    rig.advance(1)
    assert bodies(rig) == [b"a", b"b"]
    rig.service.close()
    rig.start()
    rig.advance(8.999)
    assert bodies(rig) == [b"a", b"b"]
    rig.advance(0.001)
    assert bodies(rig) == [b"a", b"b", b"c"]


def test_a_changed_list_touches_only_new_messages_and_what_is_removed_is_emptied(rig: LevelsRig) -> None:
    rig.send(1, [b"one second"])
    rig.send(4, [b"thirty seconds"])
    rig.service.close()
    rig.config = DelayConfig(levels=("2s", "3s"))
    rig.start(owned_levels=18)  # those that are not in the list any more too
    rig.send(1, [b"two seconds"])
    rig.advance(1)
    assert bodies(rig) == [b"one second"]
    rig.advance(1)
    assert bodies(rig) == [b"one second", b"two seconds"]
    rig.advance(28)
    assert bodies(rig)[2:] == [b"thirty seconds"]
    info = rig.backend.topic(SCHEDULE_TOPIC)
    assert info is not None
    assert info.queues == 18


def test_a_longer_list_makes_the_topic_grow(rig: LevelsRig) -> None:
    rig.service.close()
    rig.config = DelayConfig(levels=tuple(f"{n}s" for n in range(1, 31)))
    rig.start()
    rig.send(30, [b"x"])
    rig.advance(30)
    assert bodies(rig) == [b"x"]


# --- what goes wrong


def test_messages_of_a_deleted_topic_become_dead_letters_and_the_others_fire(rig: LevelsRig) -> None:
    rig.make("gone")
    rig.send(1, [b"1"])
    rig.send(1, [b"2", b"3", b"4"], "gone")
    rig.send(1, [b"5"])
    rig.delete("gone")
    rig.advance(1)
    assert bodies(rig) == [b"1", b"5"]
    letters = [decode(record.delivery) for record in rig.stored(DEAD)]
    assert [letter.value for letter in letters] == [b"2", b"3", b"4"]
    properties = letters[0].properties
    assert properties[b"a"] == b"b"
    assert properties[b"dead-letter-reason"] == b"topic gone"
    assert properties[b"dead-letter-topic"] == b"gone"
    assert properties[b"dead-letter-queue"] == b"0"
    assert properties[b"dead-letter-level"] == b"1"
    assert rig.stored(DEAD)[0].system == {}
    assert rig.value("ddmq_levels_dead_total", reason="topic gone") == 3
    rig.make("gone")
    rig.send(1, [b"6"], "gone")
    rig.advance(1)
    assert bodies(rig, "gone") == [b"6"], "a topic made again takes messages again"


def test_a_recreated_topic_with_fewer_queues_gets_its_messages(rig: LevelsRig) -> None:
    rig.make("wide", 8)
    rig.send(1, [b"x"], "wide", 7)
    rig.delete("wide")
    rig.make("wide", 2)
    rig.advance(1)
    assert bodies(rig, "wide", 1) == [b"x"]


def test_a_closed_topic_has_a_minute_and_then_its_messages_are_dead_letters(rig: LevelsRig) -> None:
    closed = rig.make("closed")
    rig.send(1, [b"1", b"2"], "closed")
    rig.send(1, [b"3"])
    rig.send(2, [b"other level"])
    rig.change(replace(closed, writable=False))
    rig.advance(1)
    rig.advance(5)
    assert sorted(bodies(rig)) == [b"3", b"other level"], "neither its own level nor others wait for it"
    for _ in range(10):
        rig.advance(5)
    assert rig.stored(DEAD) == []
    for _ in range(5):
        rig.advance(5)
    assert bodies(rig, DEAD) == [b"1", b"2"]
    assert rig.value("ddmq_levels_dead_total", reason="refused") == 2
    assert rig.value("ddmq_levels_put_off_total") <= 2 * 6, "each is written a handful of times"


def test_a_topic_that_reopens_in_time_gets_its_messages(rig: LevelsRig) -> None:
    closed = rig.make("closed")
    rig.send(1, [b"1", b"2"], "closed")
    rig.change(replace(closed, writable=False))
    rig.advance(1)
    for _ in range(6):
        rig.advance(5)
    rig.change(closed)
    for _ in range(6):
        rig.advance(5)
    assert bodies(rig, "closed") == [b"1", b"2"], "later by no more than it was closed"
    assert rig.stored(DEAD) == []


def test_temporary_failures_are_retried_in_order(rig: LevelsRig) -> None:
    rig.send(1, [b"1", b"2"])
    rig.memory.fail_next(BoundReachedError("full"), AppendStatus.NOT_STORED, times=3)
    rig.advance(1)
    assert bodies(rig) == []
    for _ in range(3):
        rig.advance(1)
    assert bodies(rig) == [b"1", b"2"]
    assert rig.value("ddmq_levels_failed_total", what="fire", reason="BoundReachedError") == 3


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_outcome_makes_no_second_copy(rig: LevelsRig, stored: bool) -> None:
    rig.send(1, [b"1", b"2"])
    rig.memory.fail_next(RemoteError("nobody knows"), AppendStatus.UNKNOWN, stored=stored)
    rig.advance(1)
    until(lambda: len(rig.stored()) >= 2, "they are fired")
    rig.advance(5)
    assert bodies(rig) == [b"1", b"2"]


def test_a_late_commit_is_fenced_or_counted(rig: LevelsRig) -> None:
    rig.send(1, [b"1"])
    rig.memory.pause_writes()
    rig.advance(1)
    rig.clock.advance(11)
    until(lambda: rig.value("ddmq_levels_failed_total", what="fire") == 1, "its deadline has passed")
    rig.memory.resume_writes()
    until(lambda: len(rig.stored()) == 1, "it is fired")
    for _ in range(10):
        rig.advance(1)
    assert bodies(rig) == [b"1"]


def test_levels_that_are_claimed_and_released_fire_no_second_copy(rig: LevelsRig) -> None:
    rig.send(1, [b"%d" % number for number in range(50)])
    rig.memory.depose(SCHEDULE_TOPIC, SCHEDULE_TOPIC)
    until(lambda: rig.service.owned_count == 18, "granted again")
    rig.advance(1)
    rig.memory.revoke(SCHEDULE_TOPIC, SCHEDULE_TOPIC, rig.clock.monotonic() + 5)
    until(lambda: rig.service.owned_count == 18, "released and granted again")
    rig.advance(1)
    assert bodies(rig) == [b"%d" % number for number in range(50)]


def test_damaged_and_expired_messages_are_counted(rig: LevelsRig) -> None:
    rig.send(1, [b"1", b"2", b"3", b"4"])
    rig.service.close()
    queue = rig.queue(SCHEDULE_TOPIC, 0)
    rig.memory.expire(queue, 1)
    rig.memory.lose(queue, 2)
    rig.start()
    rig.advance(1)
    assert bodies(rig) == [b"2", b"4"]
    assert rig.value("ddmq_levels_lost_total", reason="missing") == 1
    assert rig.position(1) == 4


def test_a_clock_step_is_detected_within_a_second(rig: LevelsRig) -> None:
    rig.send(10, [b"x"])
    rig.clock.step_wall(360)
    rig.advance(1)
    assert bodies(rig) == [b"x"]


def test_draining_ends_what_is_being_fired_and_says_so_in_health(rig: LevelsRig) -> None:
    assert rig.service.health().ready
    rig.send(1, [b"1"])
    rig.memory.pause_writes()
    rig.advance(1)
    drained = rig.service.drain(rig.clock.monotonic() + 10)
    rig.settle()
    assert not drained.done
    health = rig.service.health()
    assert (health.ready, health.reason) == (False, "no level scheduler: it is draining")
    rig.memory.resume_writes()
    drained.wait(5)
    assert bodies(rig) == [b"1"]
    rig.start()
    rig.advance(5)
    assert bodies(rig) == [b"1"]


def test_a_start_that_fails_is_retried() -> None:
    rig = LevelsRig()
    rig.service.close()
    join = rig.backend.join

    def refuse(*args: object, **rest: object) -> None:
        raise BoundReachedError("no room")

    rig.backend.join = refuse  # type: ignore[method-assign, assignment]
    rig.start(owned_levels=0)
    assert rig.service.health().reason == "no level scheduler: no room"
    rig.backend.join = join  # type: ignore[method-assign]
    rig.advance(1)
    until(lambda: rig.service.owned_count == 18, "it runs")
    assert rig.service.health().ready


def test_one_message_that_is_rejected_for_good_does_not_fail_others(rig: LevelsRig) -> None:
    """Its topic is open and takes the others: only the message itself becomes a dead letter."""
    commit = rig.backend.commit

    def picky(batch, deadline, into=None):  # type: ignore[no-untyped-def]
        if any(record.topic == "orders" and b"bad" in record.delivery for record in batch.records):
            return failed(CallerError("too large"), into)
        return commit(batch, deadline, into)

    rig.backend.commit = picky  # type: ignore[method-assign]
    rig.send(1, [b"1", b"2", b"bad", b"3"])
    rig.send(1, [b"4", b"bad too", b"5"])
    for _ in range(40):
        rig.advance(5)
    assert bodies(rig) == [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(rig, DEAD) == [b"bad", b"bad too"]


def test_a_record_without_a_topic_or_that_does_not_parse_is_a_dead_letter(rig: LevelsRig) -> None:
    lost = rig.record(SCHEDULE_TOPIC, b"lost")
    lost.due_ms = -1_000
    broken = NewRecord(SCHEDULE_TOPIC, 0, bytes(16), 1, b"\xff\xff", due_ms=-1_000, system={"REAL_QID": "x"})
    rig.backend.append([lost, broken], rig.clock.monotonic() + 60).wait(20)
    rig.send(1, [b"fine"])
    rig.advance(1)
    assert bodies(rig) == [b"fine"]
    first, second = rig.stored(DEAD)
    assert decode(first.delivery).properties[b"dead-letter-reason"] == b"unreadable"
    assert (second.delivery, second.system["dead-letter-reason"]) == (b"\xff\xff", "unreadable")
