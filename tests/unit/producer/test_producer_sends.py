"""Single sends through the handlers: what reaches the backend, and every answer."""

import pytest

from backend.records import FLAG_PRESSURE, AppendStatus, TopicInfo
from ddmq_common.delivery import decode
from ddmq_common.errors import (
    BoundReachedError,
    DiskFullError,
    DrainingError,
    FencedError,
    NotWriterError,
    RefusedUntilRecoveredError,
    RemoteError,
    StorageError,
    UnknownTopicError,
)
from ddmq_rpc.api import Wire
from tests.support.waits import until
from tests.unit.producer.producer_rig import ProducerRig, delay_message, message

TOPICS = (
    TopicInfo("orders", 0, 4),
    TopicInfo("only", 0, 4, delay="only"),
    TopicInfo("none", 0, 4, delay="none"),
    TopicInfo("closed", 0, 4, writable=False),
    TopicInfo("small", 0, 4, body_bytes_max=10),
)


@pytest.fixture
def rig():
    return ProducerRig(TOPICS)


def test_a_stored_message_is_answered_zero_ok_and_nothing_else(rig):
    call = rig.send()
    assert call.open
    rig.backend.sent[0].answer()
    answer = call.answer
    assert (answer.code, answer.msg) == (0, "OK")
    assert answer.key is answer.messageId is answer.queueId is answer.offset is answer.durability is None
    assert rig.counted("orders", 0) == 1


@pytest.mark.parametrize("wire", list(Wire))
@pytest.mark.parametrize("method", ["sendSync", "sendAsync"])
def test_the_answer_is_in_the_callers_protocol(rig, wire, method):
    call = rig.call(method, wire=wire, message=message())
    rig.backend.sent[0].answer()
    assert (call.answer.code, call.answer.msg) == (0, "OK")


def test_the_record_holds_what_the_client_sent(rig):
    properties = {b"traceId": b"1", b"isPressureTraffic": b"true"}
    rig.send(key="kéy".encode(), tags=b"A||B", body=b"\x00\xff", properties=properties, hashId=-6)
    record = rig.backend.sent[0].records[0]
    assert (record.topic, record.queue_id, record.flags) == ("orders", 2, FLAG_PRESSURE)
    assert (record.key, record.tags, record.born_ms) == ("kéy".encode(), b"A||B", rig.clock.wall_ms())
    assert decode(record.delivery) == ("kéy".encode(), b"\x00\xff", b"A||B", properties)
    assert len(record.message_id) == 16


def test_payload_in_value_and_absent_texts(rig):
    rig.send(body=None, value=b"php", key=None, tags=b"")
    assert decode(rig.backend.sent[0].records[0].delivery) == (b"", b"php", b"", {})
    rig.send(body=b"", value=b"php")
    rig.send(body=b"body", value=b"ignored")
    assert [decode(sent.records[0].delivery).value for sent in rig.backend.sent[1:]] == [b"php", b"body"]


def test_message_ids_differ(rig):
    for _ in range(100):
        rig.send()
    assert len({sent.records[0].message_id for sent in rig.backend.sent}) == 100


def test_messages_without_preference_go_round(rig):
    for _ in range(8):
        rig.send(partitionId=-2)
    queues = [sent.records[0].queue_id for sent in rig.backend.sent]
    assert sorted(queues[:4]) == [0, 1, 2, 3]
    assert queues[:4] == queues[4:]


@pytest.mark.parametrize("field", ["clientId", "producerGroup"])
def test_callers_that_send_a_field_of_ours_get_ours(rig, field):
    call = rig.send(**{field: b"me"}, partitionId=3)
    sent = rig.backend.sent[0]
    sent.answer()
    answer = call.answer
    assert answer.messageId == sent.records[0].message_id.hex()
    assert (answer.code, answer.queueId, answer.offset, answer.durability) == (0, 3, 100, 1)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": b"a/b"}, 11, "'a/b'"),
        ({"topic": None}, 11, "empty"),
        ({"topic": b"%DLQ%x"}, 11, "reserved"),
        ({"key": b"k" * 256}, 11, "256 characters"),
        ({"body": b""}, 11, "0 bytes"),
        ({"body": b"x" * ((2 << 20) + 1)}, 11, "2097153 bytes"),
        ({"topic": b"small", "body": b"x" * 11}, 11, "11 bytes"),
        ({"topic": b"closed"}, 13, "'closed' is not writable"),
        ({"topic": b"only"}, 19, "'only' takes only delayed"),
        ({"topic": b"none", "properties": {b"DELAY": b"3"}}, 18, "'none' takes no delayed"),
    ],
)
def test_what_is_rejected_before_the_backend(rig, fields, code, words):
    answer = rig.send(**fields).answer
    assert answer.code == code
    assert answer.msg.startswith("FAILED: ")
    assert words in answer.msg
    assert not rig.backend.sent


