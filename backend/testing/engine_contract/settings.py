"""Settings: a small durable map, and being told of changes."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.records import AppendResult, CommitBatch, SettingsLimit
from backend.testing.kit import Kit
from backend.testing.waits import done, until
from ddmq_common.errors import BoundReachedError, FencedError


def test_set_change_and_delete(kit: Kit) -> None:
    assert kit.backend.setting("group/billing") is None
    kit.commit(settings={"group/billing": b"1"})
    assert kit.backend.setting("group/billing") == b"1"
    kit.commit(settings={"group/billing": b""})
    assert kit.backend.setting("group/billing") == b""
    kit.commit(settings={"group/billing": None, "group/never": None})
    assert kit.backend.setting("group/billing") is None


def test_by_prefix(kit: Kit) -> None:
    kit.commit(settings={"group/a": b"1", "group/b": b"2", "groups": b"3", "sub/a": b"4"})
    assert dict(kit.backend.settings("group/")) == {"group/a": b"1", "group/b": b"2"}
    assert kit.backend.settings("").items() >= {"groups": b"3", "sub/a": b"4"}.items()
    assert dict(kit.backend.settings("nothing/")) == {}


def test_keys_and_values_of_any_kind(kit: Kit) -> None:
    settings: dict[str, bytes | None] = {"gruppe/ü %|": bytes(range(256)), "x" * 300: b"y" * 50_000}
    kit.commit(settings=settings)
    assert {key: kit.backend.setting(key) for key in settings} == settings


def test_later_commits_win(kit: Kit) -> None:
    calls = [kit.backend.commit(CommitBatch(settings={"k": b"%d" % n}), kit.soon) for n in range(50)]
    for call in calls:
        assert done(call) == []
    assert kit.backend.setting("k") == b"49"


def test_a_change_is_visible_when_it_is_answered_and_when_it_is_notified(kit: Kit) -> None:
    changes: list[tuple[str, bytes | None]] = []
    stop = kit.backend.watch_settings(lambda key: changes.append((key, kit.backend.setting(key))))
    kit.commit(settings={"a": b"1", "b": b"2"})
    until(lambda: sorted(changes) == [("a", b"1"), ("b", b"2")], f"told of both: {changes}")
    kit.commit(settings={"a": None})
    until(lambda: ("a", None) in changes, "told of the end")
    stop()


def test_every_watcher_is_notified_until_it_stops(kit: Kit) -> None:
    first: list[str] = []
    second: list[str] = []
    stop_first = kit.backend.watch_settings(first.append)
    stop_second = kit.backend.watch_settings(second.append)
    kit.commit(settings={"a": b"1"})
    until(lambda: first == second == ["a"], "both told")
    stop_first()
    stop_first()
    kit.commit(settings={"b": b"1"})
    until(lambda: second == ["a", "b"], "the second told")
    assert first == ["a"]
    stop_second()


def test_a_watcher_is_notified_of_the_keys_that_it_watches(kit: Kit) -> None:
    some: list[str] = []
    every: list[str] = []
    stop_some = kit.backend.watch_settings(some.append, "a/", "topic/")
    stop_every = kit.backend.watch_settings(every.append)
    kit.commit(settings={"a/1": b"1", "ab": b"1", "b/a/": b"1", "a/2": b"1"})
    kit.make("orders")
    until(lambda: "topic/orders" in every, "the last change is told")
    assert sorted(some) == ["a/1", "a/2", "topic/orders"]
    assert set(every) >= {"a/1", "a/2", "ab", "b/a/", "topic/orders"}
    stop_some()
    stop_every()


def test_settings_ride_with_records_and_progress(kit: Kit) -> None:
    kit.make("orders")
    results = kit.commit([kit.new("orders")], settings={"a": b"1"})
    assert [result.offset for result in results] == [0]
    assert kit.backend.setting("a") == b"1"


def test_a_setting_that_must_be_absent_is_created_once(kit: Kit) -> None:
    """Also of those that are under way together; of what is refused nothing is stored."""
    commits = [
        kit.backend.commit(CommitBatch(settings={"k": b"%d" % n, "by": b"%d" % n}, absent=["k"]), kit.soon)
        for n in range(5)
    ]
    until(lambda: all(each.done for each in commits), "all answered")
    numbers = [n for n, each in enumerate(commits) if each.error is None]
    assert len(numbers) == 1
    assert all(isinstance(each.error, FencedError) for each in commits if each.error is not None)
    assert (kit.backend.setting("k"), kit.backend.setting("by")) == (b"%d" % numbers[0],) * 2
    kit.commit(settings={"k": None})
    done(kit.backend.commit(CommitBatch(settings={"k": b"again"}, absent=["k", "other"]), kit.soon))
    assert kit.backend.setting("k") == b"again"


def test_a_limit_on_a_folder_holds_for_all_that_are_under_way(kit: Kit) -> None:
    """Also together with deletions, and beside what lies in other folders; what is refused stores nothing."""
    limit = SettingsLimit("group/", 3, "there are 3 groups")

    def start_group(name: str) -> Completion[list[AppendResult]]:
        batch = CommitBatch(settings={f"group/{name}": b"1", f"by/{name}": b"1"}, limits=[limit])
        return kit.backend.commit(batch, kit.soon)

    kit.commit(settings={"group/a": b"1", "groups": b"1", "other/a": b"1"})
    commits = [start_group(f"b{number}") for number in range(6)]
    until(lambda: all(each.done for each in commits), "all answered")
    rejections = [each.error for each in commits if each.error is not None]
    assert len(kit.backend.settings("group/")) == 3
    assert len(kit.backend.settings("by/")) == 2
    assert {(type(error), str(error)) for error in rejections} == {(BoundReachedError, "there are 3 groups")}
    done(kit.backend.commit(CommitBatch(settings={"group/a": b"2"}, limits=[limit]), kit.soon))
    swapped = {"group/a": None, "group/c": b"1"}
    done(kit.backend.commit(CommitBatch(settings=swapped, limits=[limit]), kit.soon))
    kit.commit(settings={"group/c": None})
    done(start_group("d"))
    assert len(kit.backend.settings("group/")) == 3


def test_a_limit_on_a_folder_within_a_folder(kit: Kit) -> None:
    limit = SettingsLimit("subscription/a/", 1, "a has one")
    kit.commit(settings={"subscription/b/T": b"1", "subscription/ab/T": b"1"})
    done(kit.backend.commit(CommitBatch(settings={"subscription/a/T": b"1"}, limits=[limit]), kit.soon))
    with pytest.raises(BoundReachedError, match="a has one"):
        done(kit.backend.commit(CommitBatch(settings={"subscription/a/U": b"1"}, limits=[limit]), kit.soon))
    kit.commit(settings={"subscription/a/T": None})
    done(kit.backend.commit(CommitBatch(settings={"subscription/a/U": b"1"}, limits=[limit]), kit.soon))
