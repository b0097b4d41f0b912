"""A rescan: reading again, in order, what waits behind busy keys, to fill chains that have run dry.

It starts at the lowest offset at which one of the starving chains may have a job and goes on until each
of them is full again or the end is reached, where the end is how far the scope had come when it started.
On the way it fills every other chain for which it has missed nothing, so that many keys let go at once
cost one pass and not one each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backend.records import ReadBatch, ReadStatus
from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.order.lane import OrderedLane
from proxy_consumer.core.ranges import Range
from proxy_consumer.core.steps import Purpose, ReadRequest

READ_COUNT = 128
READ_BYTES = 1 << 20


class _Page(NamedTuple):
    batch: ReadBatch
    at: int


class Rescan:
    """One pass. `done`: it has nothing left to do."""

    def __init__(self, table: ChainTable[OrderedLane], merged: bool, number: int) -> None:
        """`number` tells this pass from all others of the table, from 1."""
        self._table = table
        self._number = number
        self._merged = merged
        self._starts: dict[OrderedLane, int] = {}
        for chain in table.starving.values():
            for lane, offset in chain.unindexed.items():
                self._starts[lane] = min(offset, self._starts.get(lane, offset))
        self._ends = {lane: lane.state.feed.next_offset() for lane in self._starts}
        self._cursors = dict(self._starts)
        self._pages: dict[OrderedLane, _Page] = {}
        self._goal = set(table.starving)
        self._reading = False
        self._eligible: dict[str, bool] = {}
        self.done = False

    def advance(
        self, look_max: int, found: Callable[[Chain[OrderedLane]], None]
    ) -> tuple[ReadRequest | None, bool]:
        """Look at up to `look_max` messages; a read that is needed, and whether there is more to do at once.

        `found` is called for every chain that got a job.
        """
        looked = 0
        while not self.done and not self._reading:
            if not self._goal:
                self.done = True
                break
            lane = self._next_lane()
            if lane is None:
                self._complete()
                break
            if lane not in self._pages:
                request = self._ask(lane)
                if request is not None:
                    return request, False
                continue
            if looked >= look_max:
                return None, True
            looked += 1
            self._look(lane, found)
        return None, False

    def _next_lane(self) -> OrderedLane | None:
        """The lane with the lowest position, or one whose position has to be read first."""
        best: OrderedLane | None = None
        lowest = 0
        for lane, cursor in self._cursors.items():
            if cursor >= self._ends[lane]:
                continue
            page = self._pages.get(lane)
            if page is None or not self._merged:
                return lane
            position = page.batch.positions[page.at]
            if best is None or position < lowest:
                best, lowest = lane, position
        return best

    def _ask(self, lane: OrderedLane) -> ReadRequest | None:
        cursor, end = self._cursors[lane], self._ends[lane]
        start = lane.state.jobs.ack_map.unfinished_from(cursor, 1)[0][0]
        if start >= end:
            self._cursors[lane] = end
            return None
        self._cursors[lane] = start
        self._reading = True
        count = min(READ_COUNT, end - start)
        return ReadRequest(lane.state, start, count, READ_BYTES, Purpose.LOOK_BACK)

    def loaded(self, lane: OrderedLane, batch: ReadBatch) -> None:
        """What was asked for."""
        self._reading = False
        if lane not in self._cursors:
            return
        if batch.status is ReadStatus.DATA and batch.offsets:
            self._pages[lane] = _Page(batch, 0)
            self._cursors[lane] = batch.offsets[0]
        elif batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            self._cursors[lane] = max(batch.bounds.min, self._cursors[lane] + 1)
            self._expire(lane, batch.bounds.min)
        else:
            self._cursors[lane] = max(batch.next_offset, self._cursors[lane] + 1)

    def _expire(self, lane: OrderedLane, first: int) -> None:
        """Retention took what waited below `first`."""
        jobs = lane.state.jobs
        gone: list[Range] = []
        for start, end in jobs.ack_map.unfinished_from(self._starts[lane], 1_000_000):
            if start >= first:
                break
            gone.append((start, min(end, first)))
        jobs.expire_ranges(gone)

    def _look(self, lane: OrderedLane, found: Callable[[Chain[OrderedLane]], None]) -> None:
        batch, at = self._pages[lane]
        offset = batch.offsets[at]
        if at + 1 < len(batch.offsets):
            self._pages[lane] = _Page(batch, at + 1)
            self._cursors[lane] = batch.offsets[at + 1]
        else:
            del self._pages[lane]
            self._cursors[lane] = batch.next_offset
        if offset >= self._ends[lane] or offset in lane.busy or lane.state.jobs.ack_map.is_finished(offset):
            return
        key = lane.key_of(batch.deliveries[at])
        chain = None if key is None else self._table.get(key)
        if chain is None or not self._covers(chain):
            return
        self._table.index(chain, lane, offset, self._number)
        if chain.mark == self._number:
            self._goal.discard(chain.key)
        found(chain)

    def _covers(self, chain: Chain[OrderedLane]) -> bool:
        """Whether this pass has missed none of the chain's jobs."""
        known = self._eligible.get(chain.key)
        if known is None:
            starts = self._starts
            known = all(lane in starts and starts[lane] <= at for lane, at in chain.unindexed.items())
            self._eligible[chain.key] = known
        return known

    def _complete(self) -> None:
        """Everything up to the ends was seen."""
        self.done = True
        for chain in self._table:
            if chain.unindexed and self._covers(chain):
                for lane, end in self._ends.items():
                    self._table.scanned(chain, lane, end, lane.state.feed.next_offset(), self._number)