def test_bodies_at_the_limit_are_stored(rig):
    rig.send(body=b"x" * (2 << 20))
    rig.send(topic=b"small", body=b"x" * 10)
    assert len(rig.backend.sent) == 2


def test_11_comes_before_13_and_13_before_18_and_19(rig):
    assert rig.code(topic=b"closed", body=b"") == 11
    assert rig.code(topic=b"closed", properties={b"DELAY": b"1"}) == 13
    off = ProducerRig(auto_create_topics=False)
    assert off.code(topic=b"fresh", key=b"k" * 256) == 11
    assert off.code(topic=b"fresh", properties={b"DELAY": b"1"}) == 13


def test_delay_zero_is_a_plain_send_and_never_stored_as_a_property(rig):
    rig.send(properties={b"DELAY": b"0", b"a": b"b"})
    assert decode(rig.backend.sent[0].records[0].delivery).properties == {b"a": b"b"}


def test_a_delay_service_may_send_to_a_topic_for_delayed_messages(rig):
    call = rig.send(topic=b"only", properties={b"from_chronos": b"from_chronos"})
    rig.backend.sent[0].answer()
    assert call.answer.code == 0


@pytest.mark.parametrize("method", ["sendSync", "sendAsync"])
def test_heartbeats_are_answered_at_once_and_stored_nowhere(rig, method):
    call = rig.call(method, message=message(topic=b"carrera_heartbeat", body=b"", key=b"k" * 999))
    assert (call.answer.code, call.answer.msg) == (0, "OK")
    assert not rig.backend.sent
    assert rig.backend.topic("carrera_heartbeat") is None


def test_heartbeats_are_stored_nowhere_also_where_a_topic_has_their_name():
    rig = ProducerRig([TopicInfo("carrera_heartbeat", 0, 4)])
    for _ in range(2):
        call = rig.call("sendSync", message=message(topic=b"carrera_heartbeat", body=b""))
        assert call.answer.code == 0
    batch = rig.call("sendBatchSync", messages=[message(topic=b"carrera_heartbeat")])
    assert batch.answer.code == 11
    assert rig.call("sendSync", message=message(topic=b"carrera_heartbeat", body=b"")).answer.code == 0
    assert not rig.backend.sent


@pytest.mark.parametrize(
    ("status", "error", "code", "words"),
    [
        (AppendStatus.UNKNOWN, None, 12, "may or may not"),
        (AppendStatus.UNKNOWN, DrainingError("gone"), 12, "gone"),
        (AppendStatus.NOT_STORED, None, 12, "is not stored"),
        (AppendStatus.NOT_STORED, StorageError("disk says no"), 10, "disk says no"),
        (AppendStatus.REFUSED, UnknownTopicError("topic orders is gone"), 14, "orders is gone"),
        (AppendStatus.REFUSED, DiskFullError("1 GiB free, 2 wanted"), 15, "1 GiB free"),
        (AppendStatus.REFUSED, BoundReachedError("9 writes wait"), 15, "9 writes wait"),
        (AppendStatus.REFUSED, DrainingError("draining"), 20, "draining"),
        (AppendStatus.REFUSED, NotWriterError("the lock file is gone"), 21, "lock file is gone"),
        (AppendStatus.REFUSED, RefusedUntilRecoveredError("fsync failed"), 10, "fsync failed"),
        (AppendStatus.NOT_STORED, FencedError("queue 1 is held by another"), 15, "held by another"),
        (AppendStatus.NOT_STORED, KeyError("x"), 10, "KeyError"),
    ],
)
def test_what_the_backend_says_becomes_a_code(rig, status, error, code, words):
    call = rig.send()
    rig.backend.sent[0].answer(status, error=error)
    assert call.answer.code == code
    assert call.answer.msg.startswith("FAILED: ")
    assert words in call.answer.msg
    assert rig.counted("orders", code) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(RemoteError("writer is gone"), 12), (StorageError("bad"), 10), (ValueError("?"), 10)]
)
def test_an_append_that_fails_as_a_whole(rig, error, code):
    call = rig.send()
    rig.backend.sent[0].completion.fail(error)
    assert call.answer.code == code


def test_a_backend_that_raises_leaves_nothing_behind(rig, monkeypatch):
    def broken(*_):
        raise ValueError("bad argument")

    monkeypatch.setattr(rig.proxy.flow.backend, "append", broken)
    with pytest.raises(ValueError, match="bad argument"):
        rig.send()
    assert (rig.proxy.flow.inflight, rig.proxy.flow.inflight_bytes) == (0, 0)
    assert not rig.proxy.flow.unanswered


