"""The delay store's contract, one rule a test; both stores. Mixtures are in test_delay_store_model.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_common.errors import StorageError
from delay_service.store.port import DelayStore, DueKey, IdKind, IdState, Scan, StoreChanges
from tests.contract.delay_store_kit import MANY, STORES, adding, message, sent_by, uuid_of


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DelayStore]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def test_due_is_ordered_by_due_time_then_offset(store: DelayStore) -> None:
    store.write(StoreChanges(added=[message(20, 1), message(10, 3), message(10, 2), message(30, 4)]))
    assert [one.key for one in store.due(20, 10, MANY)] == [(10, 2), (10, 3), (20, 1)]
    assert [one.key for one in store.due(30, 2, MANY, DueKey(10, 2))] == [(10, 3), (20, 1)]


def test_messages_are_read_as_they_were_written(store: DelayStore) -> None:
    one = message(5, 1, "thème", bytes(range(256)), occurrence=3)
    store.write(StoreChanges(added=[one]))
    assert store.due(5, 1, MANY) == [one]
    assert store.get(DueKey(5, 1)) == one


def test_due_keeps_within_bytes_but_gives_one(store: DelayStore) -> None:
    store.write(StoreChanges(added=[message(1, offset, body=b"x" * 100) for offset in range(50)]))
    assert len(store.due(1, 50, 10)) == 1
    assert len(store.due(1, 50, 350)) == 3
    assert len(store.due(1, 50, 350, DueKey(1, 47))) == 2
    assert store.due(0, 50, 350) == []


def test_next_due_is_the_earliest_behind(store: DelayStore) -> None:
    assert store.next_due() is None
    store.write(StoreChanges(added=[message(9, 1), message(8, 2)]))
    assert store.next_due() == (8, 2)
    assert store.next_due(DueKey(8, 2)) == (9, 1)
    assert store.next_due(DueKey(9, 1)) is None
    store.write(StoreChanges(added=[message(3, 3)]))
    assert store.next_due() == (3, 3)


def test_an_earlier_add_is_due_after_ranges_were_removed(store: DelayStore) -> None:
    storm = [message(100, offset) for offset in range(300)]
    store.write(StoreChanges(added=[*storm, message(500, 1000)]))
    assert store.due(100, 300, MANY) == storm
    store.write(StoreChanges(removed=storm))
    assert store.next_due() == (500, 1000)
    store.write(StoreChanges(added=[message(50, 2000), message(100, 2001)]))
    assert [one.key for one in store.due(100, 10, MANY)] == [(50, 2000), (100, 2001)]


def test_adds_between_scan_and_removal_stay(store: DelayStore) -> None:
    storm = [message(100, 2 * offset) for offset in range(300)]
    store.write(StoreChanges(added=storm))
    scanned = store.due(100, 300, MANY)
    late = [message(100, 2 * offset + 1) for offset in range(100, 130)]
    store.write(StoreChanges(added=late))
    store.write(StoreChanges(removed=scanned))
    assert store.due(100, 300, MANY) == late


def test_the_same_key_may_leave_and_come_in_one_batch(store: DelayStore) -> None:
    storm = [message(100, offset) for offset in range(200)]
    store.write(StoreChanges(added=storm))
    store.due(100, 200, MANY)
    readded = message(100, 7, occurrence=1)
    store.write(StoreChanges(removed=storm, added=[readded]))
    assert store.due(100, 200, MANY) == [readded]
    assert store.counts() == {"t": 1}


def test_putting_aside_and_back(store: DelayStore) -> None:
    one, two, other = message(1, 1, "a"), message(2, 2, "a"), message(1, 3, "ab")
    store.write(StoreChanges(added=[one, two, other]))
    store.write(StoreChanges(deferred=[two, one]))
    assert store.due(9, 9, MANY) == [other]
    assert store.deferred_topics() == ["a"]
    assert store.read_deferred("a", 9) == [one, two]
    assert store.read_deferred("ab", 9) == []
    assert store.get(two.key) == two
    assert dict(store.counts()) == {"a": 2, "ab": 1}
    store.write(StoreChanges(undeferred=[one], removed_deferred=[two]))
    assert store.due(9, 9, MANY) == [one, other]
    assert store.deferred_topics() == []
    assert dict(store.counts()) == {"a": 1, "ab": 1}


def test_earlier_ones_put_aside_after_some_went_back(store: DelayStore) -> None:
    first = [message(100, offset) for offset in range(200)]
    early = [message(50, offset) for offset in range(1000, 1003)]
    store.write(StoreChanges(added=[*first, *early]))
    store.write(StoreChanges(deferred=first))
    assert store.read_deferred("t", 150) == first[:150]
    store.write(StoreChanges(undeferred=first[:100]))
    store.write(StoreChanges(deferred=early))
    assert store.read_deferred("t", 500) == [*early, *first[100:]]
    store.write(StoreChanges(removed_deferred=[*early, *first[100:150]]))
    assert store.read_deferred("t", 500) == first[150:]
    assert store.due(100, 500, MANY) == first[:100]


def test_ids_to_forget_earlier_than_those_forgotten(store: DelayStore) -> None:
    late = {uuid_of(number): IdState(IdKind.FIRED, 1, number, 100) for number in range(100)}
    store.write(StoreChanges(ids={**late}))
    assert store.forgettable(100, 70) == [uuid_of(number) for number in range(70)]
    store.write(StoreChanges(ids={uuid_of(500): IdState(IdKind.FIRED, 1, 500, 50)}))
    store.write(StoreChanges(ids={uuid_of(number): None for number in range(70)}))
    assert store.forgettable(100, 70) == [uuid_of(500), *(uuid_of(number) for number in range(70, 100))]


def test_ids_are_recorded_until_forgotten(store: DelayStore) -> None:
    fired = IdState(IdKind.FIRED, 7, 1, 100)
    tomb = IdState(IdKind.TOMBSTONE, 8, 0, 50)
    store.write(
        StoreChanges(ids={uuid_of(1): fired, uuid_of(2): tomb, uuid_of(3): IdState(IdKind.PENDING, 5, 3)})
    )
    assert store.ids([uuid_of(2), uuid_of(9), uuid_of(1)]) == [tomb, None, fired]
    assert store.forgettable(49, 10) == []
    assert store.forgettable(100, 10) == [uuid_of(2), uuid_of(1)]
    assert store.forgettable(100, 1) == [uuid_of(2)]
    store.write(StoreChanges(ids={uuid_of(2): None}))
    assert store.forgettable(1000, 10) == [uuid_of(1)]


def test_an_id_with_a_new_moment_is_forgotten_only_then(store: DelayStore) -> None:
    store.write(StoreChanges(ids={uuid_of(1): IdState(IdKind.CANCELLED, 1, 1, 10)}))
    store.write(StoreChanges(ids={uuid_of(1): IdState(IdKind.FIRED, 2, 1, 30)}))
    assert store.forgettable(29, 10) == []
    assert store.forgettable(30, 10) == [uuid_of(1)]
    store.write(StoreChanges(ids={uuid_of(1): None}))
    assert store.ids([uuid_of(1)]) == [None]
    assert store.forgettable(99, 10) == []


def test_scan_by_topic_and_time_with_those_put_aside(store: DelayStore) -> None:
    mine = [message(due, due, "mine") for due in range(0, 100, 2)]
    others = [message(due, due, "other") for due in range(1, 100, 2)]
    store.write(StoreChanges(added=[*mine, *others]))
    store.write(StoreChanges(deferred=mine[10:20]))
    assert store.scan(Scan("mine", 10, 60, 1000)) == mine[5:30]
    assert store.scan(Scan("mine", 10, 60, 4, DueKey(20, 20))) == mine[11:15]
    assert store.scan(Scan(None, 18, 23, 100)) == [mine[9], others[9], mine[10], others[10], mine[11]]
    assert store.scan(Scan("none", 0, 100, 10)) == []
    assert store.scan(Scan("mine", 60, 10, 10)) == []


def test_named_values(store: DelayStore) -> None:
    assert store.meta("ingested") is None
    store.write(StoreChanges(meta={"ingested": b"12"}))
    assert store.meta("ingested") == b"12"
    store.write(StoreChanges(meta={"ingested": None}))
    assert store.meta("ingested") is None


def test_a_closed_store_refuses(store: DelayStore) -> None:
    store.write(adding([message(1, 1)]))
    store.flush()
    store.tidy()
    store.close()
    store.close()
    with pytest.raises(StorageError):
        store.due(9, 9, MANY)
    with pytest.raises(StorageError):
        store.write(StoreChanges())
    with pytest.raises(StorageError):
        store.flush()


def test_waiting_messages_are_counted_by_sender(store: DelayStore) -> None:
    app, other = sent_by("app", 1), sent_by("other", 2)
    store.write(StoreChanges(added=[app, other, message(30, 3)]))
    assert store.sender_counts() == {"app": 1, "other": 1}
    moved = app._replace(due_ms=70)
    store.write(StoreChanges(removed=[app], added=[moved]))
    store.write(StoreChanges(deferred=[other]))
    assert store.sender_counts() == {"app": 1, "other": 1}
    store.write(StoreChanges(removed_deferred=[other]))
    assert store.sender_counts() == {"app": 1}
    store.write(StoreChanges(removed=[moved]))
    assert store.sender_counts() == {}
