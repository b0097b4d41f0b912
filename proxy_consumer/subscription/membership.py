"""A subscription as a member of its group for one topic: what it does when queues come, go and are lost.

A subscription has one membership for its own topic, and one for its queue of the group's retry topic when
there is one. Which queues are its own, and when they are loaded, is backend/ownership/claims.py.

What clients have of a queue when it moves is told to its next holder, so that it waits for them. Within a
process it is remembered; to another one goes a setting `leases/GROUP/TOPIC/QUEUE`, written before the queue
is let go and deleted by its next holder (docs/formats-progress.md). Who is killed leaves none. When the
writer is lost, every proxy writes it before it joins the next one, and queues new to a proxy wait for it a
little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from backend.ownership.claims import LOST_S, RETRY_S, ClaimOwner, QueueClaims, Release
from backend.port import Assignment, Join, Sharing
from backend.progress.ack_map import OFFSET_END
from backend.records import Bounds, ProgressView, QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.progress import Range
from proxy_consumer.core.queue_jobs import QueueJobs
from proxy_consumer.core.steps import BufferedQueue, LeasedRun
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.held_queue import (
    ProgressCommit,
    QueueHolder,
    collect,
    held_of,
    store_settings,
)

LEASES_PREFIX = "leases/"
RUNS_MAX = 4_096  # of one queue that are told; what is beyond may be delivered again


class Inherited(NamedTuple):
    """What a queue's former holder knew: under which epoch and generation, which runs were leased, and
    which were acknowledged without being durable yet."""

    epoch: int
    generation: int
    runs: list[LeasedRun]
    acked: list[Range]


class _Note(msgspec.Struct):
    """The setting's value. `runs`: start, end, bytes, lease id, deadline and length in milliseconds."""

    incarnation: int
    epoch: int
    generation: int
    runs: list[tuple[int, int, int, int, int, int]]
    acked: list[tuple[int, int]] = []


def leases_key(group: str, queue: QueueRef) -> str:
    """The setting of one queue."""
    return f"{LEASES_PREFIX}{group}/{queue.topic}/{queue.queue_id}"


def carried_of(state: BufferedQueue, *, pushed: bool) -> Inherited:
    """What is leased of a queue now, and acknowledged; what was being pushed is nobody's."""
    jobs = state.jobs
    runs = [] if pushed else jobs.leases.leased()
    return Inherited(jobs.epoch, jobs.generation, runs, jobs.uncommitted.acked(jobs.ack_map))


def note_of(state: BufferedQueue, now: float, wall_ms: int, *, pushed: bool) -> bytes:
    """The same as a setting; deadlines are wall-clock times there."""
    known = carried_of(state, pushed=pushed)
    runs = [
        (start, end, size, lease.id, wall_ms + int((lease.deadline - now) * 1000), int(lease.length_s * 1000))
        for start, end, size, lease in known.runs[:RUNS_MAX]
    ]
    note = _Note(state.queue.incarnation, known.epoch, known.generation, runs, known.acked[:RUNS_MAX])
    return msgspec.json.encode(note)


def read_note(value: bytes, queue: QueueRef, now: float, wall_ms: int) -> Inherited | None:
    """What the setting says of the queue; None when that is another incarnation, or not to be read."""
    try:
        note = msgspec.json.decode(value, type=_Note)
    except msgspec.DecodeError:
        return None
    if note.incarnation != queue.incarnation:
        return None
    leases: dict[tuple[int, int], Lease] = {}
    runs: list[LeasedRun] = []
    for start, end, size, lease_id, deadline_ms, length_ms in note.runs:
        lease = leases.get((lease_id, deadline_ms))
        if lease is None:
            left_ms = min(deadline_ms - wall_ms, length_ms)
            lease = Lease(lease_id, now + left_ms / 1000, now + (left_ms - length_ms) / 1000)
            leases[lease_id, deadline_ms] = lease
        runs.append((start, end, size, lease))
    return Inherited(note.epoch, note.generation, runs, note.acked)


def epoch_of(value: bytes | None) -> int:
    """Under which epoch a setting's writer had the queue; above every epoch when there is no telling."""
    try:
        return OFFSET_END if value is None else msgspec.json.decode(value, type=_Note).epoch
    except msgspec.DecodeError:
        return OFFSET_END


