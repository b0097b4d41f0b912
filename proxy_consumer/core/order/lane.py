"""One queue of an ordered scope: which of its jobs are out of their chains, and which may be delivered.

A job that is let out stands in `busy` until it is finished. On its first way it lies in `deliverable`
with its bytes; one that waited in its chain is read again (PullBuffer's redelivery).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from backend.records import ReadBatch
from proxy_consumer.core.order.chains import Chain

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
        "asked_at", "busy", "deliverable", "key_of", "read_at", "scope", "state", "tail_at", "wake",
    )  # fmt: skip

    def __init__(
        self, scope: OrderScope, state: QueueState, key_of: KeyReader, wake: Callable[[], None]
    ) -> None:
        self.scope = scope
        self.state = state
        self.key_of = key_of
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
        for offset in offsets:
            chain = busy.pop(offset, None)
            if chain is not None:
                self.scope.finished(chain, self, offset)

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

    def followers(self, offset: int) -> list[int]:
        """Jobs that went out with this one and stand behind it, last first."""
        chain = self.busy.get(offset)
        if chain is None or len(chain.heads) < 2:
            return []
        return self.scope.table.after(chain, self, offset)[::-1]

    def put_back(self, offset: int) -> None:
        """A job that does not lead waits in its chain again."""
        self.scope.table.put_back(self.busy.pop(offset), self, offset)

    # --- delivery

    def take(self, count: int, bytes_max: int) -> list[Entry]:
        """Up to `count` entries in order, at least one; followers left behind go back into their chains."""
        deliverable, size = self.deliverable, 0
        chosen: list[Entry] = []
        while deliverable and len(chosen) < count:
            size += len(deliverable[0].delivery)
            if chosen and size > bytes_max:
                break
            chosen.append(deliverable.popleft())
        self.scope.given(len(chosen))
        self.close(entry.chain for entry in chosen)
        return chosen

    def close(self, chains: Iterable[Chain[OrderedLane] | None]) -> None:
        """These chains' heads are in an answer now; those of them that are still here did not fit."""
        if self.scope.table.batch == 1:
            return
        closed = set()
        for chain in chains:
            if chain is not None:
                chain.open = False
                closed.add(id(chain))
        left = [entry for entry in self.deliverable if id(entry.chain) in closed]
        for entry in reversed(left):
            self.deliverable.remove(entry)
            self.scope.waiting -= 1
            self.put_back(entry.offset)

    def close_offsets(self, offsets: Iterable[int]) -> None:
        """The same for jobs that were read again; followers that wait to be read go back too."""
        if self.scope.table.batch == 1:
            return
        given = set(offsets)
        for offset in given:
            chain = self.busy.get(offset)
            if chain is None or not chain.open:
                continue
            chain.open = False
            for lane, other in reversed(list(chain.heads)):
                if lane is self and other not in given:
                    self.state.jobs.send_back(other)

    def hold(self, offset: int) -> None:
        """The job's key was set aside; one that a client has is held when it comes back."""
        self._withdraw(offset)
        self.state.jobs.hold(offset)

    def bury(self, offset: int, reason: str) -> None:
        """The job goes to the dead letters, wherever it is; its chain goes on when it is there."""
        self._withdraw(offset)
        self.state.jobs.bury_now(offset, reason)

    def _withdraw(self, offset: int) -> None:
        """Take a job out of what lies ready."""
        left = deque(entry for entry in self.deliverable if entry.offset != offset)
        if len(left) < len(self.deliverable):
            self.scope.waiting -= 1
            self.deliverable = left
            self.state.jobs.release(offset)

    def forget_bytes(self) -> None:
        """Deliver what lies ready by reading it again (a filter changed)."""
        entries, self.deliverable = self.deliverable, deque()
        self.scope.waiting -= len(entries)
        for entry in entries:
            self.state.jobs.release(entry.offset)
