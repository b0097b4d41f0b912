"""Disk space of what fired, was cancelled or was forgotten is given back, and memory stays bounded."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ddmq_common.rocks.database import RocksOptions
from delay_service.store import rocks_store
from delay_service.store.opening import open_store
from delay_service.store.port import DueKey, IdKind, IdState, Pending, StoreChanges
from delay_service.store.rocks_store import RocksStore
from tests.support.waits import until

OPTIONS = RocksOptions(write_buffer_bytes=256 << 10, file_bytes=256 << 10)
WAVE, BODY = 4_000, 1_000
FOREVER = 1 << 50


def wave(random: Random, number: int) -> list[Pending]:
    return [
        Pending(
            number * 1000 + random.randrange(1000),
            number * WAVE + index,
            0,
            "t",
            random.randbytes(16),
            "{}",
            b"m" * 16,
            1,
            0,
            b"",
            random.randbytes(BODY),
        )
        for index in range(WAVE)
    ]


def fire(store: RocksStore, until_ms: int) -> int:
    """Like the engine: in batches, ids kept for a while, then forgotten."""
    fired = 0
    while messages := store.due(until_ms, 500, FOREVER):
        ids: dict[bytes, IdState | None] = {
            one.uuid: IdState(IdKind.FIRED, one.due_ms, one.offset, until_ms + 2000) for one in messages
        }
        store.write(StoreChanges(removed=messages, ids=ids))
        fired += len(messages)
    while forgotten := store.forgettable(until_ms, 500):
        store.write(StoreChanges(ids=dict.fromkeys(forgotten)))
    return fired


@pytest.mark.slow
def test_waves_of_messages_leave_nothing_behind(tmp_path: Path) -> None:
    random = Random(1)
    store = open_store(tmp_path, 0, 1, OPTIONS)
    rocks_store_tidy_at, rocks_store.TIDY_AT = rocks_store.TIDY_AT, WAVE
    try:
        for number in range(10):
            messages = wave(random, number)
            for start in range(0, WAVE, 1000):
                batch = messages[start : start + 1000]
                ids: dict[bytes, IdState | None] = {
                    one.uuid: IdState(IdKind.PENDING, one.due_ms, one.offset) for one in batch
                }
                store.write(StoreChanges(added=batch, ids=ids))
            store.flush()
            if number:
                assert fire(store, number * 1000 - 1) == WAVE
            store.tidy()
            assert store.disk_bytes < 3 * WAVE * BODY + (4 << 20), f"wave {number}"
        fire(store, FOREVER)
        store.tidy()
        until(lambda: store.disk_bytes < 1 << 20)  # ids, which RocksDB compacts when it comes to them
        assert store.next_due() is None
    finally:
        rocks_store.TIDY_AT = rocks_store_tidy_at
        store.close()


def test_cancelled_messages_leave_nothing_behind(tmp_path: Path) -> None:
    """Cancels are single removals, out of their turn."""
    random = Random(2)
    store = open_store(tmp_path, 0, 1, OPTIONS)
    messages = wave(random, 1)
    store.write(StoreChanges(added=messages))
    random.shuffle(messages)
    for start in range(0, WAVE, 100):
        batch = [store.get(DueKey(one.due_ms, one.offset)) for one in messages[start : start + 100]]
        store.write(StoreChanges(removed=[one for one in batch if one is not None]))
    assert store.next_due() is None
    store.tidy()
    until(lambda: store.disk_bytes < 1 << 20)
    store.close()


@pytest.mark.slow
def test_the_space_of_large_bodies_is_reclaimed_although_few_left(tmp_path: Path) -> None:
    """Cancelled ones too, which lie behind what still waits."""
    random = Random(2)
    store = open_store(tmp_path, 0, 1, OPTIONS)
    waits = Pending(500, 1, 0, "t", b"u" * 16, "{}", b"m" * 16, 1, 0, b"", b"tiny")
    store.write(StoreChanges(added=[waits]))
    for offset in range(2, 82):
        large = waits._replace(due_ms=1_000, offset=offset, delivery=random.randbytes(1 << 20))
        store.write(StoreChanges(added=[large]))
        store.write(StoreChanges(removed=[large]))
    store.tidy()
    assert store.disk_bytes < 8 << 20
    assert store.next_due() == waits.key
    store.close()
