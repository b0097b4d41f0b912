"""What a consumer proxy tells of traced messages, and that it tells nothing of others."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from backend.records import CommitBatch, NewRecord
from backend.traces import TraceWriter
from ddmq_common import delivery
from ddmq_common.names import TRACE_TOPIC
from ddmq_common.trace.events import TraceEvent, TraceKind, decode_batch
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig, result
from tests.support.rung_by_hand import RungByHand
from tests.support.waits import done, until

TRACED = replace(FIRST, trace_one_in=1)
K = TraceKind


class TracedConsumer(ConsumerRig):
    """A proxy whose traces are read back."""

    def start(self) -> ConsumerService:
        self.writer = TraceWriter(self.backend, self.metrics, self.clock, "p", "i", 1 << 30, RungByHand())
        service = ConsumerService(
            self.backend, self.config, self.metrics, self.clock, Random(7), traces=self.writer
        )
        service.start(timer=False)
        self.service = service
        self.handlers = service.service().handlers
        return service

    def events(self, number: int = 0) -> list[TraceEvent]:
        """Of message `number`, in order."""
        done(self.writer.drain(self.clock.monotonic() + 60))
        message_id = bytes(12) + number.to_bytes(4, "big")
        if self.backend.topic(TRACE_TOPIC) is None:
            return []
        records = done(self.backend.find(TRACE_TOPIC, message_id=message_id, count_max=1_000))
        events = [e for each in records for e in decode_batch(delivery.decode(each.delivery).value).events]
        return sorted(events, key=lambda event: event.number)

    def kinds(self, number: int = 0) -> list[TraceKind]:
        return [TraceKind(event.kind) for event in self.events(number)]


def test_from_read_to_acknowledged() -> None:
    rig = TracedConsumer().ready(3, TRACED)
    rig.advance(0.5)
    rig.pull(count=3, clientId=b"worker-1")
    rig.advance(0.2)
    rig.submit(result(success=[0, 1]))
    read, handed_out, acked = rig.events(0)
    assert (read.kind, handed_out.kind, acked.kind) == (K.READ, K.HANDED_OUT, K.ACKED)
    assert handed_out.group == "G"
    facts = handed_out.facts
    assert (facts["client"], facts["address"], facts["attempt"]) == ("worker-1", "test:1", 1)
    assert (facts["queue"], facts["offset"]) == (0, 0)
    assert acked.at_ms - handed_out.at_ms == 200
    assert facts["until_ms"] == handed_out.at_ms + 30_000
    assert rig.kinds(2) == [K.READ, K.HANDED_OUT], "not acknowledged yet"


def test_a_group_that_is_not_traced_tells_nothing_and_has_no_observer() -> None:
    rig = TracedConsumer().ready(2)
    rig.pull(count=2)
    rig.submit(result(success=[0, 1]))
    assert rig.events(0) == []
    assert {state.observer for state in rig.subscription().buffer.queues.values()} == {None}
    assert rig.backend.topic(TRACE_TOPIC) is None


def test_failures_time_outs_extensions_and_returns_are_traced() -> None:
    rig = TracedConsumer().ready(1, replace(TRACED, retry_intervals_ms=(100,), ack_timeout_ms=1_000))
    rig.pull()
    rig.submit(result(fail=[0], failReasons=[b"no stock"]))
    rig.advance(0.15)
    rig.pull()
    rig.advance(1.1)
    lease = rig.pull(clientId=b"c").result.context
    assert lease is not None
    read_buffer = next(iter(rig.subscription().buffer.queues.values()))
    lease_id = read_buffer.leases.lease_of(0).id
    rig.submit(result(extendLeases=[lease_id]))
    rig.submit(result(returnOffsets=[0], returnLeases=[lease_id]))
    events = rig.events()
    assert [K(each.kind) for each in events] == [
        K.READ, K.HANDED_OUT, K.FAILED, K.HANDED_OUT, K.TIMED_OUT, K.HANDED_OUT, K.EXTENDED, K.RELEASED,
        K.RETURNED,
    ]  # fmt: skip
    failed = events[2]
    assert failed.facts["error"] == "no stock"
    assert (failed.facts["next"], failed.facts["again_ms"]) == ("wait", failed.at_ms + 100)
    assert events[4].facts["next"] == "again"
    assert [each.facts.get("attempt") for each in events if each.kind == K.HANDED_OUT] == [1, 2, 3]


@pytest.mark.parametrize("order_key", ["", "KEY"])
def test_a_returned_untried_message_waits_behind_no_key(order_key: str) -> None:
    rig = TracedConsumer().ready(1, replace(TRACED, order_key=order_key))
    rig.pull()
    read_buffer = next(iter(rig.subscription().buffer.queues.values()))
    rig.submit(result(returnOffsets=[0], returnLeases=[read_buffer.leases.lease_of(0).id]))
    (returned,) = [event for event in rig.events() if event.kind == K.RETURNED]
    assert returned.facts["next"] == "again"


def test_the_cause_of_a_wait_is_recorded_with_the_delivery() -> None:
    rig = TracedConsumer().ready(0, replace(TRACED, concurrency=1))
    rig.send(1)
    rig.pull()
    rig.advance(0.01)
    done(rig.backend.append([record(1)], rig.deadline()))
    waiting = rig.start_pull(linger=20_000)
    rig.advance(0.5)
    rig.submit(result(success=[0]))
    rig.settle(lambda: waiting.answered)
    (handed_out,) = [event for event in rig.events(1) if event.kind == K.HANDED_OUT]
    (wait, *_) = [wait for wait in handed_out.waits() if wait[0] == "concurrency"]
    assert wait[2] == handed_out.at_ms
    assert wait[2] - wait[1] >= 490


def test_a_wait_without_pulls_is_recorded() -> None:
    rig = TracedConsumer().ready(0, TRACED)
    rig.advance(0.01)
    rig.send(1)
    rig.advance(3.0)
    rig.pull()
    (handed_out,) = [event for event in rig.events() if event.kind == K.HANDED_OUT]
    assert handed_out.waits()[0][0] == "no_pull"
    assert sum(end - start for reason, start, end in handed_out.waits() if reason == "no_pull") >= 2_990


def test_a_pause_is_recorded_with_the_delivery() -> None:
    rig = TracedConsumer().ready(0, TRACED)
    rig.pull()
    rig.wait(rig.service.change_subscription("G", "T", {"paused": True}))
    done(rig.backend.append([record(1)], rig.deadline()))
    waiting = rig.start_pull(linger=20_000)
    for _ in range(3):
        rig.advance(1.0)
    rig.wait(rig.service.change_subscription("G", "T", {"paused": False}))
    rig.settle(lambda: waiting.answered)
    (handed_out,) = [event for event in rig.events(1) if event.kind == K.HANDED_OUT]
    assert sum(end - start for reason, start, end in handed_out.waits() if reason == "paused") >= 2_000


def test_a_topic_that_was_closed_is_no_lack_of_pulls() -> None:
    rig = TracedConsumer().ready(1, TRACED)
    info = rig.backend.topic("T")
    assert info is not None
    rig.wait(rig.backend.put_topic(replace(info, readable=False), rig.deadline()))
    rig.settle()
    rig.advance(0.01)
    assert rig.pull().outcome.error.code == 13
    rig.advance(3.0)
    waits_here = rig.service.explain_waits("G", "T", rig.ref(), 0)
    assert waits_here is not None
    assert waits_here.waits[-1][0] == "closed"
    rig.wait(rig.backend.put_topic(info, rig.deadline()))
    rig.settle()
    rig.pull()
    (handed_out,) = [event for event in rig.events() if event.kind == K.HANDED_OUT]
    assert sum(end - start for reason, start, end in handed_out.waits() if reason == "closed") >= 2_990


def record(number: int, key: str = "k") -> NewRecord:
    body = delivery.encode(key.encode(), b"m%d" % number, b"", None)
    return NewRecord("T", 0, bytes(12) + number.to_bytes(4, "big"), 1, body, key.encode())


def test_behind_its_key_then_parked_and_skipped() -> None:
    rig = TracedConsumer().ready(0, replace(TRACED, order_key="KEY", retry_intervals_ms=()))
    done(rig.backend.append([record(0), record(1), record(2)], rig.deadline()))
    assert rig.pull(count=3).offsets == [0]
    assert rig.kinds(1) == [K.READ]
    rig.submit(result(success=[0]))
    assert rig.pull(count=3).offsets == [1]
    assert rig.kinds(1) == [K.READ, K.RELEASED, K.HANDED_OUT]
    assert rig.events(1)[1].facts["key"] == '"k"'
    rig.wait(rig.service.order_keys("G").park('"k"'))
    rig.submit(result(fail=[1]))
    assert rig.kinds(1)[3:] == [K.FAILED, K.PARKED]
    assert rig.events(1)[4].facts["key"] == '"k"'
    rig.wait(rig.service.order_keys("G").skip('"k"'))
    until(lambda: K.SPENT in rig.kinds(1), "it is on its way to the dead letters")


def test_switched_on_and_off_while_clients_have_messages() -> None:
    rig = TracedConsumer().ready(3)
    assert rig.pull(count=1).offsets == [0]
    done(rig.backend.commit(CommitBatch(settings={"trace/T": b"1"}), rig.deadline()))
    rig.settle()
    rig.advance(0.05)
    assert None not in {state.observer for state in rig.subscription().buffer.queues.values()}
    assert rig.pull(count=1).offsets == [1], "what a client has stays its own"
    assert rig.submit(result(success=[0, 1])).result is True
    assert rig.kinds(1) == [K.READ, K.HANDED_OUT, K.ACKED]
    done(rig.backend.commit(CommitBatch(settings={"trace/T": None}), rig.deadline()))
    rig.settle()
    rig.advance(0.05)
    assert rig.pull(count=1).offsets == [2]
    rig.submit(result(success=[2]))
    assert rig.progress().committed == 3
    assert K.ACKED not in rig.kinds(2)


def test_only_those_of_the_sample_are_followed() -> None:
    rig = TracedConsumer().ready(100, replace(TRACED, trace_one_in=10))
    rig.pull(count=100)
    rig.submit(result(success=list(range(100))))
    traced = [number for number in range(100) if rig.events(number)]
    assert 2 <= len(traced) <= 25
    assert all(rig.kinds(number) == [K.READ, K.HANDED_OUT, K.ACKED] for number in traced)


def test_a_queue_that_goes_to_another_proxy() -> None:
    rig = TracedConsumer().ready(2, TRACED)
    rig.pull(count=1)
    rig.backend.depose("G", "T")
    rig.settle()
    rig.advance(0.05)
    assert K.LEFT in rig.kinds(1)


def test_a_deleted_subscription_is_looked_at_no_more() -> None:
    rig = TracedConsumer().ready(1, TRACED)
    rig.pull()
    runtime = rig.subscription().runtime
    assert len(runtime.traced) == 1
    rig.wait(rig.service.delete_group("G"))

    def looked() -> bool:
        rig.advance(0.01)
        return not runtime.traced

    until(looked, "it is not looked at")


def test_the_causes_of_a_wait_are_shown_before_the_first_delivery() -> None:
    rig = TracedConsumer().ready(1, TRACED)
    assert rig.service.explain_waits("G", "T", rig.ref(), 0) is not None
    since_ms = rig.clock.wall_ms()
    rig.advance(0.01)
    rig.advance(2.0)
    waits_here = rig.service.explain_waits("G", "T", rig.ref(), since_ms)
    assert waits_here is not None
    assert not waits_here.here, "nobody has pulled yet, so it has no queue"
    assert waits_here.waits == [("no_pull", since_ms + 10, since_ms + 2_010)]
    assert rig.service.explain_waits("nobody", "T", rig.ref(), 0) is None
    assert rig.service.explain_waits("G", "other", rig.ref(), 0) is None
