"""Records of the heads whose deliveries are used up (`on_dead_letter: park`): their error, and since when.

That such a head is parked follows from its attempts, which are in group progress. The client's error is not;
it is stored in the setting `exhausted/GROUP/TOPIC/QUEUE`, so that an operator still sees it after a restart,
or at the next owner of the queue. The value is a JSON object:

    incarnation, generation   of the topic, and of the group's progress; a value with others is ignored
    heads                     offset → [epoch milliseconds, error], the newest HEADS_MAX

Nothing depends on it: if it cannot be written, or more heads are parked, the error is no longer shown.
"""

from __future__ import annotations

from heapq import nlargest
from operator import attrgetter

import msgspec

from backend.records import QueueRef
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.commits import store_settings

EXHAUSTED_PREFIX = "exhausted/"
HEADS_MAX = 100
_since = attrgetter("since")


class ParkedHeads(msgspec.Struct):
    """The value of the setting: the parked heads of one queue."""

    incarnation: int
    generation: int
    heads: dict[int, tuple[int, str]] = {}


def exhausted_key(group: str, queue: QueueRef) -> str:
    """Return the name of the setting for one queue."""
    return f"{EXHAUSTED_PREFIX}{group}/{queue.topic}/{queue.queue_id}"


def load_parked_heads(runtime: Runtime, group: str, state: SubscribedQueue) -> None:
    """Set error and time of the parked heads of an acquired queue from its setting; heads that are not in it
    get the present time.

    Heads that were parked until `on_dead_letter` was changed back are spent: their dead letters carry the
    error.
    """
    if not (state.used_up or state.table.spent):
        return
    now, wall_ms = runtime.now(), runtime.clock.wall_ms()
    heads = _read(runtime, group, state).heads
    for job in (*map(state.table.jobs.__getitem__, state.used_up), *state.table.spent):
        since_ms, error = heads.get(job.offset, (wall_ms, ""))
        job.error, job.since = error, now - max(0, wall_ms - since_ms) / 1000


def _read(runtime: Runtime, group: str, state: SubscribedQueue) -> ParkedHeads:
    queue, generation = state.ref, state.generation
    value = runtime.backend.setting(exhausted_key(group, queue))
    try:
        stored = msgspec.json.decode(value or b"", type=ParkedHeads)
    except msgspec.DecodeError:  # a damaged value is ignored: it is only for people
        stored = ParkedHeads(0, -1)
    same = (stored.incarnation, stored.generation) == (queue.incarnation, generation)
    return stored if same else ParkedHeads(queue.incarnation, generation)


def store_parked_heads(runtime: Runtime, group: str, state: SubscribedQueue) -> None:
    """Store the newly parked heads in the setting, unless they are stored already."""
    heads_before = _read(runtime, group, state).heads
    lately = state.table.take_exhausted()
    if all(job.offset in heads_before and heads_before[job.offset][1] == job.error for job in lately):
        return
    now, wall_ms = runtime.now(), runtime.clock.wall_ms()
    for job in lately:
        job.since = job.since or now
    parked = [job for job in state.table.jobs.values() if job.state is JobState.EXHAUSTED]
    heads = {
        job.offset: (wall_ms - int((now - job.since) * 1000), job.error)
        for job in nlargest(HEADS_MAX, parked, _since)
    }
    value = ParkedHeads(state.ref.incarnation, state.generation, heads)
    store_settings(runtime, {exhausted_key(group, state.ref): msgspec.json.encode(value)})
