"""Clients of one group that state different filters or read different topics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy_consumer.groups import consistency
from tests.service.consumer.consumer_rig import FIRST, IDL, METHODS, ConsumerRig, FakeCall, result


def pull_filtered(
    rig: ConsumerRig, client: str = "one", kind: str | None = "TAG", text: str = "*", **named: object
) -> FakeCall:
    """A pull that states a filter."""
    return rig.start_pull(
        clientId=client.encode(),
        filterType=None if kind is None else kind.encode(),
        filter=text.encode(),
        **named,  # type: ignore[arg-type]
    )


def refused(call: FakeCall) -> str:
    assert call.outcome.error.code == 11
    return str(call.outcome.error.message.decode())


@pytest.fixture
def tagged(rig: ConsumerRig) -> ConsumerRig:
    rig.ready(config=replace(FIRST, tags="a || b"))
    return rig


@pytest.mark.parametrize("text", ["a||b", "b || a", " b||a ||b"])
def test_the_same_filter_written_differently_is_the_same(tagged: ConsumerRig, text: str) -> None:
    call = pull_filtered(tagged, text=text)
    assert not call.answered
    assert tagged.service.differences("G") == []


def test_no_filter_agrees_with_any(tagged: ConsumerRig) -> None:
    assert not tagged.start_pull(clientId=b"one").answered
    assert not tagged.start_pull().answered


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("TAG", "a", "the pull states tags 'a', the subscription has tags 'a || b'"),
        (None, "*", "the pull states tags '*'"),
        ("SQL92", "x > 1", "the pull states sql 'x > 1'"),
        ("SQL92", "x >", "cannot be used: sql is 'x >'"),
        ("XML", "a", "filterType is b'XML'; allowed: TAG, SQL92"),
    ],
)
def test_another_filter_is_rejected_and_listed(
    tagged: ConsumerRig, kind: str | None, text: str, reason: str
) -> None:
    for _ in range(3):
        assert reason in refused(pull_filtered(tagged, kind=kind, text=text))
    (difference,) = tagged.service.differences("G")
    assert (difference.topic, difference.client_id) == ("T", "one")
    assert reason in difference.what
    assert tagged.counted("ddmq_inconsistent_subscriptions_total", group="G", topic="T") == 1


def test_a_pull_of_all_topics_is_compared_with_each(tagged: ConsumerRig) -> None:
    tagged.topic("U")
    tagged.subscribe(topic="U")
    assert "topic U: the pull states" in refused(pull_filtered(tagged, text="a||b", topic=None))


def test_a_difference_is_over_when_the_client_or_the_subscription_changes(tagged: ConsumerRig) -> None:
    refused(pull_filtered(tagged, text="a"))
    pull_filtered(tagged, text="a||b")
    assert tagged.service.differences("G") == []


def test_sql_is_compared_as_parsed(rig: ConsumerRig) -> None:
    rig.ready(config=replace(FIRST, sql="price > 10 AND color = 'red'"))
    assert not pull_filtered(rig, kind="SQL92", text="price  >  10 and color='red'").answered
    assert "color = 'blue'" in refused(pull_filtered(rig, kind="SQL92", text="price > 10 AND color = 'blue'"))


def test_the_first_client_makes_the_subscription_with_its_filter(rig: ConsumerRig) -> None:
    rig.topic()
    pull_filtered(rig, text="a")
    rig.settle()
    assert rig.subscription().config.tags == "a"
    assert "the subscription has tags 'a'" in refused(pull_filtered(rig, "two", text="b"))
    assert "cannot be used" in refused(pull_filtered(rig, kind="SQL92", text="((", group=b"H"))
    assert b"H" not in rig.directory.groups


def test_clients_that_read_different_topics_are_listed_not_rejected(rig: ConsumerRig) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        rig.subscribe(topic=topic)
    for _ in range(3):
        rig.start_pull(clientId=b"one", topic=b"T")
        rig.start_pull(clientId=b"one", topic=b"U")
        rig.start_pull(clientId=b"two", topic=b"T")
        rig.start_pull(clientId=b"all", topic=None)
        rig.advance(11)
    (difference,) = rig.service.differences("G")
    assert (difference.client_id, difference.topic) == ("two", "")
    assert difference.what == "reads T; others of the group read U"
    rig.start_pull(clientId=b"two", topic=b"U")
    rig.advance(11)
    assert rig.service.differences("G") == []


def test_who_is_away_is_forgotten_and_memory_is_bounded(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "CLIENTS_MAX", 2)
    rig.ready()
    for client in ("one", "two", "three"):
        refused(pull_filtered(rig, client, text="a"))
    assert [each.client_id for each in rig.service.differences("G")] == ["one", "two"]
    for _ in range(14):
        rig.advance(10)
    assert rig.service.differences("G") == []
    assert rig.service._pulls.consistency._count == 0
    refused(pull_filtered(rig, "three", text="a"))
    assert len(rig.service.differences("G")) == 1


@pytest.mark.parametrize(
    ("kind", "text", "client", "reason"),
    [
        ("TAG", "x" * 4_097, "one", "filter has 4097 bytes; allowed: at most 4096"),
        ("SQL92", "a = '" + "x" * 5_000_000 + "'", "one", "filter has 5000006 bytes"),
        ("TAG", "a || b", "i" * 256, "clientId has 256 bytes; allowed: at most 255"),
        ("X" * 100_000, "a || b", "one", "filterType is"),
    ],
)
def test_long_texts_are_rejected_before_anything_is_stored(
    tagged: ConsumerRig, kind: str, text: str, client: str, reason: str
) -> None:
    consistency.find_difference.cache_clear()
    assert reason in refused(pull_filtered(tagged, client, kind, text))
    assert consistency.find_difference.cache_info().currsize == 0
    assert sum(len(name) for name in tagged.service._pulls.consistency._groups.get(b"G", {})) <= 255


def test_only_valid_filters_are_stored(tagged: ConsumerRig) -> None:
    consistency.find_difference.cache_clear()
    for text in ("x >", "x = 'a"):
        refused(pull_filtered(tagged, kind="SQL92", text=text))
    assert consistency.find_difference.cache_info().currsize == 0
    refused(pull_filtered(tagged, text="c"))
    assert consistency.find_difference.cache_info().currsize == 1


def test_clients_are_listed_with_where_they_come_from_and_since_when(rig: ConsumerRig) -> None:
    rig.ready()
    began = rig.clock.wall_ms()
    rig.start_pull(clientId=b"one")
    rig.advance(2.5)
    for client, peer in (("two", "10.0.0.9:40002"), ("one", "10.0.0.7:40003"), (None, "10.0.0.8:40004")):
        pull_from(rig, peer, client)
    rig.advance(1.5)
    clients = {each.client_id: each for each in rig.service.clients("G")}
    assert {name: (each.address, each.since_ms - began, each.idle_s) for name, each in clients.items()} == {
        "one": ("10.0.0.7:40003", 0, 1.5),
        "two": ("10.0.0.9:40002", 2_500, 1.5),
        "10.0.0.8": ("10.0.0.8", 2_500, 1.5),
    }


def pull_from(rig: ConsumerRig, peer: str, client: str | None) -> None:
    """A pull that comes from this address."""
    request = IDL.PullRequest(groupId=b"G", topic=b"T", clientId=None if client is None else client.encode())
    call = FakeCall("pull", METHODS["pull"].args[0](request=request))
    call.peer = peer
    rig.handlers["pull"](call)


def test_clients_are_listed_with_what_they_have_in_flight(rig: ConsumerRig) -> None:
    rig.ready(5)
    rig.start_pull(clientId=b"one", count=2)
    rig.start_pull(clientId=b"two", count=1)
    rig.start_pull(count=2)
    rig.settle()
    clients = {each.client_id: each for each in rig.service.clients("G")}
    assert {name: each.in_flight for name, each in clients.items()} == {"one": 2, "two": 1, "test": 2}
    assert clients["one"].topics == ("T",)
    rig.submit(result([0, 3]))
    assert {each.client_id: each.in_flight for each in rig.service.clients("G")} == {
        "one": 1,
        "two": 1,
        "test": 1,
    }
    rig.wait(rig.service.delete_group("G"))
    rig.settle()
    assert [each.in_flight for each in rig.service.clients("G")] == [0, 0, 0]
    for _ in range(14):
        rig.advance(10)
    assert rig.service.clients("G") == []
