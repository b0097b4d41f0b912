"""OrderAction: where a message that was read goes, into an answer or into its chain to wait."""

from __future__ import annotations

from backend.records import ReadBatch
from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.order.lane import Entry, OrderedLane
from proxy_consumer.core.tally import Counter


class OrderAction:
    """Places messages one by one, in the order of the scope.

    `parked_keys`: keys that an operator has set aside; their heads are held. `unkeyed` counts messages
    without a key: they are delivered without order.
    """

    __slots__ = ("_table", "_unkeyed", "parked_keys")

    def __init__(self, table: ChainTable[OrderedLane], unkeyed: Counter) -> None:
        self._table = table
        self._unkeyed = unkeyed
        self.parked_keys: frozenset[str] = frozenset()

    def place(self, lane: OrderedLane, offset: int, delivery: bytes, batch: ReadBatch, index: int) -> bool:
        """True when the message may be delivered now, False when it waits."""
        key = lane.key_of(delivery)
        chain = None
        if key is None:
            self._unkeyed.value += 1
        else:
            chains = self._table.chains
            if key not in chains:
                chain = chains[key] = Chain(key, lane, offset)
            else:
                chain = self._table.arrive(key, lane, offset)
                if chain is None:
                    return False
            lane.busy[offset] = chain
            if self.parked_keys and key in self.parked_keys:
                lane.state.jobs.hold(offset)
                return False
        if lane.state.faulty and offset in lane.state.faulty:
            lane.state.faulty.discard(offset)
            lane.state.jobs.release(offset)  # read again, judged again, and failed there
            return False
        lane.deliverable.append(Entry(offset, delivery, batch, index, chain))
        return True
