"""Appends that say who they are: stored once, and a later one hears of the first."""

from __future__ import annotations

import pytest

from backend.records import AppendStatus, FirstStored, NewRecord
from backend.testing.kit import Kit
from backend.testing.waits import done
from ddmq_common.errors import CallerError
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity

PRODUCER = b"\x07" * 16


def with_key(
    kit: Kit, key: bytes, body: bytes = b"body", topic: str = "orders", queue_id: int = 0
) -> NewRecord:
    """A record with an idempotency key."""
    system = {IDENTITY: key_identity(topic.encode(), key, body)}
    return kit.new(topic, queue_id, body, system=system)


def new_numbered(kit: Kit, sequence: int, below: int = 0, queue_id: int = 0) -> NewRecord:
    """A record with a producer's sequence."""
    system = {IDENTITY: sequence_identity(PRODUCER, sequence, below)}
    return kit.new("orders", queue_id, b"%d" % sequence, system=system)


def first_of(record: NewRecord, offset: int, differs: bool = False) -> FirstStored:
    """Return the answer about this record that a later duplicate gets."""
    return FirstStored(record.message_id, record.queue_id, offset, differs)


def test_a_key_is_stored_once(kit: Kit) -> None:
    kit.make("orders", 2)
    kit.send("orders", b"before")
    first, repeated, other = with_key(kit, b"1"), with_key(kit, b"1", queue_id=1), with_key(kit, b"2")
    assert kit.append(first)[0].first is None
    result = kit.append(repeated)[0]
    assert (result.status, result.offset, result.error) == (AppendStatus.STORED, 1, None)
    assert result.first == first_of(first, 1)
    assert kit.append(other)[0].first is None
    ids = [record.message_id for record in kit.stored(kit.queue("orders"))]
    assert ids[1:] == [first.message_id, other.message_id]
    assert kit.stored(kit.queue("orders", 1)) == []


def test_another_body_is_reported(kit: Kit) -> None:
    kit.make("orders")
    first = with_key(kit, b"1", b"ten")
    kit.append(first)
    assert kit.append(with_key(kit, b"1", b"eleven"))[0].first == first_of(first, 0, differs=True)
    assert [record.message_id for record in kit.stored(kit.queue("orders"))] == [first.message_id]


def test_a_key_belongs_to_its_topic(kit: Kit) -> None:
    kit.make("orders")
    kit.make("bills")
    kit.append(with_key(kit, b"1"))
    assert kit.append(with_key(kit, b"1", topic="bills"))[0].first is None
    assert len(kit.stored(kit.queue("bills"))) == 1


def test_resends_that_are_under_way_together(kit: Kit) -> None:
    """Duplicates in one append, and in appends before the first answer, are recognised."""
    kit.make("orders")
    together = [with_key(kit, b"1") for _ in range(3)]
    results = kit.append(*together)
    assert [result.first for result in results] == [None, first_of(together[0], 0), first_of(together[0], 0)]
    calls = [kit.backend.append([new_numbered(kit, 5)], kit.soon) for _ in range(50)]
    results = [done(call)[0] for call in calls]
    assert sum(result.first is None for result in results) == 1
    assert len({result.offset for result in results}) == 1
    assert len(kit.stored(kit.queue("orders"))) == 2


def test_sequences_are_stored_once_in_any_order(kit: Kit) -> None:
    kit.make("orders")
    sent = {sequence: new_numbered(kit, sequence) for sequence in (3, 0, 2, 1)}
    for sequence, record in sent.items():
        result = kit.append(record)[0]
        assert result.first is None
        assert kit.append(new_numbered(kit, sequence))[0].first == first_of(record, result.offset)
    assert len(kit.stored(kit.queue("orders"))) == 4


def test_what_a_producer_has_an_answer_for_is_forgotten(kit: Kit) -> None:
    kit.make("orders")
    kit.append(*(new_numbered(kit, sequence) for sequence in range(10)))
    kit.append(new_numbered(kit, 10, below=8))
    assert kit.append(new_numbered(kit, 8))[0].offset == 8
    result = kit.append(new_numbered(kit, 7))[0]
    assert result.status is AppendStatus.REFUSED
    assert isinstance(result.error, CallerError)
    assert "sequence 7" in str(result.error)
    assert len(kit.stored(kit.queue("orders"))) == 11


def test_the_identity_of_a_rejected_record_is_not_recorded(kit: Kit) -> None:
    kit.make("orders")
    assert kit.append(with_key(kit, b"1", queue_id=7))[0].status is AppendStatus.REFUSED
    assert kit.append(with_key(kit, b"1"))[0].first is None


@pytest.mark.parametrize("identity", ["", "x", "k12", "s", "sab.1", "sab.z.0", "k" + "g" * 40])
def test_what_is_no_identity_is_refused(kit: Kit, identity: str) -> None:
    kit.make("orders")
    result = kit.append(kit.new("orders", system={IDENTITY: identity}), kit.new("orders"))
    assert [one.status for one in result] == [AppendStatus.REFUSED, AppendStatus.STORED]
    assert isinstance(result[0].error, CallerError)


def test_a_recreated_topic_has_no_identities_of_the_deleted_one(kit: Kit) -> None:
    kit.make("orders")
    kit.append(with_key(kit, b"1"), new_numbered(kit, 1))
    done(kit.backend.delete_topic("orders", kit.soon))
    kit.make("orders")
    assert [result.first for result in kit.append(with_key(kit, b"1"), new_numbered(kit, 1))] == [None, None]
    assert len(kit.stored(kit.queue("orders"))) == 2


def test_commits_do_not_check_identities(kit: Kit) -> None:
    """A commit stores a copy of a message despite its key; a later send with the key is recognised."""
    kit.make("orders")
    kit.append(with_key(kit, b"1"))
    copy = with_key(kit, b"1")
    kit.commit(records=[copy])
    assert len(kit.stored(kit.queue("orders"))) == 2
    assert kit.append(with_key(kit, b"1"))[0].first == first_of(copy, 1)


def test_identities_are_recorded_over_a_restart(lasting: Kit) -> None:
    lasting.make("orders")
    key, sequence = with_key(lasting, b"1"), new_numbered(lasting, 4, below=2)
    offsets = [result.offset for result in lasting.append(key, sequence)]
    for _ in range(2):
        lasting.engine.reopen()
        results = lasting.append(
            with_key(lasting, b"1"), new_numbered(lasting, 4, below=2), new_numbered(lasting, 1)
        )
        firsts = [first_of(key, offsets[0]), first_of(sequence, offsets[1])]
        assert [result.first for result in results[:2]] == firsts
        assert isinstance(results[2].error, CallerError)
    assert len(lasting.stored(lasting.queue("orders"))) == 2


def test_a_clock_that_is_set_forward_makes_nothing_older(kit: Kit) -> None:
    kit.make("orders")
    first = with_key(kit, b"1")
    kit.append(first)
    kit.clock.now_ms += 24 * 3_600_000
    kit.send("orders", b"between")
    assert kit.append(with_key(kit, b"1"))[0].first == first_of(first, 0)
