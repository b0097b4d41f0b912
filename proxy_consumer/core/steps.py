"""What PullBuffer and its shell tell each other: queues, what to read, what to deliver."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from backend.records import ReadBatch
from proxy_consumer.core.jobs import JobEvent
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.order.chains import QueueStream, ReadyMessage
from proxy_consumer.core.progress import Range, ascending_ranges, ranges_of
from proxy_consumer.core.queue_feed import FeedState, QueueFeed, Slice
from proxy_consumer.core.queue_jobs import QueueJobs

LeasedRun = tuple[int, int, int, Lease]  # start, end, bytes


class Purpose(Enum):
    """Why a read is made."""

    NEW = "new"  # messages not seen yet
    AGAIN = "again"  # to be delivered again, or let out of their chains
    LOOK_BACK = "look back"  # what waits in chains (order/rescan.py)


class ReadPlan:
    """How a subscription reads new messages.

    `ahead(wanted)`: how many records and bytes to read when `wanted` are asked for. `tags`: hand on to the
    backend's read. `ack_span_max`: how far past the committed offset.
    """

    __slots__ = ("ack_span_max", "ahead", "tags")

    def __init__(self, ahead: Callable[[int], tuple[int, int]], ack_span_max: int) -> None:
        self.ahead = ahead
        self.ack_span_max = ack_span_max
        self.tags: frozenset[int] | None = None


class BufferedQueue:
    """One queue of the subscription: what was read of it, and its unfinished messages.

    `stream`: its place in an ordered scope, None without an order key. `again`: messages read for
    redelivery and not delivered, by offset. `label` is the shell's: it finds it again with a delivery.
    """

    __slots__ = (
        "_plan", "_ready", "again", "feed", "in_ready", "jobs", "label", "queue", "rereading", "retry_queue",
        "stream",
    )  # fmt: skip

    def __init__(self, jobs: QueueJobs, feed: QueueFeed, plan: ReadPlan, ready: deque[BufferedQueue]) -> None:
        """`ready`: the queues of the subscription that may have something, served in turn."""
        self.queue = jobs.queue
        self.jobs = jobs
        self.feed = feed
        self.stream: QueueStream | None = None
        self.again: dict[int, tuple[ReadBatch, int]] = {}
        self.retry_queue = False  # of %RETRY%group
        self.rereading = False  # a read for redelivery is under way
        self.in_ready = False
        self.label: object = None
        self._plan = plan
        self._ready = ready

    def adopt_leases(self, runs: Iterable[LeasedRun], acked: Iterable[Range], now: float) -> None:
        """Clients have these, or have acknowledged them, since before the queue came here. A lease that has
        run out meanwhile is nobody's."""
        jobs, last = self.jobs, 0
        for start, end in acked:
            if jobs.finish_handed_out(start, end):
                last = max(last, end)
        for start, end, size, lease in runs:
            if lease.deadline <= now:
                continue
            unfinished = jobs.open_offsets(start, end)
            for first, after in ranges_of(unfinished):
                jobs.leases.add(first, after, size * (after - first) // (end - start), lease)
                last = max(last, after)
                for job in jobs.table.within(first, after):
                    jobs.table.change(job, JobEvent.DELIVERED)
            jobs.out.update(unfinished)
        self.feed.finished_until = max(self.feed.finished_until, last)

    def wake(self) -> None:
        """Stand among the ready queues, if there may be something to do."""
        if self.in_ready or self.feed.state is FeedState.GONE:
            return
        if (
            self.stream is not None
            or self.jobs.table.ready
            or self.feed.buffered
            or self.feed.state is FeedState.READABLE
        ):
            self.in_ready = True
            self._ready.append(self)

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

    # --- reading on

    def has_span(self) -> bool:
        """Whether messages past the last one may go out already."""
        return self.feed.next_offset() - self.jobs.ack_map.committed < self._plan.ack_span_max

    def read_on(self, room: int) -> ReadRequest | None:
        """The next read of new messages, which is under way then; None when there is none to make."""
        feed, plan = self.feed, self._plan
        if feed.state is not FeedState.READABLE or not self.has_span():
            return None
        if feed.cursor < feed.finished_until:
            feed.cursor = self.jobs.ack_map.unfinished_from(feed.cursor, 1)[0][0]
        count, bytes_max = plan.ahead(room)
        feed.state = FeedState.READING
        return ReadRequest(self, feed.cursor, count, bytes_max, Purpose.NEW, plan.tags)

    def expire_below(self, first: int, start: int) -> None:
        """Retention took what is below `first`: what is unfinished of it, from `start` on, is finished."""
        gone = []
        for begin, end in self.jobs.ack_map.unfinished_from(start, 1_000_000):
            if begin >= first:
                break
            gone.append((begin, min(end, first)))
        self.jobs.expire_ranges(gone)

    def drop_overtaken(self) -> None:
        """Messages may be finished that were not delivered under this epoch: read with a sieve."""
        self.jobs.overtaken = False
        self.feed.drop_read_ahead()
        self.feed.finished_until = max(self.feed.finished_until, self.jobs.delivered_until)

    # --- what lies ready in an ordered stream

    def take_in_order(self, stream: QueueStream, count: int, bytes_max: int) -> list[ReadyMessage]:
        """Up to `count` messages in order, as many as fit; none when all had to wait for their heads."""
        chosen = stream.take(count, bytes_max)
        if stream.ledger.table.batch == 1:
            return chosen
        late = self.close(stream, [message.offset for message in chosen])
        return [message for message in chosen if message.offset not in late] if late else chosen

    def close(self, stream: QueueStream, offsets: list[int]) -> set[int]:
        """These are to go into an answer: those of them that do not, as they stand behind others."""
        behind = stream.close(offsets)
        for offset in behind:
            if not self.jobs.leases.turn(offset):
                self.jobs.send_back(offset)
        return set(behind).intersection(offsets) if behind else set()

    def park(self, offset: int) -> None:
        """The job's key was set aside; one that a client has is parked when it comes back."""
        self._withdraw(offset)
        self.jobs.park(offset)

    def dead_letter(self, offset: int, reason: str) -> None:
        """The job goes to the dead letters, wherever it is; its chain goes on when it is there."""
        self._withdraw(offset)
        self.jobs.dead_letter(offset, reason)

    def _withdraw(self, offset: int) -> None:
        """Take a job out of what lies ready; it would be read again."""
        if self.stream is not None and self.stream.unready(offset):
            self.jobs.table.release(offset)

    def forget_bytes(self) -> None:
        """Deliver what lies ready by reading it again (a filter changed, or others need the room)."""
        if self.stream is not None:
            for offset in self.stream.unready_all():
                self.jobs.table.release(offset)


class ReadRequest(NamedTuple):
    """The shell reads `count_max` records of at most `bytes_max` at `offset` and calls `loaded`.

    `tags`: hand on to the backend's read.
    """

    state: BufferedQueue
    offset: int
    count_max: int
    bytes_max: int
    purpose: Purpose
    tags: frozenset[int] | None = None


class Delivery(NamedTuple):
    """Messages of one queue for one client, under one lease. `redelivered`: some may have been out before."""

    state: BufferedQueue
    messages: Slice
    lease: Lease
    redelivered: bool

    def attempts(self) -> Iterable[int]:
        """Per message, the number of this delivery, from 1."""
        jobs = self.state.jobs
        if not self.redelivered:
            return (1,) * len(self.messages.offsets)
        return [jobs.table.attempt(offset) for offset in self.messages.offsets]


class Loaded(Enum):
    """What came of a read: waiters may be served, nothing is there, or the queue is forgotten. Whether the
    shell is to wait for more says the state of the feed."""

    DATA = "data"
    TAIL = "tail"
    GONE = "gone"
