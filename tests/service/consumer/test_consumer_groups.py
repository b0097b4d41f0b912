"""Groups: creation, start positions, membership, settings, stats, draining."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.completion import Completion
from backend.records import CommitBatch
from ddmq_common import token_bucket
from ddmq_common.config import Overlay, load
from ddmq_common.errors import BoundReachedError, CallerError, ConfigError, TryLaterError
from proxy_consumer.config import ConsumerConfig, GroupEntry, GroupsFile, SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, directory, result


def stats_of(
    rig: ConsumerRig, group: bytes = b"G", topic: bytes | None = None
) -> list[tuple[bytes, dict, dict]]:
    request = IDL.ConsumeStatsRequest(group=group, topic=topic)
    call = rig.call("getConsumeStats", METHODS["getConsumeStats"].args[0](request=request))
    rig.settle(lambda: call.answered)
    return [(each.topic, each.consumeOffsets, each.produceOffsets) for each in call.result]


def test_a_subscription_just_created_by_another_proxy_keeps_its_settings(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull has come before the settings, which are here when it is known where the queues stand."""
    rig.topic()
    rig.send(1)
    operator, read_progress = rig.service, rig.backend.progress
    puller = rig.start()

    def read_after_creation(*args: Any) -> Any:
        monkeypatch.undo()
        config = SubscriptionDefaults(start="first", order_key="KEY")
        rig.wait(operator.subscribe("G", "T", config))
        return read_progress(*args)

    unheard = monkeypatch.setattr
    unheard(directory(puller), "on_setting_changed", lambda key: None)
    unheard(rig.backend, "progress", read_after_creation)
    assert rig.pull().offsets == [0]
    stored = rig.backend.setting("subscription/G/T")
    assert stored is not None
    assert b"KEY" in stored


def test_without_auto_creation_it_is_empty_at_once_and_nothing_is_created() -> None:
    rig = ConsumerRig(ConsumerConfig(auto_create_groups=False))
    rig.topic()
    call = rig.start_pull(linger=30_000)
    assert call.result.messages == []
    assert rig.backend.setting("group/G") is None
    assert rig.service.groups() == []