def test_a_oneway_send_takes_the_same_path_and_says_nothing(rig):
    call = rig.call("sendOneway", message=message(clientId=b"me"))
    assert call.open
    rig.backend.sent[0].answer()
    assert call.answer is None
    assert rig.counted("orders", 0) == 1
    rejected = rig.call("sendOneway", message=message(body=b""))
    assert rejected.answer is None
    assert rig.rejected("body_empty") == 1


def test_sends_after_a_topics_change_follow_it(rig):
    rig.send(hashId=5)
    deadline = rig.clock.monotonic() + 10
    rig.backend.put_topic(TopicInfo("orders", 0, 8, body_bytes_max=3), deadline).wait(10)
    # incarnation 0 gives an existing topic back unchanged; change it by its own incarnation
    before = rig.backend.topic("orders")
    changed = TopicInfo("orders", before.incarnation, 8, body_bytes_max=3)
    rig.backend.put_topic(changed, deadline).wait(10)
    until(lambda: rig.proxy.topics.cached[b"orders"].queues == 8)
    rig.send(hashId=5, body=b"abc")
    assert [sent.records[0].queue_id for sent in rig.backend.sent] == [1, 5]
    assert rig.code(body=b"abcd") == 11


def test_a_deleted_topic_is_unknown_again(rig):
    rig.send()
    rig.backend.delete_topic("orders", rig.clock.monotonic() + 10).wait(10)
    until(lambda: b"orders" not in rig.proxy.topics.cached)


def test_closing_stops_watching(rig):
    rig.send()
    rig.proxy.close()
    rig.backend.delete_topic("orders", rig.clock.monotonic() + 10).wait(10)
    until(lambda: rig.backend.topic("orders") is None)
    assert b"orders" in rig.proxy.topics.cached


class TestDelay:
    def answer(self, rig, **fields):
        return rig.call("sendDelaySync", delayMessage=delay_message(**fields)).answer

    def test_a_legal_add_is_told_that_nobody_would_fire_it(self, rig):
        answer = self.answer(rig)
        assert (answer.code, answer.uniqDelayMsgId) == (21, b"")
        assert answer.msg.startswith("FAILED: no delay service")
        assert rig.counted("orders", 21) == 1

    def test_legal_adds_to_a_new_topic_create_nothing(self, rig):
        assert self.answer(rig, topic=b"fresh").code == 21
        assert rig.backend.topic("fresh") is None

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": b"a b", "action": 9}, 11),
            ({"tags": b"t" * 256}, 11),
            ({"body": b"", "timestamp": 0}, 11),
            ({"properties": {b"DELAY": b"3"}}, 11),
            ({"properties": {b"KEYS": b"3"}}, 11),
            ({"topic": b"closed", "action": 9}, 13),
            ({"topic": b"none", "action": 9}, 18),
            ({"action": 9}, 32),
            ({"timestamp": 5}, 33),
            ({"timestamp": None, "dueMs": 5}, 33),
            ({"dmsgtype": 7}, 31),
            ({"times": 5}, 35),
            ({"dmsgtype": 3, "times": 1, "expire": 1, "interval": 1}, 36),
            ({"dmsgtype": 3, "times": 1, "expire": 1_700_009_999, "interval": 1}, 37),
            ({"dmsgtype": 4, "times": 1, "expire": 1_700_009_999, "interval": 1}, 38),
        ],
    )
    def test_what_is_wrong_comes_first(self, rig, fields, code):
        answer = self.answer(rig, **fields)
        assert answer.code == code
        assert answer.uniqDelayMsgId == b""
        assert answer.msg.startswith("FAILED: ")

    def test_a_bad_id_is_echoed(self, rig):
        answer = self.answer(rig, action=2, uniqDelayMsgId=b"nope")
        assert (answer.code, answer.uniqDelayMsgId) == (30, b"nope")

    def test_a_legal_cancel_is_told_21(self, rig):
        uid = b"1795289273-2-1795462073-0-0-0-7-a4207970-e5e1-11f1-a4e0-02fc00000001"
        cancel = {"timestamp": None, "dmsgtype": None, "uuid": None, "uniqDelayMsgId": uid, "body": b"c"}
        answer = self.answer(rig, action=2, **cancel)
        assert (answer.code, answer.uniqDelayMsgId) == (21, b"")

    def test_without_auto_creation_unknown_topics_are_13(self):
        assert self.answer(ProducerRig(auto_create_topics=False), topic=b"fresh").code == 13
