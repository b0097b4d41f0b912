"""Two proxies over one engine: acknowledgements with messages that reach the one that does not hold it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend.completion import succeeded
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits
from proxy_producer.config import RateLimit
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall
from tests.service.consumer.reply_rig import LEASE_OVER, STORED, STORED_BEFORE, ReplyRig, reply_message
from tests.support.waits import until


class OtherRig(ReplyRig):
    """Another proxy over the engine of a first one."""

    def __init__(self, first: ReplyRig) -> None:
        self.sends_config, self._starts = first.sends_config, 100
        ConsumerRig.__init__(self, backend=first.backend)


class TwoProxies:
    """`here` holds the queue and listens; `there` is asked."""

    def __init__(self, **producer: Any) -> None:
        self.here = ReplyRig(9, **producer)
        service = self.here.service.service()
        self.server = RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), self.here.clock)
        self.server.start()
        self.address = f"127.0.0.1:{self.server.address[1]}"
        self.here.service.advertise(self.address)
        self.there = OtherRig(self.here)
        self.there.clock = self.here.clock
        self.there.start()
        self.there.service.advertise("127.0.0.1:1")
        self.set_owners(self.address)
        (self.offset,), self.lease = self.here.have()

    def set_owners(self, *addresses: str) -> None:
        holders = {self.here.ref(): address for address in addresses}
        self.here.backend.holders = lambda *_: succeeded(holders)  # type: ignore[method-assign]

    def reply(self, rig: ConsumerRig, lease: int, *messages: Any, **fields: Any) -> Any:
        call = self.start_reply(rig, self.offset, lease, *messages, **fields)
        until(lambda: call.answered)
        return call.result

    def start_reply(
        self, rig: ConsumerRig, offset: int, lease: int, *messages: Any, **fields: Any
    ) -> FakeCall:
        context = IDL.Context(groupId=b"G", topic=b"T", qid=b"R_default_a_0")
        replies = list(messages or (reply_message(),))
        request = IDL.ReplyRequest(context=context, offset=offset, lease=lease, messages=replies, **fields)
        call = FakeCall("reply", METHODS["reply"].args[0](request=request))
        call.received_at = rig.clock.monotonic()
        rig.handlers["reply"](call)
        return call

    def close(self) -> None:
        self.there.wait(self.there.service.drain(0.0))
        self.server.close()
        self.here.close()


@pytest.fixture
def pair() -> Iterator[TwoProxies]:
    proxies = TwoProxies()
    yield proxies
    proxies.close()


def test_a_reply_reaches_the_owner_and_its_answer_the_caller(pair: TwoProxies) -> None:
    response = pair.reply(
        pair.there, pair.lease, reply_message(body=b"a"), reply_message(body=b"b"), timeout=5_000
    )
    assert (response.code, response.outcome, len(response.results)) == (0, STORED, 2)
    assert pair.here.bodies() == [b"a", b"b"]
    assert pair.here.finished() == [pair.offset]
    repeated = pair.reply(pair.there, pair.lease)
    assert (repeated.code, repeated.outcome) == (0, STORED_BEFORE)
    assert pair.there.counted("ddmq_results_forwarded_total", outcome="forwarded") == 2
    assert pair.here.counted("ddmq_replies_total", group="G", outcome="stored") == 1
    assert pair.there.counted("ddmq_replies_total", group="G") == 0


def test_a_reply_that_waits_for_a_rate_delays_no_other() -> None:
    """However many of one topic wait at the holder, another one's acknowledgement goes through."""
    pair = TwoProxies(topic_rates={"OUT": RateLimit(messages_per_s=1.0)}, defer_ms_max=9_000)
    assert pair.reply(pair.here, pair.lease).outcome == STORED
    offsets, lease = pair.here.have(5)
    waiting = [pair.start_reply(pair.there, offset, lease) for offset in offsets[:4]]
    until(lambda: pair.here.sends.flow.inflight == 4)
    pair.here.topic("FREE", 1)
    free = pair.start_reply(pair.there, offsets[4], lease, reply_message("FREE"))
    until(lambda: free.answered)
    assert free.result.outcome == STORED
    assert not any(call.answered for call in waiting)
    pair.here.clock.advance(5.0)
    pair.here.sends.flow.sweep()
    until(lambda: all(call.answered for call in waiting))
    assert [call.result.outcome for call in waiting] == [STORED] * 4
    pair.close()


def test_rejections_come_back_complete(pair: TwoProxies) -> None:
    response = pair.reply(pair.there, pair.lease, reply_message("no/name"))
    assert (response.code, response.outcome) == (11, None)
    assert b"no/name" in response.msg
    assert pair.reply(pair.there, pair.lease + 1).outcome == LEASE_OVER
    assert pair.here.bodies() == []


def test_a_forwarded_reply_is_not_forwarded_twice(pair: TwoProxies) -> None:
    response = pair.reply(pair.there, pair.lease, forwardedBy=b"127.0.0.1:2")
    assert (response.code, response.outcome) == (15, None)


def test_between_two_owners(pair: TwoProxies) -> None:
    pair.set_owners()
    assert pair.reply(pair.there, pair.lease).code == 15
    pair.set_owners("127.0.0.1:1")
    assert pair.reply(pair.there, pair.lease).code == 15


def test_an_owner_that_cannot_be_reached_stores_nothing(pair: TwoProxies) -> None:
    pair.set_owners("127.0.0.1:9")
    response = pair.reply(pair.there, pair.lease)
    assert (response.code, response.outcome) == (15, None)
    assert b"cannot be reached" in response.msg
    pair.set_owners(pair.address)
    assert pair.reply(pair.there, pair.lease).outcome == STORED


def test_a_silent_owner_means_an_unknown_outcome(pair: TwoProxies) -> None:
    pair.here.backend.pause_writes()
    response = pair.reply(pair.there, pair.lease, timeout=200)
    assert (response.code, response.outcome) == (12, None)
    pair.here.backend.resume_writes()
    until(lambda: pair.here.finished() == [pair.offset])
    assert pair.reply(pair.there, pair.lease).outcome == STORED_BEFORE
    assert pair.here.bodies() == [b"out"]
