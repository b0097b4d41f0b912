"""sendBatchSync answers for all at once, sendBatch for each; both keep order within a queue."""

import pytest

from backend.records import AppendStatus, TopicInfo
from ddmq_common.errors import DiskFullError, StorageError
from ddmq_rpc.api import ErrorKind, Wire
from tests.support.waits import until
from tests.unit.producer.producer_rig import ProducerRig, message

TOPICS = (
    TopicInfo("orders", 0, 4),
    TopicInfo("other", 0, 3),
    TopicInfo("closed", 0, 4, writable=False),
    TopicInfo("only", 0, 4, delay="only"),
)
STORED, NOT_STORED, UNKNOWN, REFUSED = AppendStatus


@pytest.fixture
def rig():
    return ProducerRig(TOPICS)


def send_batch_sync(rig, *messages, **more):
    return rig.call("sendBatchSync", messages=list(messages), **more)


def send_batch(rig, *messages, timeout=0):
    return rig.call("sendBatch", messages=list(messages), timeout=timeout)


def codes(call):
    return [result.code for result in call.answer]


@pytest.mark.parametrize("wire", list(Wire))
def test_an_empty_batch_is_stored(rig, wire):
    call = send_batch_sync(rig, wire=wire)
    assert (call.answer.code, call.answer.msg) == (0, "OK")
    assert send_batch(rig).answer == []
    assert not rig.backend.sent


def test_all_stored_is_zero(rig):
    call = send_batch_sync(rig, message(), message(topic=b"other"), message(clientId=b"me"))
    assert len(rig.backend.sent) == 1
    rig.backend.sent[0].answer()
    answer = call.answer
    assert (answer.code, answer.msg, answer.messageId) == (0, "OK", None)
    assert (rig.counted("orders", 0), rig.counted("other", 0)) == (2, 1)


def test_messages_without_preference_share_one_queue_per_topic_in_order(rig):
    bodies = [b"%d" % number for number in range(12)]
    topics = [(b"orders", b"other")[number % 2] for number in range(12)]
    send_batch_sync(
        rig, *[message(topic=t, key=b, partitionId=-2) for t, b in zip(topics, bodies, strict=True)]
    )
    records = rig.backend.sent[0].records
    assert [record.key for record in records] == bodies
    for topic in ("orders", "other"):
        assert len({record.queue_id for record in records if record.topic == topic}) == 1
    send_batch_sync(rig, message(partitionId=-2))
    first = next(record.queue_id for record in records if record.topic == "orders")
    assert rig.backend.sent[1].records[0].queue_id == (first + 1) % 4, "the next batch takes the next queue"


def test_the_others_go_where_they_say(rig):
    send_batch_sync(rig, message(partitionId=6), message(hashId=-3), message(topic=b"other", partitionId=6))
    assert [record.queue_id for record in rig.backend.sent[0].records] == [2, 3, 0]


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        ({"body": b""}, 11, "message 1: the body has 0 bytes"),
        ({"topic": b"a b"}, 11, "message 1: topic name 'a b'"),
        ({"topic": b"carrera_heartbeat"}, 11, "message 1: topic 'carrera_heartbeat'"),
        (
            {"properties": {b"DELAY": b"3"}},
            11,
            "message 1: the batch holds a message with property DELAY = 3",
        ),
        ({"topic": b"closed"}, 13, "message 1: topic 'closed'"),
        ({"topic": b"only"}, 19, "message 1: topic 'only'"),
    ],
)
def test_one_rejection_stops_a_sync_batch_and_concerns_one_message_of_any_other(rig, bad, code, words):
    call = send_batch_sync(rig, message(), message(**bad), message())
    assert call.answer.code == code
    assert call.answer.msg.startswith("FAILED: 0 of 3 messages are stored; ")
    assert words in call.answer.msg
    assert not rig.backend.sent
    call = send_batch(rig, message(), message(**bad), message())
    rig.backend.sent[0].answer()
    assert codes(call) == [0, code, 0]
    assert call.answer[1].msg.startswith("FAILED: ")
    assert rig.counted("orders", 0) == 2


def test_each_result_tells_where_its_message_is(rig):
    call = send_batch(rig, message(partitionId=1), message(body=b""), message(partitionId=2))
    sent = rig.backend.sent[0]
    sent.answer()
    first, bad, last = call.answer
    assert (first.queueId, first.offset, first.durability) == (1, 100, 1)
    assert (last.queueId, last.offset) == (2, 101)
    assert [first.messageId, last.messageId] == [record.message_id.hex() for record in sent.records]
    assert bad.messageId is None


