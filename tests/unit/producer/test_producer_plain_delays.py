"""Plain sends that the delay service has to see: other systems' words, and what an old delay server sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddmq_common.delays.command import SCHEDULE, Schedule, parse_delay_id
from ddmq_common.delivery import decode
from ddmq_common.names import DELAY_TOPIC
from proxy_producer.config import DelayLimits, ProducerConfig
from tests.support.waits import until
from tests.unit.producer.producer_delay_rig import TOPICS, ProducerDelayRig, Shards
from tests.unit.producer.producer_rig import ProducerRig, message

OLD_ID = b"1700000060-3-1700172860-9-4-30-7-a4207970-e5e1-11f1-a4e0-02fc00000001"
CHRONOS = {b"from_chronos": b"from_chronos", b"a": b"b"}


@pytest.fixture
def rig() -> ProducerDelayRig:
    return ProducerDelayRig(delay=DelayLimits(dialects={"orders": ("amq", "rabbit"), "none": ("rabbit",)}))


class TestDialects:
    def test_a_delay_in_other_words_becomes_an_order(self, rig):
        call = rig.send(properties={b"x-delay": b"5000", b"a": b"b"}, key=b"k", partitionId=3, clientId=b"me")
        (record,), command = rig.records(), rig.command()
        assert (record.topic, command.topic, command.kind) == (DELAY_TOPIC, "orders", SCHEDULE)
        assert command.due_ms == rig.clock.wall_ms() + 5_001, "from the end of this millisecond"
        assert (command.partition, command.shard) == (3, record.queue_id)
        content = decode(record.delivery)
        assert (content.key, content.properties) == (b"k", {b"a": b"b"})
        rig.backend.sent[0].answer()
        assert call.answer.code == 0
        assert parse_delay_id(call.answer.delayId).uuid == command.uuid
        assert call.answer.messageId == record.message_id.hex()
        assert call.answer.offset is None
        assert rig.counted("orders", 0) == 1

    def test_old_clients_see_a_plain_0(self, rig):
        call = rig.send(properties={b"AMQ_SCHEDULED_CRON": b"0 9 * * *"})
        assert rig.command().schedule == Schedule(cron="0 9 * * *")
        rig.backend.sent[0].answer()
        assert (call.answer.code, call.answer.delayId, call.answer.messageId) == (0, None, None)

    def test_where_nobody_asked_for_it_they_are_ordinary_properties(self, rig):
        rig.send(topic=b"only", properties={b"x-delay": b"5000", b"from_chronos": b"x"})
        (record,) = rig.records()
        assert record.topic == "only"
        assert b"x-delay" in decode(record.delivery).properties

    def test_what_is_no_delay_is_sent_at_once_without_the_words(self, rig):
        rig.send(properties={b"x-delay": b"-5"})
        (record,) = rig.records()
        assert (record.topic, decode(record.delivery).properties) == ("orders", {})

    @pytest.mark.parametrize(
        "properties",
        [
            {b"x-delay": b"soon"},
            {b"x-delay": b"5", b"AMQ_SCHEDULED_DELAY": b"5"},
            {b"x-delay": b"5", b"DELAY": b"3"},
            {b"AMQ_SCHEDULED_CRON": b"never"},
        ],
    )
    def test_what_cannot_be_is_11(self, rig, properties):
        assert rig.code(properties=properties) == 11

    def test_a_topic_that_takes_no_delays_is_18(self, rig):
        assert rig.code(topic=b"none", properties={b"x-delay": b"5000"}) == 18

    def test_in_a_batch_it_is_11(self, rig):
        call = rig.call("sendBatchSync", messages=[message(properties={b"x-delay": b"5"})])
        assert call.answer.code == 11
        rig.call("sendBatchSync", messages=[message(properties={b"x-delay": b"-5"})])
        assert rig.records()[0].topic == "orders"

    def test_without_a_delay_service_it_is_21(self):
        rig = ProducerRig(TOPICS[:3], delay=DelayLimits(dialects={"orders": ("rabbit",)}))
        assert rig.code(properties={b"x-delay": b"5"}) == 21
        rig.send(properties={b"a": b"b"})
        assert len(rig.backend.sent) == 1

    def test_however_seldom_somebody_sends(self):
        """The holders of the shards are asked again before it is rejected, and before it is taken."""
        rig = ProducerRig(TOPICS, delay=DelayLimits(dialects={"orders": ("rabbit",), "none": ("rabbit",)}))
        until(lambda: rig.proxy.delay.presence._absent_since is not None)
        rig.clock.advance(10.0)
        for _ in range(2):
            rig.clock.advance(1.0)
            call = rig.send(properties={b"x-delay": b"5"}, clientId=b"me")
            until(lambda call=call: not call.open)
            assert (call.answer.code, call.answer.delayId) == (21, None)
            assert rig.code(topic=b"none", properties={b"x-delay": b"5"}) == 18
        assert (rig.backend.sent, rig.proxy.flow.inflight) == ([], 0)
        assert rig.counted("orders", 21) == 2
        shards = Shards(rig.backend)
        until(lambda: shards.queues)
        rig.clock.advance(1.0)
        rig.send(properties={b"x-delay": b"5"})
        until(lambda: rig.backend.sent)

    def test_one_that_waits_to_hear_of_the_service_is_not_taken_while_draining(self):
        rig = ProducerRig(TOPICS, delay=DelayLimits(dialects={"orders": ("rabbit",)}))
        until(lambda: rig.proxy.delay.presence._absent_since is not None)
        rig.clock.advance(11.0)
        shards = Shards(rig.backend)
        until(lambda: shards.queues)
        call = rig.send(properties={b"x-delay": b"5"})
        assert call.open
        assert rig.proxy.drain(rig.clock.monotonic() + 1.0).done
        until(lambda: not call.open or rig.backend.sent)
        assert call.answer.code == 20

    def test_a_dialect_that_nobody_speaks_is_rejected_in_the_configuration(self):
        with pytest.raises(ValueError, match="klingon"):
            ProducerConfig(delay=DelayLimits(dialects={"orders": ("klingon",)}))


class TestTopicsOwnDialects:
    """What a topic says of itself, also while the proxy runs."""

    def settle(self, rig, **changes):
        info = replace(rig.backend.topic("orders"), **changes)
        rig.backend.put_topic(info, rig.clock.monotonic() + 10).wait(10)

    def test_from_the_start(self):
        rig = ProducerDelayRig([replace(TOPICS[0], delay_dialects=("ddmq",)), *TOPICS[1:]])
        rig.send(properties={b"deliver-after": b"5s"})
        assert rig.command().due_ms == rig.clock.wall_ms() + 5_001

    @pytest.mark.parametrize(
        "properties",
        [
            {b"x-delay": b"1"},
            {b"AMQ_SCHEDULED_DELAY": b"1"},
            {b"TIMER_DELAY_MS": b"1"},
            {b"TIMER_DELAY_SEC": b"1"},
            {b"deliver-after": b"1ms"},
        ],
    )
    def test_what_counts_from_now_is_never_early(self, properties):
        rig = ProducerDelayRig(delay=DelayLimits(dialects={"orders": ("amq", "rabbit", "rocketmq", "ddmq")}))
        rig.clock.advance(0.0009)
        sent_ms = rig.clock.wall_ms() + 0.9
        rig.send(properties=properties)
        assert rig.command().due_ms >= sent_ms + (1_000 if b"TIMER_DELAY_SEC" in properties else 1)

    def test_a_moment_in_this_millisecond_goes_at_once_and_the_next_one_waits(self):
        rig = ProducerDelayRig(delay=DelayLimits(dialects={"orders": ("rocketmq",)}))
        for later, inner in ((0, False), (1, True)):
            rig.send(properties={b"TIMER_DELIVER_MS": b"%d" % (rig.clock.wall_ms() + later)})
            assert (rig.records()[-1].topic == DELAY_TOPIC) is inner

    def test_switched_on_and_off_while_it_runs(self):
        rig = ProducerDelayRig()
        properties = {b"x-delay": b"5000"}
        rig.send(properties=properties)
        assert rig.records()[0].topic == "orders"
        self.settle(rig, delay_dialects=("rabbit", "klingon"))
        rig.send(properties=properties)
        assert rig.records(2)[1].topic == DELAY_TOPIC
        self.settle(rig, delay_dialects=())
        rig.send(properties=properties)
        assert rig.records(3)[2].topic == "orders"

    def test_they_come_before_the_proxys(self, rig):
        self.settle(rig, delay_dialects=("ddmq",))
        rig.send(properties={b"x-delay": b"5000"})
        assert rig.records()[0].topic == "orders"
        self.settle(rig, delay_dialects=())
        rig.send(properties={b"x-delay": b"5000"})
        assert rig.records(2)[1].topic == DELAY_TOPIC


class TestOldServers:
    def test_their_messages_go_through_the_delay_service(self, rig):
        call = rig.send(properties=CHRONOS, key=OLD_ID, clientId=b"me")
        (record,), command = rig.records(), rig.command()
        assert (record.topic, record.queue_id, command.shard) == (DELAY_TOPIC, 7, 7)
        assert command.unless_cancelled == "a4207970-e5e1-11f1-a4e0-02fc00000001"
        assert command.due_ms == rig.clock.wall_ms()
        assert (decode(record.delivery).key, decode(record.delivery).properties) == (OLD_ID, CHRONOS)
        rig.backend.sent[0].answer()
        assert (call.answer.code, call.answer.delayId) == (0, None)

    def test_each_send_is_an_order_of_its_own_also_under_the_same_key(self, rig):
        for key in (OLD_ID, OLD_ID.replace(b"-4-30", b"-5-30"), OLD_ID):
            rig.send(properties=CHRONOS, key=key)
        commands = [rig.command(at) for at in range(3) if rig.records(3)]
        assert len({command.uuid for command in commands}) == 3, "a consumer that sends on is no resend"
        assert len({command.unless_cancelled for command in commands}) == 1

    @pytest.mark.parametrize("key", [b"k", b"", OLD_ID.replace(b"-7-a4", b"--7-a4")])
    def test_without_an_id_in_the_key_it_is_a_plain_send(self, rig, key):
        rig.send(properties=CHRONOS, key=key)
        assert rig.records()[0].topic == "orders"

    @pytest.mark.parametrize("topic", [b"none", b"only", b"fresh"])
    def test_any_topic_takes_them(self, rig, topic):
        call = rig.send(topic=topic, properties=CHRONOS, key=OLD_ID)
        until(lambda: rig.backend.sent)
        assert rig.command().topic == topic.decode()
        rig.backend.sent[0].answer()
        assert call.answer.code == 0

    def test_without_a_delay_service_they_are_stored_as_they_are(self):
        rig = ProducerRig(TOPICS[:3])
        rig.send(properties=CHRONOS, key=OLD_ID)
        assert rig.backend.sent[0].records[0].topic == "orders"

    def test_in_a_batch_too(self, rig):
        members = [message(), message(properties=CHRONOS, key=OLD_ID), message(properties=CHRONOS)]
        call = rig.call("sendBatchSync", messages=members)
        (sent,) = rig.backend.sent
        assert [record.topic for record in sent.records] == ["orders", DELAY_TOPIC, "orders"]
        sent.answer()
        assert call.answer.code == 0

    def test_in_a_batch_the_answer_names_no_offset_of_the_delay_topic(self, rig):
        members = [message(clientId=b"me"), message(properties=CHRONOS, key=OLD_ID, clientId=b"me")]
        call = rig.call("sendBatch", messages=members, timeout=500)
        rig.backend.sent[0].answer()
        plain, relayed = call.answer
        assert (plain.code, relayed.code) == (0, 0)
        assert plain.offset is not None
        assert (relayed.offset, relayed.queueId, relayed.delayId) == (None, None, None)
