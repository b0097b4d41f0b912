"""DueScans: a storm of one topic, and who gets past it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from backend.progress.ack_map import AckMap
from ddmq_common.delays.command import ADD, DelayCommand, encode_command
from ddmq_common.delivery import decode, encode
from delay_service.core.due_scans import DueScans, SliceLimits
from delay_service.core.fire_command import with_key
from delay_service.due.backend import TargetTopic
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import Pending, StoreChanges

NOW = 1_700_000_000_000


def message(offset: int, due_ms: int, topic: str) -> Pending:
    uuid = f"00000000-0000-0000-0000-{offset:012d}"
    order = encode_command(DelayCommand(ADD, uuid, topic, due_ms=due_ms, timestamp_s=due_ms // 1000))
    return Pending(
        due_ms,
        offset,
        0,
        topic,
        bytes.fromhex(uuid.replace("-", "")),
        order,
        bytes(16),
        1,
        0,
        b"",
        encode(b"", b"x", b"", None),
    )


class Firing:
    """DueScans whose commits succeed at once."""

    def __init__(self, messages: list[Pending]) -> None:
        self.store = MemoryDelayStore()
        self.store.write(StoreChanges(added=messages))
        self.due_scans = DueScans(
            self.store, AckMap(), lambda _: TargetTopic(1, True), SliceLimits(64, 1 << 20, 1)
        )
        self.due_scans.on_added(messages)
        self.slices: list[list[Pending]] = []

    def run(self, now: int) -> None:
        """Until nothing is due."""
        while self.slice(now):
            pass

    def slice(self, now: int) -> bool:
        """One; False when nothing is due."""
        plan = self.due_scans.plan_fires(now)
        if plan.fires:
            self.slices.append([one.message for one in plan.fires])
            self.due_scans.on_commit_done(plan.fires, True)
            self.store.write(self.due_scans.changes_of(plan.fires, now))
        return bool(plan.fires)

    def slice_of(self, offset: int) -> int:
        return next(n for n, one in enumerate(self.slices) if any(m.offset == offset for m in one))


def test_what_is_due_behind_a_storm_of_one_millisecond_does_not_wait_for_it() -> None:
    storm = [message(offset, NOW, "storm") for offset in range(10_000)]
    others = [message(20_000 + n, NOW + n, "other") for n in range(1, 200, 10)]
    firing = Firing([*storm, *others])
    firing.run(NOW + 200)
    assert sum(map(len, firing.slices)) == 10_020
    assert max(firing.slice_of(one.offset) for one in others) <= 2, "of more than 150 slices"


@pytest.mark.slow
def test_what_becomes_due_during_a_storm_is_not_late() -> None:
    """Twenty messages of the storm become due in a millisecond, and a slice of 64 takes five."""
    storm = [message(offset, NOW + offset // 20, "storm") for offset in range(20_000)]
    others = [message(30_000 + n, NOW + n, "other") for n in range(3, 1_000, 7)]
    firing = Firing([*storm, *others])
    late: list[int] = []
    now = NOW
    while firing.slice(now):
        late += [now - one.due_ms for one in firing.slices[-1] if one.topic == "other"]
        now += 5
    assert len(late) == len(others)
    assert sum(map(len, firing.slices)) == 20_000 + len(others)
    late.sort()
    assert late[-1] <= 50, "the storm itself takes more than a second and a half"


def test_every_message_of_many_topics_fires_once_though_the_lanes_cross() -> None:
    messages = [message(offset, NOW + offset % 97, f"t{offset % 3}") for offset in range(5_000)]
    firing = Firing(messages)
    firing.run(NOW + 97)
    fired = [one.offset for batch in firing.slices for one in batch]
    assert sorted(fired) == list(range(5_000))
    assert not firing.store.counts()


def test_a_key_in_front_of_delivery_bytes_is_what_encoding_gives() -> None:
    for tag, properties in ((b"", None), (b"t", None), (b"", {b"a": b"b"}), (b"t", {b"a": b"b"})):
        for value in (b"", b"v" * 200, b"v" * 20_000):
            put = with_key(encode(b"", value, tag, properties), b"k" * 90)
            assert put == encode(b"k" * 90, value, tag, properties)
            assert decode(put).key == b"k" * 90
            assert with_key(put, b"another") == put


class CountedStore(MemoryDelayStore):
    """Counts the messages that are read, by topic."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()

    def due(self, *arguments: Any) -> list[Pending]:
        return self._counted(super().due(*arguments))

    def read_deferred(self, *arguments: Any) -> list[Pending]:
        return self._counted(super().read_deferred(*arguments))

    def _counted(self, messages: list[Pending]) -> list[Pending]:
        self.read.update(message.topic for message in messages)
        return messages


