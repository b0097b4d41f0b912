"""The delayed messages of a topic are held: none fires, none is lost, and those of other topics go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend.records import CommitBatch
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import ALREADY_FIRED, CANCELLED, LOOP, SCHEDULE, Schedule
from ddmq_common.names import DELAY_DLQ_TOPIC
from delay_service.config import DelayConfig
from delay_service.due.holds import held_since_ms, hold_setting, is_held, list_holds
from tests.service.delay.delay_rig import DelayRig, Disks
from tests.support.compacting_memory import CompactingMemory
from tests.support.waits import done

SECOND = 1_000


def set_held(rig: DelayRig, held: bool, topic: str = "orders") -> None:
    setting = hold_setting(topic, rig.clock.wall_ms() if held else None)
    done(rig.backend.commit(CommitBatch(settings=setting), rig.clock.monotonic() + 60))
    rig.settle()


def add(rig: DelayRig, first: int, count: int, seconds: float, topic: str = "orders") -> None:
    """Messages that are due one after the other, a tenth of a second apart."""
    due = rig.clock.wall_ms() + round(seconds * SECOND)
    for number in range(first, first + count):
        rig.add(number, due + (number - first) * 100, topic=topic)
    rig.settle()


def numbers(rig: DelayRig, topic: str = "orders") -> list[int]:
    return [int(body) for body in rig.bodies(topic)]


def test_what_is_due_waits_for_the_release_and_others_fire_on_time(delay: DelayRig) -> None:
    delay.make("others")
    add(delay, 1, 5, 1)
    add(delay, 10, 5, 1, topic="others")
    set_held(delay, True)
    delay.advance(1.2)
    assert numbers(delay, "others") == [10, 11, 12]
    delay.advance(10)
    assert numbers(delay, "others") == [10, 11, 12, 13, 14]
    assert numbers(delay) == []
    assert delay.service.pending_counts() == {"orders": 5}
    assert delay.value("ddmq_delay_aside_total", topic="orders") == 5
    delay.advance(60)
    assert delay.value("ddmq_delay_aside_total", topic="orders") == 5, "once, however long it is held"
    assert delay.value("ddmq_delay_held", topic="orders") == 1
    assert delay.value("ddmq_delay_overdue_ms") == 0, "nothing is late by mistake"
    set_held(delay, False)
    assert numbers(delay) == [1, 2, 3, 4, 5], "at once, in due order"
    delay.advance(1)
    assert delay.value("ddmq_delay_held", topic="orders") == 0
    assert delay.service.pending_counts() == {}
    assert delay.backend.topic(DELAY_DLQ_TOPIC) is None


def test_nothing_fires_early_after_a_release(delay: DelayRig) -> None:
    set_held(delay, True)
    add(delay, 1, 3, 10)
    set_held(delay, False)
    delay.advance(9.999)
    assert numbers(delay) == []
    delay.advance(0.101)
    assert numbers(delay) == [1, 2]


def test_it_is_held_over_a_restart_and_over_the_loss_of_what_was_not_flushed(delay: DelayRig) -> None:
    add(delay, 1, 4, 1)
    set_held(delay, True)
    delay.advance(1.1)
    for crash in (False, True):
        delay.service.close()
        if crash:
            delay.disks.crash()
        delay.start()
        delay.advance(10)
        assert numbers(delay) == []
    set_held(delay, False)
    delay.advance(1)
    assert sorted(numbers(delay)) == [1, 2, 3, 4], "each once"
    assert numbers(delay) == [1, 2, 3, 4]


def test_a_death_in_the_middle_of_a_release_fires_nothing_twice_and_loses_nothing(delay: DelayRig) -> None:
    set_held(delay, True)
    add(delay, 1, 300, -100)
    delay.advance(1)
    set_held(delay, False)
    fired = numbers(delay)
    delay.service.close()
    delay.disks.crash()
    set_held(delay, True)
    delay.start()
    delay.advance(5)
    assert numbers(delay) == fired, "held again: nothing more fires"
    set_held(delay, False)
    delay.advance(5)
    assert sorted(numbers(delay)) == list(range(1, 301))


def test_a_store_that_is_lost_fires_nothing_that_is_held() -> None:
    """Another process takes over with an empty disk: the rows tell what waits, and the setting that it may
    not fire."""
    clock = ManualClock()
    rig = DelayRig(backend=CompactingMemory(clock), clock=clock)
    rig.make("orders")
    add(rig, 1, 3, 1)
    set_held(rig, True)
    rig.advance(2)
    rig.service.close()
    rig.disks = Disks()
    rig.start()
    rig.advance(10)
    assert numbers(rig) == []
    assert rig.service.pending_counts() == {"orders": 3}
    set_held(rig, False)
    rig.advance(1)
    assert numbers(rig) == [1, 2, 3]
    rig.close()


def test_cancels_and_moves_work_meanwhile(delay: DelayRig) -> None:
    set_held(delay, True)
    add(delay, 1, 6, 1)
    delay.advance(3)
    delay.cancel(1, reply_queue=0, reply_id=7)
    delay.reschedule(2, delay.clock.wall_ms() + 60 * SECOND)
    delay.reschedule(3, delay.clock.wall_ms() - 60 * SECOND)
    delay.fire_now(6, reply_queue=0, reply_id=8)
    delay.settle()
    delay.advance(5)
    assert [(one.reply_id, one.code) for one in delay.outcomes()] == [(7, CANCELLED)]
    assert numbers(delay) == [], "even one that was told to fire"
    set_held(delay, False)
    assert numbers(delay) == [3, 4, 5, 6]
    assert [(one.reply_id, one.code) for one in delay.outcomes()] == [(7, CANCELLED), (8, ALREADY_FIRED)]
    delay.advance(60)
    assert numbers(delay)[-1] == 2
    assert len(numbers(delay)) == 5


def test_repeated_messages_follow_the_rules_for_missed_deliveries(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    due = now + 10 * SECOND
    schedule = Schedule(period_ms=10 * SECOND, repeat=-1, catch_up="fire_once")
    delay.add(1, due, kind=LOOP, interval_s=10, times=4, expire_s=now // 1000 + 10_000)
    delay.add(2, due, kind=SCHEDULE, schedule=schedule)
    set_held(delay, True)
    for _ in range(10):
        delay.advance(10)
    set_held(delay, False)
    delay.advance(1)
    assert numbers(delay).count(1) == 4, "all that a loop missed"
    assert numbers(delay).count(2) == 1, "the pending delivery of a schedule, once"
    delay.advance(9)
    assert numbers(delay).count(2) == 2, "and then its next"


def test_a_topic_that_is_deleted_while_held_makes_dead_letters(delay: DelayRig) -> None:
    set_held(delay, True)
    add(delay, 1, 2, 1)
    delay.advance(2)
    delay.delete("orders")
    set_held(delay, False)
    delay.advance(2)
    assert len(delay.bodies(DELAY_DLQ_TOPIC)) == 2
    assert delay.service.pending_counts() == {}


def test_a_held_topic_that_is_closed_too_fires_when_it_is_neither(delay: DelayRig) -> None:
    add(delay, 1, 2, 1)
    set_held(delay, True)
    info = delay.backend.topic("orders")
    assert info is not None
    delay.change(replace(info, writable=False))
    delay.advance(5)
    set_held(delay, False)
    delay.advance(5)
    assert numbers(delay) == []
    delay.change(info)
    delay.advance(2)
    assert numbers(delay) == [1, 2]


class SecondService(DelayRig):
    """It shares the shards with a service that has them all when this one starts."""

    def start(self) -> None:
        self.serve()


def test_two_services_hold_alike() -> None:
    """Each has some of the shards; the setting reaches both."""
    clock = ManualClock()
    config = DelayConfig(shards=4)
    rig = DelayRig(config, clock=clock)
    rig.make("orders")
    set_held(rig, True)
    for number in range(1, 41):
        rig.add(number, clock.wall_ms() + SECOND)
    rig.settle()
    other = SecondService(config, rig.backend, clock)

    def settled() -> bool:
        for each in (rig, other):
            each.alarms.ring()
        return len(rig.service.shards) == len(other.service.shards) == 2

    rig.until(settled, "two shards each")
    for _ in range(5):
        clock.advance(1)
        for each in (rig, other):
            each.ring()
    assert numbers(rig) == []
    set_held(rig, False)
    for _ in range(5):
        clock.advance(1)
        for each in (rig, other):
            each.ring()
    assert sorted(numbers(rig)) == list(range(1, 41))
    other.service.close()
    rig.close()


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"9" * 40, b"\xff", "٣".encode()])
def test_a_hold_that_cannot_be_read_holds(delay: DelayRig, value: bytes) -> None:
    done(delay.backend.commit(CommitBatch(settings={"hold/orders": value}), delay.clock.monotonic() + 60))
    assert (is_held(delay.backend, "orders"), held_since_ms(delay.backend, "orders")) == (True, 0)
    assert list_holds(delay.backend) == {"orders": 0}
    add(delay, 1, 1, 1)
    delay.advance(5)
    assert numbers(delay) == []
    set_held(delay, False)
    assert numbers(delay) == [1]
    assert held_since_ms(delay.backend, "orders") is None


def test_a_held_topic_that_is_available_again_is_not_shown_as_unavailable(tmp_path: Path) -> None:
    rig = DelayRig(DelayConfig(shards=1))
    rig.make("orders")
    lists = DelayLists(DelayOwners(rig.backend, rig.service, rig.clock))
    reasons = {"orders": "a partition has no leader"}
    rig.backend.why_unavailable = lambda topic: reasons.get(topic, "")  # type: ignore[method-assign]
    add(rig, 1, 1, 1)
    set_held(rig, True)
    rig.advance(2)
    assert lists.describe_shards(AdminRequest({}, {}, {}))["set_aside"] == reasons
    reasons.clear()
    rig.advance(2)
    overview = lists.describe_shards(AdminRequest({}, {}, {}))
    assert (overview["set_aside"], list(overview["held"])) == ({}, ["orders"])
    set_held(rig, False)
    rig.advance(2)
    assert numbers(rig) == [1]
    rig.close()
