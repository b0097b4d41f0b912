"""Messages of a transaction are as those of plain sends: checked alike, delayed alike, and known again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.records import TopicInfo
from ddmq_common.delays.command import COMMAND_PROPERTY, decode_command
from ddmq_common.delivery import decode, properties_of
from ddmq_common.names import DELAY_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    DEAD_LETTER,
    NEVER_THERE,
    ROLLBACK,
    S,
    TransactionRig,
    body,
)
from tests.support.waits import until
from tests.unit.producer.producer_delay_rig import Shards


def test_key_tag_properties_and_queue_arrive(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"x", key=b"k9", tags=b"blue", properties={b"a": b"b"}, partitionId=3))
    rig.proxy.end(transaction, COMMIT)
    (record,) = rig.stored("orders", 3)
    content = decode(bytes(record.delivery))
    assert content == (b"k9", b"x", b"blue", {b"a": b"b"})
    matches = rig.backend.find("orders", key=b"k9").wait(60)
    assert [one.offset for one in matches] == [record.offset]


def test_a_resend_of_a_prepare_puts_nothing_in_twice(rig: TransactionRig) -> None:
    transaction = rig.new_id()
    numbered = {"producerId": b"p", "sequence": 7, "answeredBelow": 0}
    first = rig.proxy.prepare(transaction, body(b"x", **numbered))
    second = rig.proxy.prepare(transaction, body(b"x", **numbered))
    assert first.results[0].messageId == second.results[0].messageId
    assert (second.results[0].duplicate, second.throughOffset) == (1, first.throughOffset)
    together = [body(b"%d" % number, **{**numbered, "sequence": number}) for number in (8, 9)]
    answers = [rig.proxy.prepare(transaction, *together) for _ in range(2)]
    ids = [[result.messageId for result in answer.results] for answer in answers]
    assert ids[0] == ids[1]
    assert [answer.code for answer in answers] == [0, 0]
    assert rig.proxy.end(transaction, COMMIT).code == 0
    assert rig.bodies() == [b"x", b"8", b"9"]
    rig.advance(1)
    until(lambda: rig.unfinished() == 0, "second copies are finished")


@pytest.mark.parametrize("shard", [1, 2])
def test_a_sequence_of_another_transaction_is_rejected_and_harms_none(
    rig: TransactionRig, shard: int
) -> None:
    rig.serve()
    rig.begin()
    numbered = body(b"x", producerId=b"p", sequence=7, answeredBelow=0)
    first, second, other = rig.new_id(shard=1), rig.new_id(shard), rig.new_id(shard=2)
    for each in (rig.new_id(shard=1), rig.new_id(shard=1)):
        assert rig.proxy.prepare(each).code == 0
    assert rig.proxy.prepare(first, numbered).code == 0
    beside = rig.beside()
    for proxy in (rig.proxy, beside):
        refused = proxy.prepare(second, numbered)
        assert (refused.code, "sequence" in str(refused.msg)) == (11, True)
    beside.kill()
    rig.proxies.remove(beside)
    rig.caught_up()
    assert rig.proxy.end(second, COMMIT).outcome == NEVER_THERE
    assert rig.proxy.prepare(other, body(b"other")).code == 0
    assert [rig.proxy.end(each, COMMIT).code for each in (other, first)] == [0, 0]
    assert sorted(rig.bodies()) == [b"other", b"x"]


def test_a_key_counts_once_a_transaction_and_topic(rig: TransactionRig) -> None:
    keyed = body(b"x", idempotencyKey=b"once")
    rig.serve()
    transaction = rig.begin(keyed)
    assert rig.proxy.prepare(transaction, keyed).results[0].duplicate == 1
    changed, new = body(b"y", idempotencyKey=b"once"), body(b"z", idempotencyKey=b"new")
    results = rig.proxy.prepare(transaction, changed, new, keyed).results
    assert [one.duplicate for one in results] == [2, 0, 1]
    assert results[0].messageId == results[2].messageId
    beside = rig.beside()
    assert beside.prepare(transaction, keyed).results[0].duplicate == 1, "wherever it is asked"
    beside.kill()
    rig.proxies.remove(beside)
    rig.caught_up()
    assert rig.proxy.prepare(transaction, body(b"x", topic=b"bills", idempotencyKey=b"once")).code == 0
    rig.proxy.end(transaction, ROLLBACK)
    second_transaction = rig.begin(keyed)
    rig.proxy.end(second_transaction, COMMIT)
    assert (rig.bodies(), rig.bodies("bills")) == ([b"x"], [])


def test_a_level_counts_from_the_commit(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"later", properties={b"DELAY": b"3"}), body(b"now"))
    rig.clock.advance(30)
    answer = rig.proxy.end(transaction, COMMIT)
    assert [one.queueId for one in answer.results] == [None, 0]
    assert rig.bodies() == [b"now"]
    (record,) = rig.stored(SCHEDULE_TOPIC, 2)
    assert record.due_ms - record.stored_ms == 10_000
    assert record.message_id.hex() == answer.results[0].messageId


@pytest.mark.parametrize(
    ("properties", "after_commit"),
    [({b"deliver-after": b"20s"}, 20_000), ({b"deliver-at": b"1700000100"}, None)],
)
def test_a_dialect_counts_from_the_commit_or_is_a_time(
    rig: TransactionRig, properties: dict[bytes, bytes], after_commit: int | None
) -> None:
    rig.change(TopicInfo("spoken", 0, 1, delay_dialects=("ddmq",)))
    rig.change(TopicInfo(DELAY_TOPIC, 0, 4))
    shards = Shards(rig.backend)  # type: ignore[arg-type]
    until(lambda: len(shards.queues) == 4)
    rig.proxy.kill()
    rig.proxy = rig.beside(served=False)  # it sees that a delay service runs
    transaction = rig.begin(body(b"x", topic=b"spoken", properties=properties))
    rig.clock.advance(30)
    at_ms = rig.clock.wall_ms()
    answer = rig.proxy.end(transaction, COMMIT)
    (record,) = rig.everything(DELAY_TOPIC)
    command = decode_command(record.system[COMMAND_PROPERTY])
    assert command.due_ms == (1_700_000_100_000 if after_commit is None else at_ms + 1 + after_commit)
    assert answer.results[0].delayId
    assert answer.results[0].messageId == record.message_id.hex()
    assert command.topic == "spoken"
    assert rig.bodies("spoken") == []


@pytest.mark.parametrize("spoken", [(), ("rabbit",)])
@pytest.mark.parametrize("due_times", [True, None])
def test_due_times_that_are_meant_hold_on_every_topic(
    rig: TransactionRig, due_times: bool | None, spoken: tuple[str, ...]
) -> None:
    rig.change(TopicInfo("silent", 0, 1, delay_dialects=spoken))
    rig.change(TopicInfo(DELAY_TOPIC, 0, 4))
    shards = Shards(rig.backend)  # type: ignore[arg-type]
    until(lambda: len(shards.queues) == 4)
    rig.proxy.kill()
    rig.proxy = rig.beside(served=False)
    transaction, properties = rig.new_id(), {b"deliver-after": b"20s", b"p": b"v"}
    meant = body(b"x", topic=b"silent", properties=properties)
    assert rig.proxy.prepare(transaction, meant, dueTimes=due_times).code == 0
    answer = rig.proxy.end(transaction, COMMIT)
    assert bool(answer.results[0].delayId) == bool(due_times)
    assert rig.bodies("silent") == ([] if due_times else [b"x"])
    if due_times:
        (record,) = rig.everything(DELAY_TOPIC)
        command = decode_command(record.system[COMMAND_PROPERTY])
        assert command.due_ms == rig.clock.wall_ms() + 1 + 20_000


def test_a_delay_service_that_has_just_started_is_used(rig: TransactionRig) -> None:
    rig.change(TopicInfo("spoken", 0, 1, delay_dialects=("ddmq",)))
    meant = body(b"x", topic=b"spoken", properties={b"deliver-after": b"20s"})
    assert rig.proxy.prepare(rig.new_id(), meant, dueTimes=True).code == 21
    rig.change(TopicInfo(DELAY_TOPIC, 0, 4))
    shards = Shards(rig.backend)  # type: ignore[arg-type]
    until(lambda: len(shards.queues) == 4)
    assert rig.proxy.prepare(rig.new_id(), meant, dueTimes=True).code == 0, "asked before it is refused"


def test_an_invalid_message_is_rejected_at_the_prepare(rig: TransactionRig) -> None:
    rig.change(TopicInfo("shut", 0, 1, writable=False))
    rig.change(TopicInfo("only", 0, 1, delay="only"))
    for code, reason, message in (
        (11, "body", body(b"")),
        (11, "reserved", body(b"x", topic=HALF_TOPIC.encode())),
        (11, "property", body(b"x", properties={b"KEYS": b"k"})),
        (13, "not writable", body(b"x", topic=b"shut")),
        (19, "only delayed", body(b"x", topic=b"only")),
        (11, "idempotency key", body(b"x", idempotencyKey=b" ")),
    ):
        answer = rig.proxy.prepare(rig.new_id(), message)
        assert answer.code == code, answer
        assert reason in answer.msg, answer
        answer = rig.proxy.prepare(rig.new_id(), body(b"fine"), message)
        assert (answer.code, len(answer.results)) == (code, 2), answer
    assert rig.backend.topic(HALF_TOPIC) is None


def test_a_topic_is_created_at_the_prepare(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"x", topic=b"fresh", partitionId=0))
    assert rig.backend.topic("fresh") is not None
    rig.proxy.end(transaction, COMMIT)
    assert rig.bodies("fresh") == [b"x"]


def test_a_deleted_topic_makes_a_dead_letter_of_all_messages(rig: TransactionRig) -> None:
    rig.make("doomed")
    transaction = rig.begin(body(b"one"), body(b"two", topic=b"doomed"))
    rig.delete("doomed")
    call, other = rig.proxy.ending(transaction, COMMIT), rig.proxy.ending(transaction, COMMIT)
    until(lambda: rig.proxy.postponed, "the owner has missed the topic")
    rig.advance(1)
    until(lambda: rig.proxy.postponed, "it is missed still")
    assert not call.answers  # it may be new
    rig.advance(1)
    until(lambda: call.answers and other.answers, "both are answered for good")
    answer = other.answer
    assert call.answer == answer
    assert (answer.code, answer.outcome) == (11, DEAD_LETTER)
    assert "(topic gone: topic 'doomed' does not exist" in answer.msg
    assert rig.bodies() == []
    assert len(rig.dead()) == 2
    assert rig.unfinished() == 0
    facts = properties_of(bytes(rig.dead()[1].delivery), [b"dead-letter-error", b"dead-letter-topic"])
    assert b"doomed" in facts[b"dead-letter-error"]
    assert facts[b"dead-letter-topic"] == b"doomed"


def test_a_topic_that_the_owner_hears_of_late_is_waited_for(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"one"), body(b"two", topic=b"news"))
    topic = rig.backend.topic("news")
    assert topic is not None
    rig.delete("news")  # stands for an owner that has not heard of it yet
    call = rig.proxy.ending(transaction, COMMIT)
    rig.advance(1)
    assert not call.answers
    rig.change(replace(topic, incarnation=0))
    rig.advance(1)
    until(lambda: bool(call.answers), "it is answered")
    assert (call.answer.code, call.answer.outcome) == (0, COMMITTED)
    assert (rig.bodies(), rig.bodies("news"), rig.dead()) == ([b"one"], [b"two"], [])


def test_a_transaction_that_the_proxy_has_not_read_is_not_called_missing(rig: TransactionRig) -> None:
    call = rig.proxy.ending(rig.new_id(), COMMIT, throughOffset=0)
    assert (call.answer.code, call.answer.outcome) == (15, None)
    assert rig.proxy.end(rig.new_id(), ROLLBACK).outcome == NEVER_THERE


def test_a_topic_that_is_closed_keeps_it_open(rig: TransactionRig) -> None:
    topic = rig.make("door")
    transaction = rig.begin(body(b"x", topic=b"door"))
    rig.change(replace(topic, writable=False))
    call = rig.proxy.ending(transaction, COMMIT)
    until(lambda: bool(call.answers))
    assert call.answer.code == 15
    assert "door" in call.answer.msg
    rig.change(topic)
    assert rig.proxy.end(transaction, COMMIT).outcome == COMMITTED
    assert rig.bodies("door") == [b"x"]


def test_a_recreated_topic_with_fewer_queues_accepts_the_commit(rig: TransactionRig) -> None:
    rig.make("shrunk", 4)
    transaction = rig.begin(body(b"x", topic=b"shrunk", partitionId=3))
    rig.delete("shrunk")
    rig.make("shrunk", 2)
    assert rig.proxy.end(transaction, COMMIT).results[0].queueId == 1


def test_a_late_message_does_not_belong_to_the_transaction(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"in time"))
    rig.proxy.end(transaction, COMMIT)
    late = rig.proxy.prepare(transaction, body(b"late"))
    assert late.code == 11
    assert "was committed" in late.msg
    assert rig.bodies() == [b"in time"]


def test_another_group_adds_nothing(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"ours"))
    foreign = rig.proxy.prepare(transaction, body(b"theirs"), group=b"thieves")
    assert foreign.code == 11
    assert "group" in foreign.msg
    rig.proxy.end(transaction, COMMIT)
    assert rig.bodies() == [b"ours"]


@pytest.mark.parametrize(
    "transaction",
    [b"", b"x" * 32, b"0" * 31, b"018e0000000070008000000000000001"[:-1] + b"g", b"0" * 32,
     b"018e0000000040008000000000000001", b"018e000000007000c000000000000001", b"\xff" * 32],
)  # fmt: skip
def test_ids_are_uuids_of_version_7(memory: TransactionRig, transaction: bytes) -> None:
    assert memory.proxy.prepare(transaction).code == 11
    assert memory.proxy.end(transaction, COMMIT).code == 11


def test_invalid_requests_are_rejected(memory: TransactionRig) -> None:
    proxy, transaction = memory.proxy, memory.new_id()
    empty = S.PrepareRequest(transactionId=transaction, producerGroup=b"g", messages=[])
    assert proxy.answer("sendPrepared", empty).code == 11
    for group in (b"", b"%DELAY", HALF_TOPIC.encode(), b"a b", b"\xff\xfe"):
        assert proxy.prepare(transaction, group=group).code == 11
        assert proxy.end(transaction, COMMIT, group=group).code == 11
    for after_ms in (-1, 86_400_001, 1 << 62):
        assert proxy.prepare(transaction, checkAfterMs=after_ms).code == 11
    for text in (b"x", b"-1", b"99999999", b"1.5"):
        invalid = body(b"x", properties={b"CHECK_IMMUNITY_TIME_IN_SECONDS": text})
        assert proxy.prepare(transaction, invalid).code == 11
    for action in (1, -1, 1 << 30, None):
        assert proxy.end(transaction, action).code == 11  # type: ignore[arg-type]
    memory.begin()
    assert proxy.end(transaction, COMMIT, throughOffset=-5).outcome == NEVER_THERE


def test_an_end_beyond_the_end_of_the_queue_must_be_retried(memory: TransactionRig) -> None:
    transaction = memory.begin()
    for through in (7, (1 << 63) - 1):
        call = memory.proxy.ending(transaction, COMMIT, throughOffset=through)
        memory.settle()
        assert not call.answers
        memory.clock.advance(2)
        until(lambda: bool(call.answers), "it is answered")  # noqa: B023
        assert call.answer.code == 15
    assert memory.proxy.end(transaction, COMMIT, throughOffset=0).code == 0


def test_an_engine_without_commits_over_several_topics_rejects(memory: TransactionRig) -> None:
    memory.backend.capabilities = replace(memory.backend.capabilities, atomic=False)
    refused = memory.proxy.prepare(memory.new_id())
    assert refused.code == 11
    assert "cannot commit" in refused.msg
    assert memory.proxy.end(memory.new_id(), COMMIT).code == 11
    assert memory.proxy.polling().answer.code == 11


def test_without_keys_in_the_engine_the_shard_recognises_resends(memory: TransactionRig) -> None:
    memory.backend.capabilities = replace(memory.backend.capabilities, idempotent=False)
    memory.proxy = memory.beside(served=False)
    transaction, numbered = memory.new_id(), body(b"x", producerId=b"p", sequence=1, answeredBelow=0)
    ids = {memory.proxy.prepare(transaction, numbered).results[0].messageId for _ in range(3)}
    assert len(ids) == 1
    memory.proxy.end(transaction, COMMIT)
    assert memory.bodies() == [b"x"]


@pytest.mark.parametrize("identity", [{"producerId": b"p", "sequence": 1}, {"idempotencyKey": b"k"}])
def test_without_numbers_in_the_engine_the_shard_recognises_resends(
    memory: TransactionRig, identity: dict[str, Any]
) -> None:
    memory.backend.recognises_numbers = False
    memory.proxy = memory.beside(served=False)
    transaction, message = memory.new_id(), body(b"x", **identity)
    ids = {memory.proxy.prepare(transaction, message).results[0].messageId for _ in range(3)}
    assert len(ids) == 1
    memory.proxy.end(transaction, COMMIT)
    assert memory.bodies() == [b"x"]


def test_a_resend_is_recognised_whatever_answers_its_sender_got(rig: TransactionRig) -> None:
    """Of several messages together: their commit asks no engine whether it knows them."""
    transaction, ids = rig.new_id(), set()
    for below in (0, 1, 1):
        pair = [body(b"x%d" % n, producerId=b"p", sequence=n, answeredBelow=below) for n in (1, 2)]
        ids |= {result.messageId for result in rig.proxy.prepare(transaction, *pair).results}
    assert len(ids) == 2
    rig.proxy.end(transaction, COMMIT)
    assert sorted(rig.bodies()) == [b"x1", b"x2"]


def test_bounds_of_one_transaction() -> None:
    rig = TransactionRig(messages_max=3, bytes_max=1_000)
    transaction = rig.begin(body(b"1"), body(b"2"))
    refused = rig.proxy.prepare(transaction, body(b"3"), body(b"4"))
    assert refused.code == 11
    assert "4 messages" in refused.msg
    assert rig.proxy.prepare(transaction, body(b"3" * 900)).code == 0
    refused = rig.proxy.prepare(rig.new_id(), body(b"x" * 1_001))
    assert refused.code == 11
    assert "bytes" in refused.msg
    assert rig.proxy.end(transaction, COMMIT).code == 0
    assert len(rig.bodies()) == 3


def test_bounds_of_open_ones() -> None:
    rig = TransactionRig(open_max=4)
    ids = [rig.new_id(shard=1) for _ in range(6)]
    assert rig.proxy.prepare(rig.new_id(shard=0)).code == 0
    until(lambda: len(rig.proxy.shards) == 4, "all shards are owned")
    assert [rig.proxy.prepare(one).code for one in ids[:3]] == [0, 0, 15]
    assert rig.proxy.prepare(ids[0]).code == 0
    assert rig.proxy.prepare(ids[3], group=b"shop").code == 0
    assert rig.proxy.prepare(ids[4], group=b"shop").code == 0
    assert rig.proxy.prepare(ids[5], group=b"club").code == 15
    rig.proxy.end(ids[0], COMMIT)
    assert rig.proxy.prepare(ids[2]).code == 0
