"""A subscription as a member of its group for one topic: its actions when queues are acquired, revoked and
lost.

A subscription has one membership for its own topic, and one for its queue of the group's retry topic if there
is one. Which queues it owns, and when they are loaded, is decided in backend/ownership/claims.py.

When a queue moves, the leases of its clients are handed to its next owner, so that it waits for them. Within
a process they are kept in memory; for another process they are written as a setting
`leases/GROUP/TOPIC/QUEUE` before the queue is released, which its next owner deletes
(docs/formats-progress.md). A killed process leaves no such setting. When the writer is lost, every proxy
writes the setting before it joins the next one, and a proxy waits a little for it before it loads queues that
are new to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from backend.ownership.claims import LOST_S, RETRY_S, ClaimOwner, QueueClaims, Release
from backend.port import Assignment, Join, Sharing
from backend.progress.ack_map import OFFSET_END
from backend.records import Bounds, ProgressView, QueueRef
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.progress import Range
from proxy_consumer.core.subscribed_queue import LeasedRun, SubscribedQueue
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.commits import (
    ProgressCommit,
    SubscriptionBase,
    collect_progress,
    store_settings,
)

LEASES_PREFIX = "leases/"
RUNS_MAX = 4_096  # runs of one queue that are handed over; messages beyond may be delivered again


class Inherited(NamedTuple):
    """The state of a queue at its previous owner: epoch and generation, leased runs, and acknowledgements not
    durable yet."""

    epoch: int
    generation: int
    runs: list[LeasedRun]
    acked: list[Range]


class _Handover(msgspec.Struct):
    """The value of the setting. `runs`: start, end, bytes, lease id, deadline and length in milliseconds."""

    incarnation: int
    epoch: int
    generation: int
    runs: list[tuple[int, int, int, int, int, int]]
    acked: list[tuple[int, int]] = []


def leases_key(group: str, queue: QueueRef) -> str:
    """Return the name of the setting for one queue."""
    return f"{LEASES_PREFIX}{group}/{queue.topic}/{queue.queue_id}"


def handover_state(queue: SubscribedQueue, *, pushed: bool) -> Inherited:
    """Return the leases of a queue and its acknowledgements that may not be durable; pushed messages have no
    lease there."""
    runs = [] if pushed else queue.leases.leased_runs()
    return Inherited(queue.epoch, queue.generation, runs, queue.uncommitted.uncertain_acks(queue.ack_map))


def encode_handover(queue: SubscribedQueue, now: float, wall_ms: int, *, pushed: bool) -> bytes:
    """Encode the state from `handover_state` as the value of the setting; its deadlines are wall-clock
    times."""
    state = handover_state(queue, pushed=pushed)
    runs = [
        (start, end, size, lease.id, wall_ms + int((lease.deadline - now) * 1000), int(lease.length_s * 1000))
        for start, end, size, lease in state.runs[:RUNS_MAX]
    ]
    handover = _Handover(queue.ref.incarnation, state.epoch, state.generation, runs, state.acked[:RUNS_MAX])
    return msgspec.json.encode(handover)


def decode_handover(value: bytes, queue: QueueRef, now: float, wall_ms: int) -> Inherited | None:
    """Decode the value of the setting; None if it is of another incarnation of the queue, or unreadable."""
    try:
        handover = msgspec.json.decode(value, type=_Handover)
    except msgspec.DecodeError:
        return None
    if handover.incarnation != queue.incarnation:
        return None
    leases: dict[tuple[int, int], Lease] = {}
    runs: list[LeasedRun] = []
    for start, end, size, lease_id, deadline_ms, length_ms in handover.runs:
        lease = leases.get((lease_id, deadline_ms))
        if lease is None:
            left_ms = min(deadline_ms - wall_ms, length_ms)
            lease = Lease(lease_id, now + left_ms / 1000, now + (left_ms - length_ms) / 1000)
            leases[lease_id, deadline_ms] = lease
        runs.append((start, end, size, lease))
    return Inherited(handover.epoch, handover.generation, runs, handover.acked)


def epoch_of(value: bytes | None) -> int:
    """Return the epoch under which the writer of a setting owned the queue; a number above every epoch if
    unknown."""
    try:
        return OFFSET_END if value is None else msgspec.json.decode(value, type=_Handover).epoch
    except msgspec.DecodeError:
        return OFFSET_END


def handover_settings(owner: SubscriptionBase, queues: Iterable[SubscribedQueue]) -> dict[str, bytes | None]:
    """Return the settings with the client leases of these queues, for their next owners; {} if there are
    none."""
    if owner.removed:
        return {}
    runtime, config = owner.runtime, owner.config
    pushed = config.pushed
    always = bool(config.scope and config.handover_wait_ms and not pushed)
    now, wall_ms = runtime.now(), runtime.clock.wall_ms()
    return {
        leases_key(owner.group_name, queue.ref): encode_handover(queue, now, wall_ms, pushed=pushed)
        for queue in queues
        if runtime.topic_lives(queue.ref) and (always or _holds_more(queue, leases=not pushed))
    }


def _holds_more(queue: SubscribedQueue, *, leases: bool) -> bool:
    """Whether the queue has state that the backend does not know: acknowledgements that are not durable, or
    (`leases`) leases."""
    progress = queue.uncommitted
    return bool(progress) or progress.in_commit or bool(leases and queue.leases.jobs)


HAND_OVER_S = 0.5  # share of the time for a handover that is reserved for storing progress
SETTINGS_WAIT_S = 1.0  # how long after the writer's loss new queues wait for the setting with their leases
REFUSED_S_MAX = 16.0  # the longest pause of `rejoin_group`


class SubscriptionMembership(ClaimOwner):
    """The claims of one topic: the subscription's own topic, or the group's retry topic."""

    def __init__(self, runtime: Runtime, owner: SubscriptionBase, topic: str) -> None:
        self.topic = topic
        self.claims = QueueClaims(runtime.backend, self, runtime.now)
        self._runtime = runtime
        self._owner = owner
        self._join = Join(owner.group_name, topic)
        self._inherited: dict[QueueRef, Inherited] = {}  # the state of lost queues
        self._delivered: dict[QueueRef, tuple[int, int]] = {}  # of lost queues: generation, delivered until
        self._settings_awaited_until = (
            0.0  # after the loss of the writer: wait this long for the settings of other proxies
        )
        self._pause_s = RETRY_S
        self._retry_at = 0.0  # monotonic seconds; after a rejection

    def join(self, sharing: Sharing, queues: frozenset[int] | None = None) -> None:
        """Join the group for the topic, unless joined; after a rejection, a little later."""
        if not self.claims.joined:
            self._join = Join(self._owner.group_name, self.topic, sharing, queues, self._runtime.address)
            self._join_claims()

    def load(self) -> None:
        """Load the progress of the queues that are not loaded yet."""
        if self.claims.joined:
            self._join_claims()

    def rejoin_group(self) -> None:
        """Join again after a rejection, when the pause has passed; each pause is twice as long as the one
        before."""
        if self.claims.joined or self.claims.retry_at is None:
            return
        if self._runtime.now() >= self._retry_at:
            self._join_claims()
        if not self.claims.joined:
            self._owner.wake(self._retry_at)

    def _join_claims(self) -> None:
        self.claims.join(self._join)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    def leave(self) -> None:
        """Release all claims; the subscription has dropped its queues."""
        self.claims.leave()

    # --- state handed from one owner of a queue to the next

    def remember_lost(self, queue: SubscribedQueue) -> None:
        """Remember the leases of a lost queue, so that they can still be acknowledged if it comes back."""
        runtime, owner = self._runtime, self._owner
        queue.is_lost = True
        until = max(queue.delivered_until, queue.feed.next_offset())
        self._delivered[queue.ref] = (queue.generation, until)
        self._inherited[queue.ref] = handover_state(queue, pushed=owner.config.pushed)
        runtime.lost[owner.group_name.encode(), *queue.name.key] = runtime.now() + LOST_S

    def _has_inherited(self, ref: QueueRef) -> bool:
        """Whether the state of the queue's previous owner is known."""
        key = leases_key(self._owner.group_name, ref)
        return ref in self._inherited or self._runtime.backend.setting(key) is not None

    def take_inherited(self, ref: QueueRef) -> Inherited | None:
        """Return the state that the previous owner of a queue handed over, or None. A second call returns
        None."""
        runtime, key = self._runtime, leases_key(self._owner.group_name, ref)
        carried, value = self._inherited.pop(ref, None), runtime.backend.setting(key)
        if value is None:
            return carried
        store_settings(runtime, {key: None})
        stored = decode_handover(value, ref, runtime.now(), runtime.clock.wall_ms())
        if carried is None or stored is None:
            return carried or stored
        return max(carried, stored, key=lambda state: state.epoch)  # that of the latest owner

    def delivered_until(self, ref: QueueRef, generation: int) -> int:
        """Return the offset up to which this proxy had delivered a lost queue; 0 if none, or if it was
        reset."""
        delivered_generation, until = self._delivered.pop(ref, (generation, 0))
        return until if delivered_generation == generation else 0

    def is_expected(self, setting: str, queues: Iterable[SubscribedQueue]) -> bool:
        """Whether a setting may be the state of a queue that is not among `queues`; an outdated one of those
        is deleted."""
        for queue in queues:
            if leases_key(self._owner.group_name, queue.ref) == setting:
                if epoch_of(self._runtime.backend.setting(setting)) < queue.epoch:
                    store_settings(self._runtime, {setting: None})
                return False
        return True

    # --- ClaimOwner: queues are acquired

    def assigned(self, assignment: Assignment) -> None:
        self._log_queues("queues gained", assignment.queues, epoch=assignment.epoch)
        self._pause_s = RETRY_S
        for queue in self._installed_queues(assignment.queues):
            queue.epoch = assignment.epoch
        self._owner.update_order()

    def may_load(self, queue: QueueRef) -> bool:
        """Whether the queue's progress may be read now: not while its previous owner may still write the
        client leases."""
        if self.claims.loading[queue] == 1 or self._runtime.now() >= self._settings_awaited_until:
            return True
        if self._has_inherited(queue):
            return True
        self._owner.wake(self._settings_awaited_until)
        return False

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        self._owner.install(queue, view, bounds, epoch)

    def settled(self) -> None:
        self._owner.on_installed()

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        installed = self._owner.buffer.queues.get(queue)
        if installed is None:
            return
        if view.epoch > installed.epoch:
            self._log_queues("queues lost", (queue,))
            self.remember_lost(installed)
            self._owner.suspend(queue)
        elif bounds is None:
            self._owner.suspend(queue)
        elif view.generation != installed.generation:  # it was reset
            self._owner.suspend(queue)
            self.claims.reload(queue)

    def on_failed(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        facts = {"group": self._owner.group_name, "topic": self.topic, "error": str(error)}
        log.warning(text, extra=facts)
        if doing == "join":
            self._retry_at = self._runtime.now() + self._pause_s
            self._pause_s = min(2 * self._pause_s, REFUSED_S_MAX)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    # --- ClaimOwner: queues are revoked or lost

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Make progress and client leases durable, then release the queues.

        Pushes in progress end first, for a limited time, because their outcome would otherwise be unknown.
        """
        self._log_queues("queues handed over", queues)
        owner, installed = self._owner, self._installed_queues(queues)

        def on_pushes_done() -> None:
            self._hand_over(
                [queue for queue in installed if owner.buffer.holds_queue(queue)], lambda: release(queues)
            )

        owner.end_pushes(queues, deadline - HAND_OVER_S, on_pushes_done)

    def _hand_over(self, queues: Sequence[SubscribedQueue], release: Callable[[], None]) -> None:
        shares, settings = collect_progress(self._owner, queues), handover_settings(self._owner, queues)
        for queue in queues:
            self._owner.suspend(queue.ref)

        def on_settings_stored() -> None:
            if shares:
                ProgressCommit(self._runtime, shares, lambda _: release()).start()
            else:
                release()

        store_settings(self._runtime, settings, on_settings_stored)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """Drop queues that this proxy lost: the writer died, or its session, or another proxy owns them
        already.

        In the first two cases they usually come back. The clients do not notice, so their messages can still
        be acknowledged then; results in between are rejected, and sent again. For queues that go to another
        proxy, the client leases are stored before this proxy joins again.
        """
        if not queues or any(self._runtime.topic_lives(queue) for queue in queues):
            self._settings_awaited_until = self._runtime.now() + SETTINGS_WAIT_S
        if queues:
            self._log_queues("queues lost", queues)
        installed = self._installed_queues(queues)
        store_settings(self._runtime, handover_settings(self._owner, installed))
        for queue in installed:
            self.remember_lost(queue)
            self._owner.suspend(queue.ref)

    def _installed_queues(self, refs: Sequence[QueueRef]) -> list[SubscribedQueue]:
        """Return the queues among `queues` that are loaded."""
        queues = self._owner.buffer.queues
        return [queues[ref] for ref in refs if ref in queues]

    def _log_queues(self, event: str, queues: Sequence[QueueRef], **more: int) -> None:
        """Log one line for operators when queues are acquired, handed over or lost."""
        numbers = sorted(queue.queue_id for queue in queues)
        facts = {"group": self._owner.group_name, "topic": self.topic, "queues": numbers, **more}
        log.info(event, extra=facts)
