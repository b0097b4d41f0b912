"""Records in short: what they carry is what the whole record says."""

from __future__ import annotations

import pytest

from backend.records import tag_hash
from backend.testing.kit import Kit
from backend.testing.waits import done

LONG = "ü" * 300
SYSTEMS = (None, {"order": "a"}, {"order": ""}, {"order": LONG}, {"other": "x"}, {"other": "x", "order": "b"})


@pytest.mark.parametrize("key", [b"", b"a key"])
def test_in_short_as_in_full(kit: Kit, key: bytes) -> None:
    kit.make("orders")
    kit.append(*(kit.new("orders", 0, b"%d" % n, key=key, system=system) for n, system in enumerate(SYSTEMS)))
    batch = kit.read(kit.queue("orders"))
    messages = batch.carried("order")
    assert [one.value.decode() for one in messages] == [(system or {}).get("order", "") for system in SYSTEMS]
    for index, one in enumerate(messages):
        record = batch.record(index)
        assert one[:4] == (record.offset, record.message_id, record.born_ms, record.flags)
        assert bytes(one.delivery) == bytes(record.delivery)


def test_message_ids_are_those_of_the_records(kit: Kit) -> None:
    kit.make("orders")
    kit.append(*(kit.new("orders", 0, b"%d" % n) for n in range(9)))
    batch = kit.read(kit.queue("orders"))
    assert batch.message_ids() == [batch.record(index).message_id for index in range(9)]
    assert len(set(batch.message_ids())) == 9


def test_message_ids_requested_with_the_read_are_the_same(kit: Kit) -> None:
    kit.make("orders")
    tags = (b"red", b"blue", b"red")
    kit.append(*(kit.new("orders", 0, b"%d" % n, tags=tag) for n, tag in enumerate(tags)))
    queue = kit.queue("orders")
    ids = kit.read(queue).message_ids()
    assert done(kit.backend.read(queue, 0, 100, 1 << 20, ids=True)).message_ids() == ids
    red = frozenset((tag_hash(b"red"),))
    assert done(kit.backend.read(queue, 0, 100, 1 << 20, tags=red, ids=True)).message_ids() == ids[::2]
    assert done(kit.backend.read(queue, 3, 100, 1 << 20, ids=True)).message_ids() == []


def test_nothing_in_short(kit: Kit) -> None:
    kit.make("orders")
    batch = kit.read(kit.queue("orders"))
    assert batch.carried("order") == []
    assert batch.message_ids() == []