class Handover:
    """What is known, and told, of the queues that one group's subscription gets and gives away.

    `closed`: the subscription is deleted, nothing is told any more.
    """

    def __init__(self, runtime: Runtime, group: str, config: SubscriptionDefaults) -> None:
        self._runtime = runtime
        self._group = group
        self.config = config
        self.closed = False
        self._carried: dict[QueueRef, Inherited] = {}  # of lost queues
        self._handed_out: dict[QueueRef, tuple[int, int]] = {}  # of those: generation, delivered until

    def lives(self, queue: QueueRef) -> bool:
        """Whether its topic is still there."""
        info = self._runtime.backend.topic(queue.topic)
        return info is not None and info.incarnation == queue.incarnation

    def remember(self, state: BufferedQueue) -> None:
        """The queue is lost: what clients hold of it may still be acknowledged when it comes back."""
        runtime, held = self._runtime, held_of(state)
        held.lost = True
        until = max(state.jobs.delivered_until, state.feed.next_offset())
        self._handed_out[state.queue] = (state.jobs.generation, until)
        self._carried[state.queue] = carried_of(state, pushed=self.config.pushed)
        runtime.lost[self._group.encode(), *held.key] = runtime.now() + LOST_S

    def knows(self, queue: QueueRef) -> bool:
        """Whether there is word of its former holder."""
        key = leases_key(self._group, queue)
        return queue in self._carried or self._runtime.backend.setting(key) is not None

    def take(self, queue: QueueRef) -> Inherited | None:
        """What its former holder knew of a queue; it is told once."""
        runtime, key = self._runtime, leases_key(self._group, queue)
        carried, value = self._carried.pop(queue, None), runtime.backend.setting(key)
        if value is None:
            return carried
        store_settings(runtime, {key: None})
        told = read_note(value, queue, runtime.now(), runtime.clock.wall_ms())
        if carried is None or told is None:
            return carried or told
        return max(carried, told, key=lambda one: one.epoch)  # that of the latest holder

    def delivered_until(self, queue: QueueRef, generation: int) -> int:
        """Up to which offset we had delivered a queue when it was lost; 0: none, or it was reset since."""
        known, until = self._handed_out.pop(queue, (generation, 0))
        return until if known == generation else 0

    def told(self, key: str, states: Iterable[BufferedQueue]) -> bool:
        """Whether the setting `key` may be word of a queue that is not among `states`; late word of one of
        those is deleted."""
        for state in states:
            if leases_key(self._group, state.queue) == key:
                if epoch_of(self._runtime.backend.setting(key)) < state.jobs.epoch:
                    store_settings(self._runtime, {key: None})
                return False
        return True

    def notes(self, states: Iterable[BufferedQueue]) -> dict[str, bytes | None]:
        """Settings for the next holders of these queues: what clients have of them; {}: nothing."""
        if self.closed:
            return {}
        pushed = self.config.pushed
        always = bool(self.config.scope and self.config.handover_wait_ms and not pushed)
        now, wall_ms = self._runtime.now(), self._runtime.clock.wall_ms()
        return {
            leases_key(self._group, state.queue): note_of(state, now, wall_ms, pushed=pushed)
            for state in states
            if self.lives(state.queue) and (always or _holds_more(state.jobs, leases=not pushed))
        }


def _holds_more(jobs: QueueJobs, *, leases: bool) -> bool:
    """Whether they know what the backend does not: acknowledgements that are not durable, `leases`."""
    progress = jobs.uncommitted
    return bool(progress) or progress.in_commit or bool(leases and jobs.leases.jobs)


HAND_OVER_S = 0.5  # of the time to hand queues over, what storing progress may take
NOTES_S = 1.0  # how long after the writer's loss what is new here waits for word of what clients have
REFUSED_S_MAX = 16.0  # the longest pause of `join_again`


