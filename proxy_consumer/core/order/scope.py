"""An ordered scope: the queues over which one order key is one chain, read as one stream.

Where the engine has a log position for every message (`merged`), the scope takes the message with the
lowest position next. For that it has to know of every queue either its next message or that it has
none. "None" is old news as soon as another queue was read later: every read gets two numbers, when it
was asked and when it was answered. Where some end was asked for before the other queue's messages were
answered, the ends of all queues that had none are asked for at once (EndsRequest). Elsewhere queues are
taken in turn, and order holds within each queue.

What a message costs does not grow with the queues of the scope: those at their end are *quiet* and not
looked at until something is heard of them; of each topic one lane drives the scope, and others are woken
when something of theirs may be delivered.

Messages taken are placed by OrderAction; those whose key is busy stay behind, unfinished, and are read
again when their chain comes to them. Reading goes on past them, so a blocked key holds up nobody else.

A queue that leaves for a while, or comes with messages when others were placed already, tears the scope:
what was placed knows nothing of what it still has, or had. Nothing goes out any more then, until all queues
are loaded anew, into another scope (groups/ordering.py).

What lies ready for a topic that nobody pulls, or that may not have more now, does not hold up the others:
it is laid aside, which forgets its bytes, and is read again when it is wanted. Its keys stay busy.

Bounds: messages lying ready (`READY_MAX`) and laid aside (`ASIDE_MAX`; beyond it the scope reads no further
until some are taken), the ack span of each queue, and messages looked at in one call (`LOOK_MAX`; `short`
then tells that there is more to do at once).
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.order.lane import OrderedLane
from proxy_consumer.core.order.merge import Part, alone, merged
from proxy_consumer.core.order.order_action import OrderAction
from proxy_consumer.core.order.rescan import Rescan
from proxy_consumer.core.queue_feed import FeedState
from proxy_consumer.core.steps import EndsRequest, ReadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backend.records import Bounds, ReadBatch

READY_MAX = 4_096
NEVER = float("inf")
ASIDE_MAX = 50_000  # some 600 bytes each
LOOK_MAX = 1_024
READ_MIN = 256  # records of one read: reads of several queues go on at the same time


class OrderScope:
    """See the module. `single`: one key for the whole queue (QID), so nothing is read past a busy one."""

    def __init__(
        self,
        table: ChainTable[OrderedLane],
        *,
        merged: bool,
        single: bool = False,
        look_max: int = LOOK_MAX,
    ) -> None:
        self.table = table
        self.action = OrderAction(self.table)
        self.lanes: list[OrderedLane] = []
        self.waiting = 0  # entries in all lanes' deliverable
        self.open = True  # False: not all queues of the scope are there yet
        self.torn = False
        self.returned = False  # what was torn off is here again
        self.short = False
        self.full = False  # nothing more may be laid aside
        self.ready_max = READY_MAX
        self.aside_max = ASIDE_MAX
        self._begun = False  # something was placed
        self._look_max = look_max
        self._merged = merged
        self._single = single
        self._reads = 0
        self._turn = 0
        self._news: dict[OrderedLane, None] = {}  # lanes to be looked at; others are, by their feeds:
        self._some: dict[OrderedLane, None] = {}  # those that have something
        self._blind: dict[OrderedLane, None] = {}  # of which it is not known; the rest is quiet
        self._quiet_at = NEVER  # the quiet ones had nothing when this read was asked for
        self._asking = False  # their ends were asked for
        self._ends_failed = False
        self._idle = False  # nothing can be placed until something is heard
        self._drivers: dict[str, OrderedLane] = {}  # topic → the lane in whose turn the scope reads on
        self.waiting_lanes: list[OrderedLane] = []  # have some, and wait for what is read to have more
        self._rescan: Rescan | None = None
        self._rescan_failed = False
        self._rescans = 0

    # --- lanes

    def add(self, lane: OrderedLane, batch: int, *, empty: bool = True) -> None:
        """A queue takes part from now on; `batch`: its topic's, which others of the scope need not share.

        `empty`: it has nothing unfinished yet.
        """
        if not self.lanes:
            self._begun = self.torn = False
        elif self._begun and not empty:
            self.tear()
        self.returned = self.torn
        self.lanes.append(lane)
        self._drivers.setdefault(lane.state.queue.topic, lane)
        self.hear(lane)
        self.batch(lane, batch)

    def batch(self, lane: OrderedLane, batch: int) -> None:
        """So many consecutive messages of one key in one answer from now on; those out together stay so."""
        self.table.batches[lane] = batch
        if batch > self.table.batch == 1:
            for chain in self.table:
                chain.open = False  # with one message each, nobody noted which of them are in an answer
        self.table.batch = max(self.table.batch, batch)

    def tear(self) -> None:
        """See the module."""
        self.torn = True
        self.open = False

    def drop(self, lane: OrderedLane) -> None:
        """A queue is not ours any more; chains go on without it."""
        self.lanes.remove(lane)
        for known in (self._news, self._some, self._blind):
            known.pop(lane, None)
        topic = lane.state.queue.topic
        if self._drivers.get(topic) is lane:
            del self._drivers[topic]
            other = next((one for one in self.lanes if one.state.queue.topic == topic), None)
            if other is not None:
                self._drivers[topic] = other
        self.table.batches.pop(lane, None)
        self.waiting -= len(lane.deliverable)
        lane.deliverable.clear()
        lane.busy.clear()
        self._rescan = None
        for chain in self.table.drop_lane(lane):
            self._let_out(chain, list(chain.heads))
        self.stir()

    def stir(self) -> None:
        """Something changed that may let the scope read on."""
        self._idle = False
        waiting, self.waiting_lanes = self.waiting_lanes, []
        for lane in (*self._drivers.values(), *waiting):
            lane.wake()

    def set_open(self, is_open: bool) -> None:
        """Whether all queues are there, so that messages may go out."""
        self.open = is_open
        if is_open:
            self._idle = False
            for lane in self.lanes:
                lane.wake()

    def hear(self, lane: OrderedLane) -> None:
        """There may be news of this queue: messages, or room for some."""
        self._news[lane] = None
        self._idle = False

    # --- chains

    def finished(self, chain: Chain[OrderedLane], lane: OrderedLane, offset: int) -> None:
        """A job is done for good."""
        spots = self.table.finish(chain, lane, offset)
        if spots:
            self._let_out(chain, list(spots))
        elif self.table.starving:
            self.stir()

    def _let_out(self, chain: Chain[OrderedLane], spots: list[tuple[OrderedLane, int]]) -> None:
        while spots:
            lane, offset = spots.pop(0)
            jobs = lane.state.jobs
            if jobs.ack_map.is_finished(offset) or jobs.is_burying(offset):
                spots += self.table.finish(chain, lane, offset)
                continue
            lane.busy[offset] = chain
            if offset in jobs.out:
                jobs.out.discard(offset)  # a client has it
                chain.open = False
                continue
            jobs.release(offset)
            if chain.key in self.action.parked_keys:
                jobs.hold(offset)
            lane.wake()

    def given(self, count: int) -> None:
        """So many entries that lay ready are on their way to a client."""
        if self.waiting >= self.ready_max:
            self.stir()
        self.waiting -= count

    # --- reading on

    def advance(self, lane: OrderedLane, want: int) -> ReadRequest | EndsRequest | None:
        """Place messages until `want` more of `lane` may be delivered; or the read that is needed before."""
        self.short = False
        if not self.open:
            return None
        if self.table.starving and not self._rescan_failed and not lane.deliverable:
            request = self._look_back()
            if request is not None or lane.state.jobs.released:
                return request
        looked, enough = 0, len(lane.deliverable) + want
        while len(lane.deliverable) < enough and (self.waiting < self.ready_max or self._lay_aside(lane)):
            if looked >= self._look_max:
                self.short = True
                return None
            chosen = None if self._idle else self._choose(want)
            if chosen is None:
                self._idle = True
                return None
            if not isinstance(chosen, list):
                return chosen
            seen = self._place(chosen, lane, enough, self._look_max - looked)
            if not seen:
                return None
            looked += seen
        return None

    def _lay_aside(self, asking: OrderedLane) -> bool:
        """Make room of what lies ready for other topics; its own topic's is taken by the same clients."""
        topic = asking.state.queue.topic
        others = [lane for lane in self.lanes if lane.state.queue.topic != topic]
        fullest = max(others, key=lambda lane: len(lane.deliverable), default=None)
        if fullest is None or not fullest.deliverable:
            return False
        self.full = sum(lane.state.jobs.released for lane in others) >= self.aside_max
        if not self.full:
            fullest.forget_bytes()
        return not self.full

    def made_room(self) -> None:
        """Something was taken: the scope may read on where it could not."""
        if self.full:
            self.full = False
            self.stir()

    def _choose(self, want: int) -> list[OrderedLane] | ReadRequest | EndsRequest | None:
        """The lanes to merge now; or what has to be read or asked first."""
        if self._merged or len(self.lanes) == 1:
            return self._to_merge(want)
        return self._next_in_turn(want)

    def _to_merge(self, want: int) -> list[OrderedLane] | ReadRequest | EndsRequest | None:
        """All lanes that have something, once it is certain that the others have nothing older."""
        if self._asking:
            return None
        while self._news:
            request = self._look_at(self._news.popitem()[0], want)
            if request is not None:
                return request
        if self._blind or not self._some:
            return None
        if len(self._some) == len(self.lanes):
            self._quiet_at = NEVER
        elif self._quiet_at <= max(lane.read_at for lane in self._some):
            return self._ask_ends()
        return list(self._some)

    def _look_at(self, lane: OrderedLane, want: int) -> ReadRequest | None:
        """Whether a queue has something; or the read that tells."""
        self._some.pop(lane, None)
        self._blind.pop(lane, None)
        feed = lane.state.feed
        if feed.buffered:
            self._some[lane] = None
        elif feed.state is FeedState.TAIL:
            self._quiet_at = min(self._quiet_at, lane.tail_at)
        else:
            self._blind[lane] = None
            return self._ask(lane, want)
        return None

    def _ask_ends(self) -> EndsRequest:
        self._reads += 1
        self._asking = True
        return EndsRequest(self, [lane for lane in self.lanes if lane not in self._some], self._reads)

    def ends(self, request: EndsRequest, found: Sequence[Bounds | None]) -> None:
        """The ends that were asked for; None where a queue is gone, which the next read tells."""
        self._asking = False
        self._quiet_at = request.number
        for lane, bounds in zip(request.lanes, found, strict=True):
            feed = lane.state.feed
            if feed.state is FeedState.TAIL and (bounds is None or bounds.next > feed.cursor):
                feed.state = FeedState.READABLE
                self.hear(lane)
        self.stir()

    def ends_failed(self) -> None:
        """They were not told; `retry` lets them be asked for again."""
        self._ends_failed = True

    def _next_in_turn(self, want: int) -> list[OrderedLane] | ReadRequest | None:
        for _ in range(len(self.lanes)):
            self._turn = (self._turn + 1) % len(self.lanes)
            lane = self.lanes[self._turn]
            if lane.state.feed.buffered:
                return [lane]
        count = len(self.lanes)
        in_turn = (self.lanes[(self._turn + step) % count] for step in range(1, count + 1))
        requests = (self._ask(lane, want) for lane in in_turn)
        return next((request for request in requests if request is not None), None)

    def _ask(self, lane: OrderedLane, want: int) -> ReadRequest | None:
        request = lane.state.read_on(want if self._single else max(want, READ_MIN))
        if request is not None:
            self._reads += 1
            lane.asked_at = self._reads
        return request

    def answered(self, lane: OrderedLane) -> None:
        """A read of new messages of this lane came back."""
        self._reads += 1
        if lane.state.feed.buffered:
            lane.read_at = self._reads
        else:
            lane.tail_at = lane.asked_at

    def _place(self, lanes: list[OrderedLane], asking: OrderedLane, enough: int, look_max: int) -> int:
        """Place messages in order until `asking` has enough or one lane has run out: how many were seen."""
        self._begun = True
        parts = [Part(lane) for lane in lanes]
        before = [len(lane.deliverable) for lane in lanes]
        lying, seen = asking.deliverable, 0
        while seen < look_max and len(lying) < enough:
            if self._single and len(self.table) and not self._may_follow():
                break
            count = 1 if self._single else min(enough - len(lying), look_max - seen)
            rows = merged(parts, count) if len(parts) > 1 else alone(parts[0], count)
            del rows[look_max - seen :]
            placed = self.action.place(rows, parts, lying, enough)
            seen += placed
            for number in map(itemgetter(1), rows[:placed]):
                parts[number].at += 1
            if any(part.at == part.end for part in parts):
                break
        for part, had in zip(parts, before, strict=True):
            part.settle()
            if part.at == part.end:
                self.hear(part.lane)
            if len(part.ready) > had:
                self.waiting += len(part.ready) - had
                part.lane.wake()
        return seen

    def _may_follow(self) -> bool:
        chain = next(iter(self.table))
        return chain.open and 0 < len(chain.heads) < self.table.batch

    # --- looking back for what waits in chains that have run dry

    def _look_back(self) -> ReadRequest | None:
        if self._rescan is None:
            self._rescans += 1
            self._rescan = Rescan(self.table, self._merged, self._rescans)
        request, self.short = self._rescan.advance(self._look_max, self._found)
        if self._rescan.done:
            self._rescan = None
            for chain in list(self.table.starving.values()):
                self._found(chain)
            self.short = bool(self.table.starving)
        return request

    def _found(self, chain: Chain[OrderedLane]) -> None:
        if not chain.heads:
            self._let_out(chain, list(self.table.let_out(chain)))

    def looked_back(self, request: ReadRequest, batch: ReadBatch) -> None:
        """A read of the rescan came back."""
        if self._rescan is not None and request.state.lane is not None:
            self._rescan.loaded(request.state.lane, batch)

    def read_failed(self) -> None:
        """A read of the rescan gave an error; `retry` lets it be tried again."""
        self._rescan = None
        self._rescan_failed = True

    def retry(self) -> None:
        """Try again what failed."""
        self._rescan_failed = False
        if self._ends_failed:
            self._asking = self._ends_failed = False
