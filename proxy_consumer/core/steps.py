"""What PullBuffer and its shell tell each other: queues, what to read, what to deliver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.records import ReadBatch
from proxy_consumer.core.jobs.leases import Lease
from proxy_consumer.core.jobs.queue_jobs import QueueJobs
from proxy_consumer.core.order.lane import OrderedLane
from proxy_consumer.core.queue_feed import QueueFeed, Slice
from proxy_consumer.core.ranges import ascending_ranges

if TYPE_CHECKING:
    from proxy_consumer.core.order.scope import OrderScope


class Purpose(Enum):
    """Why a read is made."""

    NEW = "new"  # messages not seen yet
    AGAIN = "again"  # to be delivered again, or let out of their chains
    LOOK_BACK = "look back"  # what waits in chains (order/rescan.py)


class QueueState:
    """One queue of the subscription: what was read of it, and its unfinished messages.

    `lane`: its place in an ordered scope, None without an order key. `again`: messages read for
    redelivery and not delivered, by offset. `faulty`: offsets read that a gate refused with a fault.
    """

    __slots__ = (
        "again", "faulty", "feed", "in_ready", "jobs", "label", "lane", "queue", "read_on",
        "rereading", "retry_queue",
    )  # fmt: skip

    def __init__(self, jobs: QueueJobs, feed: QueueFeed) -> None:
        self.queue = jobs.queue
        self.jobs = jobs
        self.feed = feed
        self.lane: OrderedLane | None = None
        self.again: dict[int, tuple[ReadBatch, int]] = {}
        self.faulty: set[int] = set()
        self.retry_queue = False  # of %RETRY%group
        self.rereading = False  # a read for redelivery is under way
        self.in_ready = False
        self.label: Any = None  # whatever the shell wants to find again with a delivery
        self.read_on: Callable[[int], ReadRequest | None] = lambda _: None  # the next read of new messages

    def lease(self, messages: Slice, lease: Lease) -> None:
        """These messages of the queue go out under this lease."""
        runs = ascending_ranges(messages.offsets)
        if len(runs) == 1:
            self.jobs.lease(runs[0][0], runs[0][1], messages.size, lease)
            return
        at = 0
        for start, end in runs:
            size = sum(map(len, messages.deliveries[at : at + end - start]))
            self.jobs.lease(start, end, size, lease)
            at += end - start


class ReadRequest(NamedTuple):
    """The shell reads `count_max` records of at most `bytes_max` at `offset` and calls `loaded`.

    `tags`: hand on to the backend's read.
    """

    state: QueueState
    offset: int
    count_max: int
    bytes_max: int
    purpose: Purpose
    tags: frozenset[int] | None = None


class EndsRequest(NamedTuple):
    """The shell asks for the bounds of these lanes' queues, all at once, and calls the scope's `ends`."""

    scope: OrderScope
    lanes: Sequence[OrderedLane]
    number: int  # of the scope's reads


class Delivery:
    """Messages of one queue for one client, under one lease."""

    __slots__ = ("deadline", "lease", "lease_id", "lease_ms", "messages", "redelivered", "state")

    def __init__(self, state: QueueState, messages: Slice, lease: Lease, redelivered: bool) -> None:
        self.state = state
        self.messages = messages
        self.lease = lease
        self.lease_id = lease.id
        self.deadline = lease.deadline
        self.lease_ms = round(lease.length_s * 1000)
        self.redelivered = redelivered

    def attempts(self) -> Iterable[int]:
        """Per message, the number of this delivery, from 1."""
        jobs = self.state.jobs
        if not self.redelivered:
            return (1,) * len(self.messages.offsets)
        return [jobs.attempt(offset) for offset in self.messages.offsets]


class Loaded(Enum):
    """What the shell does after a read: serve waiters, wait for data, or forget the queue."""

    DATA = "data"
    TAIL = "tail"
    GONE = "gone"
