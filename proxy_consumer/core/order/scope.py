"""An ordered scope: the queues over which one order key is one chain, read as one stream.

Where the engine has a log position for every message (`merged`), the scope takes the message with the
lowest position next. For that it has to know of every queue either its next message or that it has
none. "None" is old news as soon as another queue was read later: every read gets two numbers, when it
was asked and when it was answered. Where some end was asked for before the other queue's messages were
answered, the ends of all queues that had none are asked for at once (EndsRequest). Elsewhere queues are
taken in turn, and order holds within each queue.

What a message costs does not grow with the queues of the scope: those at their end are *quiet* and not
looked at until something is heard of them; of each topic one stream drives the scope, and others are woken
when something of theirs may be delivered.

Messages taken are placed by placing.py; those whose key is busy stay behind, unfinished, and are read
again when their chain comes to them. Reading goes on past them, so a blocked key holds up nobody else.

A queue that leaves for a while, or comes with messages when others were placed already, makes the scope
invalid: what was placed knows nothing of what it still has, or had. Nothing goes out any more then, until
all queues are loaded anew, into another scope (groups/ordering.py).

What lies ready for a topic that nobody pulls, or that may not have more now, does not hold up the others:
it is laid aside, which forgets its bytes, and is read again when it is wanted. Its keys stay busy.

Bounds: messages lying ready (`READY_MAX`) and laid aside (`ASIDE_MAX`; beyond it the scope reads no further
until some are taken), the ack span of each queue, and messages looked at in one call (`LOOK_MAX`; `short`
then tells that there is more to do at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from backend.records import Bounds, ReadBatch
from proxy_consumer.core.order.chains import Chain, ChainTable, QueueStream, ScopeLedger
from proxy_consumer.core.order.placing import ReadAhead, merge_rows, place_rows, rows_alone
from proxy_consumer.core.order.rescan import Rescan
from proxy_consumer.core.queue_feed import FeedState
from proxy_consumer.core.steps import ReadRequest, read_new
from proxy_consumer.core.subscribed_queue import SubscribedQueue

ASIDE_MAX = 50_000  # some 600 bytes each
LOOK_MAX = 1_024
READ_MIN = 256  # records of one read: reads of several queues go on at the same time
_NO_READ = 1 << 62  # a number that no read of the scope has


class OrderScope:
    """Its streams. `single`: one key for the whole queue (QID), so nothing is read past a busy one."""

    def __init__(
        self,
        table: ChainTable,
        *,
        merged: bool,
        single: bool = False,
        look_max: int = LOOK_MAX,
    ) -> None:
        self.table = table
        self.ledger = ScopeLedger(table)
        self.queues: dict[QueueStream, SubscribedQueue] = {}
        self.open = True  # False: not all queues of the scope are there yet
        self.invalid = False
        self.returned = False  # what had left is here again
        self.short = False
        self.full = False  # nothing more may be laid aside
        self.aside_max = ASIDE_MAX
        self._begun = False  # something was placed
        self._look_max = look_max
        self._merged = merged
        self._single = single
        self._reads = 0
        self._turn = 0
        self._news: dict[QueueStream, None] = {}  # streams to be looked at; others are, by their feeds:
        self._some: dict[QueueStream, None] = {}  # those that have something
        self._blind: dict[QueueStream, None] = {}  # of which it is not known; the rest is quiet
        self._quiet_at = _NO_READ  # the quiet ones had nothing when this read was asked for
        self._asking = False  # their ends were asked for
        self._ends_failed = False
        self._idle = False  # nothing can be placed until something is heard
        self._drivers: dict[str, QueueStream] = {}  # topic → the stream in whose turn the scope reads on
        self.waiting_streams: list[QueueStream] = []  # have some, and wait for what is read to have more
        self._rescan: Rescan | None = None
        self._rescan_failed = False
        self._rescans = 0

    # --- queues

    def add(self, stream: QueueStream, queue: SubscribedQueue, batch: int, *, empty: bool = True) -> None:
        """A queue takes part from now on; `batch`: its topic's, which others of the scope need not share.

        `empty`: it has nothing unfinished yet.
        """
        if not self.queues:
            self._begun = self.invalid = False
        elif self._begun and not empty:
            self.mark_invalid()
        self.returned = self.invalid
        self.queues[stream] = queue
        self._drivers.setdefault(stream.ref.topic, stream)
        self.note_news(stream)
        self.set_batch(stream, batch)

    def set_batch(self, stream: QueueStream, batch: int) -> None:
        """Allow so many consecutive messages of one key in one answer; those out together stay so."""
        self.table.batches[stream] = batch
        if batch > self.table.batch == 1:
            for chain in self.table:
                chain.open = False  # with one message each, nobody noted which of them are in an answer
        self.table.batch = max(self.table.batch, batch)

    def mark_invalid(self) -> None:
        """A queue left, or came late: nothing goes out until all are loaded anew, into another scope."""
        self.invalid = True
        self.open = False

    def drop_queue(self, stream: QueueStream) -> None:
        """A queue is not ours any more; chains go on without it."""
        self.go_on()
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
            self._let_out(chain, list(chain.heads))
        self.wake_drivers()

    def wake_drivers(self) -> None:
        """Something changed that may let the scope read on."""
        self._idle = False
        waiting, self.waiting_streams = self.waiting_streams, []
        for stream in (*self._drivers.values(), *waiting):
            if stream in self.queues:
                self.queues[stream].wake_up()

    def set_open(self, is_open: bool) -> None:
        """Whether all queues are there, so that messages may go out."""
        self.open = is_open
        if is_open:
            self._idle = False
            for queue in self.queues.values():
                queue.wake_up()

    def note_news(self, stream: QueueStream) -> None:
        """Note that this queue may have messages, or room for some."""
        self._news[stream] = None
        self._idle = False

    # --- chains

    def go_on(self) -> None:
        """Act on what the streams wrote into the ledger: chains that let jobs out, room that was made."""
        ledger = self.ledger
        while ledger.let_out:
            finished, ledger.let_out = ledger.let_out, []
            for chain, spots in finished:
                if spots:
                    self._let_out(chain, spots)
                elif self.table.starving:
                    self.wake_drivers()
        if ledger.made_room:
            ledger.made_room = False
            self.wake_drivers()

    def _let_out(self, chain: Chain, spots: list[tuple[QueueStream, int]]) -> None:
        while spots:
            stream, offset = spots.pop(0)
            queue = self.queues[stream]
            if queue.ack_map.is_finished(offset) or queue.table.is_spent(offset):
                spots += self.table.finish_job(chain, stream, offset)
                continue
            stream.busy[offset] = chain
            if offset in queue.out:
                queue.out.discard(offset)  # a client has it
                chain.open = False
                continue
            if not queue.exhaust_used_up(offset):
                queue.table.release(offset)
                if chain.key in self.ledger.parked_keys:
                    queue.park_unread(offset)
            queue.wake_up()

    # --- reading on

    def read_on(self, stream: QueueStream, want: int) -> ReadRequest | EndsRequest | None:
        """Place messages until `want` more of `stream` may be delivered; or the read needed before."""
        self.short = False
        if not self.open:
            return None
        if self.table.starving and not self._rescan_failed and not stream.deliverable:
            request = self._look_back()
            if request is not None or self.queues[stream].table.released:
                return request
        looked, enough = 0, len(stream.deliverable) + want
        while len(stream.deliverable) < enough and (
            self.ledger.ready < self.ledger.ready_max or self._lay_aside(stream)
        ):
            if looked >= self._look_max:
                self.short = True
                return None
            streams = None if self._idle else self._choose_streams(want)
            if streams is None:
                self._idle = True
                return None
            if not isinstance(streams, list):
                return streams
            placed = self._place_messages(streams, stream, enough, self._look_max - looked)
            if not placed:
                return None
            looked += placed
        return None

    def _lay_aside(self, asking: QueueStream) -> bool:
        """Make room of what lies ready for other topics; its own topic's is taken by the same clients."""
        others = [stream for stream in self.queues if stream.ref.topic != asking.ref.topic]
        fullest = max(others, key=lambda stream: len(stream.deliverable), default=None)
        if fullest is None or not fullest.deliverable:
            return False
        self.full = sum(self.queues[stream].table.released for stream in others) >= self.aside_max
        if not self.full:
            self.queues[fullest].forget_bytes()
        return not self.full

    def made_room(self) -> None:
        """Something was taken: the scope reads on where it was `full`."""
        self.full = False
        self.wake_drivers()

    def _choose_streams(self, want: int) -> list[QueueStream] | ReadRequest | EndsRequest | None:
        """The streams to merge now; or what has to be read or asked first."""
        if self._merged or len(self.queues) == 1:
            return self._to_merge(want)
        return self._next_in_turn(want)

    def _to_merge(self, want: int) -> list[QueueStream] | ReadRequest | EndsRequest | None:
        """All streams that have something, once it is certain that the others have nothing older."""
        if self._asking:
            return None
        while self._news:
            request = self._look_at(self._news.popitem()[0], want)
            if request is not None:
                return request
        if self._blind or not self._some:
            return None
        if len(self._some) == len(self.queues):
            self._quiet_at = _NO_READ
        elif self._quiet_at <= max(stream.read_at for stream in self._some):
            return self._ask_ends()
        return list(self._some)

    def _look_at(self, stream: QueueStream, want: int) -> ReadRequest | None:
        """Whether a queue has something; or the read that tells."""
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

    def _ask_ends(self) -> EndsRequest:
        self._reads += 1
        self._asking = True
        quiet = [queue for stream, queue in self.queues.items() if stream not in self._some]
        return EndsRequest(self, quiet, self._reads)

    def on_ends(self, request: EndsRequest, found: Sequence[Bounds | None]) -> None:
        """The ends that were asked for; None where a queue is gone, which the next read tells."""
        self._asking = False
        self._quiet_at = request.number
        for queue, bounds in zip(request.queues, found, strict=True):
            feed = queue.feed
            if feed.state is FeedState.TAIL and (bounds is None or bounds.next > feed.cursor):
                feed.state = FeedState.READABLE
                if queue.stream is not None:
                    self.note_news(queue.stream)
        self.wake_drivers()

    def on_ends_failed(self) -> None:
        """Note that the ends could not be read; `retry_failed` asks for them again."""
        self._ends_failed = True

    def _next_in_turn(self, want: int) -> list[QueueStream] | ReadRequest | None:
        streams = list(self.queues)
        for _ in range(len(streams)):
            self._turn = (self._turn + 1) % len(streams)
            stream = streams[self._turn]
            if stream.feed.has_messages:
                return [stream]
        count = len(streams)
        for step in range(1, count + 1):
            request = self._request_read(streams[(self._turn + step) % count], want)
            if request is not None:
                return request
        return None

    def _request_read(self, stream: QueueStream, want: int) -> ReadRequest | None:
        request = read_new(self.queues[stream], want if self._single else max(want, READ_MIN))
        if request is not None:
            self._reads += 1
            stream.asked_at = self._reads
        return request

    def on_read(self, stream: QueueStream) -> None:
        """A read of new messages of this stream came back."""
        self._reads += 1
        if stream.feed.has_messages:
            stream.read_at = self._reads
        else:
            stream.tail_at = stream.asked_at

    def _place_messages(
        self, streams: list[QueueStream], asking: QueueStream, enough: int, look_max: int
    ) -> int:
        """Place messages in order until `asking` has enough or one stream has run out: how many were seen."""
        self._begun = True
        ahead = [ReadAhead(stream, self.queues[stream]) for stream in streams]
        before = [len(stream.deliverable) for stream in streams]
        lying, placed = asking.deliverable, 0
        while placed < look_max and len(lying) < enough:
            if self._single and len(self.table) and not self._may_follow():
                break
            count = 1 if self._single else min(enough - len(lying), look_max - placed)
            rows = merge_rows(ahead, count) if len(ahead) > 1 else rows_alone(ahead[0], count)
            del rows[look_max - placed :]
            placed_now = place_rows(self.ledger, rows, ahead, lying, enough)
            placed += placed_now
            for number in map(itemgetter(1), rows[:placed_now]):
                ahead[number].at += 1
            if any(part.at == part.end for part in ahead):
                break
        for part, had in zip(ahead, before, strict=True):
            part.consume_placed()
            if part.at == part.end:
                self.note_news(part.stream)
            if len(part.ready) > had:
                self.ledger.ready += len(part.ready) - had
                part.queue.wake_up()
        return placed

    def _may_follow(self) -> bool:
        chain = next(iter(self.table))
        return chain.open and 0 < len(chain.heads) < self.table.batch

    # --- looking back for what waits in chains that have run dry

    def _look_back(self) -> ReadRequest | None:
        if self._rescan is None:
            self._rescans += 1
            self._rescan = Rescan(self.table, self.queues, self._merged, self._rescans)
        looked = self._rescan.read_on(self._look_max)
        self.short = looked.more
        for chain in looked.chains:
            self._resume_chain(chain)
        if self._rescan.done:
            self._rescan = None
            for chain in list(self.table.starving.values()):
                self._resume_chain(chain)
            self.short = bool(self.table.starving)
        return looked.request

    def _resume_chain(self, chain: Chain) -> None:
        if not chain.heads:
            self._let_out(chain, list(self.table.let_out(chain)))

    def on_rescan_read(self, request: ReadRequest, batch: ReadBatch) -> None:
        """A read of the rescan came back."""
        if self._rescan is not None and request.queue.stream is not None:
            self._rescan.on_loaded(request.queue.stream, batch)

    def on_rescan_failed(self) -> None:
        """A read of the rescan gave an error; `retry` lets it be tried again."""
        self._rescan = None
        self._rescan_failed = True

    def retry(self) -> None:
        """Try again what failed."""
        self._rescan_failed = False
        if self._ends_failed:
            self._asking = self._ends_failed = False


class EndsRequest(NamedTuple):
    """The shell asks for the bounds of these queues, all at once, and calls the scope's `on_ends`."""

    scope: OrderScope
    queues: Sequence[SubscribedQueue]
    number: int  # of the scope's reads
