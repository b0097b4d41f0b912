"""The checks have one order for all requests: the rejection of the first row that fails is the answer."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from backend.records import TopicInfo
from ddmq_common.delivery import encode
from ddmq_common.names import DELAY_TOPIC
from proxy_producer.config import DelayLimits
from proxy_producer.core.rejections import SendRejection
from proxy_producer.wire import RequestKind, SendRequest, delay_request_of, request_of
from tests.unit.producer.producer_delay_rig import ProducerDelayRig
from tests.unit.producer.producer_rig import ProducerRig, delay_message, message

TOPICS = (
    TopicInfo("orders", 0, 4),
    TopicInfo("mails", 0, 4),
    TopicInfo("shut-only", 0, 1, writable=False, delay="only"),
    TopicInfo("shut-none", 0, 1, writable=False, delay="none"),
    TopicInfo("only", 0, 1, delay="only"),
    TopicInfo("none", 0, 1, delay="none"),
)
WITH_DELAYS = (*TOPICS, TopicInfo(DELAY_TOPIC, 0, 16))
DIALECTS = dict.fromkeys(("shut-none", "none", "orders"), ("rabbit",))
NOW_MS = 1_700_000_000_000
INVALID_DELAY = {b"x-delay": b"soon"}
DELAY = {b"x-delay": b"5000"}


def crowded(*, service: bool) -> ProducerRig:
    """Draining, at its bound, and `orders` full of delayed messages."""
    config: dict[str, Any] = {"inflight_requests_max": 1, "delay": DelayLimits(dialects=DIALECTS)}
    rig = ProducerDelayRig(WITH_DELAYS, **config) if service else ProducerRig(TOPICS, **config)
    rig.proxy.flow.draining = True
    rig.proxy.flow.inflight = 1
    rig.proxy.delay.full.names = frozenset({"orders"})
    return rig


def single(**fields: Any) -> SendRequest:
    return request_of(RequestKind.SINGLE, message(**fields), NOW_MS, 200)


def member(**fields: Any) -> SendRequest:
    return request_of(RequestKind.MEMBER, message(**fields), NOW_MS, 0)


def delayed(**fields: Any) -> SendRequest:
    return delay_request_of(delay_message(**fields), NOW_MS, 200)


def reasons(rig: ProducerRig, *requests: SendRequest) -> list[str]:
    """Why each is rejected, one after the other; "" where it is not."""
    texts = []
    for request in requests:
        rejection = rig.proxy.admission.check_request(request)
        texts.append("" if rejection is None else rejection.reason)
    return texts


def test_a_single_send() -> None:
    rig = crowded(service=False)
    assert reasons(rig, single(topic=b" ")) == ["draining"]
    rig.proxy.flow.draining = False
    assert reasons(
        rig,
        single(topic=b" ", body=b""),
        single(topic=b"shut-only", body=b""),
        single(topic=b"shut-only"),
        single(topic=b"only"),
        single(),
    ) == ["topic_name", "body_empty", "not_writable", "only_delay", "inflight_requests"]
    rig.proxy.flow.inflight = 0
    assert reasons(rig, single()) == [""]


def test_a_single_send_in_the_words_of_another_system() -> None:
    rig = crowded(service=False)
    rig.proxy.flow.draining = False
    assert reasons(
        rig,
        single(topic=b"shut-none", properties=INVALID_DELAY, body=b""),
        single(topic=b"shut-none", properties=INVALID_DELAY),
        single(topic=b"shut-none", properties=DELAY),
        single(topic=b"none", properties=DELAY),
        single(properties=DELAY),
    ) == ["body_empty", "delay_dialect", "not_writable", "no_delay", "no_delay_service"]
    rig = crowded(service=True)
    rig.proxy.flow.draining = False
    assert reasons(rig, single(properties=DELAY)) == ["delay_pending"]
    rig.proxy.delay.full.names = frozenset()
    assert reasons(rig, single(properties=DELAY)) == ["inflight_requests"]
    rig.proxy.flow.inflight = 0
    assert reasons(rig, single(properties=DELAY)) == [""]


def test_a_member_of_a_batch() -> None:
    rig = crowded(service=False)
    rig.proxy.flow.draining = False
    assert reasons(
        rig,
        member(topic=b" ", body=b""),
        member(topic=b"shut-none", properties=INVALID_DELAY, body=b""),
        member(topic=b"shut-none", properties=INVALID_DELAY),
        member(topic=b"shut-none", properties=DELAY),
        member(topic=b"shut-only", properties={b"DELAY": b"1"}),
        member(topic=b"shut-only"),
        member(topic=b"only"),
        member(),
    ) == [
        "topic_name", "body_empty", "delay_dialect", "delayed_in_batch", "delayed_in_batch", "not_writable",
        "only_delay", "",
    ]  # fmt: skip


@pytest.mark.parametrize("extra_fields", [{}, {"clientId": b"me"}])
def test_a_delay_request(extra_fields: dict[str, bytes]) -> None:
    rig = crowded(service=False)
    assert reasons(rig, delayed(topic=b" ", **extra_fields)) == ["draining"]
    rig.proxy.flow.draining = False
    late, level = {"timestamp": 1, **extra_fields}, {b"DELAY": b"1"}
    assert reasons(
        rig,
        delayed(topic=b" ", body=b"", **late),
        delayed(topic=b"shut-none", body=b"", properties=level, **late),
        delayed(topic=b"shut-none", properties=level, **late),
        delayed(topic=b"shut-none", **late),
        delayed(topic=b"none", **late),
        delayed(**late),
        delayed(**extra_fields),
    ) == [
        "topic_name", "body_empty", "property_reserved", "not_writable", "no_delay", "delay_timestamp",
        "no_delay_service",
    ]  # fmt: skip
    rig = crowded(service=True)
    rig.proxy.flow.draining = False
    assert reasons(rig, delayed(**extra_fields)) == ["delay_pending"]
    rig.proxy.delay.full.names = frozenset({"gone"})
    assert (
        reasons(rig, delayed(**extra_fields), delayed(topic=b"gone", **extra_fields))
        == ["inflight_requests"] * 2
    )
    rig.proxy.flow.inflight = 0
    assert reasons(rig, delayed(**extra_fields)) == [""]


def test_a_change_by_our_callers_needs_no_topic_and_no_body() -> None:
    rig = crowded(service=False)
    change = {"action": 2, "clientId": b"me", "topic": b"", "body": None, "uniqDelayMsgId": b"x"}
    uuid = {**change, "uniqDelayMsgId": b"a4207970-e5e1-11f1-a4e0-02fc00000001"}
    assert reasons(rig, delayed(**change)) == ["draining"]
    rig.proxy.flow.draining = False
    assert reasons(rig, delayed(**{**change, "topic": b" "}), delayed(**change), delayed(**uuid)) == [
        "topic_name", "delay_id", "no_delay_service",
    ]  # fmt: skip
    rig = crowded(service=True)
    rig.proxy.flow.draining = False
    assert reasons(rig, delayed(**uuid), delayed(**{**uuid, "topic": b"orders"})) == ["inflight_requests"] * 2
    rig.proxy.flow.inflight = 0
    assert reasons(rig, delayed(**uuid)) == [""]


def random_fields(random: Random) -> dict[str, Any]:
    texts = [b"", b"k", "é".encode(), b"x" * 255, b"x" * 256, b"\xff"]
    names = [b"a", b"x-delay", b"DELAY", b"KEYS", b"from_chronos", b"isPressureTraffic", b" "]
    values = [b"true", b"5000", b"0", b"", b"\xff", b"from_chronos"]
    properties = {random.choice(names): random.choice(values) for _ in range(random.randrange(3))}
    return {
        "topic": random.choice([b"mails", b"mails", b"orders", b"only", b"none", b"shut-only"]),
        "key": random.choice(texts),
        "tags": random.choice(texts[:3]),
        "body": random.choice([b"", b"body", b"body"]),
        "properties": random.choice([None, properties]),
    }


def test_the_short_way_answers_as_the_table() -> None:
    """The same record for what it takes, the same rejection for what it rejects."""
    rig = ProducerRig(TOPICS, delay=DelayLimits(dialects=DIALECTS))
    admission, random, accepted, rejected = rig.proxy.admission, Random(11), 0, 0
    for _ in range(3_000):
        sent = message(**random_fields(random))
        topic = rig.proxy.topics.find_topic(sent.topic.decode())
        assert topic is not None
        record = admission.make_record(sent, topic, NOW_MS, None)
        if record is None:
            continue
        request = request_of(RequestKind.SINGLE, sent, NOW_MS, 200)
        if isinstance(record, SendRejection):
            rejected += 1
            assert admission.check_request(request) == record
            continue
        accepted += 1
        assert admission.check_request(request) is None
        assert (request.level, request.command, request.delay) == (0, None, None)
        assert not request.chronos
        other = request.make_record(bytes(16))
        for name in ("topic", "born_ms", "delivery", "key", "tags", "flags", "due_ms", "system"):
            assert getattr(record, name) == getattr(other, name), name
        assert record.delivery == encode(sent.key, sent.body, sent.tags, request.delivered_properties)
    assert accepted > 300
    assert rejected > 100
