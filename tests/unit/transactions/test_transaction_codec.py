"""The records of transactions, byte by byte where others read them."""

from __future__ import annotations

from typing import Any

import pytest

from backend.internal_topics import read_dead_letter
from backend.records import NewRecord, StoredRecord
from ddmq_common.delays.command import DelayCommand, Schedule
from ddmq_common.delivery import decode, encode, properties_of
from ddmq_common.errors import DamagedError
from ddmq_common.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_DEAD_TOPIC
from ddmq_common.send_identity import IDENTITY, key_identity, sequence_identity
from proxy_producer.transactions import codec
from proxy_producer.transactions.codec import HalfMark, Op
from proxy_producer.transactions.deciding import due_from

ID = b"018bcfe568007000" + b"8000000000000001"
TRANSACTION = bytes.fromhex(ID.decode())
DELIVERY = encode(b"k", b"body", b"red", {b"a": b"b"})
MARK = HalfMark(ID.decode(), "bank", "orders", 3)


def record(**fields: object) -> NewRecord:
    new_record = NewRecord("orders", 3, b"m" * 16, 1_700, DELIVERY, b"k", b"red", 1)
    for name, value in fields.items():
        setattr(new_record, name, value)
    return new_record


def stored(new: NewRecord) -> StoredRecord:
    return StoredRecord(
        new.topic, new.queue_id, 7, 0, new.message_id, new.born_ms, 2_000, new.flags, 0, new.delivery,
        dict(new.system or {}),
    )  # fmt: skip


def test_ids() -> None:
    assert codec.parse_id(ID) == codec.parse_id(ID.upper()) == TRANSACTION
    assert codec.began_ms(TRANSACTION) == 1_700_000_000_000
    assert {codec.shard_of(bytes([n]) * 16, 4) for n in range(100)} == {0, 1, 2, 3}
    for text in (b"", ID[:-1], ID + b"0", ID[:-1] + b"\n", b"-" + ID[1:], ID[:12] + b"4" + ID[13:]):
        assert codec.parse_id(text) is None


def test_a_half_record_is_the_message_in_another_topic() -> None:
    half = codec.half_record(2, record(system={IDENTITY: "s01.2.0"}), MARK)
    assert (half.topic, half.queue_id, half.key, half.tags) == (HALF_TOPIC, 2, b"", b"")
    assert (half.message_id, half.born_ms, half.flags, half.delivery) == (b"m" * 16, 1_700, 1, DELIVERY)
    assert half.system == {
        "transaction": f'{{"id":"{ID.decode()}","group":"bank","topic":"orders","queue":3}}',
        IDENTITY: "s01.2.0",
    }
    half_read = codec.read_half(stored(half))
    assert (half_read.offset, half_read.mark, half_read.identity) == (7, MARK, "s01.2.0")
    assert (half_read.key, half_read.tags, half_read.delivery) == (b"k", b"red", DELIVERY)


def test_the_engine_hears_of_no_key() -> None:
    key, sequence = key_identity(b"orders", b"once", b"body"), "s01.2.0"
    for identity, name in ((key, codec.KEY), (sequence, IDENTITY)):
        half = codec.half_record(2, record(system={IDENTITY: identity}), MARK)
        assert half.system is not None
        assert half.system.keys() == {codec.TRANSACTION, name}
        assert codec.read_half(stored(half)).identity == identity


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id":"x","group":"g","topic":"t","queue":1}', '{"id":"00","queue":"one"}']
)
def test_half_records_that_are_none(text: str) -> None:
    with pytest.raises(DamagedError):
        codec.read_half(stored(record(system={codec.TRANSACTION: text})))


def test_an_op_record_is_found_by_the_transactions_id() -> None:
    op = Op(1, "bank", 5_000, 2)
    op_stored = codec.op_record(3, TRANSACTION, op)
    assert (op_stored.topic, op_stored.queue_id, op_stored.message_id) == (OP_TOPIC, 3, TRANSACTION)
    assert decode(op_stored.delivery).value == b'{"outcome":1,"group":"bank","at_ms":5000,"messages":2}'
    assert codec.read_op(op_stored.delivery) == op
    for body in (b"", b"{}", b'{"outcome":9,"group":"g","at_ms":1}', b"\xff"):
        with pytest.raises(DamagedError):
            codec.read_op(encode(b"", body, b"", None))


