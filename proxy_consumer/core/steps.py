"""Messages between PullBuffer and its shell: what to read, what to deliver, what a read brought."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from proxy_consumer.core.leases import Lease
from proxy_consumer.core.queue_feed import FeedState, Slice
from proxy_consumer.core.subscribed_queue import SubscribedQueue


class Purpose(Enum):
    """The reason for a read."""

    NEW = "new"  # messages not seen yet
    REDELIVERY = "redelivery"  # to be delivered again, or let out of their chains
    RESCAN = "rescan"  # what waits in chains (order/rescan.py)


class ReadRequest(NamedTuple):
    """The shell reads `count_max` records of at most `bytes_max` at `offset` and calls `on_loaded`.

    `tags`: hand on to the backend's read.
    """

    queue: SubscribedQueue
    offset: int
    count_max: int
    bytes_max: int
    purpose: Purpose
    tags: frozenset[int] | None = None


def read_new(queue: SubscribedQueue, count: int) -> ReadRequest | None:
    """Start the next read of new messages for a client that wants `count`; None when there is none."""
    feed, plan = queue.feed, queue.plan
    if feed.state is not FeedState.READABLE or not queue.has_span():
        return None
    if feed.cursor < feed.finished_until:
        feed.cursor = queue.ack_map.unfinished_from(feed.cursor, 1)[0][0]
    count_max, bytes_max = plan.ahead(count)
    feed.state = FeedState.READING
    return ReadRequest(queue, feed.cursor, count_max, bytes_max, Purpose.NEW, plan.tags)


class Delivery(NamedTuple):
    """Messages of one queue for one client, under one lease. `redelivered`: some may have been out before."""

    queue: SubscribedQueue
    messages: Slice
    lease: Lease
    redelivered: bool

    def attempt_numbers(self) -> Iterable[int]:
        """Per message, the number of this delivery, from 1."""
        table = self.queue.table
        if not self.redelivered:
            return (1,) * len(self.messages.offsets)
        return [table.attempt_of(offset) for offset in self.messages.offsets]


class Loaded(Enum):
    """The result of a read: waiters may be served, nothing is there, or the queue is gone. Whether the
    shell is to wait for more says the state of the feed."""

    DATA = "data"
    TAIL = "tail"
    GONE = "gone"
