"""A service over a store with a block damaged at random: it costs nothing while the log has the orders.

Messages are due long after the restart, so that only what is pending then can be delivered.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from backend.records import QueueRef
from ddmq_common.delays.command import SCHEDULE, Schedule
from ddmq_common.names import OUTCOME_TOPIC
from ddmq_common.rocks.database import RocksOptions
from delay_service.store.copies import copies_of
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore
from tests.crash.delay_store.store_images import flip, settle
from tests.service.delay.delay_rig import DelayRig, Disks
from tests.support.waits import PATIENCE_S, until

SMALL = RocksOptions(write_buffer_bytes=128 << 10, block_bytes=2 << 10)
LATER_MS = 3_600_000
COUNT = 300
CANCELLED, MOVED, LOOPS = range(40), range(40, 60), range(60, 70)


class Folder(Disks):
    """Real stores."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        return open_store(self.folder, queue.queue_id, epoch, SMALL)

    def newest(self) -> Path:
        return copies_of(self.folder, 0)[-1].path


def loaded(folder: Path) -> DelayRig:
    """Messages of every kind, due an hour from now, some cancelled or moved; loops have fired once."""
    rig = DelayRig(disks=Folder(folder))
    rig.make("orders")
    rig.make(OUTCOME_TOPIC)
    now = rig.clock.wall_ms()
    for number in range(COUNT):
        rest = {}
        due = now + LATER_MS + number
        if number in LOOPS:
            due = now + 1_000
            rest = {"kind": SCHEDULE, "schedule": Schedule(period_ms=LATER_MS, repeat=2)}
        rig.add(number, due, b"%d-" % number + bytes(200), born_ms=now, **rest)
    rig.settle()
    for number in CANCELLED:
        rig.cancel(number, born_ms=now)
    for number in MOVED:
        rig.reschedule(number, now + 2 * LATER_MS, born_ms=now)
    rig.settle()
    rig.advance(1)
    return rig


def stopped(rig: DelayRig) -> None:
    """As a process that ends; its store has closed."""
    rig.service.drain(rig.clock.monotonic()).wait(PATIENCE_S)


def deliveries(rig: DelayRig) -> list[int]:
    return sorted(int(body.partition(b"-")[0]) for body in rig.bodies())


def expected(hour: int) -> list[int]:
    """What has been delivered so many hours after the first second."""
    once = [number for number in range(COUNT) if number not in (*CANCELLED, *MOVED, *LOOPS)]
    numbers = [number for _ in range(hour + 1) for number in LOOPS]
    return sorted(numbers + (once if hour else []) + (list(MOVED) if hour > 1 else []))


def damage(path: Path, random: Random) -> None:
    """A bit of a table, a table that is gone, or the list of tables."""
    kind = random.choice(("table", "table", "table", "CURRENT", "MANIFEST-*"))
    if kind == "CURRENT":
        (path / "CURRENT").unlink()
    elif kind == "MANIFEST-*":
        newest = max(path.glob(kind))
        newest.write_bytes(bytes(newest.stat().st_size))
    else:
        table = random.choice(sorted(path.glob("*.sst")))
        flip(table, random.randrange(table.stat().st_size), random.randrange(8))


def check(folder: Path, seed: int) -> None:
    random = Random(seed)
    rig = loaded(folder)
    try:
        stopped(rig)
        path = rig.disks.newest()  # type: ignore[attr-defined]
        settle(path)
        damage(path, random)
        rig.start()
        assert deliveries(rig) == expected(0), "nothing comes before its time, or once more"
        for hour in (1, 2):
            rig.clock.advance(LATER_MS / 1e3)
            expected_numbers = expected(hour)
            until(lambda: deliveries(rig) == expected_numbers or rig.advance(1), f"hour {hour}")  # noqa: B023
            stopped(rig)
            rig.start()  # it meets the damage that nobody has read yet, or has been salvaged before
        rig.advance(1)
        assert deliveries(rig) == expected(2)
        assert sum(rig.service.pending_counts().values()) == 0
        assert rig.value("ddmq_delay_stale_total") == 0
    finally:
        rig.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_store_delivers_later_messages(seed: int, tmp_path: Path) -> None:
    check(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 40))
def test_many_damaged_stores_deliver_later_messages(seed: int, tmp_path: Path) -> None:
    check(tmp_path, seed)
