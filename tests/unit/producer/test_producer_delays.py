"""Delay commands: what is stored, what is answered, and when."""

from __future__ import annotations

import pytest

from backend.records import AppendStatus, TopicInfo
from ddmq_common.delays.command import (
    ALREADY_FIRED,
    CANCELLED,
    EXPONENTIAL,
    LOOP,
    ONCE,
    PENDING,
    SCHEDULE,
    Schedule,
    parse_delay_id,
    shard_of,
)
from ddmq_common.delivery import decode
from ddmq_common.metrics import catalogue
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from ddmq_rpc.api import Wire
from proxy_producer.config import DelayLimits
from tests.support.constants import build_options
from tests.support.waits import until
from tests.unit.producer.producer_delay_rig import TOPICS, ProducerDelayRig, Shards
from tests.unit.producer.producer_rig import ProducerRig, delay_message

UUID = "a4207970-e5e1-11f1-a4e0-02fc00000001"
ID = b"1700000060-2-1700172860-0-0-0-3-" + UUID.encode()
NOW_MS = 1_700_000_000_000


@pytest.fixture
def rig() -> ProducerDelayRig:
    return ProducerDelayRig()


def send_delay(rig, timeout=500, wire=Wire.COMPACT, **fields):
    return rig.call("sendDelaySync", delayMessage=delay_message(**fields), timeout=timeout, wire=wire)


def change(rig, action=2, timeout=500, **fields):
    absent = {"timestamp": None, "dmsgtype": None, "uuid": None, "body": b"c", "uniqDelayMsgId": ID}
    return send_delay(rig, timeout, action=action, **(absent | fields))


def test_a_cancel_names_no_time_that_no_add_can_have(rig):
    """What is kept of a cancel of an unknown id is kept until its times: they are the caller's to invent."""
    latest = rig.clock.wall_ms() // 1_000 + 62 * 86_400
    change(rig, uniqDelayMsgId=b"9999999999-3-9999999999-9-0-3-7-" + UUID.encode())
    assert (rig.command().timestamp_s, rig.command().expire_s) == (latest, latest)
    call = change(rig, uniqDelayMsgId=b"%010d-3-%010d-9-0-3-7-" % (latest - 1, latest - 1) + UUID.encode())
    command = rig.command(1)
    assert (command.timestamp_s, command.expire_s, command.times) == (latest - 1, latest - 1, 9)
    rig.backend.sent[1].answer()
    assert call.answer.uniqDelayMsgId.startswith(b"%010d-3-" % (latest - 1))


@pytest.mark.parametrize("wire", list(Wire))
def test_an_add_is_answered_with_its_id_once_it_is_durable(rig, wire):
    call = send_delay(rig, wire=wire, body=b"\x00\xff body")
    (record,), command = rig.records(), rig.command()
    shard = shard_of(UUID, 16)
    assert (record.topic, record.queue_id, record.key, record.tags) == (DELAY_TOPIC, shard, b"", b"")
    assert (command.op, command.uuid, command.topic, command.kind) == ("add", UUID, "orders", ONCE)
    assert (command.due_ms, command.timestamp_s, command.shard) == (1_700_000_060_000, 1_700_000_060, shard)
    assert command.reply_queue == -1
    content = decode(record.delivery)
    assert (content.key, content.value, content.tag) == (b"", b"\x00\xff body", b"t")
    assert content.properties == {b"from_chronos": b"from_chronos"}
    assert call.open
    rig.backend.sent[0].answer()
    assert (call.answer.code, call.answer.msg) == (0, "OK")
    assert call.answer.uniqDelayMsgId == f"1700000060-2-1700172860-0-0-0-{shard}-{UUID}".encode()
    assert (call.answer.outcome, call.answer.firedAtMs, call.answer.dueMs) == (None, None, None)
    assert rig.counted("orders", 0) == 1


def test_the_short_and_the_careful_way_store_the_same(rig):
    send_delay(rig)
    send_delay(rig, properties={b"from_chronos": b"x"})  # properties take the careful way
    first, second = rig.records(2)
    assert (first.queue_id, first.delivery, first.system) == (second.queue_id, second.delivery, second.system)


def test_properties_and_pressure_go_along(rig):
    send_delay(rig, properties={b"a": b"b", b"isPressureTraffic": b"true"})
    (record,) = rig.records()
    assert record.flags == 1
    assert decode(record.delivery).properties == {
        b"a": b"b", b"isPressureTraffic": b"true", b"from_chronos": b"from_chronos",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "interval"), [(LOOP, 3), (EXPONENTIAL, 2)])
