"""Appending: order, a status per record, and that what is stored comes back whole."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.records import FLAG_PRESSURE, AppendResult, AppendStatus, Durability, ReadStatus, tag_hash
from backend.testing.kit import Kit
from backend.testing.waits import done
from ddmq_common.errors import CallerError, UnknownTopicError


def test_a_record_comes_back_as_it_was(kit: Kit) -> None:
    kit.make("orders", 2)
    new = kit.new(
        "orders",
        1,
        bytes(range(256)),
        "schlüssel".encode(),
        b"red",
        flags=FLAG_PRESSURE,
        due_ms=1_700_000_600_000,
        system={"REAL_TOPIC": "origin", "reason": "ü"},
    )
    assert kit.append(new)[0].status is AppendStatus.STORED
    batch = kit.read(kit.queue("orders", 1))
    assert batch.status is ReadStatus.DATA
    assert list(batch.offsets) == [0]
    assert list(batch.flags) == [FLAG_PRESSURE]
    assert list(batch.tag_hashes) == [tag_hash(b"red")]
    assert [bytes(delivery) for delivery in batch.deliveries] == [new.delivery]
    record = batch.record(0)
    assert (record.topic, record.queue_id, record.offset) == ("orders", 1, 0)
    assert record.position == batch.positions[0]
    assert record.message_id == new.message_id
    assert (record.born_ms, record.due_ms, record.flags) == (new.born_ms, new.due_ms, new.flags)
    assert kit.is_now(record.stored_ms)
    assert bytes(record.delivery) == new.delivery
    assert dict(record.system) == {"REAL_TOPIC": "origin", "reason": "ü"}


def test_no_tags_and_no_system_properties(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"")
    batch = kit.read(kit.queue("orders"))
    assert list(batch.tag_hashes) == [0]
    assert list(batch.flags) == [0]
    assert dict(batch.record(0).system) == {}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_000, 2_000_000])
def test_bodies_of_any_size(kit: Kit, size: int) -> None:
    kit.make("orders")
    body = bytes(index * 31 & 255 for index in range(1024)) * (size // 1024 + 1)
    kit.send("orders", body[:size])
    kit.send("orders", b"after")
    records = kit.stored(kit.queue("orders"))
    assert [bytes(record.delivery) for record in records] == [
        kit.new("orders", body=body[:size]).delivery,
        kit.new("orders", body=b"after").delivery,
    ]


def test_offsets_ascend_per_queue_in_the_order_of_the_call(kit: Kit) -> None:
    kit.make("orders", 2)
    kit.make("bills")
    records = [kit.new("orders", 0), kit.new("bills"), kit.new("orders", 1), kit.new("orders", 0)]
    assert [result.offset for result in kit.append(*records)] == [0, 0, 0, 1]
    ids = [record.message_id for record in kit.stored(kit.queue("orders", 0))]
    assert ids == [records[0].message_id, records[3].message_id]


def test_appends_called_in_order_are_stored_in_order(kit: Kit) -> None:
    kit.make("orders")
    calls = [kit.backend.append([kit.new("orders", body=b"%d" % n)], kit.soon) for n in range(500)]
    assert [done(call)[0].offset for call in calls] == list(range(500))
    batches = kit.batches(kit.queue("orders"))
    bodies = [bytes(delivery) for batch in batches for delivery in batch.deliveries]
    assert bodies == [kit.new("orders", body=b"%d" % n).delivery for n in range(500)]


def test_answers_come_in_the_order_of_the_calls(kit: Kit) -> None:
    kit.make("orders")
    answered: list[int] = []
    calls = []
    for n in range(50):
        call = kit.backend.append([kit.new("orders")], kit.soon)
        call.then(lambda _, n=n: answered.append(n))
        calls.append(call)
    for call in calls:
        done(call)
    assert answered == list(range(50))


def test_appends_from_an_answer_s_callback_are_stored(kit: Kit) -> None:
    kit.make("orders")
    last: Completion[int] = Completion()

    def append_next(answer: Completion[list[AppendResult]]) -> None:
        offset = answer.result()[0].offset
        if offset == 20:
            last.succeed(offset)
        else:
            kit.backend.append([kit.new("orders")], kit.soon).then(append_next)

    kit.backend.append([kit.new("orders")], kit.soon).then(append_next)
    assert done(last) == 20
    assert len(kit.stored(kit.queue("orders"))) == 21


def test_a_stored_record_can_be_read_as_soon_as_it_is_answered(kit: Kit) -> None:
    kit.make("orders")
    for offset in range(30):
        assert kit.send("orders", b"x") == [offset]
        assert list(kit.read(kit.queue("orders"), offset).offsets) == [offset]


def test_records_are_rejected_one_by_one(kit: Kit) -> None:
    kit.make("orders", 2)
    kit.make("closed", writable=False)
    results = kit.append(
        kit.new("nowhere"), kit.new("orders"), kit.new("orders", 2), kit.new("closed"), kit.new("orders", 1)
    )
    assert [result.status for result in results] == [
        AppendStatus.REFUSED,
        AppendStatus.STORED,
        AppendStatus.REFUSED,
        AppendStatus.REFUSED,
        AppendStatus.STORED,
    ]
    assert [result.offset for result in results] == [-1, 0, -1, -1, 0]
    assert isinstance(results[0].error, UnknownTopicError)
    assert isinstance(results[2].error, UnknownTopicError)
    assert isinstance(results[3].error, CallerError)
    assert results[1].error is None


def test_an_append_of_nothing_succeeds(kit: Kit) -> None:
    assert kit.append() == []


@pytest.mark.parametrize("durability", [Durability.WRITTEN, Durability.DURABLE])
def test_the_answer_says_the_class_it_reached(kit: Kit, durability: Durability) -> None:
    assert durability in kit.backend.capabilities.durability
    kit.make("orders", durability=durability)
    for _ in range(3):
        assert kit.append(kit.new("orders"))[0].durability >= durability
    assert len(kit.stored(kit.queue("orders"))) == 3


def test_into_is_what_comes_back(kit: Kit) -> None:
    class Request(Completion[list[AppendResult]]):
        answered = 0

        def settled(self) -> None:
            self.answered += 1
            super().settled()

    kit.make("orders")
    request = Request()
    assert kit.backend.append([kit.new("orders")], kit.soon, request) is request
    assert done(request)[0].offset == 0
    assert request.answered == 1


def test_positions_order_all_topics(kit: Kit) -> None:
    assert kit.backend.capabilities.topic_order
    kit.make("orders", 2)
    kit.make("bills")
    for topic, queue_id in [("orders", 0), ("bills", 0), ("orders", 1), ("orders", 0), ("bills", 0)]:
        kit.append(kit.new(topic, queue_id))
    records = [
        (record.position, record.message_id)
        for queue in [*kit.queues("orders"), *kit.queues("bills")]
        for record in kit.stored(queue)
    ]
    assert [message_id for _, message_id in sorted(records)] == sorted(
        message_id for _, message_id in records
    )
    assert len({position for position, _ in records}) == 5


def test_many_records_in_one_append(kit: Kit) -> None:
    kit.make("orders", 4)
    results = kit.append(*(kit.new("orders", n % 4, b"b" * (n % 100)) for n in range(2000)))
    assert [result.offset for result in results] == [n // 4 for n in range(2000)]
