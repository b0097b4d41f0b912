"""Broadcasting: by fetch, and by the pulls of old clients under G%INSTANCE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.records import NewRecord
from ddmq_common.delivery import encode
from ddmq_common.errors import CallerError
from ddmq_rpc.api import Wire
from proxy_consumer.fetches import instances as module
from tests.service.consumer.consumer_rig import FIRST, IDL, ConsumerRig, FakeCall
from tests.service.consumer.fetch_calls import ack, fetch, shown, start_fetch, values
from tests.support.waits import until

EVERYONE = replace(FIRST, model="broadcasting", ack_timeout_ms=1_000, concurrency=5)


@pytest.fixture
def news(rig: ConsumerRig) -> ConsumerRig:
    """Group G broadcasts topic T of 2 queues; 3 messages of each are old."""
    rig.ready(config=EVERYONE, queues=2)
    for queue in range(2):
        rig.send(3, queue)
    return rig


def pull(rig: ConsumerRig, instance: str = "one", **named: object) -> FakeCall:
    return rig.pull(group=f"G%{instance}".encode(), **named)  # type: ignore[arg-type]


def begun(rig: ConsumerRig, *names: str) -> None:
    for name in names:
        assert pull(rig, name).result.messages == []


def test_every_id_fetches_every_queue_from_its_own_offset(news: ConsumerRig) -> None:
    for consumer in ("a", "b", "c"):
        results = fetch(news, consumer)
        assert [one.nextRequestOffset for one in results.values()] == [3, 3], "without a place: the newest"
        results = fetch(news, consumer, offsets={"T": {0: 1, 1: 2}})
        assert [len(one.messages) for one in results.values()] == [2, 1]
    assert ack(news, {"T": {0: 3}}, consumer="a")
    assert news.progress().committed == 0, "accepted and ignored"


def test_a_broadcast_fetch_waits_and_is_woken(news: ConsumerRig) -> None:
    call = start_fetch(news, "a", linger=10_000)
    news.settle()
    news.send(1, queue=1)
    until(lambda: call.answered)
    assert values(shown(call)["T", 1]) == [b"m0"]


def test_a_queue_that_comes_later_is_read_from_its_first_message(news: ConsumerRig) -> None:
    news.topic("T", queues=2)
    info = news.backend.topic("T")
    assert info is not None
    news.wait(news.backend.put_topic(replace(info, queues=3), news.deadline()))
    news.send(2, queue=2)
    results = fetch(news, offsets={"T": {0: 3, 1: 3}})
    assert len(results["T", 2].messages) == 2


def test_our_client_makes_the_group_and_hears_of_another_model(rig: ConsumerRig) -> None:
    rig.topic()
    extra_fields = {"clientId": b"me", "topics": [b"T"], "model": b"broadcasting"}
    fetch(rig, **extra_fields)
    rig.settle()
    assert len(fetch(rig, **extra_fields)) == 1
    rig.subscribe("H", "T")
    call = start_fetch(rig, group="H", **extra_fields)
    assert b"reads T as clustering, not as broadcasting" in call.outcome.success.error


def test_only_the_requested_topics_are_fetched(news: ConsumerRig) -> None:
    news.topic("U")
    news.subscribe(topic="U", config=EVERYONE)
    assert len(fetch(news)) == 3
    assert list(fetch(news, clientId=b"me", topics=[b"U"])) == [("U", 0)]


@pytest.mark.parametrize("wire", list(Wire))
def test_each_instance_that_pulls_gets_everything_from_its_first_pull_on(
    news: ConsumerRig, wire: Wire
) -> None:
    begun(news, "one", "two")
    news.send(2, queue=1)
    for name in ("one", "two"):
        call = pull(news, name, wire=wire)
        assert (call.values, call.result.context.groupId) == ([b"m0", b"m1"], f"G%{name}".encode())
        assert call.result.messages[0].leaseId is None
        assert pull(news, name, wire=wire).result.messages == []
    begun(news, "three")


def test_a_result_without_topic_or_queue_changes_nothing(news: ConsumerRig) -> None:
    begun(news, "one")
    nowhere = IDL.ConsumeResult(context=IDL.Context(groupId=b"G%one"), successOffsets=[0], failOffsets=[1])
    assert news.submit(nowhere).result is True


@pytest.mark.parametrize("settings", [{"tags": "wanted"}, {"sql": "TAGS = 'wanted'"}])
def test_the_subscriptions_filter_holds(rig: ConsumerRig, settings: dict[str, str]) -> None:
    rig.topic()
    rig.subscribe(config=replace(EVERYONE, **settings))  # type: ignore[arg-type]
    begun(rig, "one")
    for tag in (b"tag", b"wanted", b"tag"):
        record = NewRecord("T", 0, bytes(16), 1, encode(b"", tag, tag, {}), tags=tag)
        rig.wait(rig.backend.append([record] * 3, rig.deadline()))
    got: list[int] = []
    while len(got) < 3:
        got += pull(rig, count=100).offsets
    assert got == [3, 4, 5]
    begun(rig, "one")
    result = fetch(rig, offsets={"T": {0: 0}})["T", 0]
    assert [message.offset for message in result.messages] == [3, 4, 5]
    result = fetch(rig, offsets={"T": {0: 6}})["T", 0]
    assert (result.messages, result.nextRequestOffset) == ([], 9)


def test_instances_are_bounded(news: ConsumerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSTANCES_MAX", 2)
    begun(news, "one", "two")
    assert pull(news, "three").outcome.error.code == 15


def test_a_pull_by_the_groups_own_name_names_the_way_to_fetch(news: ConsumerRig) -> None:
    for topic in (b"T", None, b"unknown"):
        error = news.start_pull(topic=topic).outcome.error
        assert b"G%INSTANCE" in error.message
    assert set(news.group().subscriptions) == {b"T"}


@pytest.mark.parametrize("name", ["G%one", "H%one", "none%one", "%one", "G%"])
@pytest.mark.parametrize("extra_fields", [{}, {"clientId": b"me"}])
def test_a_pull_as_an_instance_makes_no_ordinary_group(
    rig: ConsumerRig, name: str, extra_fields: dict[str, bytes]
) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        rig.subscribe("H", topic)
    rig.subscribe("G")
    call = rig.pull(group=name.encode(), **extra_fields)
    assert b"a name with % is not made by a pull" in call.outcome.error.message
    assert [group.name for group in rig.service.groups()] == ["G", "H"]


def test_the_instance_is_served_once_its_group_is_broadcasting(rig: ConsumerRig) -> None:
    rig.ready()
    assert b"a name with % is not made" in pull(rig).outcome.error.message
    rig.wait(rig.service.change_subscription("G", "T", {"model": "broadcasting"}))
    rig.settle()
    begun(rig, "one")
    rig.send(1)
    assert pull(rig).values == [b"m0"]


def test_an_older_ordinary_group_of_such_a_name_stays_usable(rig: ConsumerRig) -> None:
    rig.topic()
    rig.subscribe("G%one")
    rig.send(1)
    assert pull(rig).values == [b"m0"]


@pytest.mark.parametrize("name", ["G%one", "G%one%two", "G%"])
def test_no_ordinary_group_is_created_with_an_instances_name(news: ConsumerRig, name: str) -> None:
    with pytest.raises(CallerError, match="is an instance of the broadcasting group G"):
        news.service.subscribe(name, "T")
    with pytest.raises(CallerError, match="is an instance of the broadcasting group G"):
        news.service.change_subscription(name, "T", {"order_key": "KEY"})
    assert [group.name for group in news.service.groups()] == ["G"]
    news.subscribe("H%one")  # H is no broadcasting group
