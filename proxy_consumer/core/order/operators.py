"""An operator's action on the head of a chain, beyond parking and skipping it.

`take_away` ends a client's lease. The client may still be handling the message: its result is late from then
on, as after a time-out, and another client gets the message meanwhile. So this is only done when an operator
says so.
"""

from __future__ import annotations

from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.subscribed_queue import SubscribedQueue

TAKEN_AWAY = "taken away by an operator"


def take_away(queue: SubscribedQueue, offset: int, now: float) -> bool:
    """End the lease of a chain's head and deliver it again at once; False when no client has it.

    This delivery counts as one that timed out; earlier ones do not count any more, also after a restart. A
    message that has one delivery only (`ordered_deliveries_max` 1) is a dead letter, or has that one again
    where `on_dead_letter` is park. Messages of the same key that the client got with it wait in their chain
    again, untried. A message whose acknowledgement is being stored is left alone.
    """
    if queue.stream is not None and not queue.stream.is_first(offset):
        return False
    if not queue.leases.cut_short(offset, now):
        return False
    earlier = queue.table.jobs.get(offset)
    if earlier is not None and earlier.was_tried:
        earlier.fails = earlier.timeouts = 0
        earlier.replays += 1
    queue.expire_leases(now)
    job = queue.table.jobs[offset]
    used_up = job.state is JobState.EXHAUSTED
    if queue.replay(offset) and not used_up:  # it waits for nothing
        job.timeouts = 1
        queue.uncommitted.mark_attempts(offset, job.packed_attempts)
    job.error = TAKEN_AWAY
    return True
