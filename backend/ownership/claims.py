"""QueueClaims: how a process owns queues of a topic in a group, from joining to the last release.

    join ──▶ assigned ──▶ loading ──▶ loaded ──▶ owned ─▶ revoked ──▶ release
     ▲ rejected, retried    ▲ failed, retried      │         └ the owner flushes first, then calls `release`
     └ after RETRY_S        └ after RETRY_S        └▶ lost: owned by another, or the writer was replaced

The owner (ClaimOwner) decides what is done with a queue. These rules apply to every owner:
* A queue is handed to its owner once, under the newest epoch; a raised epoch is reported.
* Progress and bounds that were requested before a queue was lost, revoked or left are not used for it later.
* A revoked queue is released at the membership that revoked it, and at no other, unless it was granted again.
* After a failed call nothing is retried before `retry_at`: the owner starts its timer in `failed` and calls
  `join` when it fires. Calling `join` more often is harmless.

It knows no clock, timer or hub of its own. An owner uses it in place of a membership listener: it creates one
QueueClaims for each topic, calls `join` when it starts and `leave` at its end, and reads `owned`, `loading`
and `complete` instead of recording the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from backend.completion import Completion
from backend.port import Assignment, Backend, Join, Membership
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_common.errors import DdmqError

RETRY_S = 0.5  # pause after the backend rejected or failed a call
LOST_S = 3.0  # by then most lost queues are granted here again: a writer is replaced in 3 s
Release = Callable[[Sequence[QueueRef]], None]


class ClaimOwner:
    """The callbacks of QueueClaims, all made on the hub; an owner overrides those that it needs."""

    def assigned(self, assignment: Assignment) -> None:
        """Called when queues were granted; `granted`, `loaded` or `raised` follows for each of them."""

    def granted(self, queue: QueueRef, epoch: int) -> None:
        """Start to use a queue that the process now owns. Called only if progress is not loaded."""

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """Start to use a queue that the process now owns, from its recorded progress.

        `view` and `bounds` are the recorded progress and the bounds of the queue.
        """

    def may_load(self, queue: QueueRef) -> bool:
        """Return whether a loaded queue can be used now; if not, the owner calls `join` again when it can."""
        return True

    def settled(self) -> None:
        """Called after `loaded` or `recorded` was called for each queue of an answer.

        Not called when no part of the answer could be used.
        """

    def raised(self, queue: QueueRef, epoch: int) -> None:
        """Commit with the newer `epoch` of an owned queue, because commits under older epochs will be
        rejected."""

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Flush finished work of these queues, then call `release` with them, together or one by one.

        Some queues may not have been handed over. `deadline`: monotonic seconds.
        """
        release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """Stop using these queues, which other processes now own; some may not have been handed over.

        `queues` is empty if the writer was replaced while no queue was owned.
        """

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        """Handle an answer to QueueClaims.reread.

        A queue that was deleted, or that others own, is no longer in `owned`.
        """

    def on_failed(self, doing: str, error: Exception) -> None:
        """Called when joining ("join") or loading ("load") failed; call `join` again at `retry_at`."""


