"""DELAY=n: what is stored instead of the message, and what is answered."""

from __future__ import annotations

from random import Random

import pytest

from backend.internal_topics import real_record
from backend.records import AppendStatus, NewRecord, StoredRecord, TopicInfo
from ddmq_common.delays.levels import Levels
from ddmq_common.delivery import decode
from ddmq_common.errors import BoundReachedError
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.support.waits import until
from tests.unit.producer.producer_rig import FakeTimer, ProducerRig


@pytest.fixture
def rig() -> ProducerRig:
    return ProducerRig((
        TopicInfo("orders", 0, 4), TopicInfo("only", 0, 1, delay="only"),
        TopicInfo("none", 0, 1, delay="none"),
        TopicInfo("closed", 0, 1, writable=False),
    ))  # fmt: skip


def level(n: object) -> dict[bytes, bytes]:
    return {b"DELAY": str(n).encode(), b"a": b"b"}


def sent(rig: ProducerRig, count: int = 1) -> list[NewRecord]:
    until(lambda: len(rig.backend.sent) >= count)
    return [one.records[0] for one in rig.backend.sent]


def as_stored(record: NewRecord) -> StoredRecord:
    return StoredRecord(
        record.topic, record.queue_id, 0, 0, record.message_id, record.born_ms, 0, record.flags, 0,
        record.delivery, record.system or {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n", "queue", "wait_ms"), [(1, 0, 1_000), (7, 6, 180_000), (18, 17, 7_200_000), (19, 17, 7_200_000)]
)
def test_the_schedule_record_is_stored_instead(rig, n, queue, wait_ms):
    rig.send(properties=level(n), key=b"k", tags=b"red", partitionId=2)
    [record] = sent(rig)
    assert (record.topic, record.queue_id, record.due_ms) == (SCHEDULE_TOPIC, queue, -wait_ms)
    real = real_record(as_stored(record))
    assert (real.topic, real.queue_id, real.key, real.tags) == ("orders", 2, b"k", b"red")
    assert decode(real.delivery).properties == {b"a": b"b"}, "DELAY itself is not delivered"


def test_its_topic_is_made_once_with_a_queue_for_each_level(rig):
    calls = [rig.send(properties=level(1)) for _ in range(3)]
    sent(rig, 3)
    info = rig.backend.topic(SCHEDULE_TOPIC)
    assert (info.queues, info.durability) == (18, 1)
    for one in rig.backend.sent:
        one.answer()
    assert [call.answer.code for call in calls] == [0, 0, 0]


def test_a_topic_of_an_older_shorter_list_grows(rig):
    short = ProducerService(rig.backend, ProducerConfig(), rig.metrics, rig.clock, Random(1),
                            timer=FakeTimer(), levels=Levels(["1s", "2s"]))  # fmt: skip
    rig.handlers, handlers = short.service().handlers, rig.handlers
    rig.send(properties=level(9))
    assert sent(rig)[0].queue_id == 1
    assert rig.backend.topic(SCHEDULE_TOPIC).queues == 2
    rig.handlers = handlers
    rig.send(properties=level(9))
    assert sent(rig, 2)[1].queue_id == 8
    assert rig.backend.topic(SCHEDULE_TOPIC).queues == 18


def test_ours_hear_the_id_but_no_place(rig):
    call = rig.send(properties=level(1), clientId=b"c")
    [record] = sent(rig)
    rig.backend.sent[0].answer()
    answer = call.answer
    assert (answer.code, answer.messageId, answer.durability) == (0, record.message_id.hex(), 1)
    assert (answer.queueId, answer.offset) == (None, None)


@pytest.mark.parametrize("topic", [b"only", b"fresh"])
def test_topics_for_delayed_messages_and_new_ones_take_them(rig, topic):
    call = rig.send(topic=topic, properties=level(1))
    assert sent(rig)[0].system["REAL_TOPIC"] == topic.decode()
    rig.backend.sent[0].answer()
    assert call.answer.code == 0
    assert rig.backend.topic(topic.decode()) is not None


@pytest.mark.parametrize(("topic", "code"), [(b"none", 18), (b"closed", 13)])
def test_topics_that_take_none(rig, topic, code):
    assert rig.code(topic=topic, properties=level(1)) == code
    assert not rig.backend.sent


def test_when_the_levels_topic_cannot_be_made(rig):
    rig.backend.creations = []
    calls = [rig.send(properties=level(1)) for _ in range(2)]
    [(info, creation)] = rig.backend.creations
    assert info.name == SCHEDULE_TOPIC
    creation.fail(BoundReachedError("10 topics exist; that is the bound"))
    assert {call.answer.code for call in calls} == {15}
    assert rig.proxy.flow.inflight == 0
    rig.send(properties=level(1))
    assert len(rig.backend.creations) == 2, "the next send tries again"


def test_out_of_time_while_the_topic_is_made(rig):
    rig.backend.creations = []
    call = rig.send(properties=level(1), timeout=100)
    rig.clock.advance(0.2)
    rig.proxy.flow.sweep()
    assert call.answer.code == 12
    rig.backend.creations[0][1].succeed(rig.backend.topic("orders"))
    assert not rig.backend.sent
    assert rig.proxy.flow.inflight == 0


def test_what_the_backend_says_is_answered(rig):
    call = rig.send(properties=level(1))
    sent(rig)
    rig.backend.sent[0].answer(AppendStatus.REFUSED, error=BoundReachedError("full"))
    assert call.answer.code == 15
