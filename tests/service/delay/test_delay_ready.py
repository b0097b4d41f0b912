"""When a server says that it is ready, and what a listing of what waits reads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest

from backend.completion import Completion
from backend.ownership.table import REVOKE_S
from backend.port import Assignment, Health, Join
from backend.records import QueueRef, ReadBatch
from ddmq.server.admin.contract.queries import DelaysQuery
from ddmq.server.delays.choice import DelayChoice
from ddmq.server.delays.lists import PAGE_BYTES, DelayLists
from ddmq.server.delays.owners import CATCH_UP_S, DelayOwners
from ddmq.server.delays.queries import DelayQueries
from ddmq.server.http.routing import AdminRequest
from ddmq.server.process.server_process import ServerProcess
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import shard_of
from ddmq_common.errors import TryLaterError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC
from delay_service.config import DelayConfig
from delay_service.service import DelayService
from delay_service.store.port import DelayStore, Pending, Scan
from tests.played_memory import PlayedMemory
from tests.service.delay.delay_rig import DelayRig, Disks, RetainedStore, uuid_of
from tests.service.delay.hand_alarm import HandAlarms

MIB = 1 << 20
HOUR_MS = 3_600_000


class BlockedDisks(Disks):
    """Opening takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        assert self.go_on.wait(20)
        return super().open(queue, epoch)


@pytest.fixture
def rig() -> DelayRig:
    delay_rig = DelayRig(DelayConfig(shards=2))
    delay_rig.make("orders")
    return delay_rig


def server_health(rig: DelayRig) -> Health:
    """As `/ready` asks it, with levels that run."""
    levels = SimpleNamespace(health=lambda: Health(True, ""))
    process = SimpleNamespace(_draining=False, backend=rig.backend, delay=levels, timers=rig.service)
    return ServerProcess.health(cast(Any, process))


def test_a_server_is_ready_when_every_delay_shard_fires(rig: DelayRig) -> None:
    rig.service.drain(rig.clock.monotonic()).wait(20)
    assert not server_health(rig).ready
    disks, alarms = BlockedDisks(), HandAlarms()
    rig.service = DelayService(rig.backend, rig.config, Registry(), rig.clock, disks.open, alarms=alarms)
    rig.service.start()
    rig.until(lambda: len(rig.service.shards) == 2, "the shards are granted")
    for _ in range(5):
        alarms.ring()
        rig.until(lambda: True, "the hub has run")
        health = server_health(rig)
        assert (health.ready, health.reason) == (False, "delay shard 0 does not fire: it is being opened")
    assert not rig.service.started.done
    disks.go_on.set()
    rig.until(lambda: server_health(rig).ready or alarms.ring(), "every shard fires")
    assert rig.service.started.done


