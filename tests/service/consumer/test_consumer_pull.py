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


def test_acknowledged_with_the_next_pull_and_durable_before_its_answer(rig: ConsumerRig) -> None:
    rig.ready(5)
    assert rig.pull(count=2).offsets == [0, 1]
    rig.backend.hold()
    call = rig.ask(count=2, result=result([0, 1]))
    rig.settle()
    assert not call.answered
    rig.backend.release_held()
    rig.settle()
    assert call.offsets == [2, 3]
    assert rig.progress().committed == 2


def test_empty_answer_is_byte_for_byte_what_a_real_ddmq_sent(rig: ConsumerRig) -> None:
    rig.ready()
    call = rig.pull()
    assert call.encoded == bytes.fromhex("0c001c00190c0000")


def test_waits_for_the_linger_and_not_longer(rig: ConsumerRig) -> None:
    rig.ready()
    call = rig.ask(linger=50)
    rig.settle()
    rig.advance(0.045)
    assert not call.answered
    rig.advance(0.015)
    assert call.result.messages == []


@pytest.mark.parametrize(("linger", "seconds"), [(None, 0.02), (0, 0.02), (5, 0.02), (1 << 30, 30.0)])
def test_linger_has_a_floor_and_a_ceiling(rig: ConsumerRig, linger: int | None, seconds: float) -> None:
    rig.ready()
    call = rig.ask(linger=linger)
    rig.settle()
    rig.advance(seconds - 0.001)
    assert not call.answered
    rig.advance(0.011)
    assert call.result.messages == []


def test_a_waiting_pull_is_woken_by_an_append(rig: ConsumerRig) -> None:
    rig.ready()
    call = rig.ask(linger=30_000)
    rig.settle()
    assert not call.answered
    rig.send(1)
    rig.settle()
    assert call.offsets == [0]


def test_what_was_read_to_its_end_is_read_again_when_there_is_more(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready()
    call = rig.ask(linger=30_000)
    rig.settle()
    reads: list[int] = []
    read = rig.backend.start_read

    def noted(asked: ReadCall, completion: Completion[ReadBatch]) -> None:
        reads.append(asked.offset)
        read(asked, completion)

    monkeypatch.setattr(rig.backend, "start_read", noted)
    for offset in range(3):
        rig.send(1)
        rig.settle()
        assert call.offsets == [offset]
        call = rig.ask(linger=30_000, result=result([offset]))
        rig.settle()
    assert reads == [0, 1, 2]


def test_waiters_are_served_in_order_of_arrival_over_both_kinds(rig: ConsumerRig) -> None:
    rig.ready()
    calls = [rig.ask(linger=30_000, count=1, topic=topic) for topic in (b"T", None, b"T", None)]
    rig.settle()
    for number, call in enumerate(calls):
        rig.send(1)
        rig.settle()
        assert [each.answered for each in calls] == [index <= number for index in range(4)]
        assert call.offsets == [number]


def test_a_client_that_goes_gets_nothing_and_holds_nobody_up(rig: ConsumerRig) -> None:
    rig.ready()
    gone, stays = rig.ask(linger=30_000), rig.ask(linger=30_000)
    rig.settle()
    gone.go()
    rig.send(1)
    rig.settle()
    assert not gone.answered
    assert stays.offsets == [0]


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
    seen = [(call.result.context.topic, call.queue) for call in calls]
    for start in range(9):
        assert len(set(seen[start : start + 4])) == 4


def test_a_named_topic_delivers_that_topic_only(rig: ConsumerRig) -> None:
    rig.topic("T")
    rig.topic("U")
    rig.subscribe()
    rig.subscribe(topic="U")
    rig.send(2, topic="U")
    assert rig.pull(topic=b"T").result.messages == []
    assert len(rig.pull(topic=b"U").result.messages) == 2


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


@pytest.mark.parametrize("wrong", [{"count": -1}, {"linger": -1}, {"count": -(1 << 31)}])
def test_negative_sizes_get_an_exception_that_says_what_is_allowed(
    rig: ConsumerRig, wrong: dict[str, int]
) -> None:
    rig.ready()
    error = rig.pull(**wrong).outcome.error
    assert error.code == 11
    assert b"allowed" in error.message


def test_a_filter_is_refused_until_there_are_filters(rig: ConsumerRig) -> None:
    rig.ready()
    assert rig.pull(filter=b"a = 1", filterType=b"SQL92").outcome.error.code == 11
    assert rig.pull(filter=b"*").result.messages == []


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
    ours = answer.messages[1]
    assert ours.messageId == (bytes(15) + b"\x01").hex().encode()
    assert ours.leaseId == answer.messages[0].leaseId > 0
    assert (ours.attempt, ours.offset, ours.nextOffset) == (1, 1, 3)
    assert ours.bornMs == ours.storedMs == rig.clock.wall_ms()


@pytest.mark.parametrize("count", [1, 14, 15, 63, 64, 65, 100])
@pytest.mark.parametrize("skip", [0, 40, 63, 200])
def test_hand_built_answers_parse_at_every_length_and_offset(count: int, skip: int) -> None:
    rig = ConsumerRig(build_options(ConsumerConfig, read_ahead_count=1)).ready()
    rig.send(skip + count)
    left = skip
    while left:
        left -= len(rig.pull(count=left).offsets)
    assert rig.pull(count=count).offsets == list(range(skip, skip + count))


def test_gaps_are_passed_over_and_finished(rig: ConsumerRig) -> None:
    rig.ready(10)
    for offset in (0, 4, 5, 9):
        rig.backend.lose(rig.ref(), offset)
    call = rig.pull()
    assert call.offsets == [1, 2, 3, 6, 7, 8]
    rig.submit(result(call.offsets))
    assert rig.progress().committed == 10
    assert rig.counted("ddmq_skipped_total", reason="missing") == 4


def test_pressure_traffic_is_refused_and_counted(rig: ConsumerRig) -> None:
    rig.ready(2)
    rig.send(3, pressure=True)
    rig.send(1)
    call = rig.pull()
    assert call.offsets == [0, 1, 5]
    rig.submit(result(call.offsets))
    assert rig.progress().committed == 6
    assert rig.counted("ddmq_skipped_total", reason="pressure") == 3


def test_pressure_traffic_reaches_who_accepts_it(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(pressure_traffic=True, start="first"))
    rig.send(3, pressure=True)
    assert rig.pull().offsets == [0, 1, 2]


def test_expired_messages_are_skipped_and_counted(rig: ConsumerRig) -> None:
    rig.ready(10)
    rig.backend.expire(rig.ref(), 6)
    call = rig.pull()
    assert call.offsets == [6, 7, 8, 9]
    rig.submit(result(call.offsets))
    assert rig.progress().committed == 10
    assert rig.counted("ddmq_skipped_total", reason="expired") == 6


def test_context_missing_from_a_result_is_harmless(rig: ConsumerRig) -> None:
    rig.ready()
    assert rig.submit(IDL.ConsumeResult(successOffsets=[1])).result is True
    assert rig.submit(IDL.ConsumeResult(context=IDL.Context(), successOffsets=None)).result is True
