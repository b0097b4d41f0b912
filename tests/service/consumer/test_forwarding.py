"""Two proxies over one memory engine, connected over loopback: results that reach the wrong one."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from backend.completion import Completion, failed, succeeded
from backend.records import QueueRef
from ddmq_common.errors import TryLaterError
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits
from proxy_consumer import peers
from tests.service.consumer.consumer_rig import METHODS, ConsumerRig, FakeCall, result
from tests.support.rig import Rig
from tests.support.waits import until


class Pair(Rig):
    """`here` holds the queues of topic T and listens; `there` gets the results."""

    def __init__(self) -> None:
        super().__init__()
        self.here = ConsumerRig()
        self.server = RpcServer(
            self.here.service.service(), "127.0.0.1", 0, RpcLimits(), Registry(), self.here.clock
        )
        self.server.start()
        self.address = f"127.0.0.1:{self.server.address[1]}"
        self.here.service.advertise(self.address)
        self.there = ConsumerRig(backend=self.here.backend)
        self.there.clock = self.here.clock
        self.there.start()
        self.there.service.advertise("127.0.0.1:1")
        self.holders = {}
        self.here.backend.holders = lambda *_: succeeded(self.holders)  # type: ignore[method-assign]
        self.here.topic()
        self.here.subscribe()
        self.here.send(10)
        self.offsets = self.here.pull(clientId=b"me").offsets
        self.set_owner(self.address)

    def set_owner(self, address: str) -> None:
        self.holders = {self.here.ref(): address}

    def submit(self, rig: ConsumerRig, consume_result: object) -> FakeCall:
        call = rig.call("submit", METHODS["submit"].args[0](result=consume_result))
        until(lambda: call.answered)
        return call

    def close(self) -> None:
        self.there.service._results.forwarding.close()
        self.server.close()
        self.here.close()


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_results_reach_the_owner_and_are_durable_when_answered(pair: Pair) -> None:
    assert pair.submit(pair.there, result([0, 1, 2])).result is True
    assert pair.here.progress().committed == 3
    assert pair.there.counted("ddmq_results_forwarded_total", outcome="forwarded") == 1


def test_leases_delays_and_reasons_travel_along(pair: Pair) -> None:
    consume_result = result([], [0], failLeases=[7], failDelaysMs=[60_000], failReasons=[b"no"])
    assert pair.submit(pair.there, consume_result).result is True
    assert pair.here.counted("ddmq_results_ignored_total", group="G", reason="late") == 1, "a stale lease"
    assert pair.submit(pair.there, result([], [1], failDelaysMs=[60_000])).result is True
    assert pair.here.counted("ddmq_failed_total", group="G", topic="T") == 1


def test_a_pull_brings_them_along_too(pair: Pair) -> None:
    call = pair.there.pull(result=result(range(10)))
    assert call.result.messages == []
    assert pair.here.progress().committed == 10


def test_many_at_once_are_sent_together(pair: Pair) -> None:
    calls = [
        pair.there.call("submit", METHODS["submit"].args[0](result=result([offset]))) for offset in range(10)
    ]
    until(lambda: all(call.answered for call in calls))
    assert all(call.result is True for call in calls)
    assert pair.here.progress().committed == 10


def test_a_forwarded_call_is_never_forwarded_twice(pair: Pair) -> None:
    call = pair.submit(pair.there, result([0], forwardedBy=b"127.0.0.1:2"))
    assert b"does not hold the queue any more" in call.outcome.error.message
    assert not pair.there.service._results.forwarding._peers._links


def test_an_owner_that_lost_the_queue_answers_try_later(pair: Pair) -> None:
    pair.here.directory.groups[b"G"].subscriptions[b"T"].leave()
    call = pair.submit(pair.there, result([0]))
    assert b"does not hold the queue any more" in call.outcome.error.message


def test_an_owner_that_cannot_be_reached_answers_try_later(pair: Pair) -> None:
    pair.set_owner("127.0.0.1:1")
    pair.there.service.advertise("127.0.0.1:2")
    call = pair.submit(pair.there, result([0]))
    assert b"127.0.0.1:1 holds the queue and cannot be reached" in call.outcome.error.message
    assert pair.there.counted("ddmq_results_forwarded_total", outcome="failed") == 1
    pair.set_owner(pair.address)
    assert pair.submit(pair.there, result([0])).result is True


def test_between_two_owners(pair: Pair) -> None:
    pair.holders = {QueueRef("T", 1, 9): pair.address}
    call = pair.submit(pair.there, result([0]))
    assert b"between two owners" in call.outcome.error.message


@pytest.mark.parametrize("queue", [1, 99, -1, 10**30])
def test_a_queue_that_does_not_exist_is_ignored(pair: Pair, queue: int) -> None:
    assert pair.submit(pair.there, result([0], queue=queue)).result is True
    assert pair.there.counted("ddmq_results_ignored_total", group="G", reason="unknown queue") == 1


def test_a_queue_without_an_owner_is_claimed(pair: Pair) -> None:
    pair.here.directory.groups[b"G"].subscriptions[b"T"].leave()
    pair.holders = {}
    call = pair.there.call("submit", METHODS["submit"].args[0](result=result([0])))
    until(lambda: pair.there.directory.groups[b"G"].queues)
    pair.there.advance(0.01)
    until(lambda: call.answered)
    assert call.result is True
    assert pair.here.progress().committed == 1


def test_the_lookup_fails(pair: Pair) -> None:
    pair.here.backend.holders = lambda *_: failed(TryLaterError("no writer"))  # type: ignore[method-assign]
    call = pair.submit(pair.there, result([0]))
    assert b"no writer" in call.outcome.error.message


def test_what_waits_for_one_proxy_is_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CALLS_MAX", 0)
    call = pair.submit(pair.there, result([0]))
    assert call.outcome.error.code == 15


def test_an_owner_that_hangs_delays_all_results_for_it_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not sent one after the other, each to wait as long as the one before."""
    monkeypatch.setattr(peers, "ANSWER_S", 0.2)
    monkeypatch.setattr(peers, "ELEMENTS_MAX", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pair.set_owner(f"127.0.0.1:{silent.getsockname()[1]}")
        calls = [pair.there.start_pull(result=result([offset])) for offset in range(10)]
        until(lambda: all(call.answered for call in calls))
        silent.settimeout(0.0)
        connected = [silent.accept()[0] for _ in range(peers.CONNECTIONS_MAX)]
        with pytest.raises(BlockingIOError):
            silent.accept()
        for each in connected:
            each.close()
    assert all("no answer within" in str(call.outcome.error.message) for call in calls)
    pair.set_owner(pair.address)
    assert pair.submit(pair.there, result(range(10))).result is True, "sent again"


def test_a_proxy_without_an_address_of_its_own_passes_nothing_on(pair: Pair) -> None:
    pair.there.service.advertise("")
    assert pair.submit(pair.there, result([0])).result is True
    assert pair.here.progress().committed == 0


def test_results_of_retried_messages_reach_the_owner_of_the_retry_queue(pair: Pair) -> None:
    lookups: list[tuple[str, str]] = []
    pair.here.topic("%RETRY%G", queues=3)
    retry_queue = pair.here.ref(2, "%RETRY%G")

    def holders(group: str, topic: str, _: float) -> Completion[Mapping[QueueRef, str]]:
        lookups.append((group, topic))
        return succeeded({retry_queue: pair.address} if topic == "%RETRY%G" else pair.holders)

    pair.here.backend.holders = holders  # type: ignore[method-assign]
    consume_result = result([0])
    consume_result.context.qid = b"R_default_%RETRY%_2"
    call = pair.submit(pair.there, consume_result)
    assert lookups == [("G", "%RETRY%G")]
    assert b"does not hold the queue any more" in call.outcome.error.message, "it was asked"
