"""OrderAction: where a message that was read goes, into an answer or into its chain to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from backend.records import ReadBatch
from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.order.lane import Entry, OrderedLane

if TYPE_CHECKING:
    from proxy_consumer.core.order.merge import Part, Row


class OrderAction:
    """Places messages in the order of the scope, as merge.py brings them.

    `parked_keys`: keys that an operator has set aside; their heads are held. Messages without a
    key are counted and delivered without order.
    """

    __slots__ = ("_table", "parked_keys")

    def __init__(self, table: ChainTable[OrderedLane]) -> None:
        self._table = table
        self.parked_keys: frozenset[str] = frozenset()

    def place(self, rows: Iterable[Row], parts: Sequence[Part], lying: deque[Entry], enough: int) -> int:
        """Place rows in their order, until `enough` are `lying` ready: how many were placed.

        Most messages have a key that is free; for them this loop is all there is.
        """
        table, chains, parked, seen = self._table, self._table.chains, self.parked_keys, 0
        entry = tuple.__new__
        for _, number, offset, delivery, index in rows:
            part = parts[number]
            seen += 1
            key = part.key_of(delivery)
            if parked or part.faulty or part.out or key is None:
                self._place(part.lane, offset, delivery, part.batch, index, key)
            elif key not in chains:
                part.busy[offset] = chain = chains[key] = Chain(key, part.lane, offset)
                part.ready.append(entry(Entry, (offset, delivery, part.batch, index, chain)))
            elif (found := table.arrive(key, part.lane, offset)) is not None:
                part.busy[offset] = found
                part.ready.append(entry(Entry, (offset, delivery, part.batch, index, found)))
            if len(lying) >= enough:
                break
        return seen

    def _place(
        self, lane: OrderedLane, offset: int, delivery: bytes, batch: ReadBatch, index: int, key: str | None
    ) -> None:
        """One message, with all that may be out of the ordinary about it."""
        chain, faulty = None, offset in lane.state.faulty
        lane.state.faulty.discard(offset)  # whoever waits is judged again when its turn comes
        if key is None:
            lane.unkeyed.value += 1
        else:
            chain = self._table.arrive(key, lane, offset)
            if chain is None:
                return
            lane.busy[offset] = chain
            if offset in lane.state.jobs.out:
                lane.state.jobs.out.discard(offset)  # a client has it
                chain.open = False
                return
            if key in self.parked_keys:
                lane.state.jobs.hold(offset)
                return
        if offset in lane.state.jobs.out:
            lane.state.jobs.out.discard(offset)
            return
        if faulty:
            lane.state.jobs.release(offset)  # read again, judged again, and failed there
            return
        lane.deliverable.append(Entry(offset, delivery, batch, index, chain))
