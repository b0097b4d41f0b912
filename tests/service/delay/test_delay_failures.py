"""Whatever fails once in a store leaves a shard that works again: opened anew, told in health, counted.

Every call of a store fails once, at every place in a run, as a disk (StorageError), as the system (OSError),
as a block that does not parse (DamagedError) or as a mistake of ours. Then everything is delivered, once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pytest

from backend.completion import Completion
from backend.records import CommitBatch, QueueRef
from ddmq.server.admin.contract.queries import DelaysQuery
from ddmq.server.delays.lists import DelayLists
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import SCHEDULE, Schedule, shard_of
from ddmq_common.errors import DamagedError, RemoteError, StorageError
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC, OUTCOME_TOPIC
from delay_service.config import DelayConfig
from delay_service.store.port import DelayStore
from tests.played_memory import PlayedMemory
from tests.service.delay.delay_rig import DelayRig, Disks, RetainedStore, uuid_of
from tests.support.waits import until

CALLS = (
    "write",
    "has_capacity",
    "flush",
    "due",
    "next_due",
    "get",
    "ids",
    "forgettable",
    "read_deferred",
    "deferred_topics",
    "meta",
)
KINDS: dict[str, Callable[[], Exception]] = {
    "storage": lambda: StorageError("the disk says no"),
    "system": lambda: OSError(errno.EMFILE, "too many open files"),
    "damage": lambda: DamagedError("a block does not parse"),
    "mistake": lambda: KeyError("a mistake"),
}


class FaultyStore(RetainedStore):
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
        return getattr(RetainedStore, name)(self, *arguments, **named)

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
        store = self.stores.get(queue.queue_id)
        if store is None:
            store = self.stores[queue.queue_id] = FaultyStore(self)
        return store

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


class PendingCommits(PlayedMemory):
    """Commits of what fires never reach it while it `holds`; the test ends them."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.holds = False
        self.pending: list[Completion[None]] = []

    def commit(self, batch: CommitBatch, deadline: float, *rest: Any) -> Any:
        if self.holds and batch.records:
            self.pending.append(Completion())
            return self.pending[-1]
        return super().commit(batch, deadline, *rest)


def run(fails_at: int, kind: str) -> tuple[DelayRig, FaultyDisks]:
    """One of everything, and what was delivered."""
    disks = FaultyDisks(fails_at, kind)
    rig = DelayRig(disks=disks)
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
    # what was given up is had anew, after a pause that doubles
    until(lambda: (done(rig) and rig.ready()) or rig.advance(6))
    return rig, disks


def done(rig: DelayRig) -> bool:
    return sorted(rig.bodies()) == [b"1", b"3", b"3", b"3", b"5"] and rig.bodies("shut") == [b"4"]


def check(rig: DelayRig, disks: FaultyDisks) -> None:
    where = f"{disks.failed_call} as call {disks.fails_at}"
    rig.until(rig.ready, f"the shard fires again after {where}")
    assert done(rig), f"{rig.bodies()}, {rig.bodies('shut')} after {where}"
    if disks.failed_call:
        assert rig.value("ddmq_delay_failed_total") >= 1, where


def test_without_failures_all_is_well() -> None:
    rig, disks = run(0, "storage")
    check(rig, disks)
    assert {"write", "flush", "due", "next_due", "get", "ids", "forgettable", "read_deferred"} <= set(
        disks.calls
    )


@pytest.mark.slow
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
    for failing_call in range(1, len(disks.calls) + 1):
        check(*run(failing_call, kind))


class BrokenDisks(FaultyDisks):
    """The store of shard 0 alone fails, and cannot be opened until `broken` ends."""

    def __init__(self) -> None:
        super().__init__(1, "storage")
        self.broken = False
        self.refused = 0

    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        if queue.queue_id:
            return Disks.open(self, queue, epoch)
        if self.broken:
            self.refused += 1
            raise StorageError("the disk says no")
        return super().open(queue, epoch)


def numbers_of(shard: int, count: int) -> list[int]:
    """Messages that this shard of two keeps."""
    return [number for number in range(1, 100) if shard_of(uuid_of(number), 2) == shard][:count]