class Holding(Firing):
    """The same with topics that are held."""

    def __init__(self, messages: list[Pending]) -> None:
        super().__init__(messages)
        self.held: set[str] = set()
        self.store = self.counted = CountedStore()
        self.store.write(StoreChanges(added=messages))
        self.due_scans = DueScans(
            self.store,
            AckMap(),
            lambda topic: TargetTopic(1, topic not in self.held),
            SliceLimits(64, 1 << 20, 1),
        )
        self.due_scans.on_added(messages)

    def slice(self, now: int) -> bool:
        plan = self.due_scans.plan_fires(now)
        if plan.changes is not None:
            self.store.write(plan.changes)
        self.slices.append([one.message for one in plan.fires])
        self.due_scans.on_commit_done(plan.fires, True)
        self.store.write(self.due_scans.changes_of(plan.fires, now))
        return bool(plan.fires) or plan.changes is not None

    def release(self, topic: str, now: int) -> None:
        self.held.discard(topic)
        self.due_scans.on_released(topic, now)

    def fired(self, topic: str) -> list[int]:
        return [one.offset for batch in self.slices for one in batch if one.topic == topic]


def test_what_is_held_is_read_once_and_not_again_until_its_release() -> None:
    held = [message(offset, NOW + offset // 50, "held") for offset in range(5_000)]
    others = [message(10_000 + n, NOW + n, "other") for n in range(0, 200, 5)]
    firing = Holding([*held, *others])
    firing.held.add("held")
    firing.run(NOW + 200)
    assert firing.fired("held") == []
    assert len(firing.fired("other")) == len(others)
    assert max(firing.slice_of(one.offset) for one in others) <= 4, "nobody waits for 5,000 that are held"
    before = firing.counted.read["held"]
    assert before <= 2 * len(held), "by the scan of what is due, and the one that looks ahead"
    for _ in range(1_000):
        firing.slice(NOW + 200)
    assert firing.counted.read["held"] == before, "not one of them is read again"
    assert firing.due_scans.wake_ms() is None, "and it sleeps"
    assert firing.store.counts() == {"held": 5_000}


def test_what_was_overdue_at_the_release_fires_in_due_order() -> None:
    """Most is aside by then and some is not yet; what falls due later does not wait for it."""
    held = [message(offset, NOW + offset, "held") for offset in range(1_000)]
    later = [message(10_000 + n, NOW + 1_010 + n, "held") for n in range(10)]
    firing = Holding([*held, *later])
    firing.held.add("held")
    for _ in range(10):
        firing.slice(NOW + 1_000)
    assert len(firing.store.read_deferred("held", 5_000)) == 10 * 64
    firing.release("held", NOW + 1_000)
    firing.slice(NOW + 1_000)
    now = NOW + 1_020
    firing.run(now)
    order = firing.fired("held")
    assert [offset for offset in order if offset < 10_000] == list(range(1_000))
    assert sorted(offset for offset in order if offset >= 10_000) == [one.offset for one in later]
    assert order.index(later[-1].offset) < order.index(999)
    assert not firing.store.counts()


def test_a_release_alone_is_as_fast_as_any_backlog() -> None:
    held = [message(offset, NOW, "held") for offset in range(6_400)]
    firing = Holding(held)
    firing.held.add("held")
    firing.run(NOW)
    slices = len(firing.slices)
    firing.release("held", NOW)
    firing.run(NOW)
    assert len(firing.slices) - slices <= 6_400 // 64 + 2, "whole slices"


def test_a_release_does_not_hold_up_a_storm_of_another_topic() -> None:
    held = [message(offset, NOW, "held") for offset in range(640)]
    firing = Holding(held)
    firing.held.add("held")
    firing.run(NOW)
    storm = [message(10_000 + n, NOW + 1, "storm") for n in range(6_400)]
    firing.store.write(StoreChanges(added=storm))
    firing.due_scans.on_added(storm)
    firing.release("held", NOW + 1)
    firing.slice(NOW + 1)
    topics = Counter(one.topic for one in firing.slices[-1])
    assert topics == {"storm": 64, "held": 16}