@pytest.mark.parametrize(
    ("statuses", "error", "code", "words"),
    [
        ((STORED, NOT_STORED, STORED), StorageError("bad disk"), 10, "2 of 3 messages are stored; message 1"),
        (
            (STORED, REFUSED, REFUSED),
            DiskFullError("full"),
            15,
            "1 of 3 messages are stored; message 1: full",
        ),
        ((REFUSED, STORED, UNKNOWN), DiskFullError("full"), 12, "1 of 3 messages are stored; message 2"),
        ((UNKNOWN,), None, 12, "0 of 3 messages are stored; message 0"),
    ],
)
def test_partly_stored(rig, statuses, error, code, words):
    call = send_batch_sync(rig, message(), message(), message())
    rig.backend.sent[0].answer(*statuses, error=error)
    assert call.answer.code == code
    assert words in call.answer.msg


def test_an_each_of_mixed_ends(rig):
    call = send_batch(rig, *[message()] * 4)
    rig.backend.sent[0].answer(STORED, NOT_STORED, UNKNOWN, REFUSED, error=DiskFullError("full"))
    assert codes(call) == [0, 15, 12, 15]


def test_an_append_that_fails_as_a_whole(rig):
    calls = send_batch_sync(rig, message(), message()), send_batch(rig, message(), message())
    for sent in rig.backend.sent:
        sent.completion.fail(StorageError("bad disk"))
    assert calls[0].answer.code == 10
    assert codes(calls[1]) == [10, 10]


def test_a_silent_backend_is_answered_for(rig):
    calls = send_batch_sync(rig, message()), send_batch(rig, message(), message(body=b""), timeout=100)
    rig.advance(0.1)
    assert codes(calls[1]) == [12, 11]
    assert calls[0].open
    rig.advance(9.9)
    assert calls[0].answer.code == 12
    for sent in rig.backend.sent:
        sent.answer()
    assert rig.proxy.flow.inflight == 0


def test_batches_are_bounded(rig):
    big = b"x" * (1 << 20)
    assert send_batch_sync(rig, *[message(body=big)] * 4).open
    answer = send_batch_sync(rig, *[message(body=big)] * 4, message(body=b"x")).answer
    assert answer.code == 11
    assert "4194305 bytes" in answer.msg
    assert codes(send_batch(rig, *[message(body=big)] * 5)) == [11] * 5
    small = ProducerRig(batch_messages_max=3)
    assert send_batch_sync(small, *[message()] * 3).open
    assert "4 messages" in send_batch_sync(small, *[message()] * 4).answer.msg


def test_several_new_topics_are_created_before_anything_is_sent(rig):
    rig.backend.creations = []
    call = send_batch_sync(rig, message(topic=b"new1"), message(), message(topic=b"new2", hashId=-5))
    assert [info.name for info, _ in rig.backend.creations] == ["new1", "new2"]
    rig.backend.creations[1][1].fail(DiskFullError("full"))
    assert call.open
    rig.backend.creations[0][1].fail(DiskFullError("full"))
    assert call.answer.code == 15
    assert not rig.backend.sent
    assert rig.proxy.flow.inflight == 0


def test_a_topic_that_cannot_be_created_concerns_its_own_messages(rig):
    creations = rig.backend.creations = []
    call = send_batch(rig, message(topic=b"new1"), message(), message(topic=b"new1"))
    creations[0][1].fail(DiskFullError("full"))
    rig.backend.sent[0].answer()
    assert codes(call) == [15, 0, 15]


def test_a_batch_for_a_topic_that_the_engine_creates(rig):
    call = send_batch_sync(rig, message(topic=b"new1", hashId=6))
    until(lambda: rig.backend.sent)
    assert rig.backend.sent[0].records[0].queue_id == 2
    rig.backend.sent[0].answer()
    assert call.answer.code == 0


def test_time_may_run_out_while_a_topic_is_created(rig):
    creations = rig.backend.creations = []
    call = send_batch(rig, message(topic=b"new1"), timeout=50)
    rig.advance(0.05)
    assert codes(call) == [12]
    assert "is not stored" in call.answer[0].msg
    creations[0][1].fail(DiskFullError("full"))
    assert rig.proxy.flow.inflight == 0


def test_one_topics_rate_limit_concerns_its_own_messages():
    from proxy_producer.config import RateLimit

    rig = ProducerRig(TOPICS, topic_rates={"other": RateLimit(messages_per_s=1)}, defer_ms_max=0)
    call = send_batch(rig, message(topic=b"other"), message())
    rig.backend.sent[0].answer()
    assert codes(call) == [0, 0]
    call = send_batch(rig, message(topic=b"other"), message())
    rig.backend.sent[1].answer()
    assert codes(call) == [15, 0]
    assert send_batch_sync(rig, message(topic=b"other"), message()).answer.code == 15
    assert len(rig.backend.sent) == 2


def test_a_backend_that_raises_is_answered(rig, monkeypatch):
    def broken(*_):
        raise ValueError("bad argument")

    monkeypatch.setattr(rig.proxy.flow.backend, "append", broken)
    with pytest.raises(ValueError, match="bad argument"):
        send_batch_sync(rig, message())
    assert rig.proxy.flow.inflight == 0
    assert not rig.proxy.flow.unanswered
    kind, text = rig.calls[-1].answer
    assert kind is ErrorKind.INTERNAL_ERROR
    assert text
