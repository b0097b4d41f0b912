"""Acknowledgements that carry messages: stored with the end of their message in one commit, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backend.records import AppendStatus
from ddmq_common.delays.command import COMMAND_PROPERTY, decode_command
from ddmq_common.delivery import decode
from ddmq_common.errors import FencedError, RemoteError, StorageError, TryLaterError
from ddmq_common.names import DELAY_TOPIC, SCHEDULE_TOPIC, dlq_topic
from proxy_consumer.config import SubscriptionDefaults
from proxy_producer.config import RateLimit, TransactionLimits
from tests.service.consumer.consumer_rig import FIRST, IDL, METHODS, result
from tests.service.consumer.reply_rig import (
    FINISHED,
    LEASE_OVER,
    STORED,
    STORED_BEFORE,
    ReplyRig,
    reply_message,
)
from tests.support.waits import until

ORDERED = SubscriptionDefaults(start="first", order_key="KEY", order_scope="topic", retry_intervals_ms=(100,))


def test_messages_and_the_end_of_the_message_are_one() -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    response = rig.reply(
        offset,
        lease,
        reply_message(body=b"one", key=b"k", tags=b"t", properties={b"a": b"b"}, partitionId=1),
        reply_message("NEW", b"two"),
    )
    assert (response.code, response.outcome) == (0, STORED)
    assert rig.bodies() == [b"one"]
    assert rig.bodies("NEW") == [b"two"], "a topic is made, as by a send"
    assert rig.finished() == [offset]
    (record,) = rig.stored()
    content = decode(record.delivery)
    assert (content.key, content.tag, dict(content.properties)) == (b"k", b"t", {b"a": b"b"})
    first, second = response.results
    assert (first.queueId, first.offset, first.durability) == (1, 0, 1)
    assert first.messageId.decode() == record.message_id.hex()
    assert second.offset == 0
    assert rig.counted("ddmq_replies_total", group="G", outcome="stored") == 1
    assert rig.counted("ddmq_acked_total", group="G") == 1
    assert rig.counted("ddmq_sends_total", topic="OUT", code="0") == 1


def test_a_resent_reply_stores_nothing_and_says_so() -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    first = rig.reply(offset, lease)
    repeated = rig.reply(offset, lease)
    assert (repeated.code, repeated.outcome) == (0, STORED_BEFORE)
    assert repeated.results == first.results
    assert rig.reply(offset, lease + 1).outcome == LEASE_OVER, "that lease it was not"
    rig.restart()
    rig.pull(clientId=b"c")
    response = rig.reply(offset, lease)
    assert (response.code, response.outcome) == (0, STORED_BEFORE), "found by its id where nobody remembers"
    other = rig.reply(offset, lease + 1)
    assert (other.code, other.outcome) == (11, FINISHED), "who it was is not known any more"
    assert rig.bodies() == [b"out"]


def test_a_message_is_not_delivered_while_its_reply_is_committed() -> None:
    rig = ReplyRig(1, replace(FIRST, ack_timeout_ms=1_000, max_timeout_redeliveries=0))
    (offset,), lease = rig.have()
    rig.backend.pause_writes()
    call = rig.replying(offset, lease)
    assert rig.outcome_of(rig.replying(offset, lease)) == (15, None), "it is being committed"
    rig.advance(5.0)
    late = rig.call("settle", METHODS["settle"].args[0](request=_failing(offset, lease)))
    until(lambda: late.answered)
    assert late.result.late[0].offsets == [offset]
    rig.backend.resume_writes()
    assert rig.outcome_of(call) == (0, STORED)
    assert (rig.bodies(), rig.finished()) == ([b"out"], [offset])


def _failing(offset: int, lease: int) -> Any:
    return IDL.SettleRequest(result=result([], [offset], failLeases=[lease]))


def test_a_lease_that_is_over_stores_nothing() -> None:
    rig = ReplyRig(1, replace(FIRST, ack_timeout_ms=1_000))
    (offset,), lease = rig.have()
    rig.advance(2.0)
    response = rig.reply(offset, lease)
    assert (response.code, response.outcome) == (11, LEASE_OVER)
    assert (rig.bodies(), rig.finished()) == ([], [])
    (redelivered,), new = rig.have()
    assert redelivered == offset
    assert rig.reply(offset, lease).outcome == LEASE_OVER
    assert rig.reply(offset, new).outcome == STORED
    assert rig.bodies() == [b"out"]


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (reply_message(body=b""), 11, "body"),
        (reply_message(body=b"x" * 2_000), 11, "2000 bytes"),
        (reply_message("no/name"), 11, "topic"),
        (reply_message("%RETRY%G"), 11, "topic"),
        (reply_message("carrera_heartbeat"), 11, "heartbeat"),
        (reply_message("UNKNOWN"), 13, "does not exist"),
        (reply_message(key=b"k" * 300), 11, "300 characters"),
        (reply_message(properties={b"idempotency-key": b"k"}), 11, "idempotency-key"),
        (reply_message(properties={b"DELAY": b"no"}), 11, "DELAY"),
        (IDL.ReplyMessage(), 11, "topic is empty"),
    ],
)
def test_an_invalid_reply_is_rejected_and_the_lease_continues(message: Any, code: int, words: str) -> None:
    rig = ReplyRig(body_bytes_max=1_000, auto_create_topics=False)
    (offset,), lease = rig.have()
    response = rig.reply(offset, lease, reply_message(), message)
    assert (response.code, response.outcome, response.results) == (code, None, None)
    assert words in response.msg.decode()
    assert "message 1" in response.msg.decode()
    assert (rig.bodies(), rig.finished()) == ([], [])
    assert rig.reply(offset, lease).outcome == STORED


def test_bounds_are_those_of_a_transaction() -> None:
    rig = ReplyRig(transactions=TransactionLimits(messages_max=2, bytes_max=100))
    (offset,), lease = rig.have()
    many = rig.reply(offset, lease, *[reply_message()] * 3)
    large = rig.reply(offset, lease, *[reply_message(body=b"x" * 60)] * 2)
    assert (many.code, large.code) == (11, 11)
    assert "has 3 messages" in many.msg.decode()
    assert "bytes and more" in large.msg.decode()
    assert rig.counted("ddmq_send_refused_total", reason="reply_long") == 5
    assert rig.reply(offset, lease, *[reply_message()] * 2).outcome == STORED


def test_a_rate_limit_delays_or_rejects_a_reply() -> None:
    rig = ReplyRig(3, topic_rates={"OUT": RateLimit(messages_per_s=1.0)}, defer_ms_max=1_000)
    offsets, lease = rig.have(3)
    assert rig.reply(offsets[0], lease).outcome == STORED
    waits = rig.replying(offsets[1], lease)
    assert rig.outcome_of(rig.replying(offsets[2], lease)) == (15, None)
    assert not waits.answered
    rig.clock.advance(1.0)
    rig.sends.flow.sweep()
    assert rig.outcome_of(waits) == (0, STORED)
    assert rig.finished() == offsets[:2]


def test_a_topic_that_takes_no_messages() -> None:
    rig = ReplyRig()
    info = rig.backend.topic("OUT")
    assert info is not None
    rig.wait(rig.backend.put_topic(replace(info, writable=False), rig.deadline()))
    (offset,), lease = rig.have()
    assert rig.reply(offset, lease).code == 13
    rig.wait(rig.backend.put_topic(replace(info, writable=True), rig.deadline()))
    until(lambda: rig.reply(offset, lease).outcome == STORED)


def test_delays_by_level_and_by_the_delay_service() -> None:
    rig = ReplyRig()
    rig.delay_service()
    (offset,), lease = rig.have()
    due = reply_message(body=b"due", properties={b"deliver-after": b"5000"}, dueTimes=True)
    level = reply_message(body=b"level", properties={b"DELAY": b"3"})
    plain = reply_message(properties={b"deliver-after": b"5000"})
    response = rig.reply(offset, lease, due, level, plain)
    assert (response.code, response.outcome) == (0, STORED)
    assert rig.bodies() == [b"out"]
    (waiting,) = rig.stored(SCHEDULE_TOPIC)
    assert decode(waiting.delivery).value == b"level"
    (record,) = rig.stored(DELAY_TOPIC)
    command = decode_command(record.system[COMMAND_PROPERTY])
    assert (command.topic, decode(record.delivery).value) == ("OUT", b"due")
    assert command.due_ms - rig.clock.wall_ms() in (5_000, 5_001)
    first, second, third = response.results
    assert first.delayId
    assert (first.queueId, second.offset, third.offset) == (None, None, 0)
    rig.restart()
    rig.pull(clientId=b"c")
    assert rig.reply(offset, lease, due).outcome == STORED_BEFORE


def test_without_a_delay_service_a_due_time_is_rejected() -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    due = reply_message(properties={b"deliver-after": b"5000"}, dueTimes=True)
    assert rig.reply(offset, lease, due).code == 21
    due.dueTimes = None
    assert rig.reply(offset, lease, due).outcome == STORED, "the topic does not speak that dialect"


# --- order keys


def test_the_next_of_a_key_is_delivered_when_the_reply_is_durable() -> None:
    rig = ReplyRig(0, ORDERED)
    rig.keyed("a1", "a2")
    (offset,), lease = rig.have(2)
    waits = rig.start_pull(count=2, clientId=b"other", linger=20_000)
    rig.backend.pause_writes()
    call = rig.replying(offset, lease)
    rig.settle()
    assert not waits.answered
    rig.backend.resume_writes()
    assert rig.outcome_of(call) == (0, STORED)
    until(lambda: waits.answered)
    assert waits.values == [b"a2"]


def test_a_rejected_reply_keeps_its_key_blocked() -> None:
    rig = ReplyRig(0, ORDERED)
    rig.keyed("a1", "a2")
    (offset,), lease = rig.have(2)
    rig.backend.fail_next(TryLaterError("a bound"))
    assert rig.reply(offset, lease).code == 15
    assert rig.pull(count=2, clientId=b"other").offsets == []
    assert rig.reply(offset, lease).outcome == STORED
    assert rig.pull(count=2, clientId=b"other").values == [b"a2"]


def test_a_key_that_is_skipped_meanwhile_is_a_dead_letter_only_if_it_was_not_stored() -> None:
    for stored in (True, False):
        rig = ReplyRig(0, ORDERED)
        rig.keyed("a1", "a2")
        (offset,), lease = rig.have()
        rig.backend.pause_writes()
        if not stored:
            rig.backend.fail_next(TryLaterError("a bound"))
        call = rig.replying(offset, lease)
        skipped = rig.service.order_keys("G").skip('"a"')
        rig.backend.resume_writes()
        assert rig.outcome_of(call)[0] == (0 if stored else 15)
        ((_, outcome),) = rig.wait(skipped)
        assert outcome == ("acknowledged" if stored else "dead letter")
        assert len(rig.bodies()) == stored
        assert len(rig.stored(dlq_topic("G"))) == (not stored)
        assert rig.pull(count=1, clientId=b"c").values == [b"a2"]


# --- faults


@pytest.mark.parametrize("error", [TryLaterError("a bound"), StorageError("the disk")])
def test_an_error_that_stored_nothing_leaves_the_lease(error: Any) -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    rig.backend.fail_next(error)
    assert rig.reply(offset, lease).outcome is None
    assert (rig.bodies(), rig.finished()) == ([], [])
    assert rig.reply(offset, lease).outcome == STORED


@pytest.mark.parametrize("stored", [True, False])
def test_a_commit_without_an_answer_is_an_unknown_outcome(stored: bool) -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    rig.backend.fail_next(RemoteError("silence"), AppendStatus.UNKNOWN, stored=stored)
    response = rig.reply(offset, lease)
    assert (response.code, response.outcome) == (12, None)

    def settled() -> Any:
        answer = rig.reply(offset, lease)
        rig.advance(0.1)
        return answer if answer.code != 15 else None

    answer = until(settled, "the queue is had anew")
    assert (answer.code, answer.outcome) == (0, STORED_BEFORE if stored else STORED)
    assert (rig.bodies(), rig.finished()) == ([b"out"], [offset])


def test_a_late_result_of_an_uncertain_commit_is_dropped() -> None:
    """The engine is silent past the deadline, the queue is had anew, and the client asks again: once."""
    rig = ReplyRig()
    (offset,), lease = rig.have()
    rig.backend.pause_writes()
    call = rig.replying(offset, lease, timeout=1_000)
    rig.clock.advance(2.0)
    rig.sends.flow.sweep()
    assert rig.outcome_of(call) == (12, None), "its own time is up; the commit is under way"
    rig.advance(10.0)
    rig.backend.resume_writes()

    def settled() -> Any:
        answer = rig.reply(offset, lease)
        rig.advance(0.1)
        return answer if answer.code != 15 else None

    assert until(settled, "the queue is had anew").code == 0
    assert (rig.bodies(), rig.finished()) == ([b"out"], [offset])


def test_a_queue_that_was_reset_stores_nothing() -> None:
    rig = ReplyRig()
    offsets, lease = rig.have(2)
    rig.backend.fail_next(FencedError("generation 0 is over"))
    response = rig.reply(offsets[0], lease)
    assert (response.code, response.outcome) == (15, None)
    assert rig.reply(offsets[0], lease).outcome == STORED, "it was only looked at anew"


def test_a_queue_that_is_someone_elses_stores_nothing() -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    rig.backend.pause_writes()
    call = rig.replying(offset, lease)
    rig.backend.depose("G", "T")
    rig.backend.resume_writes()
    assert rig.outcome_of(call)[0] in (0, 15)
    assert len(rig.bodies()) == len(rig.finished())


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"context": None}, 11, "no group"),
        ({"context": IDL.Context(groupId=b"H", topic=b"T", qid=b"R_default_a_0")}, 11, "no group"),
        ({"context": IDL.Context(groupId=b"G", topic=b"T", qid=b"R_default_a_7")}, 11, "no queue"),
        ({"context": IDL.Context(groupId=b"G")}, 11, "no queue"),
        ({"messages": []}, 11, "no messages"),
        ({"messages": None}, 11, "no messages"),
        ({"offset": -1}, 11, "offset is -1"),
        ({"offset": None}, 11, "offset is None"),
        ({"lease": 0}, 11, "lease is 0"),
        ({"lease": None}, 11, "lease is None"),
        ({"clientId": b"c" * 256}, 11, "clientId"),
    ],
)
def test_requests_that_make_no_sense(fields: dict[str, Any], code: int, words: str) -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    context = IDL.Context(groupId=b"G", topic=b"T", qid=b"R_default_a_0")
    arguments = {
        "context": context,
        "offset": offset,
        "lease": lease,
        "messages": [reply_message()],
        **fields,
    }
    call = rig.call("reply", METHODS["reply"].args[0](request=IDL.ReplyRequest(**arguments)))
    until(lambda: call.answered)
    assert (call.result.code, call.result.outcome) == (code, None)
    assert words in call.result.msg.decode()
    assert (rig.bodies(), rig.finished()) == ([], [])


def test_what_was_never_delivered_has_no_lease() -> None:
    rig = ReplyRig(3)
    _, lease = rig.have(1)
    assert rig.reply(1, lease).outcome == LEASE_OVER
    assert rig.reply(99, lease).outcome == LEASE_OVER
    assert rig.bodies() == []


def test_draining_and_engines_that_cannot() -> None:
    rig = ReplyRig()
    (offset,), lease = rig.have()
    rig.backend.capabilities = replace(rig.backend.capabilities, atomic=False)
    response = rig.reply(offset, lease)
    assert response.code == 11
    assert "memory cannot commit" in response.msg.decode()
    rig.backend.capabilities = replace(rig.backend.capabilities, atomic=True)
    rig.sends.drain(rig.deadline())
    assert rig.reply(offset, lease).code == 20
    rig.service.drain(rig.deadline())
    rig.advance(2.0)
    assert rig.reply(offset, lease).code == 20
