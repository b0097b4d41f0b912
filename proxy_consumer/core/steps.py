"""Values passed between PullBuffer and its caller: what to read, what to deliver, the result of a read."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from proxy_consumer.core.leases import Lease
from proxy_consumer.core.queue_feed import FeedState, Slice
from proxy_consumer.core.subscribed_queue import SubscribedQueue


class Purpose(Enum):
    """The reason for a read of messages from a queue."""

    NEW = "new"  # messages not read before
    REDELIVERY = "redelivery"  # retries, and jobs released from their chains
    RESCAN = "rescan"  # messages that wait in chains (order/rescan.py)


class ReadRequest(NamedTuple):
    """A read that the caller carries out, and answers by `PullBuffer.on_loaded`.

    Up to `count_max` records of at most `bytes_max` from `offset`. `tags`: passed to the backend's read.
    """

    queue: SubscribedQueue
    offset: int
    count_max: int
    bytes_max: int
    purpose: Purpose
    tags: frozenset[int] | None = None


def read_new(queue: SubscribedQueue, count: int) -> ReadRequest | None:
    """Start the next read of new messages for a pull of `count`; return None if the queue cannot be read
    now."""
    feed, plan = queue.feed, queue.plan
    if feed.state is not FeedState.READABLE or not queue.is_within_ack_span():
        return None
    if feed.cursor < feed.finished_until:
        feed.cursor = queue.ack_map.unfinished_from(feed.cursor, 1)[0][0]
    count_max, bytes_max = plan.ahead(count)
    feed.state = FeedState.READING
    return ReadRequest(queue, feed.cursor, count_max, bytes_max, Purpose.NEW, plan.tags)


class Delivery(NamedTuple):
    """Messages of one queue for one client, under one lease. `redelivered`: some may have been delivered
    before."""

    queue: SubscribedQueue
    messages: Slice
    lease: Lease
    redelivered: bool

    def attempt_numbers(self) -> Iterable[int]:
        """Return the number of this delivery for each message, from 1."""
        table = self.queue.table
        if not self.redelivered:
            return (1,) * len(self.messages.offsets)
        return [table.attempt_of(offset) for offset in self.messages.offsets]


class Loaded(Enum):
    """The result of a read: messages for waiting pulls, the end of the queue, or a deleted queue.

    The state of the feed says whether the proxy must wait for new messages.
    """

    DATA = "data"
    TAIL = "tail"
    DELETED = "deleted"