def test_loops_keep_what_makes_up_their_ids(rig, kind, interval):
    call = send_delay(rig, dmsgtype=kind, times=7, expire=1_700_009_999, interval=interval)
    command = rig.command()
    assert (command.kind, command.times, command.expire_s, command.interval_s) == (
        kind,
        7,
        1_700_009_999,
        interval,
    )
    rig.backend.sent[0].answer()
    shard = shard_of(UUID, 16)
    assert call.answer.uniqDelayMsgId.decode() == (
        f"1700000060-{kind}-1700009999-7-0-{interval}-{shard}-{UUID}"
    )


def test_whatever_a_loop_asks_for_its_id_can_be_cancelled(rig):
    most = (1 << 63) - 1
    call = send_delay(rig, dmsgtype=LOOP, times=1_000_000, expire=most, interval=most)
    rig.records()
    rig.backend.sent[0].answer()
    delay_id = parse_delay_id(call.answer.uniqDelayMsgId)
    assert (delay_id.expire_s, delay_id.interval_s) == (9_999_999_999, most)
    change(rig, uniqDelayMsgId=call.answer.uniqDelayMsgId)
    assert rig.command().op == "cancel"


@pytest.mark.parametrize("name", ["dueMs", "delayMs", "periodMs", "repeat", "occurrencesMax", "hashId"])
@pytest.mark.parametrize("value", [-(1 << 63), -1, (1 << 63) - 1])
def test_numbers_at_the_ends_are_taken_or_rejected(rig, name, value):
    call = send_delay(rig, timestamp=None, dmsgtype=SCHEDULE, fresh=True, **{"delayMs": 5, name: value})
    assert rig.backend.sent or call.answer.code in (11, 33)


def test_a_missing_uuid_is_made(rig):
    calls = [send_delay(rig, uuid=None), send_delay(rig, uuid=b"")]
    for sent in list(rig.backend.sent):
        sent.answer()
    ids = [parse_delay_id(call.answer.uniqDelayMsgId) for call in calls]
    assert len({delay_id.uuid for delay_id in ids}) == 2
    assert [delay_id.shard for delay_id in ids] == [shard_of(delay_id.uuid, 16) for delay_id in ids]


def test_a_topic_that_does_not_exist_is_created(rig):
    call = send_delay(rig, topic=b"fresh")
    rig.records()
    assert rig.backend.topic("fresh").queues == 4
    rig.backend.sent[0].answer()
    assert call.answer.code == 0


def test_the_heartbeat_topic_takes_no_delay_and_stays_one_for_heartbeats(rig):
    call = send_delay(rig, topic=b"carrera_heartbeat")
    assert call.answer.code == 11
    assert "topic 'carrera_heartbeat' is for heartbeats" in call.answer.msg
    assert rig.backend.topic("carrera_heartbeat") is None


def test_an_old_clients_cancel_is_answered_when_it_is_durable(rig):
    call = change(rig)
    command, (record,) = rig.command(), rig.records()
    assert (command.op, command.uuid, command.reply_queue, record.queue_id) == ("cancel", UUID, -1, 3)
    assert decode(record.delivery).value == b""
    rig.backend.sent[0].answer()
    assert (call.answer.code, call.answer.uniqDelayMsgId, call.answer.outcome) == (0, ID, None)
    assert rig.backend.topic(OUTCOME_TOPIC) is None, "nobody waits, so nothing is read"


def test_an_old_servers_id_goes_where_its_shard_leads(rig):
    rig = ProducerDelayRig((*TOPICS[:3], TopicInfo(DELAY_TOPIC, 0, 4)), shards=4)
    change(rig, uniqDelayMsgId=ID.replace(b"-3-a4", b"-14-a4"))
    (record,), command = rig.records(), rig.command()
    assert (record.queue_id, command.shard) == (2, 14)
    assert change(rig, uniqDelayMsgId=ID.replace(b"-3-a4", b"-16-a4")).answer.code == 34


def test_a_cancel_of_a_topic_nobody_knows_creates_nothing(rig):
    change(rig, topic=b"fresh")
    rig.records()
    assert rig.backend.topic("fresh") is None


@pytest.mark.parametrize(("code", "more"), [(CANCELLED, {}), (ALREADY_FIRED, {"fired_at_ms": 17})])
def test_our_clients_are_told_what_became_of_a_cancel(rig, code, more):
    call = change(rig, clientId=b"me", topic=None, body=None)
    command = rig.command()
    assert command.reply_queue >= 0
    rig.backend.sent[0].answer()
    assert call.open, "durable, but the outcome is not known yet"
    rig.decide(command, code, **more)
    until(lambda: not call.open)
    assert (call.answer.code, call.answer.outcome) == (0, code)
    assert call.answer.firedAtMs == more.get("fired_at_ms")
    assert not rig.proxy.flow.unanswered


