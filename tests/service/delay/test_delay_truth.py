"""What is told of messages is what became of them: after lost stores, restores, early fires, skipped ones."""

from __future__ import annotations

import gc

import pytest

from backend.completion import Completion
from ddmq_common.delays.command import (
    ALREADY_FIRED,
    CANCELLED,
    LOOP,
    SCHEDULE,
    DelayCommand,
    Schedule,
)
from ddmq_common.names import DELAY_TOPIC
from delay_service.config import DelayConfig
from delay_service.context import UNRECORDED
from delay_service.core.decider import INGESTED, CommandRun
from delay_service.core.occurrences import next_after
from delay_service.store.port import StoreChanges
from tests.service.delay.delay_rig import DelayRig, Disks, RetainedStore
from tests.support.constants import build_options
from tests.support.waits import done

HOUR_MS = 3_600_000


def code_of_a_cancel(delay: DelayRig, number: int) -> int:
    reply = 1_000 + number
    delay.cancel(number, born_ms=delay.clock.wall_ms(), reply_queue=0, reply_id=reply)

    def find_codes() -> list[int]:
        return [one.code for one in delay.outcomes() if one.reply_id == reply]

    delay.until(lambda: delay.ring() or find_codes(), f"an outcome for {number}")
    return find_codes()[0]


