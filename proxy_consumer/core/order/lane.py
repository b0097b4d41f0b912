"""One queue of an ordered scope: which of its jobs are out of their chains, and which may be delivered.

A job that is let out stands in `busy` until it is finished. On its first way it lies in `deliverable`
with its bytes; one that waited in its chain is read again (PullBuffer's redelivery).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend.records import ReadBatch
from proxy_consumer.core.order.chains import Chain
from proxy_consumer.core.tally import Counter

if TYPE_CHECKING:
    from proxy_consumer.core.order.scope import OrderScope
    from proxy_consumer.core.steps import QueueState

KeyReader = Callable[[bytes], str | None]


class Entry(NamedTuple):
    """One message to deliver; `chain` None: it has no key. `at` points into `batch`."""

    offset: int
    delivery: bytes
    batch: ReadBatch
    at: int
    chain: Chain[OrderedLane] | None


class OrderedLane:
    """See the module. `tail_at`, `read_at`: numbers of the scope's reads, see scope.py."""

    __slots__ = (
        "asked_at", "busy", "deliverable", "key_of", "read_at", "scope", "state", "tail_at", "unkeyed",
        "wake",
    )  # fmt: skip

    def __init__(
        self,
        scope: OrderScope,
        state: QueueState,
        key_of: KeyReader,
        wake: Callable[[], None],
        unkeyed: Counter,
    ) -> None:
        self.scope = scope
        self.state = state
        self.key_of = key_of
        self.unkeyed = unkeyed
        self.wake = wake  # the queue may have something to deliver
        self.busy: dict[int, Chain[OrderedLane]] = {}
        self.deliverable: deque[Entry] = deque()
        self.asked_at = self.read_at = self.tail_at = 0

    # --- what the queue's jobs tell

    def finished(self, start: int, end: int) -> None:
        """`[start, end)` is finished: their chains go on."""
        busy = self.busy
        if not busy:
            return
        if end - start <= len(busy):
            offsets: Iterable[int] = range(start, end)
        else:
            offsets = sorted(offset for offset in busy if start <= offset < end)
        scope = self.scope
        chains = scope.table.chains
        for offset in offsets:
            chain = busy.pop(offset, None)
            if chain is None:
                continue
            if chain.parked or chain.unindexed or len(chain.heads) > 1:
                scope.finished(chain, self, offset)
            else:
                del chains[chain.key]  # nobody waits: the chain ends here

    def key(self, offset: int) -> str | None:
        """The order key of a job that is out."""
        chain = self.busy.get(offset)
        return None if chain is None else chain.key

    def parked(self, offset: int) -> bool:
        """Whether an operator has set the job's key aside."""
        chain = self.busy.get(offset)
        return chain is not None and chain.key in self.scope.action.parked_keys

    def leads(self, offset: int) -> bool:
        """Whether nothing unfinished stands before this job in its chain."""
        chain = self.busy.get(offset)
        return chain is None or self.scope.table.leads(chain, self, offset)

    def failing(self, offset: int) -> list[int]:
        """A job failed: those that went out with it and stand behind it, last first; nobody joins them."""
        chain = self.busy.get(offset)
        if chain is None:
            return []
        chain.open = False
        return self.scope.table.after(chain, self, offset)[::-1]

    def put_back(self, offset: int) -> None:
        """A job that does not lead waits in its chain again."""
        self._unready(offset)
        self.scope.table.put_back(self.busy.pop(offset), self, offset)

    # --- delivery

    def take(self, count: int, bytes_max: int) -> list[Entry]:
        """Up to `count` entries in order, as many as fit; none when all had to wait for their heads."""
        deliverable, size = self.deliverable, 0
        chosen: list[Entry] = []
        while deliverable and len(chosen) < count:
            size += len(deliverable[0].delivery)
            if chosen and size > bytes_max:
                break
            chosen.append(deliverable.popleft())
        self.scope.given(len(chosen))
        late = self.close([entry.offset for entry in chosen])
        return [entry for entry in chosen if entry.offset not in late] if late else chosen

    def close(self, offsets: list[int]) -> set[int]:
        """These are to go into an answer. Of each chain only a run from its head may: the rest goes back.

        Returns which of `offsets` do not go. What stays behind of their chains goes back too.
        """
        late: set[int] = set()
        if self.scope.table.batch == 1:
            return late
        given = set(offsets)
        for chain in {id(chain): chain for o in offsets if (chain := self.busy.get(o))}.values():
            chain.open = False
            going = 0
            while going < len(chain.heads) and chain.heads[going][1] in given:
                going += 1
            for _, offset in reversed(chain.heads[max(going, 1) :]):
                self.state.jobs.send_back(offset)
                late.add(offset)
        return late & given

    def hold(self, offset: int) -> None:
        """The job's key was set aside; one that a client has is held when it comes back."""
        self._withdraw(offset)
        self.state.jobs.hold(offset)

    def bury(self, offset: int, reason: str) -> None:
        """The job goes to the dead letters, wherever it is; its chain goes on when it is there."""
        self._withdraw(offset)
        self.state.jobs.bury_now(offset, reason)

    def _withdraw(self, offset: int) -> None:
        """Take a job out of what lies ready; it would be read again."""
        if self._unready(offset):
            self.state.jobs.release(offset)

    def _unready(self, offset: int) -> bool:
        left = deque(entry for entry in self.deliverable if entry.offset != offset)
        if len(left) == len(self.deliverable):
            return False
        self.scope.waiting -= 1
        self.deliverable = left
        return True

    def pass_over(self, offsets: Sequence[int]) -> None:
        """These are finished without a lease: those that lie ready are not delivered any more."""
        gone = set(offsets)
        left = deque(entry for entry in self.deliverable if entry.offset not in gone)
        self.scope.given(len(self.deliverable) - len(left))
        self.deliverable = left

    def forget_bytes(self) -> None:
        """Deliver what lies ready by reading it again (a filter changed, or others need the room)."""
        entries, self.deliverable = self.deliverable, deque()
        self.scope.waiting -= len(entries)
        for entry in entries:
            self.state.jobs.release(entry.offset)
