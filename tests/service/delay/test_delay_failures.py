"""Whatever fails once in a store leaves a shard that works again: opened anew, told in health, counted.

Every call of a store fails once, at every place in a run, as a disk (StorageError), as the system (OSError),
as a block that does not parse (DamagedError) or as a mistake of ours. Then everything is delivered, once.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from delay_rig import PATIENCE_S, Disks, KeptStore, Rig

from backend.records import QueueRef
from ddmq_common.delay_order import SCHEDULE, Schedule
from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.names import OUTCOME_TOPIC
from delay_service.store.port import DelayStore

CALLS = (
    "write",
    "flush",
    "due",
    "next_due",
    "get",
    "ids",
    "forgettable",
    "put_aside",
    "topics_put_aside",
    "meta",
)
KINDS: dict[str, Callable[[], Exception]] = {
    "storage": lambda: StorageError("the disk says no"),
    "system": lambda: OSError(errno.EMFILE, "too many open files"),
    "damage": lambda: DamagedError("a block does not parse"),
    "mistake": lambda: KeyError("a mistake"),
}


class FaultyStore(KeptStore):
    """Refuses everything after a failure, until it is opened again."""

    def __init__(self, disks: FaultyDisks) -> None:
        self.disks: Any = None
        super().__init__()
        self.disks = disks

    def _tried(self, name: str) -> None:
        if self.disks is not None:
            self.disks.tried(name)


def _faulty(name: str) -> Callable[..., Any]:
    def call(self: FaultyStore, *arguments: Any, **named: Any) -> Any:
        self._tried(name)
        return getattr(KeptStore, name)(self, *arguments, **named)

    return call


for _name in CALLS:
    setattr(FaultyStore, _name, _faulty(_name))


class FaultyDisks(Disks):
    """`fails_at`: of all calls after `armed`, which one fails; then all until the store is opened again."""

    def __init__(self, fails_at: int, kind: str) -> None:
        super().__init__()
        self.fails_at, self.kind = fails_at, kind
        self.armed = self.failed = False
        self.calls: list[str] = []
        self.failed_call = ""

    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        if self.failed:
            self.failed = False
            self.crash()
        found = self.stores.get(queue.queue_id)
        if found is None:
            found = self.stores[queue.queue_id] = FaultyStore(self)
        return found

    def __deepcopy__(self, _: object) -> FaultyDisks:
        return self

    def tried(self, name: str) -> None:
        if not self.armed:
            return
        if self.failed:
            raise StorageError("it failed before, close and open it")
        self.calls.append(name)
        if len(self.calls) == self.fails_at:
            self.failed, self.failed_call = True, name
            raise KINDS[self.kind]()


def run(fails_at: int, kind: str) -> tuple[Rig, FaultyDisks]:
    """One of everything, and what was delivered."""
    disks = FaultyDisks(fails_at, kind)
    rig = Rig(disks=disks)
    rig.make("orders")
    shut = rig.make("shut", writable=False)
    rig.make(OUTCOME_TOPIC)
    disks.armed = True
    now = rig.clock.wall_ms()
    rig.add(1, now + 1_000)
    rig.add(2, now + 2_000)
    rig.add(3, now + 1_000, kind=SCHEDULE, schedule=Schedule(period_ms=1_000, repeat=2, catch_up="all"))
    rig.add(4, now + 500, topic="shut")
    rig.add(5, now + 60_000)
    rig.settle()
    rig.cancel(2)
    rig.reschedule(1, now + 1_500)
    rig.fire_now(5)
    for step in range(8):
        rig.advance(0.5)
        if step == 5:
            rig.change(replace(shut, writable=True))
    rig.advance(6)
    give_up = time.monotonic() + PATIENCE_S
    while not (done(rig) and rig.ready()) and time.monotonic() < give_up:
        rig.advance(6)  # what was given up is had anew, after a pause that doubles
    return rig, disks


def done(rig: Rig) -> bool:
    return sorted(rig.bodies()) == [b"1", b"3", b"3", b"3", b"5"] and rig.bodies("shut") == [b"4"]


def check(rig: Rig, disks: FaultyDisks) -> None:
    where = f"{disks.failed_call} as call {disks.fails_at}"
    try:
        rig.until(rig.ready, f"the shard fires again after {where}")
        assert done(rig), f"{rig.bodies()}, {rig.bodies('shut')} after {where}"
        if disks.failed_call:
            assert rig.value("ddmq_delay_failed_total") >= 1, where
    finally:
        rig.close()


def test_without_failures_all_is_well() -> None:
    rig, disks = run(0, "storage")
    check(rig, disks)
    assert {"write", "flush", "due", "next_due", "get", "ids", "forgettable", "put_aside"} <= set(disks.calls)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_call_of_each_kind_fails(kind: str) -> None:
    rig, disks = run(0, kind)
    rig.close()
    for name in dict.fromkeys(disks.calls):
        check(*run(disks.calls.index(name) + 1, kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_call_fails(kind: str) -> None:
    rig, disks = run(0, kind)
    rig.close()
    for place in range(1, len(disks.calls) + 1):
        check(*run(place, kind))
