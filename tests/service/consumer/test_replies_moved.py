"""Acknowledgements that carry messages while proxies die, stop as planned, and others take their queues."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.replies import ReplySender
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.service.consumer.consumer_rig import IDL, METHODS
from tests.service.consumer.reply_rig import (
    FINISHED,
    LEASE_OVER,
    STORED,
    STORED_BEFORE,
    ReplyRig,
    reply_message,
)
from tests.service.consumer.test_consumer_reset import reset
from tests.service.consumer.test_consumer_takeover import come_back, lose
from tests.service.consumer.test_planned_restart import ADDRESS, stop
from tests.service.consumer.test_retry_path import RetryPathRig
from tests.support.waits import until
from tests.unit.producer.producer_rig import FakeTimer

ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "queue": {"order_key": "KEY", "order_scope": "queue"},
    "group": {"order_key": "KEY"},
}


@pytest.fixture(params=list(ORDERS))
def rig(request: pytest.FixtureRequest) -> ReplyRig:
    reply_rig = ReplyRig(3, SubscriptionDefaults(start="first", **ORDERS[request.param]))
    reply_rig.service.advertise(ADDRESS)
    return reply_rig


def settled(rig: ReplyRig, offset: int, lease: int) -> Any:
    """The answer, asked for again as clients do."""

    def try_reply() -> Any:
        answer = rig.reply(offset, lease)
        rig.advance(0.05)
        return answer if answer.code not in (15, 20) else None

    return until(try_reply, "somebody can tell")


def test_a_proxy_dies_between_the_commit_and_its_answer(rig: ReplyRig) -> None:
    (offset,), lease = rig.have()
    rig.backend.pause_writes()
    lost = rig.replying(offset, lease)
    rig.backend.resume_writes()
    until(lambda: len(rig.bodies()) == 1)
    rig.restart()
    assert offset not in rig.pull(count=10, clientId=b"c").offsets
    response = rig.reply(offset, lease)
    assert (response.code, response.outcome) == (0, STORED_BEFORE)
    assert rig.bodies() == [b"out"]
    assert lost is not None


def test_a_proxy_dies_before_the_commit(rig: ReplyRig) -> None:
    (offset,), lease = rig.have()
    rig.restart()
    redelivered = rig.pull(count=1, clientId=b"c")
    assert redelivered.offsets == [offset], "its lease died with it"
    assert rig.reply(offset, lease).outcome == LEASE_OVER
    assert rig.reply(offset, redelivered.result.messages[0].leaseId).outcome == STORED
    assert rig.reply(offset, lease).outcome == LEASE_OVER
    assert rig.bodies() == [b"out"]


def test_a_planned_restart_takes_no_lease_away(rig: ReplyRig) -> None:
    (offset,), lease = rig.have()
    stop(rig)
    assert rig.reply(offset, lease).code in (15, 20)
    rig.start().advertise(ADDRESS)
    rig.pull(count=1, clientId=b"c")
    response = settled(rig, offset, lease)
    assert (response.code, response.outcome) == (0, STORED)
    assert (rig.bodies(), rig.finished()) == ([b"out"], [offset])


def test_what_is_being_committed_when_the_writer_is_lost(rig: ReplyRig) -> None:
    """The queues come back under another epoch: the commit counted before that, or not at all."""
    for stored in (True, False):
        (offset,), lease = rig.have()
        rig.backend.pause_writes()
        call = rig.replying(offset, lease)
        if stored:
            rig.backend.resume_writes()
            until(lambda: call.answered)  # noqa: B023
        lose(rig)
        rig.backend.resume_writes()
        come_back(rig)
        response = settled(rig, offset, lease)
        assert (response.code, response.outcome in (STORED, STORED_BEFORE)) == (0, True), response
        assert rig.bodies() == [b"out"] * len(rig.finished())
        assert offset in rig.finished()


def test_offsets_that_are_reset(rig: ReplyRig) -> None:
    """A lease of before says nothing any more; what was stored before stays told."""
    (offset,), lease = rig.have()
    reset(rig, "first")
    rig.advance(0.1)
    response = settled(rig, offset, lease)
    assert (response.code, response.outcome, rig.bodies()) == (11, LEASE_OVER, [])
    redelivered = rig.pull(count=1, clientId=b"c")
    assert redelivered.offsets == [offset]
    new = redelivered.result.messages[0].leaseId
    assert rig.reply(offset, new).outcome == STORED
    reset(rig, "first")
    rig.advance(0.1)
    assert settled(rig, offset, new).outcome == STORED_BEFORE
    assert rig.pull(count=1, clientId=b"c").offsets == [offset], "as the reset says"


def test_two_groups_have_the_same_message() -> None:
    rig = ReplyRig()
    rig.subscribe("H")
    (offset,), first = rig.have()
    second = rig.pull(group=b"H", clientId=b"c").result.messages[0].leaseId
    context = IDL.Context(groupId=b"H", topic=b"T", qid=b"R_default_a_0")
    for _ in range(2):
        assert rig.reply(offset, first).code == rig.reply(offset, second, context=context).code == 0
    assert rig.bodies() == [b"out", b"out"]


def test_another_proxy_has_the_queue(rig: ReplyRig) -> None:
    (offset,), lease = rig.have()
    rig.backend.pause_writes()
    call = rig.replying(offset, lease)
    rig.backend.depose("G", "T")
    rig.backend.resume_writes()
    until(lambda: call.answered)
    rig.advance(4.0)
    assert len(rig.bodies()) == len(rig.finished())
    response = settled(rig, offset, lease)
    assert response.outcome in (STORED, STORED_BEFORE, LEASE_OVER, FINISHED)
    if response.outcome == LEASE_OVER:
        redelivered = rig.pull(count=1, clientId=b"c")
        assert settled(rig, redelivered.offsets[0], redelivered.result.messages[0].leaseId).outcome == STORED
    assert rig.bodies() == [b"out"]


class RetriedReplyRig(RetryPathRig):
    """With what sends replies."""

    def replies(self) -> ReplySender:
        self.sends = ProducerService(
            self.backend, ProducerConfig(), self.metrics, self.clock, Random(3), timer=FakeTimer()
        )
        return self.sends.replies


def test_a_message_on_the_retry_path_is_acknowledged_there() -> None:
    rig = RetriedReplyRig()
    rig.topic()
    rig.takes_a_step()
    rig.advance(11)
    answer = rig.pull(clientId=b"c", count=1).result
    (message,) = answer.messages
    request = IDL.ReplyRequest(
        context=answer.context, offset=message.offset, lease=message.leaseId, messages=[reply_message()]
    )
    for outcome in (STORED, STORED_BEFORE):
        call = rig.call("reply", METHODS["reply"].args[0](request=request))
        until(lambda: call.answered)  # noqa: B023
        assert (call.result.code, call.result.outcome) == (0, outcome)
    assert rig.retry_progress() == 1
    assert rig.backend.topic("OUT") is not None
