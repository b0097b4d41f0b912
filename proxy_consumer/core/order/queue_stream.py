"""One queue of an ordered scope: which of its jobs are out of their chains, and which may be delivered.

A job that is let out stands in `busy` until it is finished. On its first way it lies in `deliverable`
with its bytes; one that waited in its chain is read again (core/arrivals.py).

A stream knows the chains of its scope and nothing above it. What a finished job lets out, perhaps in another
queue, it writes into the ledger that all streams of the scope share; OrderScope.go_on acts on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from backend.records import QueueRef, ReadBatch
from proxy_consumer.core.order.chains import Chain, ChainTable
from proxy_consumer.core.queue_feed import QueueFeed
from proxy_consumer.core.tally import Counter

KeyReader = Callable[[bytes], str | None]
READY_MAX = 4_096


class ReadyMessage(NamedTuple):
    """One message to deliver; `chain` None: it has no key. `at` points into `batch`."""

    offset: int
    delivery: bytes
    batch: ReadBatch
    at: int
    chain: Chain[QueueStream] | None


class ScopeLedger:
    """What the streams of one scope have in common.

    `parked_keys`: set aside by an operator. `ready`: messages that lie ready, over all streams, of which
    there may be `ready_max`. `let_out` and `made_room` tell the scope what to act on.
    """

    __slots__ = ("let_out", "made_room", "parked_keys", "ready", "ready_max", "table")

    def __init__(self, table: ChainTable[QueueStream]) -> None:
        self.table = table
        self.parked_keys: frozenset[str] = frozenset()
        self.ready = 0
        self.ready_max = READY_MAX
        self.let_out: list[tuple[Chain[QueueStream], list[tuple[QueueStream, int]]]] = []
        self.made_room = False

    def taken(self, count: int) -> None:
        """So many messages do not lie ready any more."""
        self.made_room |= self.ready >= self.ready_max
        self.ready -= count


class QueueStream:
    """One queue's place in its scope. `tail_at`, `read_at`, `asked_at`: numbers of the scope's reads.

    `faulty`: offsets read that a filter refused with a fault.
    """

    __slots__ = (
        "asked_at", "busy", "deliverable", "faulty", "feed", "key_of", "ledger", "queue", "read_at",
        "tail_at", "unkeyed",
    )  # fmt: skip

    def __init__(
        self, ledger: ScopeLedger, queue: QueueRef, feed: QueueFeed, key_of: KeyReader, unkeyed: Counter
    ) -> None:
        self.ledger = ledger
        self.queue = queue
        self.feed = feed
        self.key_of = key_of
        self.unkeyed = unkeyed
        self.faulty: set[int] = set()
        self.busy: dict[int, Chain[QueueStream]] = {}
        self.deliverable: deque[ReadyMessage] = deque()
        self.asked_at = self.read_at = self.tail_at = 0

    # --- what the queue's jobs tell and ask

    def finished(self, start: int, end: int) -> None:
        """`[start, end)` is finished: their chains go on."""
        busy = self.busy
        if not busy:
            return
        if end - start <= len(busy):
            offsets: Iterable[int] = range(start, end)
        else:
            offsets = sorted(offset for offset in busy if start <= offset < end)
        ledger = self.ledger
        chains = ledger.table.chains
        for offset in offsets:
            chain = busy.pop(offset, None)
            if chain is None:
                continue
            if chain.kept or chain.unindexed or len(chain.heads) > 1:
                ledger.let_out.append((chain, list(ledger.table.finish(chain, self, offset))))
            else:
                del chains[chain.key]  # nobody waits: the chain ends here

    def key(self, offset: int) -> str | None:
        """The order key of a job that is out."""
        chain = self.busy.get(offset)
        return None if chain is None else chain.key

    def parked(self, offset: int) -> bool:
        """Whether an operator has set the job's key aside."""
        chain = self.busy.get(offset)
        return chain is not None and chain.key in self.ledger.parked_keys

    def leads(self, offset: int) -> bool:
        """Whether nothing unfinished stands before this job in its chain."""
        chain = self.busy.get(offset)
        return chain is None or self.ledger.table.leads(chain, self, offset)

    def failing(self, offset: int) -> list[int]:
        """A job failed: those that went out with it and stand behind it, last first; nobody joins them."""
        chain = self.busy.get(offset)
        if chain is None:
            return []
        chain.open = False
        return self.ledger.table.after(chain, self, offset)[::-1]

    def put_back(self, offset: int) -> None:
        """A job that does not lead waits in its chain again."""
        self.unready(offset)
        self.ledger.table.put_back(self.busy.pop(offset), self, offset)

    def pass_over(self, offsets: Sequence[int]) -> None:
        """These are finished without a lease: those that lie ready are not delivered any more."""
        gone = set(offsets)
        left = deque(message for message in self.deliverable if message.offset not in gone)
        self.ledger.taken(len(self.deliverable) - len(left))
        self.deliverable = left

    # --- delivery

    def take(self, count: int, bytes_max: int) -> list[ReadyMessage]:
        """Up to `count` messages in order, as many as fit; `close` says which of them may go."""
        deliverable, size = self.deliverable, 0
        chosen: list[ReadyMessage] = []
        while deliverable and len(chosen) < count:
            size += len(deliverable[0].delivery)
            if chosen and size > bytes_max:
                break
            chosen.append(deliverable.popleft())
        self.ledger.taken(len(chosen))
        return chosen

    def close(self, offsets: Sequence[int]) -> list[int]:
        """These are to go into an answer. Of each chain only a run from its head may.

        Returns the others of those chains that are out, last first in each: they have to go back.
        """
        behind: list[int] = []
        if self.ledger.table.batch == 1:
            return behind
        given = set(offsets)
        for chain in {id(chain): chain for o in offsets if (chain := self.busy.get(o))}.values():
            chain.open = False
            going = 0
            while going < len(chain.heads) and chain.heads[going][1] in given:
                going += 1
            behind += [offset for _, offset in reversed(chain.heads[max(going, 1) :])]
        return behind

    def unready(self, offset: int) -> bool:
        """Take a job out of what lies ready; False when it did not."""
        left = deque(message for message in self.deliverable if message.offset != offset)
        if len(left) == len(self.deliverable):
            return False
        self.ledger.ready -= 1
        self.deliverable = left
        return True

    def unready_all(self) -> list[int]:
        """Take everything out of what lies ready: its offsets."""
        messages, self.deliverable = self.deliverable, deque()
        self.ledger.ready -= len(messages)
        return [message.offset for message in messages]
