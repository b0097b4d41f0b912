"""QueueOwner: the work on all queues that one process owns of a topic, from the first grant to the leave.

    acquire ──▶ granted, loaded ──▶ work ──▶ stopped ──▶ idle
                                     │ revoked            └ released, if it was revoked
                                     │ lost: abandoned
                                     └ drain, close, reacquire: every queue

The service that extends it makes a QueueWork for each queue that it is granted and hands it to `_begin_work`.
These rules are kept here:
* A queue that is revoked is released once, when no work on it is busy; idle ones are released together.
* Work on a queue that was lost, or that the member leaves, is abandoned at once, even if it stopped before.
* `_drain` stops all work and leaves the group when the last of it is idle. `close` does not wait for it.
* `reacquire` leaves and joins again, so that a new epoch decides what an uncertain commit came to.

A queue can come back while the work that it had here before is still ending; `_ending_of` names that work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from backend.completion import Completion
from backend.ownership.claims import ClaimOwner, QueueClaims, Release
from backend.port import Backend, Join
from backend.records import QueueRef


class QueueWork(Protocol):
    """The work on one owned queue, from its grant until none of it is in progress any more."""

    @property
    def queue(self) -> QueueRef:
        """The queue that the work is for."""

    @property
    def is_busy(self) -> bool:
        """Whether something is in progress that must end before another process may own the queue."""

    def stop(self, on_idle: Callable[[], None]) -> None:
        """Start nothing new; `on_idle` is called when the work stops being busy, if it is. Called once."""

    def abandon(self) -> None:
        """Drop the work, as another process may own the queue.

        May be called before `stop`, after it, and twice.
        """

    def raise_epoch(self, epoch: int) -> None:
        """Use this newer epoch in all further commits."""


W = TypeVar("W", bound=QueueWork)


class QueueOwner(ClaimOwner, Generic[W]):
    """Base of services that own queues of a topic as a member of a group. `now`, `load`: see QueueClaims."""

    def __init__(self, backend: Backend, now: Callable[[], float], *, load: bool = True) -> None:
        self._owned: dict[QueueRef, W] = {}
        self._ending: dict[W, Release | None] = {}  # stopped while busy, and what releases the queue then
        self._claims = QueueClaims(backend, self, now, load=load)
        self._stopping = False
        self._drained: Completion[None] | None = None

    # --- what a service adds

    @abstractmethod
    def _join_request(self) -> Join | None:
        """Return the join request of this owner; None while it cannot join."""

    def _on_owned_changed(self, queue: QueueRef) -> None:
        """Called after the work on `queue` was added to `_owned` or removed from it."""

    def _is_idle(self) -> bool:
        """Return whether nothing is in progress any more, so that a draining owner may leave the group."""
        return not self._owned and not self._ending

    # --- acquire and give up

    def acquire(self) -> None:
        """Join the group unless joined or stopping, and retry failed loads."""
        join = None if self._stopping else self._join_request()
        if join is not None:
            self._claims.join(join)

    def reacquire(self) -> None:
        """Leave the group and join it again, after an uncertain commit or a lost claim."""
        if not self._stopping:
            self._leave()
            self.acquire()

    def close(self) -> None:
        """Stop all work and leave the group at once.

        Commits in progress take effect or not; the next owner reads the outcome.
        """
        self._stopping = True
        self._leave()

    def _drain(self) -> Completion[None]:
        """Stop all work; the completion settles after the last work is idle and the group was left."""
        if self._drained is None:
            self._drained = Completion()
            self._stopping = True
            for queue in list(self._owned):
                self._end_work(queue)
            self._leave_when_idle()
        return self._drained

    def _leave_when_idle(self) -> None:
        drained = self._drained
        if drained is not None and not drained.done and self._is_idle():
            self._leave()
            drained.succeed(None)

    def _leave(self) -> None:
        """Abandon all work and leave the group."""
        for queue in list(self._owned):
            self._end_work(queue, abandon=True)
        for work in self._ending:
            self._ending[work] = None
            work.abandon()
        self._claims.leave()

    # --- the work on one queue

    def _begin_work(self, work: W) -> None:
        self._owned[work.queue] = work
        self._on_owned_changed(work.queue)

    def _ending_of(self, queue: QueueRef) -> list[W]:
        """Return the stopped work on `queue` that is still busy, the newest last."""
        return [work for work in self._ending if work.queue == queue]

    def _end_work(self, queue: QueueRef, *, abandon: bool = False) -> None:
        """Stop the work on `queue`, if there is any."""
        work = self._owned.pop(queue, None)
        if work is None:
            return
        self._ending[work] = None
        self._on_owned_changed(queue)
        if abandon:
            work.abandon()
        work.stop(partial(self._on_idle, work))
        if not work.is_busy:
            self._on_idle(work)

    def _on_idle(self, work: W) -> None:
        """Forget stopped work that is idle, and release its queue if that was revoked."""
        if work not in self._ending:
            return
        release = self._ending.pop(work)
        work.abandon()
        if release is not None and not self._ending_of(work.queue):
            release((work.queue,))
        self._leave_when_idle()

    # --- ClaimOwner

    def may_load(self, queue: QueueRef) -> bool:
        return not self._stopping

    def raised(self, queue: QueueRef, epoch: int) -> None:
        work = self._owned.get(queue)
        if work is not None:
            work.raise_epoch(epoch)

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Release each queue as soon as no work on it is busy."""
        idle = []
        for queue in queues:
            self._end_work(queue)
            busy = self._ending_of(queue)
            for work in busy:
                self._ending[work] = release
            if not busy:
                idle.append(queue)
        if idle:
            release(idle)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """Abandon queues that another process owns.

        Commits in progress took effect before, or are fenced.
        """
        for queue in queues:
            self._end_work(queue, abandon=True)
            for work in self._ending_of(queue):
                self._ending[work] = None
                work.abandon()
