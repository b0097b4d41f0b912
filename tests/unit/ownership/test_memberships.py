"""Decisions carried out: told in order, from the hub, and tried again when the disk fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend.ownership.group import Grant
from backend.ownership.memberships import Answered, Memberships
from backend.ownership.table import LATE_MAX, REVOKE_S
from backend.port import Join, Sharing
from backend.records import QueueRef
from ddmq_common.errors import BoundReachedError, DrainingError, StorageError
from tests.support.recording_listener import RecordingListener


class MembershipsRig:
    """An engine of nothing but its edges."""

    def __init__(self, queues: int = 2, rows_max: int = 3) -> None:
        self.queues = {"t": [QueueRef("t", 1, n) for n in range(queues)]}
        self.now = 0.0
        self.watched = 0
        self.on_disk: list[tuple[Grant, Answered]] = []
        self.retries: list[Callable[[], None]] = []
        self._later: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self.epochs: dict[QueueRef, int] = {}
        self.memberships = Memberships(
            lambda topic: self.queues.get(topic, []),
            lambda group, queue: self.epochs.get(queue, 0),
            lambda grant, answered: self.on_disk.append((grant, answered)),
            lambda call, *args: self._later.append((call, args)),
            self.retries.append,
            lambda: self.now,
            self._watch,
            rows_max,
        )

    def _watch(self) -> None:
        self.watched += 1

    def disk(self, error: Exception | None = None) -> None:
        on_disk, self.on_disk = self.on_disk, []
        for grant, answered in on_disk:
            if error is None:
                self.epochs.update(dict.fromkeys(grant.queues, grant.epoch))
            answered(error)

    def hub(self) -> None:
        later, self._later = self._later, []
        for call, args in later:
            call(*args)


def test_a_member_is_called_once_its_grant_is_durable_and_never_inside_a_call() -> None:
    rig, listener = MembershipsRig(), RecordingListener()
    rig.memberships.join(Join("g", "t"), listener)
    rig.hub()
    assert listener.events == []
    rig.disk()
    assert listener.events == []
    rig.hub()
    assert listener.events == [("assigned", [0, 1])]


def test_a_failed_grant_is_retried() -> None:
    rig, listener = MembershipsRig(), RecordingListener()
    rig.memberships.join(Join("g", "t"), listener)
    rig.disk(StorageError("full"))
    assert rig.on_disk == []
    rig.retries.pop()()
    rig.disk()
    rig.hub()
    assert listener.events == [("assigned", [0, 1])]


def test_a_grant_that_keeps_failing_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = MembershipsRig()
    membership = rig.memberships.join(Join("g", "t"), RecordingListener())
    for _ in range(3):
        rig.disk(StorageError("full"))
        rig.retries.pop()()
    assert caplog.text.count("full") == 1
    rig.disk(StorageError("broken"))
    rig.retries.pop()()
    assert caplog.text.count("broken") == 1
    rig.disk()
    membership.leave()
    rig.memberships.join(Join("g", "t"), RecordingListener())
    rig.disk(StorageError("broken"))
    assert caplog.text.count("broken") == 2


def test_a_draining_engine_gets_no_more_requests() -> None:
    rig = MembershipsRig()
    rig.memberships.join(Join("g", "t"), RecordingListener())
    rig.disk(DrainingError("ends"))
    assert rig.retries == []


def test_a_member_that_left_gets_no_more_calls() -> None:
    rig, listener = MembershipsRig(), RecordingListener()
    membership = rig.memberships.join(Join("g", "t"), listener)
    rig.disk()
    membership.leave()
    membership.leave()
    membership.release(rig.queues["t"])
    rig.hub()
    assert listener.events == []


def test_a_member_that_leaves_before_its_grant_gets_nothing() -> None:
    rig, heir = MembershipsRig(), RecordingListener()
    first = rig.memberships.join(Join("g", "t", Sharing.WHOLE_TOPIC), RecordingListener())
    rig.memberships.join(Join("g", "t", Sharing.WHOLE_TOPIC), heir)
    first.leave()
    rig.disk()
    rig.disk()
    rig.hub()
    assert heir.events == [("assigned", [0, 1])]


def test_a_deadline_revokes_unreleased_queues() -> None:
    rig, first, second = MembershipsRig(), RecordingListener(), RecordingListener()
    rig.memberships.join(Join("g", "t", address="a"), first)
    rig.disk()
    assert rig.memberships.sweep(rig.now) is False
    rig.memberships.join(Join("g", "t", address="b"), second)
    assert rig.watched == 1
    assert rig.memberships.sweep(rig.now) is True
    rig.now += REVOKE_S
    assert rig.memberships.sweep(rig.now) is False
    rig.disk()
    rig.hub()
    assert first.events == [("assigned", [0, 1]), ("revoked", [1]), ("lost", [1])]
    assert second.events == [("assigned", [1])]


def test_many_deadlines_at_once_are_handled_a_few_at_a_time() -> None:
    rig, groups = MembershipsRig(rows_max=100), [f"g{n}" for n in range(LATE_MAX + 1)]
    for address in "ab":
        for group in groups:
            rig.memberships.join(Join(group, "t", address=address), RecordingListener())
        rig.disk()
    rig.now += REVOKE_S
    assert rig.memberships.sweep(rig.now) is True
    assert len(rig.on_disk) == LATE_MAX
    assert rig.memberships.sweep(rig.now) is False
    assert len(rig.on_disk) == LATE_MAX + 1


def test_the_owner_of_a_deleted_topic_loses_its_queues() -> None:
    rig, listener = MembershipsRig(), RecordingListener()
    rig.memberships.join(Join("g", "t"), listener)
    rig.disk()
    rig.queues["t"] = [QueueRef("t", 2, 0)]
    rig.memberships.topic_changed("t")
    rig.disk()
    rig.hub()
    assert listener.events == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0])]


def test_a_deposed_group_owner_comes_last() -> None:
    rig, one, two = MembershipsRig(), RecordingListener(), RecordingListener()
    rig.memberships.join(Join("g", "t", Sharing.WHOLE_GROUP, member="one"), one)
    rig.memberships.join(Join("g", "t", Sharing.WHOLE_GROUP, member="two"), two)
    rig.disk()
    rig.memberships.depose("g", "t")
    rig.disk()
    rig.hub()
    assert one.events == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert two.events == [("assigned", [0, 1])]


def test_pairs_of_group_and_topic_are_bounded_and_released() -> None:
    rig = MembershipsRig(rows_max=3)
    members = [rig.memberships.join(Join(group, "none"), RecordingListener()) for group in "abc"]
    rig.memberships.join(Join("a", "none"), RecordingListener())
    with pytest.raises(BoundReachedError, match="3 groups"):
        rig.memberships.join(Join("d", "none"), RecordingListener())
    members[1].leave()
    rig.memberships.join(Join("d", "none"), RecordingListener())


def test_no_listener_is_called_after_the_end() -> None:
    rig, listener = MembershipsRig(), RecordingListener()
    rig.memberships.join(Join("g", "t"), listener)
    rig.memberships.close()
    rig.disk()
    rig.hub()
    assert listener.events == []
