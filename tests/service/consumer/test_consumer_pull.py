"""Pulls: delivery, lingering, fairness, shape of answers."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.port import ReadCall
from backend.records import ReadBatch
from ddmq_rpc.api import Wire
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, result
from tests.support.constants import build_options


def test_delivers_from_one_queue_with_the_context_to_echo(rig: ConsumerRig) -> None:
    rig.ready(3)
    answer = rig.pull().result
    assert (answer.context.groupId, answer.context.topic, answer.context.qid) == (
        b"G",
        b"T",
        b"R_default_a_0",
    )
    assert [message.value for message in answer.messages] == [b"m0", b"m1", b"m2"]
    first = answer.messages[0]
    assert (first.key, first.tag, first.offset, first.properties) == (b"k0", b"tag", 0, {b"p": b"v"})
    assert (first.messageId, first.leaseId, first.attempt, first.nextOffset) == (None, None, None, None)


def test_empty_answer_is_byte_for_byte_what_a_real_ddmq_sent(rig: ConsumerRig) -> None:
    rig.ready()
    call = rig.pull()
    assert call.encoded == bytes.fromhex("0c001c00190c0000")


def test_a_queue_read_to_its_end_is_read_when_there_is_more(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready()
    call = rig.start_pull(linger=30_000)
    rig.settle()
    reads: list[int] = []
    read = rig.backend.start_read

    def record_read(request: ReadCall, completion: Completion[ReadBatch]) -> None:
        reads.append(request.offset)
        read(request, completion)

    monkeypatch.setattr(rig.backend, "start_read", record_read)
    for offset in range(3):
        rig.send(1)
        rig.settle()
        assert call.offsets == [offset]
        call = rig.start_pull(linger=30_000, result=result([offset]))
        rig.settle()
    assert reads == [0, 1, 2]


def test_round_robin_over_queues_and_topics(rig: ConsumerRig) -> None:
    rig.topic("T", 2)
    rig.topic("U", 2)
    rig.subscribe()
    rig.subscribe(topic="U")
    for topic in ("T", "U"):
        for queue in (0, 1):
            rig.send(40, queue, topic)
    rig.pull(topic=None, count=2)
    rig.settle()  # all four queues have been read
    calls = [rig.pull(topic=None, count=2) for _ in range(12)]
    sources = [(call.result.context.topic, call.queue) for call in calls]
    for start in range(9):
        assert len(set(sources[start : start + 4])) == 4


def test_batch_is_the_smaller_of_request_and_limit() -> None:
    rig = ConsumerRig(ConsumerConfig(defaults=SubscriptionDefaults(batch_max=8))).ready(
        30, SubscriptionDefaults(batch_max=8, start="first")
    )
    assert [len(rig.pull(count=count).offsets) for count in (None, 0, 3, 1 << 30)] == [8, 8, 3, 8]


def test_answer_stops_growing_at_its_byte_bound_but_holds_one_message() -> None:
    rig = ConsumerRig(ConsumerConfig(answer_bytes_max=4096)).ready()
    rig.send(6, size=1500)
    rig.send(1, size=9000)
    assert [len(rig.pull().offsets) for _ in range(4)] == [2, 2, 2, 1]


@pytest.mark.parametrize("invalid", [{"count": -1}, {"linger": -1}, {"count": -(1 << 31)}])
def test_negative_sizes_get_an_exception_that_says_what_is_allowed(
    rig: ConsumerRig, invalid: dict[str, int]
) -> None:
    rig.ready()
    error = rig.pull(**invalid).outcome.error
    assert error.code == 11
    assert b"allowed" in error.message


def test_binary_callers_get_the_same_messages(rig: ConsumerRig) -> None:
    rig.ready(2)
    answer = rig.pull(wire=Wire.BINARY).result
    assert [(each.key, each.value, each.tag, each.offset) for each in answer.messages] == [
        (b"k0", b"m0", b"tag", 0),
        (b"k1", b"m1", b"tag", 1),
    ]
    assert answer.messages[0].properties == {b"p": b"v"}
    assert answer.messages[0].leaseId is None
    assert rig.pull(wire=Wire.BINARY).result.messages == []


@pytest.mark.parametrize("wire", list(Wire))
def test_our_clients_get_our_fields(rig: ConsumerRig, wire: Wire) -> None:
    rig.ready(3)
    answer = rig.pull(count=2, clientId=b"c", wire=wire).result
    extended = answer.messages[1]
    assert extended.messageId == (bytes(15) + b"\x01").hex().encode()
    assert extended.leaseId == answer.messages[0].leaseId > 0
    assert (extended.attempt, extended.offset, extended.nextOffset) == (1, 1, 3)
    assert extended.bornMs == extended.storedMs == rig.clock.wall_ms()


@pytest.mark.parametrize("count", [1, 14, 15, 63, 64, 65, 100])
@pytest.mark.parametrize("skip", [0, 40, 63, 200])
def test_hand_built_answers_parse_at_every_length_and_offset(count: int, skip: int) -> None:
    rig = ConsumerRig(build_options(ConsumerConfig, read_ahead_count=1)).ready()
    rig.send(skip + count)
    left = skip
    while left:
        left -= len(rig.pull(count=left).offsets)
    assert rig.pull(count=count).offsets == list(range(skip, skip + count))


def test_context_missing_from_a_result_is_harmless(rig: ConsumerRig) -> None:
    rig.ready()
    assert rig.submit(IDL.ConsumeResult(successOffsets=[1])).result is True
    assert rig.submit(IDL.ConsumeResult(context=IDL.Context(), successOffsets=None)).result is True