def test_a_store_that_lost_its_offset_stores_none_before_all_is_reread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed meanwhile, it would not know that what it has not read again has been carried out."""
    rig = DelayRig(build_options(DelayConfig, shards=1, ingest_count=1))
    rig.make("orders")
    for number in range(3):
        rig.add(number, rig.clock.wall_ms() + HOUR_MS)
    rig.settle()
    rig.service.drain(rig.clock.monotonic()).wait(20)
    ingested: list[bytes | None] = []
    write = RetainedStore.write

    def written(self: RetainedStore, changes: StoreChanges) -> None:
        ingested.append(changes.meta.get(INGESTED))
        write(self, changes)

    del rig.disks.stores[0]._meta[INGESTED]
    monkeypatch.setattr(RetainedStore, "write", written)
    rig.start()
    rig.add(3, rig.clock.wall_ms() + HOUR_MS)
    rig.settle()
    rig.close()
    assert ingested == [None, None, b"3", b"4"]


@pytest.mark.parametrize("lost", ["all", "the later orders"])
def test_a_cancel_is_remembered_when_the_store_is_lost(delay: DelayRig, lost: str) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + HOUR_MS, born_ms=now)
    delay.add(2, now + 1_000, born_ms=now)
    delay.settle()
    backup = delay.disks.stores[0]
    backup.flush()
    damaged_disks = Disks()
    damaged_disks.stores[0] = type(backup)()
    damaged_disks.stores[0].__dict__.update(backup._durable)
    delay.cancel(1, born_ms=now)
    delay.add(3, now + HOUR_MS, born_ms=now)
    delay.settle()
    delay.cancel(3, born_ms=now)
    delay.advance(1)
    delay.service.close()
    delay.disks = Disks() if lost == "all" else damaged_disks
    delay.start()
    delay.settle()
    assert [code_of_a_cancel(delay, number) for number in (1, 2, 3)] == [CANCELLED, ALREADY_FIRED, CANCELLED]
    fired = [one.fired_at_ms for one in delay.outcomes() if one.code == ALREADY_FIRED]
    assert max(fired) <= delay.clock.wall_ms(), "nothing fired in the future"
    delay.advance(2 * HOUR_MS / 1e3)
    assert delay.bodies() == [b"2"]


def test_a_reschedule_is_not_applied_to_a_later_delivery(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    delay.add(1, now + 1_000, born_ms=now, kind=SCHEDULE, schedule=Schedule(period_ms=HOUR_MS, repeat=3))
    delay.settle()
    delay.fire_now(1, born_ms=now)
    delay.settle()
    delay.ring()
    assert len(delay.bodies()) == 1
    delay.service.close()
    delay.disks.stores[
        0
    ]._meta.clear()  # as a salvaged store: what is there is there, how far it is is not known
    delay.start()
    delay.ring()
    assert len(delay.bodies()) == 1, "the order to fire now has been carried out before"


def test_putting_off_one_delivery_brings_no_burst(delay: DelayRig) -> None:
    now = delay.clock.wall_ms()
    rest = {"kind": LOOP, "interval_s": 3, "times": 1_000, "expire_s": now // 1_000 + 10**6}
    delay.add(1, now + 3_000, **rest)
    delay.add(2, now + 3_000, kind=SCHEDULE, schedule=Schedule(period_ms=3_000, repeat=-1, catch_up="all"))
    delay.settle()
    delay.reschedule(1, now + 33_000)
    delay.reschedule(2, now + 33_000)
    delay.settle()
    for second in range(1, 40):
        delay.advance(1)
        expected = 0 if second < 33 else 2 * ((second - 33) // 3 + 1)
        assert len(delay.bodies()) == expected, f"second {second}"


def test_what_was_missed_after_a_delivery_that_was_put_off_still_comes() -> None:
    order = DelayCommand("add", "u", "t", LOOP, 0, 0, 10**9, 3, 10**6)
    occurrence = next_after(order, 5, 60_000, put_off_ms=30_000)
    assert occurrence is not None
    assert (occurrence.occurrence, occurrence.due_ms) == (11, 33_000)


def test_batches_of_orders_leave_no_cycle_behind(delay: DelayRig) -> None:
    """Each has the bodies of its messages, which a collection now and then would find much later."""
    gc.collect()
    gc.disable()
    try:
        delay.add(1, delay.clock.wall_ms() + HOUR_MS, bytes(100_000))
        delay.cancel(1)
        delay.settle()
        assert not [one for one in gc.get_objects() if isinstance(one, CommandRun)]
    finally:
        gc.enable()


def test_a_move_behind_an_early_fire_outlives_the_message_in_the_store(delay: DelayRig) -> None:
    """Its block is damaged: the log knows that the first delivery fired early, and which one was moved."""
    now = delay.clock.wall_ms()
    delay.add(1, now + HOUR_MS, born_ms=now, kind=SCHEDULE, schedule=Schedule(period_ms=HOUR_MS, repeat=2))
    delay.settle()
    delay.fire_now(1, born_ms=now)
    delay.settle()
    delay.ring()
    delay.reschedule(1, now + 60_000, born_ms=now + 10)
    delay.settle()
    delay.service.drain(delay.clock.monotonic()).wait(20)
    store = delay.disks.stores[0]
    store._meta.clear()
    [message] = store._due.messages.values()
    store.write(StoreChanges(removed=[message], ids={message.uuid: None}))
    delay.clock.advance(20)
    delay.start()
    delay.advance(30)
    assert len(delay.bodies()) == 1
    delay.advance(31)
    assert len(delay.bodies()) == 2, "the second delivery comes when it was moved to"
    delay.advance(3 * HOUR_MS / 1e3)
    assert len(delay.bodies()) == 3
    assert delay.fired_to() == 3, "nothing of it is left unfinished"


def test_a_service_with_stores_elsewhere_loses_and_doubles_nothing_that_the_log_has(delay: DelayRig) -> None:
    """Another `dir` over the same log: its stores are empty, and filled from the log; and back again."""
    now, here, elsewhere = delay.clock.wall_ms(), delay.disks, Disks()
    for number in range(1, 7):
        delay.add(number, now + (number + 1) // 2 * 10_000, born_ms=now)
    delay.settle()
    delay.cancel(2, born_ms=now)
    delay.settle()
    expected: list[bytes] = []
    for disks, fired, cancelled in ((here, [b"1"], 4), (elsewhere, [b"3"], 6), (here, [b"5"], 0)):
        delay.service.drain(delay.clock.monotonic()).wait(20)
        delay.disks = disks
        delay.start()
        if cancelled:
            delay.cancel(cancelled, born_ms=delay.clock.wall_ms())
        delay.settle()
        delay.advance(10)
        expected += fired
        assert delay.bodies() == expected
    assert [code_of_a_cancel(delay, number) for number in (2, 4, 6)] == [CANCELLED] * 3
    delay.advance(60)
    assert delay.bodies() == expected


@pytest.mark.parametrize("how", ["cancelled", "moved again", "passed over"])
def test_what_was_decided_before_a_crash_is_finished_after_it(
    delay: DelayRig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the store's write and its commit: no offset stays unfinished for good."""
    now = delay.clock.wall_ms()
    catch_up = "skip" if how == "passed over" else "all"
    delay.add(
        1, now + HOUR_MS, kind=SCHEDULE, schedule=Schedule(period_ms=1_000, repeat=1, catch_up=catch_up)
    )
    delay.settle()
    delay.reschedule(1, now + 2 * HOUR_MS)
    delay.settle()
    monkeypatch.setattr(delay.backend, "commit", lambda batch, deadline: Completion())
    if how == "cancelled":
        delay.cancel(1)
    elif how == "moved again":
        delay.reschedule(1, now + 3 * HOUR_MS)
    else:
        delay.clock.advance(3 * HOUR_MS / 1e3)
    store = delay.disks.stores[0]
    delay.until(lambda: delay.alarms.ring() or store.meta(UNRECORDED), "the store has it")
    delay.service.close()
    monkeypatch.undo()
    delay.start()
    delay.settle()
    delay.advance(4 * HOUR_MS / 1e3)
    delay.advance(1)
    assert len(delay.bodies()) == (1 if how == "moved again" else 0)
    bounds = done(delay.backend.bounds([delay.queue(DELAY_TOPIC)]))[0]
    assert delay.fired_to() == bounds.next, "nothing of it is left unfinished"
    delay.add(2, delay.clock.wall_ms() + HOUR_MS)
    delay.settle()
    assert delay.disks.stores[0].meta(UNRECORDED) is None, "and nothing is noted for ever"
