"""An ordered scope: the queues over which one order key is one chain, read as one stream.

If the engine has a log position for every message (`merged`), the scope takes the message with the lowest
position next. To do so it must know of every queue either its next message or that it has none. "None" is
outdated as soon as another queue is read later: every read gets two numbers, one when it is requested and one
when it is answered. If the end of some queue was requested before the other queue's messages were answered,
the ends of all queues without messages are requested at once (EndsRequest). Other engines: queues are taken
in turn, and order holds within each queue.

The cost of a message does not grow with the number of queues: queues at their end are *quiet* and not
examined until there is news of them; of each topic one stream drives the scope, and other streams are woken
when some of their messages can be delivered.

The messages taken are placed by placing.py; those whose key is busy stay unfinished, and are read again when
their chain reaches them. Reading continues past them, so a blocked key delays no other key. A chain goes on
when the end of its first message is durable: at once for a message moved to another topic, and with the
commit of its acknowledgement otherwise (`QueueStream.on_stored`).

A queue that leaves for a while, or joins with messages after others were placed, makes the scope invalid: the
placed messages were not ordered against the messages of that queue. Nothing is delivered then until all
queues are loaded again, into another scope (groups/ordering.py).

Ready messages of a topic that no client pulls, or that may not deliver more now, do not delay the others:
they are laid aside, which drops their bytes, and read again when needed. Their keys stay busy.

Bounds: messages that are ready (`READY_MAX`) and laid aside (`ASIDE_MAX`; at this bound the scope reads no
further until some are taken), the ack span of each queue, and messages examined in one call (`EXAMINED_MAX`;
`short` then says that there is more to do at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from backend.records import Bounds, ReadBatch
from proxy_consumer.core.jobs import JobNews
from proxy_consumer.core.order.chains import Chain, ChainTable, QueueStream, ReadyMessage, ScopeLedger
from proxy_consumer.core.order.placing import ReadAhead, merge_rows, place_rows, rows_alone
from proxy_consumer.core.order.rescan import Rescan
from proxy_consumer.core.queue_feed import FeedState
from proxy_consumer.core.steps import ReadRequest, read_new
from proxy_consumer.core.subscribed_queue import SubscribedQueue

ASIDE_MAX = 50_000  # some 600 bytes each
EXAMINED_MAX = 1_024
READ_MIN = 256  # records of one read: several queues are read at the same time
_NO_READ = 1 << 62  # a number that no read of the scope has


class OrderScope:
    """The queues within which the order of a key holds, and their messages in that order.

    `single`: the whole queue has one key (order by QID), so reading stops while that key is busy.
    """

    def __init__(
        self,
        table: ChainTable,
        *,
        merged: bool,
        single: bool = False,
        examined_max: int = EXAMINED_MAX,
    ) -> None:
        self.table = table
        self.ledger = ScopeLedger(table)
        self.queues: dict[QueueStream, SubscribedQueue] = {}
        self.open = True  # False: not all queues of the scope have joined
        self.invalid = False
        self.returned = False  # a queue that had left has joined again
        self.short = False
        self.full = False  # no more messages may be laid aside
        self.aside_max = ASIDE_MAX
        self._begun = False  # a message was placed
        self._examined_max = examined_max
        self._merged = merged
        self._single = single
        self._reads = 0
        self._last_served = 0  # index of a stream, if the streams are served round-robin
        self._news: dict[QueueStream, None] = {}  # streams to examine; the others are in one of:
        self._some: dict[QueueStream, None] = {}  # those with buffered messages
        self._blind: dict[QueueStream, None] = {}  # those being read; the rest is quiet
        self._quiet_at = _NO_READ  # number of the oldest read at which a quiet stream had no messages
        self._ends_requested = False  # of the quiet queues
        self._ends_failed = False
        self._idle = False  # nothing can be placed until there is news
        self._drivers: dict[str, QueueStream] = {}  # topic → the stream for which the scope reads
        self.waiting_streams: list[QueueStream] = []  # have messages, and wait for a read to get more
        self._rescan: Rescan | None = None
        self._rescan_failed = False
        self._rescans = 0

    # --- queues

    def add(self, stream: QueueStream, queue: SubscribedQueue, batch: int, *, empty: bool = True) -> None:
        """Add a queue to the scope. `batch`: the `chain_batch` of its topic; topics of a scope may differ in
        it.

        `empty`: the queue has no unfinished message yet.
        """
        if not self.queues:
            self._begun = self.invalid = False
        elif self._begun and not empty:
            self.mark_invalid()
        self.returned = self.invalid
        self.queues[stream] = queue
        self._drivers.setdefault(stream.ref.topic, stream)
        self.add_news(stream)
        self.set_batch(stream, batch)

    def set_batch(self, stream: QueueStream, batch: int) -> None:
        """Allow up to `batch` consecutive messages of one key in one reply; messages already released are not
        affected."""
        self.table.batches[stream] = batch
        if batch > self.table.batch == 1:
            for chain in self.table:
                chain.open = False  # with batch 1 it was not recorded which heads are in a reply
        self.table.batch = max(self.table.batch, batch)

    def mark_invalid(self) -> None:
        """Stop delivery because a queue left or joined late, until all queues are loaded again into another
        scope."""
        self.invalid = True
        self.open = False

    def drop_queue(self, stream: QueueStream) -> None:
        """Remove a queue that this proxy lost; chains continue without its messages."""
        self.apply_ledger()
        del self.queues[stream]
        for streams in (self._news, self._some, self._blind):
            streams.pop(stream, None)
        topic = stream.ref.topic
        if self._drivers.get(topic) is stream:
            del self._drivers[topic]
            other = next((one for one in self.queues if one.ref.topic == topic), None)
            if other is not None:
                self._drivers[topic] = other
        self.table.batches.pop(stream, None)
        stream.drop_all_ready()
        stream.busy.clear()
        self._rescan = None
        for chain in self.table.drop_stream(stream):
            self._release_spots(chain, list(chain.heads))
        self.apply_ledger()
        self.wake_drivers()

    def wake_drivers(self) -> None:
        """Let the scope read on after a change that may allow it."""
        self._idle = False
        waiting, self.waiting_streams = self.waiting_streams, []
        for stream in (*self._drivers.values(), *waiting):
            if stream in self.queues:
                self.queues[stream].wake_up()

    def set_open(self, is_open: bool) -> None:
        """Set whether all queues of the scope have joined, so that messages may be delivered."""
        self.open = is_open
        if is_open:
            self._wake_all()

    def _wake_all(self) -> None:
        self._idle = False
        for queue in self.queues.values():
            queue.wake_up()

    def add_news(self, stream: QueueStream) -> None:
        """Record that this queue may have messages, or capacity for some."""
        self._news[stream] = None
        self._idle = False

    # --- chains

    def apply_ledger(self) -> None:
        """Act on the ledger: release the jobs of chains that moved on, and read on if there is capacity
        again."""
        ledger = self.ledger
        while ledger.released:
            finished, ledger.released = ledger.released, []
            for chain, spots in finished:
                if spots:
                    self._release_spots(chain, spots)
                elif self.table.starving:
                    self.wake_drivers()
        if ledger.lifted:
            ledger.lifted = False
            self._wake_all()
        if ledger.gained_capacity:
            ledger.gained_capacity = False
            self.wake_drivers()

    def _release_spots(self, chain: Chain, spots: list[tuple[QueueStream, int]]) -> None:
        while spots:
            stream, offset = spots.pop(0)
            queue = self.queues[stream]
            if queue.ack_map.is_finished(offset):
                if queue.uncommitted.has_finished(offset):
                    stream.hold_spot(chain, offset)
                else:
                    spots += self.table.finish_job(chain, stream, offset)
                continue
            stream.busy[offset] = chain
            if queue.table.is_spent(offset):
                chain.open = False  # the chain goes on when it is stored in its next topic
                continue
            if offset in queue.out:
                queue.out.discard(offset)  # a client has leased it
                chain.open = False
                continue
            if not queue.exhaust_used_up(offset):
                parked = chain.key in self.ledger.parked_keys
                job = parked or self.table.batch > 1  # with those of its chain that are jobs, into one reply
                if job or not self._release_in_memory(queue, stream, offset, chain):
                    queue.table.release(offset)
                if parked:
                    queue.park_unread(offset)
            queue.wake_up()

    def _release_in_memory(
        self, queue: SubscribedQueue, stream: QueueStream, offset: int, chain: Chain
    ) -> bool:
        """Make a released message ready whose bytes are in memory; return False if it must be read again."""
        read = queue.reread.get(offset)
        if read is None or offset in queue.table.jobs or self.ledger.ready >= self.ledger.ready_max:
            return False
        del queue.reread[offset]
        batch, index = read
        stream.add_released(ReadyMessage(offset, batch.deliveries[index], batch, index, chain))
        if queue.observer is not None:
            queue.observer.on_change(JobNews.RELEASED, offset)
        return True

    # --- reading on

    def read_on(self, stream: QueueStream, want: int) -> ReadRequest | EndsRequest | None:
        """Place messages until `want` more of `stream` can be delivered; return the read needed before that,
        or None."""
        self.short = False
        if not self.open or self.ledger.unplaced:
            return None
        if self.table.starving and not self._rescan_failed and not stream.deliverable:
            request = self._run_rescan()
            if request is not None or self.queues[stream].table.released:
                return request
        examined, enough = 0, len(stream.deliverable) + want
        while len(stream.deliverable) < enough and (
            self.ledger.ready < self.ledger.ready_max or self._lay_aside(stream)
        ):
            if examined >= self._examined_max:
                self.short = True
                return None
            streams = None if self._idle else self._choose_streams(want)
            if streams is None:
                self._idle = True
                return None
            if not isinstance(streams, list):
                return streams
            placed = self._place_messages(streams, stream, enough, self._examined_max - examined)
            if not placed:
                return None
            examined += placed
        return None

    @property
    def is_reading(self) -> bool:
        """Whether the scope waits for an answer, or a commit, and may place further messages after it."""
        if self.short or self._ends_requested or self._rescan is not None or self.ledger.unplaced:
            return True
        return any(stream.feed.state in (FeedState.READING, FeedState.STALLED) for stream in self.queues)

    def ready_bytes(self) -> int:
        """Return the size of the messages that are ready for delivery."""
        return sum(len(message.delivery) for stream in self.queues for message in stream.deliverable)

    def _lay_aside(self, target: QueueStream) -> bool:
        """Drop the bytes of ready messages of another topic, to free capacity; return whether `target` may
        get messages now.

        Messages of the same topic are not laid aside: the same clients pull them.
        """
        others = [stream for stream in self.queues if stream.ref.topic != target.ref.topic]
        fullest = max(others, key=lambda stream: len(stream.deliverable), default=None)
        if fullest is None or not fullest.deliverable:
            return False
        self.full = sum(self.queues[stream].table.released for stream in others) >= self.aside_max
        if not self.full:
            self.queues[fullest].forget_bytes()
        return not self.full

    def on_capacity(self) -> None:
        """Read on if the scope was `full`, after messages were delivered."""
        self.full = False
        self.wake_drivers()

    def _choose_streams(self, want: int) -> list[QueueStream] | ReadRequest | EndsRequest | None:
        """Return the streams to merge now, or the request that must be answered first, or None."""
        if self._merged or len(self.queues) == 1:
            return self._streams_to_merge(want)
        return self._choose_round_robin(want)

    def _streams_to_merge(self, want: int) -> list[QueueStream] | ReadRequest | EndsRequest | None:
        """Return all streams with messages, once it is certain that the others have no older ones.

        Otherwise returns the request that must be answered first, or None if one is pending.
        """
        if self._ends_requested:
            return None
        while self._news:
            request = self._examine_stream(self._news.popitem()[0], want)
            if request is not None:
                return request
        if self._blind or not self._some:
            return None
        if len(self._some) == len(self.queues):
            self._quiet_at = _NO_READ
        elif self._quiet_at <= max(stream.read_at for stream in self._some):
            return self.request_ends()
        return list(self._some)

    def _examine_stream(self, stream: QueueStream, want: int) -> ReadRequest | None:
        """Determine whether a queue has messages; return the read needed to find out, or None."""
        self._some.pop(stream, None)
        self._blind.pop(stream, None)
        feed = stream.feed
        if feed.has_messages:
            self._some[stream] = None
        elif feed.state is FeedState.TAIL:
            self._quiet_at = min(self._quiet_at, stream.tail_at)
        else:
            self._blind[stream] = None
            return self._request_read(stream, want)
        return None

    def request_ends(self) -> EndsRequest | None:
        """Return a request for the ends of the queues without messages; None while one is pending.

        The answer shows messages whose notification has not arrived yet.
        """
        if self._ends_requested:
            return None
        self._reads += 1
        self._ends_requested = True
        quiet = [queue for stream, queue in self.queues.items() if stream not in self._some]
        return EndsRequest(self, quiet, self._reads)

    def on_ends(self, request: EndsRequest, ends: Sequence[Bounds | None]) -> None:
        """Accept the ends that were requested; None for a queue that does not exist any more."""
        self._ends_requested = False
        self._quiet_at = request.number
        for queue, bounds in zip(request.queues, ends, strict=True):
            feed = queue.feed
            if feed.state is FeedState.TAIL and (bounds is None or bounds.next > feed.cursor):
                feed.state = FeedState.READABLE
                if queue.stream is not None:
                    self.add_news(queue.stream)
        self.wake_drivers()

    def on_ends_failed(self) -> None:
        """Record that the ends could not be read; `retry` requests them again."""
        self._ends_failed = True

    def _choose_round_robin(self, want: int) -> list[QueueStream] | ReadRequest | None:
        streams = list(self.queues)
        for _ in range(len(streams)):
            self._last_served = (self._last_served + 1) % len(streams)
            stream = streams[self._last_served]
            if stream.feed.has_messages:
                return [stream]
        count = len(streams)
        for step in range(1, count + 1):
            request = self._request_read(streams[(self._last_served + step) % count], want)
            if request is not None:
                return request
        return None

    def _request_read(self, stream: QueueStream, want: int) -> ReadRequest | None:
        request = read_new(self.queues[stream], want if self._single else max(want, READ_MIN))
        if request is not None:
            self._reads += 1
            stream.requested_at = self._reads
        return request

    def on_read(self, stream: QueueStream) -> None:
        """Record that a read of new messages of this stream was answered."""
        self._reads += 1
        if stream.feed.has_messages:
            stream.read_at = self._reads
        else:
            stream.tail_at = stream.requested_at

    def _place_messages(
        self, streams: list[QueueStream], target: QueueStream, enough: int, examined_max: int
    ) -> int:
        """Place messages in order until `target` has enough or a stream runs out; return how many were
        placed."""
        self._begun = True
        ahead = [ReadAhead(stream, self.queues[stream]) for stream in streams]
        before = [len(stream.deliverable) for stream in streams]
        deliverable, placed = target.deliverable, 0
        while placed < examined_max and len(deliverable) < enough:
            if self._single and len(self.table) and not self._may_follow():
                break
            count = 1 if self._single else min(enough - len(deliverable), examined_max - placed)
            rows = merge_rows(ahead, count) if len(ahead) > 1 else rows_alone(ahead[0], count)
            del rows[examined_max - placed :]
            placed_now = place_rows(self.ledger, rows, ahead, deliverable, enough)
            placed += placed_now
            for number in map(itemgetter(1), rows[:placed_now]):
                ahead[number].at += 1
            if any(source.at == source.end for source in ahead):
                break
        for source, had in zip(ahead, before, strict=True):
            source.consume_placed()
            if source.at == source.end:
                self.add_news(source.stream)
            if len(source.ready) > had:
                self.ledger.ready += len(source.ready) - had
                source.queue.wake_up()
        return placed

    def _may_follow(self) -> bool:
        chain = next(iter(self.table))
        return chain.open and 0 < len(chain.heads) < self.table.batch

    # --- rescan of the messages that wait in starving chains

    def _run_rescan(self) -> ReadRequest | None:
        if self._rescan is None:
            self._rescans += 1
            self._rescan = Rescan(self.table, self.queues, self._merged, self._rescans)
        step = self._rescan.read_on(self._examined_max)
        self.short = step.more
        for chain in step.chains:
            self._resume_chain(chain)
        if self._rescan.done:
            self._rescan = None
            for chain in list(self.table.starving.values()):
                self._resume_chain(chain)
            self.short = bool(self.table.starving)
        return step.request

    def _resume_chain(self, chain: Chain) -> None:
        if not chain.heads:
            self._release_spots(chain, list(self.table.release_next(chain)))

    def on_rescan_read(self, request: ReadRequest, batch: ReadBatch) -> None:
        """Accept the page that the rescan requested."""
        if self._rescan is not None and request.queue.stream is not None:
            self._rescan.on_loaded(request.queue.stream, batch)

    def on_rescan_failed(self) -> None:
        """End the rescan after a failed read; `retry` allows the next one."""
        self._rescan = None
        self._rescan_failed = True

    def retry(self) -> None:
        """Allow the failed rescan and the failed request for ends to be repeated."""
        self._rescan_failed = False
        if self._ends_failed:
            self._ends_requested = self._ends_failed = False


class EndsRequest(NamedTuple):
    """A request for the bounds of several queues at once; the caller passes them to the scope's `on_ends`."""

    scope: OrderScope
    queues: Sequence[SubscribedQueue]
    number: int  # of the scope's reads
