"""What a salvage makes of a store in which changes are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq_common.rocks.database import Rocks, WriteBatch
from delay_service.store import layout
from delay_service.store.layout import encode_pending
from delay_service.store.opening import open_store
from delay_service.store.port import IdKind, IdState, Scan, StoreChanges
from delay_service.store.salvage import mark_damaged
from tests.contract.delay_store_kit import MANY, SMALL, adding, message, sent_by


@pytest.mark.parametrize("aside", [False, True])
def test_a_message_that_has_moved_waits_once(tmp_path: Path, aside: bool) -> None:
    """The block that said that it left its old time is lost: it would come then, and count twice."""
    before, after, other = message(50, 1), message(90, 1), message(60, 2)
    store = open_store(tmp_path, 0, 1, SMALL)
    store.write(adding([before, other]))
    state = IdState(IdKind.PENDING, after.due_ms, after.offset)
    store.write(StoreChanges(removed=[before], added=[after], ids={after.uuid: state}))
    if aside:
        store.write(StoreChanges(deferred=[after]))
    store.close()
    database = Rocks(store.folder, SMALL)
    batch = WriteBatch()
    batch.put(layout.due_key(*before.key), encode_pending(before))
    database.write(batch)
    database.close()
    mark_damaged(store.folder, "a damaged block")
    store = open_store(tmp_path, 0, 1, SMALL)
    assert store.scan(Scan(None, 0, MANY, 10)) == [other, after]
    assert store.counts() == {"t": 2}
    store.close()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_counts_of_senders_survive_a_restart_and_are_rebuilt(tmp_path: Path, is_damaged: bool) -> None:
    store = open_store(tmp_path, 0, 1, SMALL)
    store.write(adding([sent_by("app", 1), sent_by("app", 2), sent_by("other", 3), message(9, 4)]))
    store.close()
    if is_damaged:
        mark_damaged(store.folder, "a damaged block")
    store = open_store(tmp_path, 0, 2, SMALL)
    assert store.sender_counts() == {"app": 2, "other": 1}
    store.close()