def test_a_shard_that_fails_is_reopened_alone(tmp_path: Path) -> None:
    disks = BrokenDisks()
    rig = DelayRig(DelayConfig(shards=2), disks=disks)
    rig.make("orders")
    now = rig.clock.wall_ms()
    here, there = numbers_of(0, 1), numbers_of(1, 2)
    for number in here:
        rig.add(number, now + 1_000)
    rig.add(there[0], now + 1_000)
    rig.settle()
    rig.ring()  # it looks how far it is
    epochs = {number: shard.epoch for number, shard in rig.service.shards.items()}
    other = rig.service.shards[1]
    disks.armed = disks.broken = True
    rig.advance(1)
    rig.until(lambda: rig.alarms.ring() or disks.refused, "the shard is opened anew")
    rig.settle()
    assert rig.service.health().reason == "delay shard 0 does not fire: the disk says no"
    assert rig.bodies() == [b"%d" % there[0]]
    rig.add(there[1], now + 1_500)
    rig.add(here[0], now + 60_000)
    rig.advance(1)
    assert rig.value("ddmq_delay_ingest_lag", shard="0") == 1
    assert rig.value("ddmq_delay_ingest_lag", shard="1") == 0
    lists = DelayLists(DelayOwners(rig.backend, rig.service, rig.clock))
    request = AdminRequest({}, DelaysQuery(topic="orders"), {})
    assert lists.count_messages(request) == {
        "topic": "orders", "count": 0, "exact": False, "next": None, "held": {},
        "orders_waiting": 0, "elsewhere": [], "not_open": [0],
    }  # fmt: skip
    assert lists.list_messages(request)["not_open"] == [0]
    assert rig.bodies() == [b"%d" % number for number in there], "the other one goes on"
    disks.broken = False
    rig.until(lambda: rig.ring() or rig.ready(), "it fires again")
    assert rig.service.shards[1] is other
    assert {number: shard.epoch for number, shard in rig.service.shards.items()} == epochs
    rig.ring()
    assert sorted(rig.bodies()) == sorted(b"%d" % number for number in here + there)
    assert lists.count_messages(request)["exact"] is True


def test_the_backlog_of_a_shard_is_reported_by_the_proxy_that_cannot_open_it() -> None:
    disks = BrokenDisks()
    rig = DelayRig(DelayConfig(shards=2), disks=disks)
    rig.make("orders")
    here = numbers_of(0, 3)
    rig.add(here[0], rig.clock.wall_ms() + 60_000)
    rig.settle()
    rig.service.close()
    disks.broken = True
    rig.serve()
    for number in here[1:]:
        rig.add(number, rig.clock.wall_ms() + 60_000)
    rig.until(lambda: rig.value("ddmq_delay_ingest_lag", shard="0") == 2 or rig.ring(), "it is told")
    rig.service.lost([rig.queue(DELAY_TOPIC, 0)])
    assert rig.value("ddmq_delay_ingest_lag", shard="0") == 0
    rig.close()


def test_a_shard_with_an_uncertain_commit_gets_a_new_epoch() -> None:
    """A store fails while a commit is under way, of which nobody hears: opened anew under the old epoch, it
    could fire what that commit fires yet."""
    disks = FaultyDisks(1, "storage")
    backend = PendingCommits(ManualClock())
    rig = DelayRig(backend=backend, clock=backend.clock, disks=disks)
    rig.make("orders")
    now = rig.clock.wall_ms()
    rig.add(1, now + 1_000)
    rig.settle()
    epoch = rig.service.shards[0].epoch
    backend.holds = True
    rig.clock.advance(1)
    rig.until(lambda: rig.alarms.ring() or backend.pending, "a commit is under way")
    disks.armed = True
    rig.add(2, now + 60_000)
    rig.until(lambda: disks.failed_call, "the store has failed")
    gevent.sleep(0)
    assert not rig.service.shards[0].is_idle, "the commit is waited for"
    backend.holds = False
    backend.pending.pop().fail(RemoteError("no answer"))
    rig.until(lambda: rig.ring() or rig.ready(), "it fires again")
    assert rig.service.shards[0].epoch > epoch
    rig.ring()
    assert rig.bodies() == [b"1"]


def test_what_a_full_store_cannot_ingest_waits_in_the_log_and_is_reported() -> None:
    """Adds are answered 0 by the log, which keeps them until the store has taken them in, over restarts too.
    That nothing fires is seen: in the health, by what failed, by how long something may have been due."""
    disks = BrokenDisks()
    rig = DelayRig(disks=disks)
    rig.make("orders")
    rig.advance(2)  # it is known that nothing waits
    now = rig.clock.wall_ms()
    disks.armed = disks.broken = True
    for number in range(1, 6):
        rig.add(number, now + 1_000)
    rig.until(lambda: rig.alarms.ring() or disks.refused, "the store refuses")
    rig.advance(5)
    for run in range(2):
        rig.advance(60)
        health = rig.service.health()
        assert (health.ready, health.reason) == (False, "delay shard 0 does not fire: the disk says no")
        assert rig.value("ddmq_delay_failed_total", reason="StorageError") > 0
        assert rig.value("ddmq_delay_overdue_ms", shard="0") >= 60_000
        progress = rig.backend.progress(DELAY_GROUP, [rig.queue(DELAY_TOPIC)]).wait(20)[0]
        assert not progress.committed, "retention leaves in the log what is not taken in"
        if not run:
            rig.service.close()
            disks.refused = 0
            rig.serve()
            rig.until(lambda: rig.alarms.ring() or disks.refused, "it refuses on")
    assert rig.bodies() == []
    disks.broken = False
    rig.until(lambda: rig.ring() or rig.ready(), "it fires again")
    rig.ring()
    assert sorted(rig.bodies()) == [b"%d" % number for number in range(1, 6)]
    rig.advance(2)
    assert rig.value("ddmq_delay_overdue_ms", shard="0") == 0