@pytest.mark.parametrize(
    ("group", "topic"),
    [
        (b"a/b", b"T"),
        (b"G", b"../etc"),
        (b"\xff\xfe", b"T"),
        (b"g" * 120, b"T"),
        (b"G", b"SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_names_that_cannot_be_get_an_exception(rig: ConsumerRig, group: bytes, topic: bytes) -> None:
    assert rig.pull(group, topic).outcome.error.code == 11
    assert rig.service.groups() == []


def test_groups_are_bounded() -> None:
    rig = ConsumerRig(ConsumerConfig(groups_max=2, subscriptions_per_group_max=1))
    rig.topic()
    rig.pull(b"A")
    rig.pull(b"B")
    assert rig.pull(b"C").outcome.error.code == 15
    assert rig.pull(b"A", b"U").outcome.error.code == 15
    with pytest.raises(BoundReachedError):
        rig.service.subscribe("C", "T")


def test_subscriptions_of_all_groups_are_bounded() -> None:
    rig = ConsumerRig(ConsumerConfig(subscriptions_max=3))
    for topic in "TU":
        rig.topic(topic)
    rig.pull(b"A")
    rig.pull(b"A", b"U")
    rig.pull(b"B")
    for group, topic in ((b"B", b"U"), (b"C", b"T")):
        refused = rig.pull(group, topic).outcome.error
        assert refused.code == 15
        assert b"there are 3 subscriptions; subscriptions_max is 3" in refused.message
    with pytest.raises(BoundReachedError, match="subscriptions_max is 3"):
        rig.service.change_subscription("B", "U", {"start": "first"})
    assert {group.name for group in rig.service.groups()} == {"A", "B"}
    rig.send(1)
    assert rig.pull(b"B").values == [b"m0"], "those that are there go on"
    rig.wait(rig.service.delete_group("A", "U"))
    rig.settle()
    assert rig.pull(b"C").outcome.error is None


def test_clients_that_invent_groups_get_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "CREATIONS_AT_ONCE", 2)
    rig = ConsumerRig()
    rig.topic()
    rig.start_pull(b"A")
    rig.start_pull(b"B")
    refused = rig.pull(b"C").outcome.error
    assert refused.code == 15
    assert b"clients have made many subscriptions just now" in refused.message
    assert rig.pull(b"A", b"U").outcome.error.code == 15
    rig.service.subscribe("operator", "T")
    rig.start_pull(b"A")
    rig.clock.advance(1.5 / token_bucket.CREATIONS_PER_S)
    rig.start_pull(b"C")
    assert {group.name for group in rig.service.groups()} == {"A", "B", "C", "operator"}


@pytest.mark.parametrize(("start", "first"), [("first", 0), ("last", 6), ("time", 3)])
def test_start_positions(rig: ConsumerRig, start: str, first: int) -> None:
    rig.topic()
    rig.send(3)
    rig.clock.advance(10)
    at = str(rig.clock.wall_ms()) if start == "time" else start
    rig.send(3)
    rig.subscribe(config=SubscriptionDefaults(start=at))
    rig.send(1)
    assert rig.pull().offsets == list(range(first, 7))


def test_settings_changed_elsewhere_apply_without_a_restart(rig: ConsumerRig) -> None:
    rig.ready(10)
    change = {"subscription/G/T": b'{"settings": {"batch_max": 3}}'}
    rig.wait(rig.backend.commit(CommitBatch(settings=change), rig.deadline()))
    rig.settle()
    assert rig.pull().offsets == [0, 1, 2]


def test_a_broken_setting_is_passed_over(rig: ConsumerRig) -> None:
    broken = {"subscription/G/T": b'{"settings": {"batch_max": 0}}', "group/H": b"no json"}
    rig.wait(rig.backend.commit(CommitBatch(settings=broken), rig.deadline()))
    rig.settle()
    assert rig.service.groups() == []


def test_an_idle_subscription_releases_its_queues_and_reacquires_them(rig: ConsumerRig) -> None:
    rig.ready()
    rig.pull()
    for _ in range(70):
        rig.advance(1.0)
    subscription = rig.subscription()
    assert not subscription.joined
    rig.send(1)
    assert rig.pull().offsets == [0]


def test_consume_stats(rig: ConsumerRig) -> None:
    rig.topic(queues=2)
    rig.topic("U")
    rig.subscribe()
    rig.subscribe(topic="U")
    rig.send(5)
    rig.submit(result(rig.pull(count=2).offsets))
    expected = (b"T", {b"R_default_a_0": 2, b"R_default_a_1": 0}, {b"R_default_a_0": 5, b"R_default_a_1": 0})
    assert stats_of(rig, topic=b"T") == [expected]
    assert sorted(each[0] for each in stats_of(rig)) == [b"T", b"U"]
    assert stats_of(rig, topic=b"") == stats_of(rig)
    assert stats_of(rig, b"nobody") == []
    assert stats_of(rig, topic=b"nothing") == []


def test_group_stats_show_what_is_going_on(rig: ConsumerRig) -> None:
    rig.ready(10, SubscriptionDefaults(start="first", retry_intervals_ms=(100,)))
    rig.pull(count=6)
    rig.submit(result([1, 2], [0]))
    stats = rig.wait(rig.service.group_stats("G"))[0]
    assert (stats.lag, stats.in_flight, stats.retrying, stats.ack_span) == (10, 3, 1, 3)
    queue = stats.queues[0]
    assert (queue.committed, queue.next, queue.qid, queue.held) == (0, 10, "R_default_a_0", True)


def test_groups_declared_in_a_file_are_created_and_updated(rig: ConsumerRig) -> None:
    def file(**settings: Any) -> GroupsFile:
        return GroupsFile({"G": GroupEntry({"T": Overlay({"start": "first"} | settings)})})

    rig.topic()
    rig.send(6)
    rig.wait(rig.service.declare(file(batch_max=2), "groups.yaml"))
    rig.settle()
    assert rig.service.groups()[0].source == "groups.yaml"
    offsets = rig.pull().offsets
    assert offsets == [0, 1]
    stored = rig.backend.setting("subscription/G/T")
    rig.wait(rig.service.declare(file(batch_max=2), "groups.yaml"))
    assert rig.backend.setting("subscription/G/T") == stored
    rig.wait(rig.service.declare(file(batch_max=3), "groups.yaml"))
    rig.settle()
    assert rig.pull(result=result(offsets)).offsets == [2, 3, 4]
    rig.wait(rig.service.declare(GroupsFile(), "groups.yaml"))


def test_the_files_in_conf_state_the_programs_defaults() -> None:
    conf = Path(__file__).parents[3] / "conf"
    assert load(conf / "proxy_consumer.yaml", ConsumerConfig) == ConsumerConfig()
    assert load(conf / "groups.yaml", GroupsFile) == GroupsFile()


@pytest.mark.parametrize(
    "text",
    [
        "groups: {a/b: {topics: {T: {}}}}",
        "groups: {G: {topics: {../T: {}}}}",
        "groups: {G: {topics: {T: {start: yesterday}}}}",
        "groups: {G: {topics: {T: {retry_intervals_ms: [1, -1, 2]}}}}",
        "groups: {G: {topics: {T: {tags: 5}}}}",
        "groups: {G: {topics: {T: {concurency: 5}}}}",
    ],
)
def test_an_invalid_groups_file_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "groups.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"groups\.yaml"):
        load(tmp_path / "groups.yaml", GroupsFile)


def test_two_changes_at_once_do_not_undo_each_other(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.ready()
    pending_commit: Completion[Any] = Completion()
    monkeypatch.setattr(rig.backend, "commit", lambda *_: pending_commit)
    first = rig.service.change_subscription("G", "T", {"batch_max": 3})
    with pytest.raises(TryLaterError, match="is being changed just now"):
        rig.service.change_subscription("G", "T", {"concurrency": 4})
    assert not first.done
    pending_commit.succeed([])
    monkeypatch.undo()
    assert rig.wait(first).after.batch_max == 3
    rig.wait(rig.service.change_subscription("G", "T", {"concurrency": 4}))


def test_other_defaults_hold_where_a_subscription_sets_nothing(rig: ConsumerRig) -> None:
    rig.topic()
    rig.wait(rig.service.change_subscription("G", "T", {"concurrency": 5, "start": "first"}))
    rig.send(3)
    offsets = rig.pull().offsets
    done = rig.service.reconfigure(ConsumerConfig(defaults=SubscriptionDefaults(batch_max=2, concurrency=9)))
    assert (done.changed, done.waiting) == (("defaults",), ())
    (stats,) = rig.wait(rig.service.group_stats("G"))
    assert (stats.config.batch_max, stats.config.concurrency) == (2, 5)
    rig.send(5)
    assert rig.pull(result=result(offsets)).offsets == [3, 4], "the client was not disturbed"


def test_a_setting_back_to_the_default(rig: ConsumerRig) -> None:
    rig.topic()
    rig.wait(rig.service.change_subscription("G", "T", {"batch_max": 2, "retry_intervals_ms": [5]}))
    change = rig.wait(rig.service.change_subscription("G", "T", {}, ["batch_max"]))
    assert (change.before.batch_max, change.after.batch_max) == (2, 100)
    assert change.overrides == {"retry_intervals_ms": (5,)}


def test_a_setting_that_the_defaults_no_longer_allow_can_be_put_right(rig: ConsumerRig) -> None:
    rig.topic()
    rig.wait(rig.service.change_subscription("G", "T", {"order_key": "KEY"}))
    rig.service.reconfigure(ConsumerConfig(defaults=SubscriptionDefaults(model="broadcasting")))
    (stats,) = rig.wait(rig.service.group_stats("G"))
    assert (stats.config.order_key, stats.config.model) == ("KEY", "clustering"), "it goes on as it was"
    with pytest.raises(ConfigError, match="broadcasting keeps no order"):
        rig.service.change_subscription("G", "T", {"batch_max": 3})
    change = rig.wait(rig.service.change_subscription("G", "T", {"model": "clustering"}))
    assert (change.after.order_key, change.after.model) == ("KEY", "clustering")


def test_a_script_that_an_earlier_release_took_stays_when_something_else_is_changed(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic()
    costly = {"script": {"filter": "!text.matches('a.{0,200}b')"}}
    settings = {"actions": ["Script", "PullServer"], "push": costly}
    with pytest.raises(CallerError, match=r"may take \d+ steps"):
        rig.service.change_subscription("G", "T", settings)
    with monkeypatch.context() as earlier:
        earlier.setattr("proxy_consumer.push.chain.find_error_before_pull", lambda *_: None)
        rig.wait(rig.service.change_subscription("G", "T", settings))
    rig.wait(rig.service.change_subscription("G", "T", {"batch_max": 3}))
    with pytest.raises(CallerError, match=r"may take \d+ steps"):
        rig.service.change_subscription(
            "G", "T", {"push": {"script": {"filter": "!text.matches('a.{0,300}b')"}}}
        )