def test_nothing_is_listed_while_the_engine_is_away(
    rig: DelayRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty list would say that nothing waits."""
    away = Health(False, "the cluster does not answer")
    monkeypatch.setattr(rig.backend, "health", lambda: away)
    lists = DelayLists(DelayOwners(rig.backend, rig.service, rig.clock))
    with pytest.raises(TryLaterError, match="the cluster does not answer"):
        lists.list_messages(AdminRequest({}, DelaysQuery(), {}))


@pytest.mark.parametrize("count", [1, 20])
def test_a_listing_reads_a_bounded_number_of_bytes(
    rig: DelayRig, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of each shard one page at a time, whatever waits behind it."""
    due_ms = rig.clock.wall_ms() + HOUR_MS
    for number in range(60):
        rig.add(number, due_ms + number, bytes(MIB))
    rig.settle()
    pages: list[int] = []
    scan = RetainedStore.scan

    def counted(self: RetainedStore, request: Scan) -> list[Pending]:
        page = scan(self, request)
        pages.append(sum(len(one.delivery) for one in page))
        return page

    monkeypatch.setattr(RetainedStore, "scan", counted)
    lists = DelayLists(DelayOwners(rig.backend, rig.service, rig.clock))
    answer = lists.list_messages(AdminRequest({}, DelaysQuery(topic="orders", count=count), {}))
    assert len(answer["messages"]) == count
    assert max(pages) <= PAGE_BYTES + MIB + 1_000, "a page ends with the message that fills it"
    assert sum(pages) <= 2 * (PAGE_BYTES + MIB) + (count + 1) * 2 * MIB, "and no more pages than asked for"


@pytest.mark.parametrize("looked_max", [1, 7, 1_000])
def test_an_answer_looks_for_a_key_at_a_bounded_number_of_messages(
    rig: DelayRig, looked_max: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says where to go on, and in the end each was looked at once. Bodies may have the key's text, too."""
    monkeypatch.setattr("ddmq.server.delays.lists.EXAMINED_MAX", looked_max)
    due_ms = rig.clock.wall_ms() + HOUR_MS
    for number in range(60):
        rig.add(number, due_ms + number // 5, b"rare", key=b"rare" if number % 20 == 13 else b"other")
    rig.settle()
    lists = DelayLists(DelayOwners(rig.backend, rig.service, rig.clock))
    decoded: list[int] = []
    matches = DelayChoice.matches

    def counted(self: DelayChoice, message: Pending) -> bool:
        decoded[-1] += 1
        return matches(self, message)

    monkeypatch.setattr(DelayChoice, "matches", counted)
    due, number, after = [], 0, None
    while after is not None or not decoded:
        decoded.append(0)
        query = DelaysQuery(topic="orders", key="rare", after=after)
        answer = lists.list_messages(AdminRequest({}, query, {}))
        due += [row["due_ms"] for row in answer["messages"]]
        number += lists.count_messages(AdminRequest({}, query, {}))["count"]
        after = answer["next"]
    assert due == [due_ms + number // 5 for number in (13, 33, 53)]
    assert number == 3
    assert max(decoded) <= 2 * looked_max
    assert sum(decoded) == 2 * 60, "by the list and by the count"


class LateReads(PlayedMemory):
    """What is read is answered a moment later."""

    def read(self, *args: Any, **named: Any) -> Completion[ReadBatch]:
        late: Completion[ReadBatch] = Completion()
        now = super().read(*args, **named)
        now.then(lambda _: gevent.spawn_later(0.05, late.succeed, now.value))
        return late


def test_an_accepted_message_is_listed_at_once(tmp_path: Path) -> None:
    """By every question that looks into the store."""
    clock = ManualClock()
    rig = DelayRig(backend=LateReads(clock), clock=clock)
    try:
        owners = DelayOwners(rig.backend, rig.service, rig.clock)
        lists, delays = DelayLists(owners), DelayQueries(owners, tmp_path)
        request = AdminRequest({"id": uuid_of(2)}, DelaysQuery(topic="orders"), {})
        rig.add(0, clock.wall_ms() + HOUR_MS)
        assert lists.count_messages(request)["count"] == 1
        rig.add(1, clock.wall_ms() + HOUR_MS)
        assert len(lists.list_messages(request)["messages"]) == 2
        rig.add(2, clock.wall_ms() + HOUR_MS)
        assert delays.message(request)["state"] == "pending"
        rig.add(3, clock.wall_ms() + HOUR_MS)
        assert lists.describe_shards(request)["pending"] == 4
    finally:
        rig.close()


def orders_of(rig: DelayRig, number: int) -> list[int]:
    """By shard: one order about this one."""
    return [int(shard == shard_of(uuid_of(number), 2)) for shard in rig.service.shards]


def test_a_query_waits_a_bounded_time_for_ingestion_on_a_slow_loop(
    rig: DelayRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = ManualClock()
    began = clock.monotonic()

    def pass_on() -> None:
        while True:
            clock.advance(0.3)
            gevent.sleep(0.01)

    owners = DelayOwners(rig.backend, rig.service, clock)
    lists, delays = DelayLists(owners), DelayQueries(owners, tmp_path)
    monkeypatch.setattr(RetainedStore, "has_capacity", lambda *_, **__: False)
    rig.add(1, rig.clock.wall_ms() + HOUR_MS)
    passing = gevent.spawn(pass_on)
    overview = lists.describe_shards(AdminRequest({}, DelaysQuery(), {}))
    assert CATCH_UP_S <= clock.monotonic() - began < 2 * CATCH_UP_S
    assert overview["pending"] == 0
    assert [shard["orders_waiting"] for shard in overview["shards"]] == orders_of(rig, 1)
    request = AdminRequest({"id": uuid_of(1)}, DelaysQuery(topic="orders"), {})
    assert lists.list_messages(request)["orders_waiting"] == 1
    assert lists.count_messages(request)["exact"] is False
    with pytest.raises(TryLaterError, match="1 orders to take in"):
        delays.message(request)
    other = next(number for number in range(2, 99) if orders_of(rig, number) != orders_of(rig, 1))
    request = AdminRequest({"id": uuid_of(other)}, DelaysQuery(), {})
    assert delays.message(request)["state"] == "unknown", "of the other shard all is known"
    passing.kill()


class SlowMember:
    """Takes shards, and gives back what is asked for when its deadline has passed."""

    def assigned(self, assignment: Assignment) -> None: ...

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None: ...

    def lost(self, queues: Sequence[QueueRef]) -> None: ...


@pytest.mark.parametrize("others", [1, 2])
def test_a_service_without_shards_is_ready_when_others_have_them_all(rig: DelayRig, others: int) -> None:
    """Not while one of them is between two owners, and may come here."""
    rig.service.drain(rig.clock.monotonic()).wait(20)
    for _ in range(others):
        rig.backend.join(Join(DELAY_GROUP, DELAY_TOPIC), SlowMember())
    rig.until(lambda: rig.memory.holders(DELAY_GROUP, DELAY_TOPIC, 0).wait(20), "they have them")
    rig.advance(REVOKE_S + 1)
    rig.serve()
    for _ in range(3):
        rig.alarms.ring()
        rig.settle()
    assert rig.service.health().ready == rig.service.started.done == (others == 2)
    rig.clock.advance(REVOKE_S + 1)

    def has_its_share() -> bool:
        rig.alarms.ring()
        return rig.service.health().ready and len(rig.service.shards) == 2 - others

    rig.until(has_its_share, "it has its share")
