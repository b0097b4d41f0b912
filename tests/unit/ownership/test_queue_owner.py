"""QueueOwner against a naive model: random grants, revocations, losses and commits in every order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import pytest

from backend.ownership.owner import QueueOwner
from backend.port import Assignment, Join, MembershipListener
from backend.records import QueueRef
from ddmq_common.errors import TryLaterError
from tests.examples import examples

QUEUES = [QueueRef("t", 1, number) for number in range(3)]
A, B, C = QUEUES


class PlayedMembership:
    """One membership at the played backend."""

    def __init__(self, listener: MembershipListener) -> None:
        self.listener = listener
        self.released: list[QueueRef] = []
        self.releases = 0
        self.is_left = False

    def release(self, queues: Iterable[QueueRef]) -> None:
        self.releases += 1
        self.released += queues

    def leave(self) -> None:
        self.is_left = True


class JoinBackend:
    """A backend that only lets members join."""

    def __init__(self) -> None:
        self.memberships: list[PlayedMembership] = []
        self.refuses = False

    def join(self, join: Join, listener: MembershipListener) -> PlayedMembership:
        if self.refuses:
            raise TryLaterError("no writer")
        self.memberships.append(PlayedMembership(listener))
        return self.memberships[-1]


class QueueWork:
    """Work on a queue, which is busy while the test says so."""

    def __init__(self, queue: QueueRef, epoch: int) -> None:
        self.queue = queue
        self.epoch = epoch
        self.is_busy = self.is_stopped = self.is_abandoned = False
        self._on_idle: Callable[[], None] | None = None

    def stop(self, on_idle: Callable[[], None]) -> None:
        assert not self.is_stopped, "stopped twice"
        self.is_stopped = True
        self._on_idle = on_idle

    def abandon(self) -> None:
        self.is_abandoned = True

    def raise_epoch(self, epoch: int) -> None:
        assert not self.is_stopped
        self.epoch = epoch

    def finish(self) -> None:
        self.is_busy = False
        if self._on_idle is not None:
            self._on_idle()


class WorkOwner(QueueOwner[QueueWork]):
    """An owner that begins work at each grant, and counts changes of what it owns."""

    def __init__(self) -> None:
        self.backend = JoinBackend()
        super().__init__(self.backend, lambda: 100.0, load=False)  # type: ignore[arg-type]
        self.begun: list[QueueWork] = []
        self.can_join = True
        self.changes: list[tuple[QueueRef, bool]] = []

    @property
    def owned(self) -> dict[QueueRef, QueueWork]:
        return self._owned

    @property
    def membership(self) -> PlayedMembership:
        return self.backend.memberships[-1]

    def _join_request(self) -> Join | None:
        return Join("g", "t") if self.can_join else None

    def _on_owned_changed(self, queue: QueueRef) -> None:
        self.changes.append((queue, queue in self._owned))

    def granted(self, queue: QueueRef, epoch: int) -> None:
        if not self._stopping:
            work = QueueWork(queue, epoch)
            self.begun.append(work)
            self._begin_work(work)

    def drain(self) -> Callable[[], bool]:
        drained = self._drain()
        return lambda: drained.done

    def assign(self, queues: Sequence[QueueRef], epoch: int = 1) -> None:
        self.membership.listener.assigned(Assignment(tuple(queues), epoch))

    def revoke(self, *queues: QueueRef) -> None:
        self.membership.listener.revoked(queues, 200.0)

    def lose(self, *queues: QueueRef) -> None:
        self.membership.listener.lost(queues)


def owner_of(*queues: QueueRef) -> WorkOwner:
    owner = WorkOwner()
    owner.acquire()
    owner.assign(queues)
    return owner


def test_idle_queues_are_released_together_and_busy_ones_when_they_are_idle() -> None:
    owner = owner_of(A, B, C)
    work = owner.owned[B]
    work.is_busy = True
    owner.revoke(A, B, C)
    assert (owner.membership.released, owner.membership.releases) == ([A, C], 1)
    assert owner.owned == {}
    assert not work.is_abandoned  # its commit may still count here
    work.finish()
    assert owner.membership.released == [A, C, B]
    assert work.is_abandoned


def test_a_regranted_queue_is_not_released_while_older_work_ends() -> None:
    owner = owner_of(A)
    older = owner.owned[A]
    older.is_busy = True
    owner.revoke(A)
    owner.lose(A)
    owner.assign([A], 2)
    newer = owner.owned[A]
    newer.is_busy = True
    owner.revoke(A)
    older.finish()
    assert owner.membership.released == []  # the newer work commits
    newer.finish()
    assert owner.membership.released == [A]


def test_a_lost_queue_is_abandoned_at_once_and_never_released() -> None:
    owner = owner_of(A, B)
    owner.owned[A].is_busy = owner.owned[B].is_busy = True
    works = list(owner.owned.values())
    owner.revoke(A)
    owner.lose(A, B)
    assert all(work.is_abandoned for work in works)
    for work in works:
        work.finish()
    assert owner.membership.released == []


def test_a_drain_waits_for_busy_queues_and_then_leaves() -> None:
    owner = owner_of(A, B)
    work = owner.owned[A]
    work.is_busy = True
    is_drained = owner.drain()
    assert owner.owned == {}
    assert not is_drained()
    assert not owner.membership.is_left
    assert owner.drain() is not None  # a second call changes nothing
    owner.assign([C], 2)
    assert owner.owned == {}  # nothing new is acquired
    work.finish()
    assert is_drained()
    assert owner.membership.is_left


def test_a_close_leaves_at_once_and_nothing_is_acquired_after_it() -> None:
    owner = owner_of(A)
    work = owner.owned[A]
    work.is_busy = True
    owner.close()
    assert owner.membership.is_left
    assert work.is_abandoned
    owner.acquire()
    owner.reacquire()
    assert len(owner.backend.memberships) == 1
    work.finish()


def test_reacquiring_rejoins_and_abandons_owned_queues() -> None:
    owner = owner_of(A, B)
    work = owner.owned[A]
    work.is_busy = True
    first = owner.membership
    owner.reacquire()
    assert first.is_left
    assert work.is_abandoned
    owner.assign([A], 2)
    assert owner.owned[A] is not work
    work.finish()
    assert first.released == owner.membership.released == []


def test_an_owner_that_cannot_join_yet_retries_later() -> None:
    owner = WorkOwner()
    owner.can_join = False
    owner.acquire()
    assert owner.backend.memberships == []
    owner.can_join = True
    owner.acquire()
    owner.acquire()
    assert len(owner.backend.memberships) == 1


class OwnershipModel:
    """Who may do what, kept as plainly as can be."""

    def __init__(self) -> None:
        self.running: dict[QueueRef, int] = {}  # queue → epoch
        self.busy_stopped: list[tuple[QueueWork, QueueRef]] = []
        self.release_pending: set[QueueRef] = set()
        self.released: list[QueueRef] = []
        self.must_be_abandoned: set[QueueWork] = set()

    def stop(self, work: QueueWork) -> None:
        del self.running[work.queue]
        if work.is_busy:
            self.busy_stopped.append((work, work.queue))

    def works_on(self, queue: QueueRef) -> list[QueueWork]:
        return [work for work, its_queue in self.busy_stopped if its_queue == queue]

    def release_idle(self) -> None:
        for queue in sorted(self.release_pending):
            if not self.works_on(queue):
                self.release_pending.discard(queue)
                if queue not in self.running:
                    self.released.append(queue)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_any_order_of_events_agrees_with_the_model(seed: int) -> None:
    random, owner, model = Random(seed), WorkOwner(), OwnershipModel()
    owner.acquire()
    epoch, draining, is_drained = 1, False, lambda: False

    def some(queues: Iterable[QueueRef]) -> list[QueueRef]:
        return [queue for queue in queues if random.random() < 0.5]

    def stop_all(works: Iterable[QueueWork]) -> None:
        for work in list(works):
            model.must_be_abandoned.add(work)
            model.stop(work)
        model.must_be_abandoned.update(work for work, _ in model.busy_stopped)
        model.release_pending.clear()

    for _ in range(60):
        owned = dict(owner.owned)
        kind = random.choice(
            ["grant", "grant", "raise", "revoke", "lose", "begin", "finish", "finish", "reacquire"]
        )
        if random.random() < 0.01:
            kind = "drain"
        if kind == "grant" and not draining:
            epoch += 1
            queues = some(set(QUEUES) - owned.keys())
            model.running.update(dict.fromkeys(queues, epoch))
            owner.assign(queues, epoch)
        elif kind == "raise" and owned:
            epoch += 1
            model.running.update(dict.fromkeys(owned, epoch))
            owner.assign(list(owned), epoch)
        elif kind == "revoke":
            queues = some(owned)
            for queue in queues:
                model.stop(owned[queue])
            model.release_pending.update(queues)
            owner.revoke(*queues)
        elif kind == "lose":
            queues = some(QUEUES)
            for queue in queues:
                if queue in owned:
                    model.must_be_abandoned.add(owned[queue])
                    model.stop(owned[queue])
                model.must_be_abandoned.update(model.works_on(queue))
                model.release_pending.discard(queue)
            owner.lose(*queues)
        elif kind == "begin" and owned:
            random.choice(list(owned.values())).is_busy = True
        elif kind == "finish":
            busy = [work for work in owner.begun if work.is_busy]
            if busy:
                work = random.choice(busy)
                model.busy_stopped = [pair for pair in model.busy_stopped if pair[0] is not work]
                work.finish()
        elif kind == "reacquire" and not draining and random.random() < 0.3:
            stop_all(owned.values())
            owner.reacquire()
        elif kind == "drain" and not draining:
            draining = True
            for work in owned.values():
                model.stop(work)
            is_drained = owner.drain()

        model.release_idle()
        released = [queue for membership in owner.backend.memberships for queue in membership.released]
        assert sorted(released) == sorted(model.released)
        assert {queue: work.epoch for queue, work in owner.owned.items()} == model.running
        assert all(not work.is_stopped for work in owner.owned.values())
        assert all(work.is_stopped for work in owner.begun if owner.owned.get(work.queue) is not work)
        assert all(work.is_abandoned for work in model.must_be_abandoned)
        assert is_drained() == (draining and not model.busy_stopped)
        assert owner.membership.is_left == is_drained()
        if is_drained():
            break
