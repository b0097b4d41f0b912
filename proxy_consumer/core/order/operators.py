"""Operator actions on the head of a chain, other than parking and skipping it.

`take_away` ends a client's lease. The client may still be processing the message: its result is late from
then on, as after a time-out, and another client gets the message meanwhile. So this only happens at an
operator's request.
"""

from __future__ import annotations

from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.subscribed_queue import SubscribedQueue

TAKEN_AWAY = "taken away by an operator"


def take_away(queue: SubscribedQueue, offset: int, now: float) -> bool:
    """End the lease of a chain's head and make it due for redelivery at once; return False if no client has
    it.

    This delivery counts as timed out; earlier attempts are reset, also after a restart. With only one allowed
    delivery (`ordered_deliveries_max` 1) the message becomes a dead letter, or, if `on_dead_letter` is park,
    gets that one delivery again. Messages of the same key that the client received with it wait in their
    chain again, untried. A message whose acknowledgement is being stored is not touched.
    """
    if queue.stream is not None and not queue.stream.is_first(offset):
        return False
    if not queue.leases.expire_now(offset, now):
        return False
    earlier = queue.table.jobs.get(offset)
    if earlier is not None and earlier.was_tried:
        earlier.fails = earlier.timeouts = 0
        earlier.replays += 1
    queue.expire_leases(now)
    job = queue.table.jobs[offset]
    used_up = job.state is JobState.EXHAUSTED
    if queue.replay(offset) and not used_up:  # due at once, without a retry interval
        job.timeouts = 1
        queue.uncommitted.mark_attempts(offset, job.packed_attempts)
    job.error = TAKEN_AWAY
    return True
