"""What clients have of a queue when it moves: told to its next holder, so that it waits for them.

Within a process it is remembered; to another one goes a setting `leases/GROUP/TOPIC/QUEUE`, written before
the queue is let go and deleted by its next holder (docs/formats-progress.md). Who is killed leaves none. When
the writer is lost, every proxy writes it before it joins the next one, and queues new to a proxy wait
for it a little (seat.py).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backend.progress.ack_map import OFFSET_END
from backend.records import QueueRef
from proxy_consumer.core.jobs.leases import Lease
from proxy_consumer.core.jobs.queue_jobs import LeasedRun
from proxy_consumer.core.ranges import Range
from proxy_consumer.core.steps import QueueState

LEASES_PREFIX = "leases/"
RUNS_MAX = 4_096  # of one queue that are told; what is beyond may be delivered again


class Carried(NamedTuple):
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


def carried_of(state: QueueState, *, pushed: bool) -> Carried:
    """What is leased of a queue now, and acknowledged; what was being pushed is nobody's."""
    jobs = state.jobs
    runs = [] if pushed else jobs.leases.leased()
    return Carried(jobs.epoch, jobs.generation, runs, jobs.owed.acked(jobs.ack_map))


def note_of(state: QueueState, now: float, wall_ms: int, *, pushed: bool) -> bytes:
    """The same as a setting; deadlines are wall-clock times there."""
    known = carried_of(state, pushed=pushed)
    runs = [
        (start, end, size, lease.id, wall_ms + int((lease.deadline - now) * 1000), int(lease.length_s * 1000))
        for start, end, size, lease in known.runs[:RUNS_MAX]
    ]
    note = _Note(state.queue.incarnation, known.epoch, known.generation, runs, known.acked[:RUNS_MAX])
    return msgspec.json.encode(note)


def read_note(value: bytes, queue: QueueRef, now: float, wall_ms: int) -> Carried | None:
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
    return Carried(note.epoch, note.generation, runs, note.acked)


def epoch_of(value: bytes | None) -> int:
    """Under which epoch a setting's writer had the queue; above every epoch when there is no telling."""
    try:
        return OFFSET_END if value is None else msgspec.json.decode(value, type=_Note).epoch
    except msgspec.DecodeError:
        return OFFSET_END


def newest(*known: Carried | None) -> Carried | None:
    """That of the latest holder."""
    found = [one for one in known if one is not None]
    return max(found, key=lambda one: one.epoch, default=None)


Notes = dict[str, bytes | None]
"""Settings to write."""
