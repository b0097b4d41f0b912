"""DueScans: a storm of one topic, and who gets past it."""

from __future__ import annotations

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