class SubscriptionMembership(ClaimOwner):
    """The claims of one topic. `retry`: it is the group's retry topic."""

    def __init__(
        self, runtime: Runtime, owner: QueueHolder, topic: str, handover: Handover, *, retry: bool
    ) -> None:
        self.topic = topic
        self.retry = retry
        self.claims = QueueClaims(runtime.backend, self, runtime.now)
        self._runtime = runtime
        self._owner = owner
        self._handover = handover
        self._join = Join(owner.group_name, topic)
        self._notes_until = 0.0  # the writer was lost: proxies tell what clients have of what they had
        self._pause_s = RETRY_S
        self._again_at = 0.0  # monotonic seconds; after a refusal

    def join(self, sharing: Sharing, queues: frozenset[int] | None = None) -> None:
        """Become a member, unless it is one; after a refusal, a little later."""
        if not self.claims.joined:
            self._join = Join(self._owner.group_name, self.topic, sharing, queues, self._runtime.address)
            self._go_on()

    def load(self) -> None:
        """Ask for what is not loaded yet."""
        if self.claims.joined:
            self._go_on()

    def join_again(self) -> None:
        """After a refusal, when its pause is over; each pause is twice as long as the one before.

        For a retry queue, which no pull asks for: it is joined once, when it is heard of.
        """
        if self.claims.joined or self.claims.retry_at is None:
            return
        if self._runtime.now() >= self._again_at:
            self._go_on()
        if not self.claims.joined:
            self._owner.wake(self._again_at)

    def _go_on(self) -> None:
        self.claims.join(self._join)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    def leave(self) -> None:
        """Give everything up; the subscription has dropped its queues."""
        self.claims.leave()

    def refence(self, state: BufferedQueue, then: Callable[[], None]) -> None:
        """A commit was fenced: see whether the queue was reset or lost; `then` runs in any case."""
        self.claims.reread((state.queue,), then)

    # --- ClaimOwner: queues come

    def assigned(self, assignment: Assignment) -> None:
        self._tell("queues gained", assignment.queues, epoch=assignment.epoch)
        self._pause_s = RETRY_S
        for state in self._held(assignment.queues):
            state.jobs.epoch = assignment.epoch
        self._owner.update_order()

    def may_load(self, queue: QueueRef) -> bool:
        """Not while a proxy that lives may be about to say what clients have of the queue."""
        if self.claims.loading[queue] == 1 or self._runtime.now() >= self._notes_until:
            return True
        if self._handover.knows(queue):
            return True
        self._owner.wake(self._notes_until)
        return False

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        self._owner.install(queue, view, bounds, epoch, retry=self.retry)

    def settled(self) -> None:
        self._owner.installed()

    def recorded(self, queue: QueueRef, view: ProgressView, bounds: Bounds | None) -> None:
        state = self._owner.buffer.queues.get(queue)
        if state is None:
            return
        if view.epoch > state.jobs.epoch:
            self._tell("queues lost", (queue,))
            self._handover.remember(state)
            self._owner.let_go(queue)
        elif bounds is None:
            self._owner.let_go(queue)
        elif view.generation != state.jobs.generation:  # it was reset
            self._owner.let_go(queue)
            self.claims.reload(queue)

    def trouble(self, doing: str, error: Exception) -> None:
        text = "cannot join" if doing == "join" else "progress not read"
        told = {"group": self._owner.group_name, "topic": self.topic, "error": str(error)}
        log.warning(text, extra=told)
        if doing == "join":
            self._again_at = self._runtime.now() + self._pause_s
            self._pause_s = min(2 * self._pause_s, REFUSED_S_MAX)
        if self.claims.retry_at is not None:
            self._owner.wake(self.claims.retry_at)

    # --- ClaimOwner: queues go

    def revoked(self, queues: Sequence[QueueRef], deadline: float, release: Release) -> None:
        """Make what is finished durable, and what clients have known, then let the queues go.

        What is pushed ends first, for a while: nobody could say later how it went.
        """
        self._tell("queues handed over", queues)
        states = self._held(queues)

        def ended() -> None:
            self._hand_over([state for state in states if self._owner.holds(state)], lambda: release(queues))

        self._owner.end_pushes(queues, deadline - HAND_OVER_S, ended)

    def _hand_over(self, states: Sequence[BufferedQueue], release: Callable[[], None]) -> None:
        parts, notes = collect(self._owner, states), self._handover.notes(states)
        for state in states:
            self._owner.let_go(state.queue)

        def told() -> None:
            if parts:
                ProgressCommit(self._runtime, parts, lambda _: release()).start()
            else:
                release()

        store_settings(self._runtime, notes, told)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        """They are not ours: the writer died, or our session, or someone else has them already.

        In the first two cases they mostly come back. Clients know nothing of this, so what they hold can
        still be acknowledged then; results that come in between are refused, and sent again. Those that
        go to another proxy instead go with what clients have: that is stored before we join again.
        """
        if not queues or any(self._handover.lives(queue) for queue in queues):
            self._notes_until = self._runtime.now() + NOTES_S
        if queues:
            self._tell("queues lost", queues)
        states = self._held(queues)
        store_settings(self._runtime, self._handover.notes(states))
        for state in states:
            self._handover.remember(state)
            self._owner.let_go(state.queue)

    def _held(self, queues: Sequence[QueueRef]) -> list[BufferedQueue]:
        """What is known of those that are loaded."""
        return [state for queue in queues if (state := self._owner.buffer.queues.get(queue)) is not None]

    def _tell(self, event: str, queues: Sequence[QueueRef], **more: int) -> None:
        """One line for operators, whenever queues come or go."""
        numbers = sorted(queue.queue_id for queue in queues)
        told = {"group": self._owner.group_name, "topic": self.topic, "queues": numbers, **more}
        log.info(event, extra=told)
