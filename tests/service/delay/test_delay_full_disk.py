"""A store that waits for its disk: nothing is begun meanwhile, nobody waits for it, then all goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from backend.records import QueueRef
from ddmq_common.clock import ManualClock
from delay_service.context import STALLED_S
from delay_service.store.port import DelayStore, StoreChanges
from delay_service.waiting.follow import REPORT_INTERVAL_S
from tests.service.delay.delay_rig import DelayRig, Disks, RetainedStore
from tests.support.compacting_memory import CompactingMemory

HOUR_MS = 3_600_000


class SlowStore(RetainedStore):
    """`full`: of what makes it larger; `stuck`: of anything. `asked`: how often."""

    full = stuck = False
    checks = 0

    def has_capacity(self, growing: bool) -> bool:
        self.checks += 1
        return not (self.stuck or (self.full and growing))

    def write(self, changes: StoreChanges) -> None:
        assert not self.stuck or not (changes.added or changes.removed), "a write would hold the hub up"
        super().write(changes)


class SlowDisks(Disks):
    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        return self.stores.setdefault(queue.queue_id, SlowStore())

    def are(self, full: bool = False, stuck: bool = False) -> None:
        for store in self.stores.values():
            store.full, store.stuck = full, stuck  # type: ignore[attr-defined]


@pytest.fixture
def disks() -> SlowDisks:
    return SlowDisks()


@pytest.fixture
def rig(disks: SlowDisks) -> Iterator[DelayRig]:
    rig = DelayRig(disks=disks)
    rig.make("orders")
    yield rig
    rig.close()


def test_due_messages_fire_while_ingestion_is_stopped(rig: DelayRig, disks: SlowDisks) -> None:
    now = rig.clock.wall_ms()
    rig.add(1, now + 1_000)
    rig.settle()
    disks.are(full=True)
    rig.add(2, now + 1_000)
    rig.advance(2)
    assert rig.bodies() == [b"1"]
    disks.are()
    rig.until(lambda: rig.bodies() == [b"1", b"2"] or rig.ring(), "it is taken in, and fires")


def test_nothing_fires_while_the_store_cannot_write(
    rig: DelayRig, disks: SlowDisks, caplog: pytest.LogCaptureFixture
) -> None:
    rig.add(1, rig.clock.wall_ms() + 1_000)
    rig.settle()
    disks.are(stuck=True)
    rig.add(2, rig.clock.wall_ms())
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            rig.advance(1)
        assert not caplog.records
        for _ in range(4):
            rig.advance(1)
    assert [record.getMessage() for record in caplog.records] == [
        f"delay shard 0 takes nothing in: its store has waited for the disk for {STALLED_S:.0f} s"
    ]
    assert rig.bodies() == []
    assert rig.ready()
    disks.are()
    rig.until(lambda: sorted(rig.bodies()) == [b"1", b"2"] or rig.ring(), "both fire")


def test_a_service_stops_while_its_store_cannot_write(rig: DelayRig, disks: SlowDisks) -> None:
    disks.are(stuck=True)
    rig.add(1, rig.clock.wall_ms())
    rig.settle()
    rig.service.close()
    disks.are()
    rig.start()
    rig.until(lambda: rig.bodies() == [b"1"] or rig.ring(), "its next owner takes it in")


def test_two_short_stalls_are_not_a_slow_disk(
    rig: DelayRig, disks: SlowDisks, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was to be taken in at either."""
    rig.add(1, rig.clock.wall_ms() + 10 * HOUR_MS)
    rig.settle()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            disks.are(stuck=True)
            rig.advance(1)
            disks.are()
            rig.advance(2 * STALLED_S)
    assert not caplog.records


def test_rows_are_followed_when_there_is_space(disks: SlowDisks, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    rig = DelayRig(backend=CompactingMemory(clock), clock=clock, disks=disks)
    rig.make("orders")
    rig.add(1, rig.clock.wall_ms() + 1_000)
    rig.settle()
    rig.service.close()
    disks.stores[0] = new_store = SlowStore()
    disks.are(full=True)
    rig.serve()
    rig.until(lambda: new_store.checks > 2 or rig.alarms.ring(), "it looks for room")
    with caplog.at_level(logging.INFO):
        clock.advance(REPORT_INTERVAL_S)
        rig.until(lambda: "is restored: 0 rows so far" in caplog.text, "it says how far it is")
    assert not rig.ready()
    assert not new_store.counts()
    disks.are()
    rig.until(lambda: rig.ready() or rig.alarms.ring(), "it has the row")
    rig.advance(2)
    assert rig.bodies() == [b"1"]
    rig.close()