class QueueClaims:
    """The queues of a topic that one process owns as a member of a group; it is its membership's listener.

    `now`: monotonic seconds. `load`: whether progress and bounds are read before a queue is handed to the
    owner. `joined`: whether it is a member.
    """

    def __init__(
        self, backend: Backend, owner: ClaimOwner, now: Callable[[], float], *, load: bool = True
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._now = now
        self._load = load
        self._group = ""
        self._membership: Membership | None = None
        self.joined = False
        self._owned: dict[QueueRef, int] = {}
        self._loading: dict[QueueRef, int] = {}
        self._pending_loads: dict[QueueRef, int] = {}  # the load that requested it last
        self._loads = 0
        self._lost_until: dict[QueueRef, float] = {}
        self._granted = False
        self.retry_at: float | None = None  # monotonic seconds

    @property
    def owned_queues(self) -> Mapping[QueueRef, int]:
        """The owned queues that were handed to the owner, with the epoch of each."""
        return self._owned

    @property
    def loading(self) -> Mapping[QueueRef, int]:
        """The granted queues that are not handed to the owner yet, with the epoch of each."""
        return self._loading

    @property
    def complete(self) -> bool:
        """Whether queues were granted and all of them were handed to the owner."""
        return self._granted and not self._loading

    def lost_lately(self) -> list[QueueRef]:
        """Return the queues that were lost less than LOST_S ago and have not been granted again."""
        now = self._now()
        return [queue for queue, until in self._lost_until.items() if until > now]

    # --- calls of the owner

    def join(self, join: Join) -> None:
        """Join the group unless joined, and load granted queues.

        Does nothing before `retry_at` after a failure.
        """
        if self.retry_at is not None and self._now() < self.retry_at:
            return
        self.retry_at = None
        if self._membership is not None:
            self._load_granted()
            return
        self._group = join.group
        try:
            self._membership = self._backend.join(join, self)
            self.joined = True
        except DdmqError as error:
            self._report_failure("join", error)

    def leave(self) -> None:
        """Leave the group and release all queues; the owner must have stopped using them. May be called
        twice."""
        for table in (self._owned, self._loading, self._pending_loads):
            table.clear()
        self._granted = False
        self.retry_at = None
        self.joined = False
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.leave()

    def reload(self, queue: QueueRef) -> None:
        """Load an owned queue again under its epoch; `loaded` follows.

        The owner has stopped using the queue.
        """
        epoch = self._owned.pop(queue, None)
        if epoch is not None:
            self._loading[queue] = epoch
            self._load_granted()

    def reread(self, queues: Iterable[QueueRef], then: Callable[[], None] | None = None) -> None:
        """Read the recorded progress of owned queues, after a reset or a fenced commit.

        `then` is always called afterwards, after `ClaimOwner.recorded`.
        """
        epochs = {queue: self._owned[queue] for queue in queues if queue in self._owned}
        membership = self._membership
        if not epochs:
            if then is not None:
                then()
            return

        def on_answers(views: Sequence[ProgressView], bounds: Sequence[Bounds | None]) -> None:
            retried, used = [], False
            for (queue, epoch), view, limits in zip(epochs.items(), views, bounds, strict=True):
                if membership is not self._membership or queue not in self._owned:
                    continue
                if self._owned[queue] != epoch:
                    retried.append(queue)  # raised, or lost and granted again: the answer may be older
                    continue
                if limits is None or view.epoch > epoch:
                    del self._owned[queue]
                self._owner.recorded(queue, view, limits)
                used = True
            if used:
                self._owner.settled()
            if retried:
                self.reread(retried)

        def on_failed(error: Exception) -> None:
            if membership is self._membership:
                self._report_failure("load", error)

        self._read_recorded(list(epochs), on_answers, on_failed, then)

    # --- calls of the membership

    def assigned(self, assignment: Assignment) -> None:
        """Handle an assignment: this process owns the queues, under this epoch."""
        self._granted = True
        epoch = assignment.epoch
        notices: list[Callable[[QueueRef, int], None]] = []
        for queue in assignment.queues:
            notices.append(self._owner.raised if queue in self._owned else self._owner.granted)
            if queue in self._owned or not self._load:
                self._owned[queue] = epoch
            else:
                self._loading[queue] = epoch
        self._owner.assigned(assignment)
        for queue, notify in zip(assignment.queues, notices, strict=True):
            if self._owned.get(queue) == epoch:
                self._lost_until.pop(queue, None)
                notify(queue, epoch)
        self._load_granted()

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        """Handle a revocation: the owner finishes its work on the queues, then releases them."""
        membership = self._membership

        def release(released: Sequence[QueueRef]) -> None:
            if membership is not None and membership is self._membership:
                claimed = self._owned.keys() | self._loading.keys()  # these were granted again meanwhile
                membership.release([queue for queue in released if queue not in claimed])

        self._forget_queues(queues)
        self._owner.revoked(queues, deadline, release)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """Handle a loss: other processes own the queues, or the writer was replaced."""
        now = self._now()
        self._lost_until = {queue: until for queue, until in self._lost_until.items() if until > now}
        self._lost_until.update(dict.fromkeys(queues, now + LOST_S))
        self._forget_queues(queues)
        self._granted = bool(self._owned or self._loading)
        self._owner.lost(queues)

    def _forget_queues(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            for table in (self._owned, self._loading, self._pending_loads):
                table.pop(queue, None)

    # --- loading

    def _load_granted(self) -> None:
        queues = sorted(queue for queue in self._loading if queue not in self._pending_loads)
        if not queues:
            return
        self._loads += 1
        load = self._loads
        self._pending_loads.update(dict.fromkeys(queues, load))

        def take_waiting() -> list[bool]:
            """Return which queues still wait for this answer; afterwards none of them does."""
            waiting = [self._pending_loads.get(queue) == load for queue in queues]
            for queue, waits in zip(queues, waiting, strict=True):
                if waits:
                    del self._pending_loads[queue]
            return waiting

        def on_answers(views: Sequence[ProgressView], bounds: Sequence[Bounds | None]) -> None:
            used = False
            for waits, queue, view, limits in zip(take_waiting(), queues, views, bounds, strict=True):
                if waits and queue in self._loading and self._owner.may_load(queue):
                    epoch = self._loading.pop(queue)
                    used = True
                    if limits is not None:
                        self._owned[queue] = epoch
                        self._lost_until.pop(queue, None)
                        self._owner.loaded(queue, epoch, view, limits)
            if used:
                self._owner.settled()

        def on_failed(error: Exception) -> None:
            if any(take_waiting()):
                self._report_failure("load", error)

        self._read_recorded(queues, on_answers, on_failed)

    def _read_recorded(
        self,
        queues: list[QueueRef],
        on_answers: Callable[[Sequence[ProgressView], Sequence[Bounds | None]], None],
        on_failed: Callable[[Exception], None],
        then: Callable[[], None] | None = None,
    ) -> None:
        progress = self._backend.progress(self._group, queues)
        bounds = self._backend.bounds(queues)

        def on_both(_: Completion[list[Bounds | None]]) -> None:
            error = progress.error or bounds.error
            if error is None:
                on_answers(progress.value, bounds.value)
            else:
                on_failed(error)
            if then is not None:
                then()

        progress.then(lambda _: bounds.then(on_both))

    def _report_failure(self, doing: str, error: Exception) -> None:
        self.retry_at = self._now() + RETRY_S
        self._owner.on_failed(doing, error)