def test_an_outcome_that_comes_before_the_appends_answer(rig):
    call = change(rig, clientId=b"me")
    rig.decide(rig.command(), CANCELLED)
    until(lambda: not call.open)
    rig.backend.sent[0].answer()
    assert call.answer.outcome == CANCELLED
    assert rig.proxy.flow.inflight == 0


def test_out_of_time_with_the_order_durable_is_pending(rig):
    call = change(rig, clientId=b"me", timeout=200)
    command = rig.command()
    rig.backend.sent[0].answer()
    rig.advance(0.3)
    assert (call.answer.code, call.answer.outcome) == (0, PENDING)
    rig.decide(command, CANCELLED)
    until(lambda: rig.metrics.cell(catalogue.DELAY_OUTCOMES, "nobody").value == 1)


def test_out_of_time_before_it_is_durable_is_12(rig):
    call = change(rig, clientId=b"me", timeout=200)
    rig.records()
    rig.advance(0.3)
    assert (call.answer.code, call.answer.outcome) == (12, None)
    rig.backend.sent[0].answer()
    assert not rig.proxy.flow.unanswered
    assert rig.proxy.flow.inflight == 0


def test_an_append_that_is_rejected_ends_the_waiting(rig):
    call = change(rig, clientId=b"me")
    rig.records()
    rig.backend.sent[0].answer(AppendStatus.NOT_STORED)
    assert call.answer.code == 12
    assert not rig.proxy.flow.unanswered


def test_past_the_bound_of_waiting_callers_the_answer_is_pending():
    rig = ProducerDelayRig(delay=build_options(DelayLimits, waiters_max=1))
    first, second = change(rig, clientId=b"me"), change(rig, clientId=b"me")
    rig.records(2)
    assert rig.command(1).reply_queue == -1
    for sent in list(rig.backend.sent):
        sent.answer()
    assert first.open
    assert second.answer.outcome == PENDING


def test_many_wait_at_once_and_each_is_told_its_own(rig):
    calls = [change(rig, clientId=b"me") for _ in range(20)]
    rig.records(20)
    commands = [rig.command(at) for at in range(20)]
    assert len({command.reply_id for command in commands}) == 20
    for at in reversed(range(20)):
        rig.backend.sent[at].answer()
        rig.decide(commands[at], CANCELLED if at % 2 else ALREADY_FIRED, fired_at_ms=at)
    until(lambda: not any(call.open for call in calls))
    assert [call.answer.outcome for call in calls] == [ALREADY_FIRED, CANCELLED] * 10


def test_our_adds_are_told_that_they_are_added(rig):
    call = send_delay(rig, clientId=b"me", timestamp=None, dueMs=NOW_MS + 1_234, fresh=True)
    command = rig.command()
    assert (command.kind, command.due_ms, command.timestamp_s) == (ONCE, NOW_MS + 1_234, 1_700_000_001)
    rig.backend.sent[0].answer()
    assert (call.answer.outcome, call.answer.dueMs) == (1, NOW_MS + 1_234)


def test_a_delay_counts_from_now(rig):
    rig.clock.advance(0.000_9)
    send_delay(rig, timestamp=None, delayMs=90_000)
    assert rig.command().due_ms == NOW_MS + 90_001, "a part of a millisecond is rounded up"


def test_the_longest_delay_is_taken_at_any_part_of_a_second(rig):
    rig.clock.advance(0.999_9)
    send_delay(rig, timestamp=None, delayMs=62 * 86_400_000)
    assert rig.command().due_ms == NOW_MS + 62 * 86_400_000 + 1_000
    send_delay(rig, timestamp=None, delayMs=62 * 86_400_000 + 1_000)
    assert rig.calls[-1].answer.code == 33


