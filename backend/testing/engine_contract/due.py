"""A due time relative to the record's own store time: exact, however late the store gets to it."""

from __future__ import annotations

import gevent
import pytest

from backend.records import CommitBatch
from backend.testing.kit import Kit
from backend.testing.waits import done


@pytest.mark.parametrize("wait_ms", [1, 1_000, 7_200_000, 366 * 86_400_000])
def test_due_is_so_long_after_it_was_stored(kit: Kit, wait_ms: int) -> None:
    kit.make("held")
    kit.append(kit.new("held", due_ms=-wait_ms), kit.new("held"), kit.new("held", due_ms=7))
    waits, plain, fixed = kit.stored(kit.queue("held"))
    assert waits.due_ms - waits.stored_ms == wait_ms
    assert kit.is_now(waits.stored_ms)
    assert (plain.due_ms, fixed.due_ms) == (0, 7)


def test_a_commit_sets_it_too(kit: Kit) -> None:
    kit.make("held")
    done(kit.backend.commit(CommitBatch([kit.new("held", due_ms=-5_000)]), kit.soon))
    [record] = kit.stored(kit.queue("held"))
    assert record.due_ms == record.stored_ms + 5_000


def test_store_time_not_the_sender_s_time_counts(kit: Kit) -> None:
    """The store's clock never goes back, nor do due times of one wait: first in is first due."""
    kit.make("held")
    for step in (0, 250, -10_000, 0, 3):
        kit.clock.now_ms += step
        kit.append(kit.new("held", due_ms=-1_000))
        gevent.sleep(0)
    records = kit.stored(kit.queue("held"))
    assert all(record.due_ms == record.stored_ms + 1_000 for record in records)
    dues = [record.due_ms for record in records]
    assert dues == sorted(dues)
    assert len(dues) == 5
