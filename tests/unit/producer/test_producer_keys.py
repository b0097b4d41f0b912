"""On an engine without one order over all queues a message that has a key goes by it, as Kafka's do."""

from dataclasses import replace
from random import Random

import pytest

from backend.internal_topics import real_record
from backend.records import StoredRecord, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.names import SCHEDULE_TOPIC
from delay_service.due.backend import target_topic
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.support.waits import until
from tests.unit.producer.producer_rig import ProducerRig, ScriptedBackend, message

QUEUES = 7
# (Kafka's murmur2 of the key, positive) modulo 7
QUEUE_OF = {b"21": 3, b"foobar": 0, b"abc": 4}


class ByQueue(ScriptedBackend):
    """Without `topic_order`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.capabilities = replace(self.capabilities, topic_order=False)


def proxy_over(rig: ProducerRig, backend: ScriptedBackend) -> ProducerRig:
    rig.proxy.close()
    rig.backend = backend
    backend.put_topic(TopicInfo("orders", 0, QUEUES), rig.clock.monotonic() + 10).wait(10)
    config = ProducerConfig()
    rig.proxy = ProducerService(backend, config, rig.metrics, rig.clock, Random(7), timer=rig.timer)
    rig.handlers = rig.proxy.service().handlers
    return rig


@pytest.fixture
def rig() -> ProducerRig:
    rig = ProducerRig(())
    return proxy_over(rig, ByQueue(rig.clock))


def queues_of(rig: ProducerRig) -> list[int]:
    return [record.queue_id for sent in rig.backend.sent for record in sent.records]


@pytest.mark.parametrize("key", QUEUE_OF)
def test_a_send_that_says_nothing_of_its_queue_goes_by_its_key(rig, key):
    for _ in range(3):
        rig.send(key=key, partitionId=-2)
    assert queues_of(rig) == [QUEUE_OF[key]] * 3


def test_what_says_its_queue_goes_there(rig):
    rig.send(key=b"21", partitionId=9)
    rig.send(key=b"21", partitionId=-1, hashId=-5)
    rig.send(key=b"21", partitionId=-1, hashId=0)
    assert queues_of(rig) == [2, 5, 0]


def test_without_a_key_all_queues_are_used(rig):
    for _ in range(QUEUES):
        rig.send(key=b"", partitionId=-2)
    assert sorted(queues_of(rig)) == list(range(QUEUES))


def test_each_of_a_batch_goes_by_its_key(rig):
    keys = [*QUEUE_OF, b"", *QUEUE_OF]
    rig.call("sendBatchSync", messages=[message(key=key, partitionId=-2) for key in keys])
    without = queues_of(rig)[3]
    assert queues_of(rig) == [QUEUE_OF.get(key, without) for key in keys]


def test_the_queue_is_chosen_before_a_delay_level(rig):
    rig.send(key=b"21", partitionId=-2, properties={b"DELAY": b"1"})
    until(lambda: rig.backend.sent)
    record = rig.backend.sent[0].records[0]
    assert record.topic == SCHEDULE_TOPIC
    stored = StoredRecord(
        record.topic, record.queue_id, 0, 0, record.message_id, record.born_ms, 0, record.flags, 0,
        record.delivery, record.system or {},
    )  # fmt: skip
    assert (real_record(stored).topic, real_record(stored).queue_id) == ("orders", QUEUE_OF[b"21"])


def test_the_first_message_of_a_new_topic_goes_by_its_key_too(rig):
    rig.send(topic=b"fresh", key=b"21", partitionId=-2)
    until(lambda: rig.backend.sent)
    info = rig.backend.topic("fresh")
    assert info is not None
    assert queues_of(rig) == [-973932308 % (1 << 31) % info.queues]


def test_where_one_position_orders_all_queues_keys_say_nothing():
    rig = ProducerRig(())
    proxy_over(rig, ScriptedBackend(rig.clock))
    for _ in range(QUEUES):
        rig.send(key=b"21", partitionId=-2)
    assert sorted(queues_of(rig)) == list(range(QUEUES))


@pytest.mark.parametrize("kind", [ByQueue, ScriptedBackend])
def test_the_delay_service_asks_the_engine_too(kind):
    backend = kind(ManualClock())
    backend.put_topic(TopicInfo("orders", 0, QUEUES), 1e9).wait(10)
    info = target_topic(backend, "orders")
    assert info is not None
    assert info.by_key == (kind is ByQueue)
