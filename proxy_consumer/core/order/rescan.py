"""A rescan reads the messages that wait behind busy keys again, in order, to refill chains that have run dry.

It starts at the lowest offset at which a starving chain may have a job, and continues until each of them is
full again or the end is reached: the offset that the scope had reached when the rescan started. On the way it
fills every other chain of which it has missed no job, so that many keys released at once cost one pass and
not one pass each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.records import ReadBatch, ReadStatus
from proxy_consumer.core.order.chains import Chain, ChainTable, QueueStream
from proxy_consumer.core.steps import Purpose, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue

READ_COUNT = 128
READ_BYTES = 1 << 20


class _Page(NamedTuple):
    batch: ReadBatch
    at: int


class RescanStep(NamedTuple):
    """The result of one step: chains that got a job, a read that is needed, and whether the next step can run
    at once."""

    chains: list[Chain]
    request: ReadRequest | None
    more: bool


class Rescan:
    """One pass over the streams of a scope. `done`: the pass has ended."""

    def __init__(
        self,
        table: ChainTable,
        queues: Mapping[QueueStream, SubscribedQueue],
        merged: bool,
        number: int,
    ) -> None:
        """Start a pass over the unindexed messages of all starving chains in `table`.

        `number` (from 1) distinguishes this pass from all others of the table.
        """
        self._table = table
        self._queues = queues
        self._number = number
        self._merged = merged
        self._starts: dict[QueueStream, int] = {}
        for chain in table.starving.values():
            for stream, offset in chain.unindexed.items():
                self._starts[stream] = min(offset, self._starts.get(stream, offset))
        self._ends = {stream: stream.feed.next_offset() for stream in self._starts}
        self._cursors = dict(self._starts)
        self._pages: dict[QueueStream, _Page] = {}
        self._goal = set(table.starving)
        self._reading = False
        self._eligible: dict[str, bool] = {}
        self.done = False

    def read_on(self, examined_max: int) -> RescanStep:
        """Examine up to `examined_max` messages."""
        chains: list[Chain] = []
        examined = 0
        while not self.done and not self._reading:
            if not self._goal:
                self.done = True
                break
            stream = self._next_stream()
            if stream is None:
                self._finish_pass()
                break
            if stream not in self._pages:
                request = self._request_page(stream)
                if request is not None:
                    return RescanStep(chains, request, False)
                continue
            if examined >= examined_max:
                return RescanStep(chains, None, True)
            examined += 1
            chains += self._examine_next(stream)
        return RescanStep(chains, None, False)

    def _next_stream(self) -> QueueStream | None:
        """Return the stream with the lowest log position, or one whose position must be read first; None at
        the end."""
        best: QueueStream | None = None
        lowest = 0
        for stream, cursor in self._cursors.items():
            if cursor >= self._ends[stream]:
                continue
            page = self._pages.get(stream)
            if page is None or not self._merged:
                return stream
            position = page.batch.positions[page.at]
            if best is None or position < lowest:
                best, lowest = stream, position
        return best

    def _request_page(self, stream: QueueStream) -> ReadRequest | None:
        cursor, end = self._cursors[stream], self._ends[stream]
        start = self._queues[stream].ack_map.unfinished_from(cursor, 1)[0][0]
        if start >= end:
            self._cursors[stream] = end
            return None
        self._cursors[stream] = start
        self._reading = True
        count = min(READ_COUNT, end - start)
        return ReadRequest(self._queues[stream], start, count, READ_BYTES, Purpose.RESCAN)

    def on_loaded(self, stream: QueueStream, batch: ReadBatch) -> None:
        """Accept the page that was read for `stream`."""
        self._reading = False
        if stream not in self._cursors:
            return
        if batch.status is ReadStatus.DATA and batch.offsets:
            self._pages[stream] = _Page(batch, 0)
            self._cursors[stream] = batch.offsets[0]
        elif batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            self._cursors[stream] = max(batch.bounds.min, self._cursors[stream] + 1)
            self._queues[stream].expire_below(batch.bounds.min, self._starts[stream])
        else:
            self._cursors[stream] = max(batch.next_offset, self._cursors[stream] + 1)

    def _examine_next(self, stream: QueueStream) -> list[Chain]:
        """Examine the next message of a stream; return the chain that it was added to, as a list of at most
        one."""
        batch, at = self._pages[stream]
        offset = batch.offsets[at]
        if at + 1 < len(batch.offsets):
            self._pages[stream] = _Page(batch, at + 1)
            self._cursors[stream] = batch.offsets[at + 1]
        else:
            del self._pages[stream]
            self._cursors[stream] = batch.next_offset
        if (
            offset >= self._ends[stream]
            or offset in stream.busy
            or self._queues[stream].ack_map.is_finished(offset)
        ):
            return []
        key = stream.key_of(batch.deliveries[at])
        chain = None if key is None else self._table.get(key)
        if chain is None or not self._covers_chain(chain):
            return []
        self._table.index_rescanned(chain, stream, offset, self._number)
        queue = self._queues[stream]
        if chain.indexed and chain.indexed[-1] == (stream, offset) and not queue.plan.filtered:
            queue.cached.cache_message(queue.reread, offset, batch, at)
        if chain.mark == self._number:
            self._goal.discard(chain.key)
        return [chain]

    def _covers_chain(self, chain: Chain) -> bool:
        """Whether this pass has missed none of the chain's jobs."""
        is_eligible = self._eligible.get(chain.key)
        if is_eligible is None:
            starts = self._starts
            is_eligible = all(
                stream in starts and starts[stream] <= at for stream, at in chain.unindexed.items()
            )
            self._eligible[chain.key] = is_eligible
        return is_eligible

    def _finish_pass(self) -> None:
        """End the pass after everything up to the ends was read."""
        self.done = True
        for chain in self._table:
            if chain.unindexed and self._covers_chain(chain):
                for stream, end in self._ends.items():
                    self._table.on_scanned(chain, stream, end, stream.feed.next_offset(), self._number)