def test_a_key_counts_in_its_transaction_and_a_sequence_everywhere() -> None:
    key, other = key_identity(b"orders", b"once", b"body"), key_identity(b"bills", b"once", b"body")
    here, there = codec.half_identity(key, TRANSACTION), codec.half_identity(key, b"x" * 16)
    assert len({key, here, there, codec.half_identity(other, TRANSACTION)}) == 4
    assert here[-8:] == key[-8:]
    changed = codec.half_identity(key_identity(b"orders", b"once", b"other body"), TRANSACTION)
    assert (
        codec.message_id_of(changed, TRANSACTION)
        == codec.message_id_of(here, TRANSACTION)
        != codec.message_id_of(there, TRANSACTION)
    )
    first, resent = sequence_identity(b"p", 5, 0), sequence_identity(b"p", 5, 4)
    assert codec.half_identity(first, TRANSACTION) == first
    ids = [codec.message_id_of(each, TRANSACTION) for each in (first, resent, sequence_identity(b"p", 6, 0))]
    assert ids[0] == ids[1] != ids[2]
    assert codec.message_id_of(first, b"x" * 16) != ids[0]
    assert codec.message_id_of(sequence_identity(b"p", 5, 4, 3_000), TRANSACTION) == ids[0]


def test_a_dead_record_keeps_the_message_and_says_why() -> None:
    half = codec.read_half(stored(codec.half_record(2, record(), MARK)))
    dead = codec.dead_half(half, "topic gone", 4, "no such topic", 9_000)
    assert (dead.topic, dead.queue_id, dead.message_id, dead.key) == (
        TRANSACTION_DEAD_TOPIC, 0, b"m" * 16, b"k",
    )  # fmt: skip
    content = decode(dead.delivery)
    assert (content.value, content.tag) == (b"body", b"red")
    assert content.properties == {
        b"a": b"b",
        b"dead-letter-reason": b"topic gone",
        b"dead-letter-error": b"no such topic",
        b"dead-letter-topic": b"orders",
        b"dead-letter-place": b"3",
        b"dead-letter-attempts": b"4",
        b"dead-letter-time": b"9000",
        b"dead-letter-transaction": ID,
        b"dead-letter-producer-group": b"bank",
    }
    letter = read_dead_letter(stored(dead))
    assert (letter.transaction, letter.delay, letter.queue_choice) == (ID.decode(), "", 3)
    unreadable = stored(record(system={codec.TRANSACTION: "?"}))
    dead = codec.dead_unreadable(unreadable, 9_000)
    assert dead.delivery == DELIVERY
    assert dead.system is not None
    assert (dead.system[codec.TRANSACTION], dead.system["dead-letter-reason"]) == ("?", "unreadable")
    assert properties_of(dead.delivery, [b"dead-letter-reason"]) == {}


COMMAND = DelayCommand("add", "u", "orders", 5, 50_000, 50, schedule=Schedule())


@pytest.mark.parametrize(
    ("fields", "delay"),
    [
        ({"level": 3}, "level 3"),
        ({"command": COMMAND, "wait_ms": 7_000}, "7000 ms after the commit"),
        ({"command": COMMAND}, "until 50000 ms since the epoch"),
    ],
)
def test_a_dead_record_says_that_it_was_to_be_delayed(fields: dict[str, Any], delay: str) -> None:
    mark = HalfMark(ID.decode(), "bank", "orders", 3, **fields)
    half = codec.read_half(stored(codec.half_record(2, record(), mark)))
    dead = codec.dead_half(half, "unanswered", 15, "", 9_000)
    assert read_dead_letter(stored(dead)).delay == delay


def test_due_times_that_count_from_the_commit() -> None:
    fixed = DelayCommand("add", "u", "orders", 5, 50_000, 50, schedule=Schedule())
    assert due_from(fixed, -1, 90_000) is fixed
    later = due_from(fixed, 7_000, 90_000)
    assert (later.due_ms, later.timestamp_s) == (97_001, 97)
    cron = DelayCommand("add", "u", "orders", 5, 60_000, 60, schedule=Schedule(cron="* * * * *"))
    assert due_from(cron, 1, 90_000).due_ms == 120_000
