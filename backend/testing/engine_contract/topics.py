"""Topics: creating, changing, deleting, and what a new incarnation means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.records import CLUSTER_SETTINGS, AppendStatus, Durability, ProgressDelta, ReadStatus, TopicInfo
from backend.testing.kit import Kit
from backend.testing.waits import done, until
from ddmq_common.errors import BoundReachedError, CallerError, UnknownTopicError, UnsupportedError


def test_a_created_topic_has_all_requested_values(kit: Kit) -> None:
    info = kit.make(
        "orders",
        3,
        readable=True,
        writable=False,
        delay="none",
        body_bytes_max=77,
        source="topics.yaml",
        delay_dialects=("amq", "ddmq"),
    )
    assert info.incarnation > 0
    expected = TopicInfo(
        "orders",
        info.incarnation,
        3,
        writable=False,
        delay="none",
        body_bytes_max=77,
        source="topics.yaml",
        delay_dialects=("amq", "ddmq"),
    )
    unsaid = dict.fromkeys(CLUSTER_SETTINGS)  # what was not asked for is as the engine has it
    assert replace(info, **unsaid) == expected
    assert kit.backend.topic("orders") == info
    assert kit.backend.topics()["orders"] == info


@pytest.mark.parametrize("name", CLUSTER_SETTINGS)
def test_what_an_engine_without_copies_does_not_have_is_refused(kit: Kit, name: str) -> None:
    if Durability.REPLICATED in kit.backend.capabilities.durability:
        info = kit.make("orders", **{name: 1})
        assert getattr(info, name) == 1
        return
    with pytest.raises(UnsupportedError, match=f"{name} is 1; the engine .* leave it out"):
        kit.make("orders", **{name: 1})
    assert kit.backend.topic("orders") is None


def test_an_unknown_topic_is_none(kit: Kit) -> None:
    assert kit.backend.topic("nowhere") is None
    assert "nowhere" not in kit.backend.topics()


def test_internal_topics_are_topics(kit: Kit) -> None:
    info = kit.make("%RETRY%billing")
    assert kit.backend.topics()["%RETRY%billing"] == info
    assert kit.send("%RETRY%billing", b"again") == [0]


def test_making_it_twice_at_the_same_time_gives_one(kit: Kit) -> None:
    first = kit.backend.put_topic(TopicInfo("orders", 0, 2), kit.soon)
    second = kit.backend.put_topic(TopicInfo("orders", 0, 8), kit.soon)
    info = done(first)
    assert done(second) == info
    assert info.queues == 2


def test_creating_an_existing_topic_changes_nothing(kit: Kit) -> None:
    info = kit.make("orders", 2)
    kit.send("orders", b"a")
    assert kit.make("orders", 8, writable=False) == info
    assert kit.backend.topic("orders") == info
    assert kit.send("orders", b"b") == [1]


def test_queues_can_be_added(kit: Kit) -> None:
    info = kit.make("orders", 1)
    kit.send("orders", b"a")
    grown = done(kit.backend.put_topic(replace(info, queues=3), kit.soon))
    assert grown == replace(info, queues=3)
    assert kit.backend.topic("orders") == grown
    assert kit.send("orders", b"b", queue_id=2) == [0]
    assert kit.send("orders", b"c") == [1]


def test_queues_are_never_removed(kit: Kit) -> None:
    info = kit.make("orders", 3)
    with pytest.raises(CallerError, match="orders"):
        done(kit.backend.put_topic(replace(info, queues=2), kit.soon))
    assert kit.backend.topic("orders") == info


def test_a_change_is_visible(kit: Kit) -> None:
    info = kit.make("orders")
    changed = done(kit.backend.put_topic(replace(info, body_bytes_max=10, delay="only"), kit.soon))
    assert kit.backend.topic("orders") == changed == replace(info, body_bytes_max=10, delay="only")


def test_a_change_of_a_deleted_incarnation_is_rejected(kit: Kit) -> None:
    old = kit.make("orders")
    done(kit.backend.delete_topic("orders", kit.soon))
    with pytest.raises(UnknownTopicError, match="orders"):
        done(kit.backend.put_topic(replace(old, queues=4), kit.soon))
    new = kit.make("orders")
    with pytest.raises(UnknownTopicError, match="orders"):
        done(kit.backend.put_topic(replace(old, queues=4), kit.soon))
    assert kit.backend.topic("orders") == new


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "ä", "a b", "x" * 128, "a\0"])
def test_a_name_that_no_topic_can_have_raises(kit: Kit, name: str) -> None:
    with pytest.raises(CallerError, match="topic"):
        done(kit.backend.put_topic(TopicInfo(name, 0, 1), kit.soon))
    assert kit.backend.topic(name) is None


def test_the_longest_name_works(kit: Kit) -> None:
    name = "x" * 127
    kit.make(name)
    assert kit.send(name, b"a") == [0]


@pytest.mark.parametrize("queues", [0, -1])
def test_a_topic_without_queues_raises(kit: Kit, queues: int) -> None:
    with pytest.raises(CallerError, match="queues"):
        done(kit.backend.put_topic(TopicInfo("orders", 0, queues), kit.soon))


def test_a_deleted_topic_is_unknown(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a")
    queue = kit.queue("orders")
    done(kit.backend.delete_topic("orders", kit.soon))
    assert kit.backend.topic("orders") is None
    assert kit.read(queue).status is ReadStatus.UNKNOWN_QUEUE
    assert done(kit.backend.bounds([queue])) == [None]
    result = kit.append(kit.new("orders"))[0]
    assert (result.status, type(result.error)) == (AppendStatus.REFUSED, UnknownTopicError)


def test_deleting_what_is_not_there_is_refused(kit: Kit) -> None:
    with pytest.raises(UnknownTopicError, match="nowhere"):
        done(kit.backend.delete_topic("nowhere", kit.soon))


def test_a_recreated_topic_has_nothing_of_the_old_one(kit: Kit) -> None:
    old_info = kit.make("orders", 2)
    kit.append(kit.new("orders", key=b"k"), kit.new("orders", 1, key=b"k"))
    old = kit.queue("orders")
    kit.commit(progress=[ProgressDelta("billing", old, 5, 0, ((0, 1),))])
    done(kit.backend.delete_topic("orders", kit.soon))
    new_info = kit.make("orders", 1)
    new = kit.queue("orders")
    assert new_info.incarnation not in (0, old_info.incarnation)
    assert kit.read(old).status is ReadStatus.UNKNOWN_QUEUE
    assert kit.read(new).status is ReadStatus.NONE
    bounds = done(kit.backend.bounds([old, new]))
    assert bounds[0] is None
    assert bounds[1] is not None
    assert bounds[1].min == bounds[1].next
    view = kit.progress("billing", new)
    assert (view.committed, view.finished, view.generation) == (None, (), 0)
    if kit.backend.capabilities.find_by_key:
        assert done(kit.backend.find("orders", key=b"k")) == []


def test_progress_of_an_old_incarnation_is_refused(kit: Kit) -> None:
    old = kit.make_queue("orders")
    done(kit.backend.delete_topic("orders", kit.soon))
    kit.make("orders")
    with pytest.raises(UnknownTopicError):
        kit.commit(progress=[ProgressDelta("billing", old, 1, 0, ((0, 1),))])
    assert kit.progress("billing", kit.queue("orders")).committed is None
    assert kit.progress("billing", old).committed is None


def test_a_topic_that_is_not_writable_refuses(kit: Kit) -> None:
    info = kit.make("orders")
    kit.send("orders", b"a")
    closed = done(kit.backend.put_topic(replace(info, writable=False), kit.soon))
    result = kit.append(kit.new("orders"))[0]
    assert (result.status, result.offset) == (AppendStatus.REFUSED, -1)
    assert isinstance(result.error, CallerError)
    with pytest.raises(CallerError, match="orders"):
        kit.commit([kit.new("orders")])
    assert len(kit.stored(kit.queue("orders"))) == 1
    done(kit.backend.put_topic(replace(closed, writable=True), kit.soon))
    assert kit.send("orders", b"b") == [1]


def test_a_topic_that_is_not_readable_refuses(kit: Kit) -> None:
    info = kit.make("orders")
    kit.send("orders", b"a")
    closed = done(kit.backend.put_topic(replace(info, readable=False), kit.soon))
    with pytest.raises(CallerError, match="orders"):
        kit.read(kit.queue("orders"))
    assert kit.send("orders", b"b") == [1]
    done(kit.backend.put_topic(replace(closed, readable=True), kit.soon))
    assert [record.offset for record in kit.stored(kit.queue("orders"))] == [0, 1]


def test_changes_of_topics_are_notified(kit: Kit) -> None:
    changed_keys: list[str] = []
    stop = kit.backend.watch_settings(changed_keys.append)
    info = kit.make("orders")
    until(lambda: "topic/orders" in changed_keys, "told of the new topic")
    changed_keys.clear()
    done(kit.backend.put_topic(replace(info, queues=2), kit.soon))
    until(lambda: "topic/orders" in changed_keys, "told of the growth")
    changed_keys.clear()
    done(kit.backend.delete_topic("orders", kit.soon))
    until(lambda: "topic/orders" in changed_keys, "told of the end")
    stop()
    changed_keys.clear()
    kit.make("orders")
    kit.send("orders", b"a")
    assert changed_keys == []


def test_no_more_topics_are_created_than_the_caller_allows(kit: Kit) -> None:
    """Concurrent creations count towards the limit, too. Creating a topic that exists needs no free slot."""
    before = len(kit.backend.topics())
    creations = [
        kit.backend.put_topic(TopicInfo(f"t{number}", 0, 1), kit.soon, None, before + 3)
        for number in range(6)
    ]
    until(lambda: all(each.done for each in creations), "all answered")
    errors = [each.error for each in creations if each.error is not None]
    assert len(kit.backend.topics()) == before + 3
    assert [type(error) for error in errors] == [BoundReachedError] * 3
    assert f"there are {before + 3} topics; topics_max is {before + 3}" in {str(error) for error in errors}
    name = next(each.result().name for each in creations if each.error is None)
    existing = done(kit.backend.put_topic(TopicInfo(name, 0, 1), kit.soon, None, 1))
    assert existing.name == name
    done(kit.backend.delete_topic(name, kit.soon))
    done(kit.backend.put_topic(TopicInfo("later", 0, 1), kit.soon, None, before + 3))
