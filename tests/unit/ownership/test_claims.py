"""QueueClaims against every order of events, on a backend that the test plays and a clock that it moves.

`Owner` is the model as well: it keeps what it was told, and says at once when it is told what cannot be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from random import Random

import pytest

from backend.completion import Completion
from backend.ownership.claims import LOST_S, RETRY_S, ClaimOwner, QueueClaims, Release
from backend.port import Assignment, Join, MembershipListener
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import StorageError, TryLaterError
from tests.examples import examples

A, B = QueueRef("t", 1, 0), QueueRef("t", 1, 1)
JOIN = Join("g", "t")


class FakeMembership:
    """One membership at the played backend."""

    def __init__(self, listener: MembershipListener) -> None:
        self.listener = listener
        self.released: list[QueueRef] = []
        self.left = False

    def release(self, queues: Iterable[QueueRef]) -> None:
        self.released += queues

    def leave(self) -> None:
        self.left = True


class PendingRead:
    """One read of progress and bounds, and what it finds."""

    def __init__(self, views: list[ProgressView], limits: list[Bounds | None]) -> None:
        self.views, self.limits = views, limits
        self.progress: Completion[list[ProgressView]] = Completion()
        self.bounds: Completion[list[Bounds | None]] = Completion()


class Played:
    """A backend whose every answer the test gives. `epochs`: what progress says of a queue."""

    def __init__(self) -> None:
        self.refusing = False
        self.memberships: list[FakeMembership] = []
        self.pending_reads: list[PendingRead] = []
        self.recorded: dict[QueueRef, int] = {}  # queue → committed offset
        self.epochs: dict[QueueRef, int] = {}
        self.deleted: set[QueueRef] = set()

    def join(self, join: Join, listener: MembershipListener) -> FakeMembership:
        if self.refusing:
            raise TryLaterError("no writer")
        self.memberships.append(FakeMembership(listener))
        return self.memberships[-1]

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        assert group == "g"
        views = [ProgressView(self.recorded.get(q, 0), (), {}, self.epochs.get(q, 0), 0) for q in queues]
        self.pending_reads.append(
            PendingRead(views, [None if one in self.deleted else Bounds(0, 9) for one in queues])
        )
        return self.pending_reads[-1].progress

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self.pending_reads[-1].bounds

    def answer(self, index: int = 0, error: Exception | None = None, bounds_first: bool = False) -> None:
        """Answer a read with what was recorded when it was requested, or as `error`."""
        read = self.pending_reads.pop(index)
        if bounds_first:
            read.bounds.succeed(read.limits)
        if error is not None:
            read.progress.fail(error)
        else:
            read.progress.succeed(read.views)
        if not bounds_first:
            read.bounds.succeed(read.limits)


class Owner(ClaimOwner):
    """Keeps what it is told and checks that it can be."""

    def __init__(self, load: bool = True) -> None:
        self.backend = Played()
        self.now = 100.0
        self.claims = QueueClaims(self.backend, self, lambda: self.now, load=load)  # type: ignore[arg-type]
        self.has: dict[QueueRef, int] = {}
        self.offsets: dict[QueueRef, int | None] = {}
        self.to_release: list[tuple[Sequence[QueueRef], Release, FakeMembership]] = []
        self.troubles: list[str] = []
        self.reread: list[QueueRef] = []
        self.settlings = 0
        self.ready = True

    @property
    def membership_joined(self) -> FakeMembership:
        return self.backend.memberships[-1]

    def granted(self, queue: QueueRef, epoch: int) -> None:
        assert queue not in self.has
        self.has[queue] = epoch

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        assert queue not in self.has, "handed over twice"
        assert bounds == Bounds(0, 9)
        self.has[queue] = epoch
        self.offsets[queue] = view.committed

    def may_load(self, queue: QueueRef) -> bool:
        return self.ready

    def settled(self) -> None:
        self.settlings += 1

    def raised(self, queue: QueueRef, epoch: int) -> None:
        assert epoch > self.has[queue], "raised before it was had"
        self.has[queue] = epoch

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        for queue in queues:
            self.has.pop(queue, None)
        self.to_release.append((queues, release, self.membership_joined))

    def lost(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            self.has.pop(queue, None)

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        self.reread.append(queue)
        if queue in self.claims.owned_queues:
            self.offsets[queue] = view.committed
        else:
            del self.has[queue]

    def on_failed(self, doing: str, error: Exception) -> None:
        assert self.claims.retry_at == self.now + RETRY_S
        self.troubles.append(doing)


def member(load: bool = True) -> Owner:
    owner = Owner(load)
    owner.claims.join(JOIN)
    return owner


def grant(owner: Owner, epoch: int, *queues: QueueRef) -> None:
    owner.claims.assigned(Assignment(queues, epoch))


def hold(owner: Owner, epoch: int, *queues: QueueRef) -> None:
    """They are granted, and loaded at once."""
    grant(owner, epoch, *queues)
    owner.backend.answer()


@pytest.fixture
def owner() -> Owner:
    return member()


def test_a_queue_is_handed_over_when_its_progress_and_bounds_are_read() -> None:
    for bounds_first in (False, True):
        owner = member()
        owner.backend.recorded[A] = 7
        grant(owner, 3, A)
        assert (owner.has, dict(owner.claims.loading), owner.claims.complete) == ({}, {A: 3}, False)
        owner.backend.answer(bounds_first=bounds_first)
        assert (owner.has, owner.offsets, dict(owner.claims.owned_queues)) == ({A: 3}, {A: 7}, {A: 3})
        assert owner.claims.complete
        assert owner.settlings == 1


def test_without_loading_a_queue_is_handed_over_at_once() -> None:
    owner = member(load=False)
    grant(owner, 3, A, B)
    grant(owner, 4, B)
    assert owner.has == {A: 3, B: 4} == dict(owner.claims.owned_queues)
    assert owner.claims.complete
    assert not owner.backend.pending_reads


def test_joining_is_retried_after_a_pause_and_done_once() -> None:
    owner = Owner()
    owner.backend.refusing = True
    owner.claims.join(JOIN)
    assert (owner.troubles, owner.claims.joined, owner.claims.retry_at) == (["join"], False, 100.5)
    owner.backend.refusing = False
    owner.now += RETRY_S - 0.01
    owner.claims.join(JOIN)
    assert not owner.claims.joined
    owner.now += 0.01
    owner.claims.join(JOIN)
    owner.claims.join(JOIN)
    assert owner.claims.joined
    assert (len(owner.backend.memberships), owner.claims.retry_at) == (1, None)


def test_loading_is_retried_after_a_pause(owner: Owner) -> None:
    grant(owner, 3, A)
    owner.claims.join(JOIN)
    assert len(owner.backend.pending_reads) == 1, "it is being asked"
    owner.backend.answer(error=StorageError("disk"))
    assert owner.troubles == ["load"]
    owner.claims.join(JOIN)
    assert not owner.backend.pending_reads
    owner.now += RETRY_S
    owner.claims.join(JOIN)
    owner.backend.answer()
    assert owner.has == {A: 3}


def test_unusable_progress_is_loaded_once_more(owner: Owner) -> None:
    owner.ready = False
    hold(owner, 3, A)
    assert (owner.has, dict(owner.claims.loading)) == ({}, {A: 3})
    owner.ready, owner.backend.recorded[A] = True, 5
    owner.claims.join(JOIN)
    owner.backend.answer()
    assert (owner.has, owner.offsets) == ({A: 3}, {A: 5})


def test_a_deleted_queue_is_not_handed_over(owner: Owner) -> None:
    owner.backend.deleted.add(A)
    hold(owner, 3, A, B)
    assert owner.has == {B: 3}
    assert owner.claims.complete


def test_an_answer_from_before_a_loss_is_not_used_after_it(owner: Owner) -> None:
    grant(owner, 3, A)
    owner.claims.lost((A,))
    owner.backend.recorded[A] = 8
    hold(owner, 5, A)
    assert owner.has == {}
    owner.backend.answer()
    assert (owner.has, owner.offsets) == ({A: 5}, {A: 8})


def test_lost_queues_are_remembered_for_a_while_or_until_they_return(owner: Owner) -> None:
    hold(owner, 3, A, B)
    owner.claims.lost((A, B))
    assert (owner.has, owner.claims.complete, owner.claims.lost_lately()) == ({}, False, [A, B])
    grant(owner, 4, A)
    assert owner.claims.lost_lately() == [A, B], "it is not handed over yet"
    owner.backend.answer()
    assert owner.claims.lost_lately() == [B]
    owner.now += LOST_S
    assert owner.claims.lost_lately() == []


def test_release_reaches_the_membership_that_revoked_and_no_later_one(owner: Owner) -> None:
    hold(owner, 3, A, B)
    owner.claims.revoked((A, B), 110.0)
    assert (owner.has, dict(owner.claims.owned_queues)) == ({}, {})
    _, release, first = owner.to_release[0]
    release((B,))
    assert first.released == [B]
    owner.claims.leave()
    owner.claims.join(JOIN)
    release((A,))
    assert (first.released, owner.membership_joined.released, first.left) == ([B], [], True)


def test_a_reset_queue_is_reloaded_under_its_epoch(owner: Owner) -> None:
    hold(owner, 3, A)
    owner.has.clear()
    owner.backend.recorded[A] = 2
    owner.claims.reload(A)
    owner.claims.reload(A)
    assert (dict(owner.claims.owned_queues), len(owner.backend.pending_reads)) == ({}, 1)
    owner.backend.answer()
    assert (owner.has, owner.offsets) == ({A: 3}, {A: 2})


@pytest.mark.parametrize("why", ["epoch", "gone"])
def test_rereading_skips_queues_that_are_no_longer_owned(owner: Owner, why: str) -> None:
    hold(owner, 3, A, B)
    calls: list[int] = []
    owner.backend.recorded[B] = 6
    if why == "gone":
        owner.backend.deleted.add(A)
    else:
        owner.backend.epochs[A] = 4
    owner.claims.reread(owner.claims.owned_queues, lambda: calls.append(len(owner.has)))
    owner.backend.answer()
    assert (owner.has, calls) == ({B: 3}, [1])
    assert (dict(owner.claims.owned_queues), owner.offsets[B]) == ({B: 3}, 6)


def test_rereading_repeats_reads_of_queues_whose_epoch_rose(owner: Owner) -> None:
    hold(owner, 3, A)
    owner.claims.reread([A, B])
    grant(owner, 4, A)
    owner.backend.epochs[A] = 4
    owner.backend.recorded[A] = 6
    owner.backend.answer()
    assert owner.reread == []
    owner.backend.answer()
    assert (owner.reread, owner.offsets, owner.has) == ([A], {A: 6}, {A: 4})


def test_the_callback_of_rereading_runs_in_any_case(owner: Owner) -> None:
    hold(owner, 3, A)
    calls: list[str] = []
    owner.claims.reread([A], lambda: calls.append("failed"))
    owner.backend.answer(error=StorageError("disk"))
    owner.claims.reread([A], lambda: calls.append("left"))
    owner.claims.leave()
    owner.backend.answer()
    assert (calls, owner.reread) == (["failed", "left"], [])


def test_rereading_nothing_settles_nothing(owner: Owner) -> None:
    hold(owner, 3, A)
    owner.claims.revoked((A,), 110.0)
    calls: list[str] = []
    owner.claims.reread([A], lambda: calls.append("then"))
    assert (owner.settlings, calls, owner.backend.pending_reads) == (1, ["then"], [])


def test_nothing_is_settled_by_an_answer_that_comes_too_late(owner: Owner) -> None:
    hold(owner, 3, A)
    owner.claims.reread([A])
    owner.claims.lost((A,))
    owner.has.clear()
    owner.backend.answer()
    assert (owner.settlings, owner.reread) == (1, [])


def test_a_late_release_excludes_queues_granted_since(owner: Owner) -> None:
    hold(owner, 3, A, B)
    owner.claims.revoked((A, B), 110.0)
    _, release, membership_joined = owner.to_release[0]
    owner.claims.lost((A, B))
    grant(owner, 4, A)
    release((A,))
    assert membership_joined.released == [], "it is being loaded"
    owner.backend.answer()
    release((A, B))
    assert (membership_joined.released, owner.has) == ([B], {A: 4})


def test_a_failed_rereading_after_leaving_delays_no_joining(owner: Owner) -> None:
    hold(owner, 3, A)
    owner.claims.reread([A])
    owner.claims.leave()
    owner.backend.answer(error=StorageError("disk"))
    assert (owner.troubles, owner.claims.retry_at) == ([], None)
    owner.claims.join(JOIN)
    assert owner.claims.joined


class ClaimStory:
    """One order of events, and what must be true after each: a model with an epoch that only rises."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.epoch = 0
        self.granted: dict[QueueRef, int] = {}  # what the backend believes that we have
        self.written = 0

    def apply(self, event: str) -> None:
        """Let `event` happen, where it can."""
        owner, backend = self.owner, self.owner.backend
        if event == "join":
            owner.now += RETRY_S
            owner.claims.join(JOIN)
        elif event == "refuse":
            backend.refusing = not backend.refusing
        elif event == "leave":
            owner.has.clear()
            self.granted.clear()
            owner.claims.leave()
        elif event == "answer":
            self.answer(0)
        elif event == "late":
            self.answer(-1)
        elif event == "fail" and backend.pending_reads:
            backend.answer(error=StorageError("disk"))
        elif owner.claims.joined:
            self.membership(event)
        self.check()

    def membership(self, event: str) -> None:
        claims = self.owner.claims
        if event == "assign":
            self.epoch += 1
            self.written += 1  # another holder went on in between
            for queue in (A, B):
                if queue not in self.granted:
                    self.owner.backend.recorded[queue] = self.written
                self.owner.backend.epochs[queue] = self.granted[queue] = self.epoch
            claims.assigned(Assignment((A, B), self.epoch))
        elif event == "revoke" and A in self.granted:
            del self.granted[A]
            claims.revoked((A,), self.owner.now + 1)
        elif event == "lose":
            self.granted.clear()
            claims.lost((A, B))
        elif event == "release" and self.owner.to_release:
            queues, release, membership_joined = self.owner.to_release.pop()
            before = len(membership_joined.released)
            release(queues)
            expected = (
                [] if membership_joined.left else [queue for queue in queues if queue not in self.granted]
            )
            assert membership_joined.released[before:] == expected

    def answer(self, index: int) -> None:
        if self.owner.backend.pending_reads:
            self.owner.backend.answer(index)

    def check(self) -> None:
        owner, claims = self.owner, self.owner.claims
        assert owner.has == dict(claims.owned_queues)
        assert not claims.owned_queues.keys() & claims.loading.keys()
        assert {**claims.owned_queues, **claims.loading} == self.granted
        assert all(
            not membership_joined.left
            for membership_joined in owner.backend.memberships[-1:]
            if claims.joined
        )
        assert (
            sum(not membership_joined.left for membership_joined in owner.backend.memberships)
            == claims.joined
        )
        for queue in claims.owned_queues:
            assert owner.offsets[queue] == owner.backend.recorded[queue], "progress from before the grant"

    def end(self) -> None:
        """Nothing fails any more: everything that is ours comes."""
        self.owner.backend.refusing = False
        self.owner.now += RETRY_S
        self.owner.claims.join(JOIN)
        while self.owner.backend.pending_reads:
            self.answer(0)
        self.check()
        assert self.owner.has == self.granted
        assert self.owner.claims.joined


EVENTS = ("join", "refuse", "leave", "assign", "revoke", "lose", "release", "answer", "late", "fail")


def follow(events: Iterable[str], finish: Callable[[ClaimStory], None] = ClaimStory.end) -> None:
    story = ClaimStory()
    story.apply("join")
    for event in events:
        story.apply(event)
    finish(story)


@pytest.mark.parametrize("first", EVENTS)
def test_every_order_of_events(first: str) -> None:
    orders = list(itertools.product(EVENTS, repeat=4))
    for rest in Random(1).sample(orders, examples(len(orders))):
        try:
            follow((first, *rest))
        except AssertionError as error:
            raise AssertionError(f"after join, {first}, {', '.join(rest)}: {error}") from error
