"""What clients have of a queue when it moves: told to its next holder, so that it waits for them.

Within a process it is remembered; to another one goes a setting `leases/GROUP/TOPIC/QUEUE`, written before
the queue is let go and deleted by its next holder (docs/formats-progress.md). Who is killed leaves none. When
the writer is lost, every proxy writes it before it joins the next one, and queues new to a proxy wait
for it a little (membership.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from backend.claims import LOST_S
from backend.progress.ack_map import OFFSET_END
from backend.records import QueueRef
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.progress import Range
from proxy_consumer.core.queue_jobs import LeasedRun, QueueJobs
from proxy_consumer.core.steps import BufferedQueue
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.held_queue import held_of, store_settings

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


def newest(*known: Inherited | None) -> Inherited | None:
    """That of the latest holder."""
    found = [one for one in known if one is not None]
    return max(found, key=lambda one: one.epoch, default=None)


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
        until = max(state.jobs.handed_out, state.feed.next_offset())
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
        return newest(carried, read_note(value, queue, runtime.now(), runtime.clock.wall_ms()))

    def handed_out(self, queue: QueueRef, generation: int) -> int:
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