class TestSchedules:
    def schedule(self, rig, **fields):
        return send_delay(rig, timestamp=None, dmsgtype=SCHEDULE, fresh=True, **fields)

    def test_a_cron_with_its_zone(self, rig):
        call = self.schedule(rig, cron=b"0 9 * * 1-5", zone=b"Asia/Shanghai", key=b"k", partitionId=1)
        command, (record,) = rig.command(), rig.records()
        assert command.schedule == Schedule(cron="0 9 * * 1-5", zone="Asia/Shanghai")
        assert (command.kind, command.partition) == (SCHEDULE, 1)
        assert decode(record.delivery).key == b"k"
        rig.backend.sent[0].answer()
        # 15 November 2023, a Wednesday, 9:00 in Shanghai
        assert call.answer.dueMs == 1_700_010_000_000
        delay_id = parse_delay_id(call.answer.uniqDelayMsgId)
        assert (delay_id.kind, delay_id.timestamp_s, delay_id.timed) == (SCHEDULE, 1_700_010_000, 0)

    def test_a_series(self, rig):
        self.schedule(rig, delayMs=5_000, periodMs=60_000, repeat=-1, occurrencesMax=9, catchUp=b"all")
        command = rig.command()
        assert command.schedule == Schedule(5_000, 60_000, -1, occurrences_max=9, catch_up="all")
        assert command.due_ms == NOW_MS + 5_001

    @pytest.mark.parametrize(
        ("fields", "code", "text"),
        [
            ({"cron": b"0 9 * *"}, 11, "4 fields"),
            ({"cron": b"0 9 * * *", "zone": b"Mars/Base"}, 11, "Mars/Base"),
            ({"cron": b"\xff"}, 11, "fields"),
            ({"repeat": 2, "periodMs": 1}, 11, "period is 1ms"),
            ({"delayMs": 1, "catchUp": b"never"}, 11, "never"),
            ({"delayMs": -1}, 11, "delay is -1ms"),
            (
                {"dueMs": 5},
                33,
                "the due time is 1970-01-01T00:00:00.005Z; allowed: 2001-09-09",
            ),
            ({"delayMs": 1, "uuid": b"x"}, 30, "uuid"),
            ({"delayMs": 1, "key": b"k" * 256}, 11, "key"),
        ],
    )
    def test_what_cannot_be(self, rig, fields, code, text):
        answer = self.schedule(rig, **fields).answer
        assert answer.code == code
        assert text in answer.msg

    def test_old_clients_have_no_type_5(self, rig):
        assert send_delay(rig, dmsgtype=SCHEDULE).answer.code == 31


class TestChanges:
    def test_reschedule(self, rig):
        call = change(rig, action=100, dueMs=NOW_MS + 5_000, topic=None)
        command = rig.command()
        assert (command.op, command.uuid, command.due_ms) == ("reschedule", UUID, NOW_MS + 5_000)
        rig.backend.sent[0].answer()
        rig.decide(command, 1, due_ms=NOW_MS + 5_000)
        until(lambda: not call.open)
        assert (call.answer.outcome, call.answer.dueMs) == (1, NOW_MS + 5_000)

    def test_fire_now(self, rig):
        change(rig, action=101, clientId=b"me", topic=None)
        assert rig.command().op == "fire"

    def test_old_clients_have_no_such_actions(self, rig):
        assert change(rig, action=100, timestamp=1_700_000_060).answer.code == 32
        assert change(rig, action=101).answer.code == 32

    def test_a_reschedule_needs_a_time(self, rig):
        assert change(rig, action=100, clientId=b"me").answer.code == 33

    @pytest.mark.parametrize("extended", [True, False])
    def test_only_our_callers_name_schedules(self, rig, extended):
        call = change(rig, uniqDelayMsgId=ID.replace(b"-2-", b"-5-", 1), clientId=b"me" if extended else None)
        if extended:
            assert rig.command().kind == SCHEDULE
        else:
            assert call.answer.code == 31


class TestPresence:
    def rejected(self, rig) -> bool:
        """Whether an add is answered 21; else it was stored."""
        before, call = len(rig.backend.sent), send_delay(rig)
        until(lambda: not call.open or len(rig.backend.sent) > before)
        return not call.open and call.answer.code == 21

    def test_none_has_ever_run(self):
        rig = ProducerRig(TOPICS[:3])
        rig.clock.advance(1.0)
        assert self.rejected(rig)
        assert self.rejected(rig)
        assert not rig.backend.sent

    def test_a_proxy_that_starts_first_takes_orders_until_the_service_runs_again(self):
        rig = ProducerRig(TOPICS)
        until(lambda: rig.proxy.delay.presence._absent_since is not None)
        rig.clock.advance(9.0)
        assert not self.rejected(rig)
        rig.clock.advance(2.0)
        assert self.rejected(rig)

    def test_one_that_has_just_begun_is_noticed(self):
        rig = ProducerRig(TOPICS)
        until(lambda: rig.proxy.delay.presence._absent_since is not None)
        rig.clock.advance(11.0)
        assert self.rejected(rig)
        shards = Shards(rig.backend)
        until(lambda: shards.queues)
        assert not self.rejected(rig)

    def test_one_that_was_seen_may_be_away_for_a_while(self, rig):
        assert not self.rejected(rig)
        rig.shards.membership.leave()
        rig.clock.advance(3.0)
        assert not self.rejected(rig)
        until(lambda: rig.proxy.delay.presence._absent_since is not None)
        rig.clock.advance(9.0)
        assert not self.rejected(rig)
        rig.clock.advance(2.0)
        assert self.rejected(rig)

    def test_one_that_comes_back_is_noticed(self, rig):
        self.test_one_that_was_seen_may_be_away_for_a_while(rig)
        rig.shards = Shards(rig.backend)
        until(lambda: rig.shards.queues)
        assert not self.rejected(rig)
