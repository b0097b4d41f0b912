"""What a producer proxy tells of traced messages, and that it tells nothing of untraced ones."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from producer_rig import ProducerRig, message

from backend.records import CommitBatch, NewRecord
from backend.traces import TraceWriter
from ddmq_common import delivery
from ddmq_common.names import TRACE_TOPIC
from ddmq_common.trace.events import TraceEvent, TraceKind, decode_batch
from proxy_producer.config import ProducerConfig, RateLimit
from proxy_producer.service import ProducerService
from tests.support.rung_by_hand import RungByHand
from tests.support.waits import until


class TracedProducer(ProducerRig):
    """A producer proxy whose trace records are looked at."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.writer = TraceWriter(self.backend, self.metrics, self.clock, "p", "i", 1 << 30, RungByHand())
        self.proxy = ProducerService(
            self.backend, ProducerConfig(**config), self.metrics, self.clock, Random(7), timer=self.timer,
            traces=self.writer,
        )  # fmt: skip
        self.handlers = self.proxy.service().handlers

    def trace(self, one_in: int, topic: str = "orders") -> None:
        value = b"%d" % one_in if one_in else None
        batch = CommitBatch(settings={f"trace/{topic}": value})
        self.backend.commit(batch, self.clock.monotonic() + 60).wait(60)

    def flush_events(self) -> dict[bytes, list[TraceEvent]]:
        """By message, what goes into the log."""
        self.writer.flush()
        until(lambda: self.backend.sent and self.backend.sent[-1].records[0].topic == TRACE_TOPIC)
        records = self.backend.sent[-1].records
        return {each.message_id: _events(each) for each in records}


def _events(record: NewRecord) -> list[TraceEvent]:
    return list(decode_batch(delivery.decode(record.delivery).value).events)


def test_when_it_came_from_whom_and_when_it_was_stored() -> None:
    rig = TracedProducer()
    rig.trace(1)
    call = rig.send(clientId=b"shop-3")
    rig.clock.advance(0.040)
    sent = rig.backend.sent[-1]
    sent.answer()
    assert call.answer.code == 0
    ((message_id, events),) = rig.flush_events().items()
    assert message_id == sent.records[0].message_id
    came, stored = events
    assert (came.kind, stored.kind) == (TraceKind.SENT, TraceKind.STORED)
    assert stored.at_ms - came.at_ms == 40, "how long the commit took"
    assert came.facts == {"topic": "orders", "client": "shop-3", "address": "127.0.0.1:1"}
    assert stored.facts == {"topic": "orders", "queue": sent.records[0].queue_id, "offset": 100}


def test_a_rate_limit_that_held_it_is_named() -> None:
    rig = TracedProducer(topic_rate=RateLimit(messages_per_s=10, burst_ms=100), defer_ms_max=1_000)
    rig.trace(1)
    rig.send(timeout=5_000)
    rig.send(timeout=5_000)
    rig.advance(0.2)
    for sent in rig.backend.sent:
        sent.answer()
    events = list(rig.flush_events().values())
    assert "held_ms" not in events[0][0].facts
    assert events[1][0].facts["held_ms"] == 100
    assert "limited to 10 messages/s" in str(events[1][0].facts["held_by"])


def test_a_rate_limit_that_held_a_batch_is_named_for_each_of_its_messages() -> None:
    rig = TracedProducer(topic_rate=RateLimit(messages_per_s=10, burst_ms=100), defer_ms_max=1_000)
    rig.trace(1)
    rig.send(timeout=5_000)
    rig.call("sendBatch", messages=[message(), message(key=b"other")], timeout=5_000)
    rig.advance(0.3)
    single, batch = rig.backend.sent
    single.answer()
    batch.answer()
    events_by_id = rig.flush_events()
    assert "held_ms" not in events_by_id[single.records[0].message_id][0].facts
    for record in batch.records:
        facts = events_by_id[record.message_id][0].facts
        assert facts["held_ms"] == 100
        assert "limited to 10 messages/s" in str(facts["held_by"])


def test_each_message_of_a_batch_is_told_of() -> None:
    rig = TracedProducer()
    rig.trace(1)
    rig.call("sendBatch", messages=[message(), message(clientId=b"x")], timeout=500)
    sent = rig.backend.sent[-1]
    sent.answer()
    assert {each.message_id for each in sent.records} == set(rig.flush_events())


def test_a_topic_has_a_trace_as_long_as_it_is_traced() -> None:
    rig = TracedProducer()
    rig.send()
    topic = rig.proxy.topics.cached[b"orders"]
    assert topic.trace is None
    rig.trace(100)
    assert topic.trace is not None
    rig.trace(0)
    rig.send()
    for sent in rig.backend.sent:
        sent.answer()
    assert topic.trace is None
    rig.writer.flush()
    assert len(rig.backend.sent) == 2, "nothing is told of untraced messages"


@pytest.mark.parametrize("code", [15, 12])
def test_what_is_not_stored_is_not_told(code: int) -> None:
    rig = TracedProducer()
    rig.trace(1)
    rig.send()
    if code == 12:
        rig.advance(1.0)
        rig.backend.sent[-1].answer()
    else:
        from backend.records import AppendStatus
        from ddmq_common.errors import DiskFullError

        rig.backend.sent[-1].answer(AppendStatus.REFUSED, error=DiskFullError("full"))
    rig.writer.flush()
    assert len(rig.backend.sent) == 1
