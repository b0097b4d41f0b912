"""Topics on first use: created once, waited for in order, and never without a bound."""

import pytest

from backend.records import TopicInfo
from ddmq_common.errors import BoundReachedError, StorageError
from ddmq_common.metrics import catalogue
from ddmq_common.token_bucket import CREATIONS_PER_S
from tests.support.waits import until
from tests.unit.producer.producer_rig import ProducerRig, message


def create_rig(**config):
    rig = ProducerRig(**config)
    rig.backend.creations = []
    return rig


def make(rig, index=0, **changes):
    """The backend creates the topic that was asked for."""
    info, completion = rig.backend.creations[index]
    created_info = TopicInfo(**{"name": info.name, "incarnation": 0, "queues": info.queues, **changes})
    waiting, rig.backend.creations = rig.backend.creations, None
    rig.backend.put_topic(created_info, rig.clock.monotonic() + 10).wait(10)
    rig.backend.creations = waiting
    completion.succeed(rig.backend.topic(info.name))


@pytest.fixture
def rig():
    return create_rig()


def test_a_topic_is_created_on_its_first_send_with_four_queues():
    rig = ProducerRig()
    call = rig.send(topic=b"fresh", hashId=7)
    until(lambda: rig.backend.sent)
    assert rig.backend.topic("fresh").queues == 4
    record = rig.backend.sent[0].records[0]
    assert (record.topic, record.queue_id) == ("fresh", 3)
    rig.backend.sent[0].answer()
    assert call.answer.code == 0
    assert rig.metrics.cell(catalogue.TOPICS_CREATED, "created").value == 1


def test_the_number_of_queues_is_configured():
    rig = create_rig(queues_default=9)
    rig.send(topic=b"fresh")
    assert rig.backend.creations[0][0] == TopicInfo("fresh", 0, 9)


def test_sends_meanwhile_wait_for_the_same_creation_and_keep_their_order(rig):
    for number in range(3):
        rig.send(topic=b"fresh", key=b"%d" % number)
    assert len(rig.backend.creations) == 1
    make(rig)
    assert [sent.records[0].key for sent in rig.backend.sent] == [b"0", b"1", b"2"]
    assert rig.proxy.flow.inflight == 3


def test_a_failed_creation_fails_its_sends_and_may_be_tried_again(rig):
    calls = [rig.send(topic=b"fresh") for _ in range(2)]
    rig.backend.creations[0][1].fail(StorageError("bad disk"))
    assert [call.answer.code for call in calls] == [10, 10]
    second_call = rig.send(topic=b"fresh")
    rig.backend.creations[1][1].fail(BoundReachedError("10000 topics"))
    assert second_call.answer.code == 15
    assert rig.proxy.flow.inflight == 0


def test_off_means_13():
    rig = ProducerRig(auto_create_topics=False)
    answer = rig.send(topic=b"fresh").answer
    assert answer.code == 13
    assert "'fresh' does not exist" in answer.msg
    assert rig.counted("-", 13) == 1
    assert rig.send().open


def test_a_malformed_or_reserved_name_is_never_created(rig):
    for name in (b"", b"a/../b", b"x" * 128, b"%RETRY%g", b"\xff"):
        assert rig.code(topic=name) == 11
    assert not rig.backend.creations


def test_an_illegal_message_creates_nothing(rig):
    assert rig.code(topic=b"fresh", body=b"") == 11
    assert rig.code(topic=b"fresh", properties={b"DELAY": b"x"}) == 11
    assert not rig.backend.creations


def test_names_may_not_be_invented_without_limit():
    rig = ProducerRig(topics_max=2)
    rig.send(topic=b"second")
    until(lambda: rig.backend.sent)
    answer = rig.send(topic=b"third").answer
    assert answer.code == 15
    assert "there are 2 topics" in answer.msg
    assert rig.send(topic=b"second").open


def test_creations_at_the_same_time_are_bounded():
    rig = create_rig(creations_max=2)
    for name in (b"a", b"b", b"a"):
        assert rig.send(topic=name).open
    assert rig.code(topic=b"c") == 15
    batch = rig.call("sendBatch", messages=[message(), message(topic=b"c")], timeout=0)
    rig.backend.sent[0].answer()
    assert [result.code for result in batch.answer] == [0, 15]
    make(rig)
    assert rig.send(topic=b"c").open


def test_who_invents_names_gets_slow(monkeypatch):
    monkeypatch.setattr("ddmq_common.token_bucket.CREATIONS_AT_ONCE", 2)
    rig = create_rig()
    for name in (b"a", b"b", b"a"):
        assert rig.send(topic=name).open
    answer = rig.send(topic=b"c").answer
    assert answer.code == 15
    assert "'c' does not exist and sends have created many topics just now" in answer.msg
    assert len(rig.backend.creations) == 2
    rig.advance(1.5 / CREATIONS_PER_S)
    assert rig.send(topic=b"c").open
    assert rig.code(topic=b"d") == 15
    assert rig.send().open, "topics that are there are not concerned"


def test_a_batch_cannot_go_past_the_bound_either():
    rig = create_rig(creations_max=2)
    call = rig.call("sendBatchSync", messages=[message(topic=b"t%d" % n) for n in range(3)])
    for _, completion in rig.backend.creations:
        completion.fail(StorageError("bad disk"))
    assert call.answer.code == 10
    assert len(rig.backend.creations) == 2


def test_time_runs_out_while_a_topic_is_created(rig):
    call = rig.send(topic=b"fresh", timeout=50)
    rig.advance(0.05)
    assert call.answer.code == 12
    assert "the topic's creation; the message is not stored" in call.answer.msg
    make(rig)
    assert not rig.backend.sent
    assert rig.proxy.flow.inflight == 0


def test_a_topic_made_by_someone_else_meanwhile_has_its_own_rules(rig):
    closed, only = rig.send(topic=b"fresh"), rig.send(topic=b"late")
    make(rig, 0, writable=False)
    make(rig, 1, delay="only")
    assert (closed.answer.code, only.answer.code) == (13, 19)
    assert not rig.backend.sent


def test_a_topic_deleted_as_soon_as_it_was_made(rig):
    call = rig.send(topic=b"fresh")
    rig.backend.creations[0][1].succeed(TopicInfo("fresh", 1, 4))
    assert call.answer.code == 14


def test_rejections_of_unknown_topics_do_not_grow_the_metrics():
    rig = ProducerRig(auto_create_topics=False)
    for number in range(50):
        rig.code(topic=b"invented-%d" % number)
    assert rig.counted("-", 13) == 50
    assert b"invented" not in rig.metrics.exposition()
