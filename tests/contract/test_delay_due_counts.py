"""The counters of waiting messages by due time, against a naive count, through any history and upgrades."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq_common.rocks.database import Rocks, WriteBatch
from delay_service.store import due_counts, layout
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore, DueTimeCounts, Pending, StoreChanges
from tests.contract.delay_store_kit import SMALL, STORES, message
from tests.examples import examples

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
STEPS = (1, 2, 30, 60, 360, 1_440, 2_880)


def count_naively(
    messages: Iterable[Pending], topic: str | None, start: int, end: int, step: int
) -> DueTimeCounts:
    minutes = [one.due_ms // MINUTE for one in messages if topic in (None, one.topic)]
    counts = Counter(minute - minute % step for minute in minutes if start <= minute < end)
    first = min(minutes) // 60 * 60 if minutes else None
    last = (max(minutes) // 60 + 1) * 60 if minutes else None
    before, after = sum(minute < start for minute in minutes), sum(minute >= end for minute in minutes)
    return DueTimeCounts(dict(counts), before, after, first, last, complete=True)


def check_counts(store: DelayStore, messages: Iterable[Pending]) -> None:
    waiting = list(messages)
    for step in STEPS:
        for topic in (None, "a", "ab", "nothing"):
            for start, end in ((0, 40 * step), (step, 3 * step), (0, 4 * 2_880)):
                expected = count_naively(waiting, topic, start, end, step)
                assert store.count_due(topic, start, end, step) == expected


def some_messages(seed: int, count: int, first: int = 0) -> list[Pending]:
    choose = random.Random(seed)
    spans = (MINUTE, HOUR, DAY, 3 * DAY)
    return [
        message(choose.randrange(choose.choice(spans)), first + number, choose.choice(("a", "ab", "b")))
        for number in range(count)
    ]


@pytest.mark.parametrize("rows", [0, 1, 256])
@pytest.mark.parametrize("kind", list(STORES))
def test_counters_follow_adds_removals_and_deferrals(
    kind: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_counts, "ROWS_MAX", rows)
    store = STORES[kind](tmp_path)
    stored = some_messages(1, 300)
    store.write(StoreChanges(added=stored))
    check_counts(store, stored)
    store.write(StoreChanges(deferred=stored[:60]))
    check_counts(store, stored)
    moved = [one._replace(due_ms=one.due_ms + 7 * MINUTE) for one in stored[100:150]]
    gone = StoreChanges(removed_deferred=stored[:20], undeferred=stored[20:30], removed=stored[100:200])
    gone.added = moved
    store.write(gone)
    check_counts(store, [*stored[20:100], *moved, *stored[200:]])
    store.close()


class CountedShard:
    """A store, and what must be in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.epoch = 1
        self.store = open_store(folder, 1, 1, SMALL)
        self.waiting: dict[int, Pending] = {}
        self.number = 0

    def add(self, seed: int, count: int) -> None:
        fresh = some_messages(seed, count, self.number)
        self.number += count
        self.store.write(StoreChanges(added=fresh))
        self.waiting |= {one.offset: one for one in fresh}

    def remove(self, seed: int, count: int) -> None:
        chosen = random.Random(seed).sample(sorted(self.waiting), min(count, len(self.waiting)))
        self.store.write(StoreChanges(removed=[self.waiting.pop(offset) for offset in chosen]))

    def reopen(self) -> None:
        self.epoch += 1
        self.store.close()
        self.store = open_store(self.folder, 1, self.epoch, SMALL)

    def clone(self) -> None:
        """Continue on a copy of the files as they are: what a killed process leaves behind."""
        before, self.epoch = self.store, self.epoch + 1
        self.store = open_store(self.folder, 1, self.epoch, SMALL)
        before.close()

    def use_earlier_release(self, seed: int) -> None:
        """Close the store, and change it as a release without counters does."""
        self.epoch += 1
        self.store.close()
        store = open_store(self.folder, 1, self.epoch, SMALL)
        folder = store.folder
        store.close()
        fresh = some_messages(seed, 5, self.number)
        self.number += 5
        database = Rocks(folder, SMALL)
        batch = WriteBatch()
        batch.put(layout.META + b".epoch", b"%d" % (self.epoch + 1))
        for one in fresh:
            batch.put(layout.due_key(one.due_ms, one.offset), layout.encode_pending(one))
        self.waiting |= {one.offset: one for one in fresh}
        for topic, count in Counter(one.topic for one in self.waiting.values()).items():
            batch.put(layout.COUNT + topic.encode(), layout.encode_count(count, 0, count))
        database.write(batch)
        database.close()
        self.epoch += 1
        self.store = open_store(self.folder, 1, self.epoch, SMALL)

    def count_older(self, count: int) -> None:
        self.store.count_older(count)

    def check(self) -> None:
        total = self.store.count_due(None, 0, 4 * 2_880, 1_440)
        if total.complete:
            check_counts(self.store, self.waiting.values())
        else:
            assert sum(total.counts.values()) <= len(self.waiting)


STEP = st.tuples(
    st.sampled_from(["add", "remove", "remove", "count_older", "reopen", "clone", "use_earlier_release"]),
    st.integers(0, 1_000),
    st.integers(1, 40),
)


@pytest.mark.slow  # it writes to the disk
@settings(max_examples=examples(40), deadline=None)
@given(history=st.lists(STEP, max_size=14), cached=st.integers(0, 8), rows=st.integers(0, 3))
def test_counters_equal_a_naive_count_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]], cached: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_counts, "CACHED_BLOCKS_MAX", cached)
        patch.setattr(due_counts, "ROWS_MAX", rows)
        shard = CountedShard(tmp_path_factory.mktemp("shard"))
        for name, seed, count in history:
            if name in ("add", "remove"):
                getattr(shard, name)(seed, count)
            elif name == "count_older":
                shard.count_older(count)
            elif name == "use_earlier_release":
                shard.use_earlier_release(seed)
            else:
                getattr(shard, name)()
            shard.check()
        while shard.store.count_older(7):
            pass
        shard.check()
        assert shard.store.count_due(None, 0, 1, 1).complete
        shard.store.close()


def test_a_store_without_counters_is_counted_while_it_is_used(tmp_path: Path) -> None:
    shard = CountedShard(tmp_path)
    shard.add(1, 200)
    shard.use_earlier_release(2)
    assert not shard.store.count_due(None, 0, 1, 1).complete
    assert shard.store.count_older(50)
    shard.add(3, 100)
    shard.remove(4, 150)
    shard.reopen()
    assert not shard.store.count_due(None, 0, 1, 1).complete, "a restart continues"
    while shard.store.count_older(50):
        shard.add(5, 10)
    check_counts(shard.store, shard.waiting.values())
    shard.store.close()


def test_counters_that_do_not_add_up_are_made_again(tmp_path: Path) -> None:
    shard = CountedShard(tmp_path)
    shard.add(1, 50)
    shard.remove(1, 20)
    folder = shard.store.folder
    shard.store.close()
    database = Rocks(folder, SMALL)
    batch = WriteBatch()
    batch.delete(layout.count_row_key(1))
    database.write(batch)
    database.close()
    shard.store = open_store(tmp_path, 1, 2, SMALL)
    assert not shard.store.count_due(None, 0, 1, 1).complete
    while shard.store.count_older(9):
        pass
    check_counts(shard.store, shard.waiting.values())
    shard.store.close()
