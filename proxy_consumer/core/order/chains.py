"""Chains: jobs with the same order key form a chain, and only its head is released for delivery.

A *stream* is one queue of the scope; a *spot* is (stream, offset). Spots arrive in the order in which they
are to be finished. The first spot of a key is released at once, each later one when the one before is
finished *durably*. From its acknowledgement until the commit of that, a spot is *unstored* and stays among
the heads of its chain: so no crash can bring a message back after a later one of its key. Up to `batch` spots
may be released together, into one reply, if they are consecutive in their chain and in one stream.

A chain lists a few of its waiting spots in `indexed`. It forgets further ones: it only records, per stream,
the offset from which on there may be some (`unindexed`). When `indexed` is empty, the chain is *starving*
until a rescan (rescan.py) reads them. All spots in `unindexed` come after all spots in `indexed`. So memory
is bounded by the number of busy keys, however many messages wait behind them. Chains are identified by the
key itself, not by its hash. The table knows nothing of leases, retries, commits or time.

A released job is in its stream's `busy` until it is durably finished. On its first delivery it is in
`deliverable` with its bytes; a job that waited in its chain is read again (core/arrivals.py). A stream knows
the chains of its scope and nothing above it. When a finished job releases others, perhaps in another queue,
the stream writes them into the ledger that all streams of the scope share; OrderScope acts on the ledger.

A message that another owner of its queue, or this one before a restart, had delivered may be acknowledged
before it was placed here, or fail for good. Its key is not known then. So the scope places nothing
(`unplaced`) until its end is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from backend.records import QueueRef, ReadBatch
from proxy_consumer.core.queue_feed import QueueFeed
from proxy_consumer.core.tally import Counter

INDEXED_PER_CHAIN = 16
INDEXED_TOTAL = 100_000
_NO_SPOTS: list[Any] = []
_NOWHERE: dict[Any, int] = {}
_NOT_FAILING = (0.0, None, 0)


class Chain:
    """The messages with one order key that are not finished yet, of which only the first are released for
    delivery.

    `heads`: the released messages that are not durably finished, as (stream, offset), in order.
    """

    __slots__ = ("heads", "indexed", "key", "mark", "open", "unindexed")

    def __init__(self, key: str, stream: QueueStream, offset: int) -> None:
        self.key = key
        self.heads: list[tuple[QueueStream, int]] = [(stream, offset)]
        self.open = True  # no reply holds the heads yet: followers may join them
        self.indexed: list[tuple[QueueStream, int]] = (
            _NO_SPOTS  # both are shared objects while empty: most keys never wait
        )
        self.unindexed: dict[QueueStream, int] = _NOWHERE
        self.mark = 0  # number of the last rescan that left one of its spots unindexed

    @property
    def head(self) -> tuple[QueueStream, int] | None:
        """The first unfinished head; if all are finished, the first one; None without heads."""
        for spot in self.heads:
            stream, offset = spot
            if offset not in stream.unstored:
                return spot
        return self.heads[0] if self.heads else None

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait, or may wait, behind the heads."""
        return bool(self.indexed or self.unindexed)


class ChainTable:
    """The chains of all order keys in one scope: the queues within which order by key holds.

    The fast path accesses `chains`, by key, directly.
    """

    def __init__(
        self, batch: int = 1, indexed_per_chain: int = INDEXED_PER_CHAIN, indexed_total: int = INDEXED_TOTAL
    ) -> None:
        self.batch = batch  # the default batch size, the largest of all streams
        self.batches: dict[QueueStream, int] = {}  # streams with their own batch size
        self.indexed = 0  # spots, over all chains
        self.starving: dict[str, Chain] = {}
        # with the key's first failure after its last acknowledgement: monotonic seconds, message
        self.failing: dict[Chain, tuple[float, QueueStream, int]] = {}
        self.chains: dict[str, Chain] = {}
        self._indexed_per_chain = indexed_per_chain
        self._indexed_total = indexed_total

    def __len__(self) -> int:
        return len(self.chains)

    def __iter__(self) -> Iterator[Chain]:
        return iter(self.chains.values())

    def get(self, key: str) -> Chain | None:
        """Return the chain of a busy key, or None."""
        return self.chains.get(key)

    def failing_heads(self) -> Iterator[tuple[QueueStream, float]]:
        """Yield the stream of each failing key's first unfinished message, and the monotonic seconds since
        when the key has been failing."""
        for chain, (since, _, _) in self.failing.items():
            head = chain.head
            if head is not None:
                yield head[0], since

    def add_arrival(self, key: str, stream: QueueStream, offset: int) -> Chain | None:
        """Add the next job of `key`; return its chain if the job is released now, None if it has to wait."""
        chain = self.chains.get(key)
        if chain is None:
            chain = self.chains[key] = Chain(key, stream, offset)
            return chain
        if self.batch > 1 and self._may_follow(chain, stream):
            chain.heads.append((stream, offset))
            return chain
        if chain.unindexed or not self._has_capacity(chain):
            chain.unindexed = {stream: offset} | chain.unindexed
        else:
            self._add_indexed(chain, stream, offset)
        return None

    def _may_follow(self, chain: Chain, stream: QueueStream) -> bool:
        heads = chain.heads
        most = self.batches.get(stream, self.batch)
        return chain.open and 0 < len(heads) < most and heads[0][0] is stream and not chain.has_waiting

    def _has_capacity(self, chain: Chain) -> bool:
        return len(chain.indexed) < self._indexed_per_chain and self.indexed < self._indexed_total

    def _add_indexed(self, chain: Chain, stream: QueueStream, offset: int) -> None:
        if chain.indexed:
            chain.indexed.append((stream, offset))
        else:
            chain.indexed = [(stream, offset)]
        self.indexed += 1

    def finish_job(self, chain: Chain, stream: QueueStream, offset: int) -> Iterable[tuple[QueueStream, int]]:
        """Remove a finished head from its chain; return the messages that this releases (the new heads)."""
        heads = chain.heads
        if len(heads) > 1:
            heads.remove((stream, offset))
            return ()
        heads.clear()
        return self.release_next(chain)

    def release_next(self, chain: Chain) -> Iterable[tuple[QueueStream, int]]:
        """Release and return the next messages of a chain without heads.

        A chain without cached waiting messages starves if more may be unindexed, and otherwise ends.
        """
        waiting = chain.indexed
        if waiting:
            stream, count = waiting[0][0], 1
            most = self.batches.get(stream, self.batch)
            while count < most and count < len(waiting) and waiting[count][0] is stream:
                count += 1
            chain.heads = waiting[:count]
            chain.open = True
            del waiting[:count]
            self.indexed -= count
            self.starving.pop(chain.key, None)
            return chain.heads
        if chain.unindexed:
            self.starving[chain.key] = chain
        elif self.chains.get(chain.key) is chain:
            del self.chains[chain.key]
            self.starving.pop(chain.key, None)
            self.failing.pop(chain, None)
        return ()

    def put_back(self, chain: Chain, stream: QueueStream, offset: int) -> None:
        """Return a released job to its old position among the waiting jobs of its chain."""
        chain.heads.remove((stream, offset))
        at, waiting = 0, chain.indexed
        while at < len(waiting) and waiting[at][0] is stream and waiting[at][1] < offset:
            at += 1
        chain.indexed = [*waiting[:at], (stream, offset), *waiting[at:]]
        self.indexed += 1

    # --- for the rescan

    def index_rescanned(self, chain: Chain, stream: QueueStream, offset: int, scan: int) -> None:
        """Index a waiting job that the rescan `scan` read, or leave it and all later ones for the next
        rescan."""
        if chain.unindexed.get(stream, offset + 1) > offset or chain.mark == scan:
            return
        if self._has_capacity(chain) or not (chain.indexed or chain.heads):
            self._add_indexed(chain, stream, offset)
            chain.unindexed[stream] = offset + 1
        else:
            chain.unindexed[stream] = offset
            chain.mark = scan

    def on_scanned(self, chain: Chain, stream: QueueStream, until: int, end: int, scan: int) -> None:
        """Record that the rescan `scan` has read all of `stream` below `until`; no job waits at or above
        `end`."""
        if chain.mark == scan or stream not in chain.unindexed:
            return
        if until >= end:
            del chain.unindexed[stream]
        else:
            chain.unindexed[stream] = max(chain.unindexed[stream], until)

    # --- streams that leave

    def drop_stream(self, stream: QueueStream) -> list[Chain]:
        """Forget the messages of a stream; return the chains that thereby release messages of other
        streams."""
        going: list[Chain] = []
        stream.forget_unstored()
        for chain in list(self.chains.values()):
            remaining = [spot for spot in chain.indexed if spot[0] is not stream]
            self.indexed -= len(chain.indexed) - len(remaining)
            chain.indexed = remaining
            chain.unindexed.pop(stream, None)
            had = bool(chain.heads)
            chain.heads = [spot for spot in chain.heads if spot[0] is not stream]
            if not chain.heads and (had or not chain.has_waiting) and self.release_next(chain):
                going.append(chain)
        return going


KeyReader = Callable[[bytes], str | None]
READY_MAX = 4_096


class ReadyMessage(NamedTuple):
    """A message to deliver, with its chain. `chain` None: it has no key. `at`: its index in `batch`."""

    offset: int
    delivery: bytes
    batch: ReadBatch
    at: int
    chain: Chain | None


class ScopeLedger:
    """The counts and released messages that all queues of one order scope share.

    `parked_keys`: the keys that an operator parked. `ready`: how many messages of all streams are ready for
    delivery, at most `ready_max`. `released`: messages on which the scope has yet to act.
    `gained_capacity`: whether `ready` has fallen below its maximum since the scope last checked. `unplaced`:
    how many messages ended before they were placed, and not durably yet; `lifted`: whether that has
    fallen to 0 since the scope last checked.
    """

    __slots__ = (
        "gained_capacity", "lifted", "parked_keys", "ready", "ready_max", "released", "table", "unplaced",
    )  # fmt: skip

    def __init__(self, table: ChainTable) -> None:
        self.table = table
        self.parked_keys: frozenset[str] = frozenset()
        self.ready = 0
        self.ready_max = READY_MAX
        self.released: list[tuple[Chain, list[tuple[QueueStream, int]]]] = []
        self.gained_capacity = False
        self.unplaced = 0
        self.lifted = False

    def take_ready(self, count: int) -> None:
        """Record that `count` messages are no longer ready."""
        self.gained_capacity |= self.ready >= self.ready_max
        self.ready -= count


class QueueStream:
    """A queue in an order scope: its messages, the chains that they wait in, and the scope's reads.

    `requested_at`, `read_at`, `tail_at`: numbers of the scope's reads: the last one requested, answered, and
    at which the queue had no more messages. `faulty`: offsets on which the filter failed. `unstored`: those
    of `busy` that are finished, but not durably yet; `unplaced`: messages that have ended, but not durably
    yet, before they were placed.
    """

    __slots__ = (
        "busy",
        "deliverable",
        "faulty",
        "feed",
        "key_of",
        "ledger",
        "read_at",
        "ref",
        "requested_at",
        "tail_at",
        "unkeyed",
        "unplaced",
        "unsorted",
        "unstored",
    )  # fmt: skip

    def __init__(
        self, ledger: ScopeLedger, ref: QueueRef, feed: QueueFeed, key_of: KeyReader, unkeyed: Counter
    ) -> None:
        self.ledger = ledger
        self.ref = ref
        self.feed = feed
        self.key_of = key_of
        self.unkeyed = unkeyed
        self.faulty: set[int] = set()
        self.busy: dict[int, Chain] = {}
        self.unstored: set[int] = set()
        self.unplaced: set[int] = set()
        self.deliverable: deque[ReadyMessage] = deque()
        self.unsorted = False  # `deliverable` may not ascend
        self.requested_at = self.read_at = self.tail_at = 0

    # --- called for the queue's jobs

    def on_finished(self, start: int, end: int, *, acked: bool = False) -> None:
        """Finish the jobs in `[start, end)`, durably; the next jobs of their chains are released.

        `acked`: clients acknowledged them, so their keys are no longer failing.
        """
        busy, unstored, ledger = self.busy, self.unstored, self.ledger
        chains, failing = ledger.table.chains, ledger.table.failing
        for offset in _offsets_within(busy, start, end):
            chain = busy.pop(offset, None)
            if chain is None:
                continue
            unstored.discard(offset)
            if failing and acked:
                _, stream, first = failing.get(chain, _NOT_FAILING)
                if stream is not self or offset >= first:  # not an acknowledgement from before the failure
                    failing.pop(chain, None)
            if chain.indexed or chain.unindexed or len(chain.heads) > 1:
                ledger.released.append((chain, list(ledger.table.finish_job(chain, self, offset))))
            else:
                del chains[chain.key]  # no job waits: the chain ends here
                if failing:
                    failing.pop(chain, None)
        if self.unplaced:
            self._place_stored(start, end)

    def hold_jobs(self, start: int, end: int) -> None:
        """Record that the jobs in `[start, end)` are finished; `on_stored` releases the next jobs of their
        chains."""
        self.unstored.update(filter(self.busy.__contains__, _offsets_within(self.busy, start, end)))

    def hold_spot(self, chain: Chain, offset: int) -> None:
        """Let a chain that has reached a finished message wait until that is durable."""
        chain.open = False
        self.busy[offset] = chain
        self.unstored.add(offset)

    def hold_unplaced(self, offsets: Iterable[int]) -> None:
        """Stop the scope from placing messages until these finished `offsets` are durable.

        Offsets that the scope has already placed into chains do not count: their chains wait for them.
        """
        before = len(self.unplaced)
        self.unplaced.update(offset for offset in offsets if offset not in self.busy)
        self.ledger.unplaced += len(self.unplaced) - before

    @property
    def is_waiting(self) -> bool:
        """Whether chains, or the scope, wait for a commit of the queue's progress."""
        return bool(self.unstored or self.unplaced)

    def on_stored(self, ranges: Iterable[tuple[int, int]]) -> bool:
        """Release the messages that waited for the commit of these finished offsets; return whether there
        were any."""
        if not (self.unstored or self.unplaced):
            return False
        before = len(self.unstored) + len(self.unplaced)
        for start, end in ranges:
            self.on_finished(start, end, acked=True)
        return len(self.unstored) + len(self.unplaced) < before

    def _place_stored(self, start: int, end: int) -> None:
        count = len(self.unplaced)
        self.unplaced.difference_update(list(_offsets_within(self.unplaced, start, end)))
        self._lower_unplaced(count - len(self.unplaced))

    def _lower_unplaced(self, count: int) -> None:
        self.ledger.unplaced -= count
        if count and not self.ledger.unplaced:
            self.ledger.lifted = True

    def forget_unstored(self) -> None:
        """Forget the finished messages that wait for commits, because the queue is lost."""
        self.unstored.clear()
        self._lower_unplaced(len(self.unplaced))
        self.unplaced.clear()

    def mark_failing(self, offset: int, now: float) -> None:
        """Record that a job failed or timed out at `now`: its key is failing until one of its messages is
        acknowledged."""
        chain = self.busy.get(offset)
        if chain is not None:
            self.ledger.table.failing.setdefault(chain, (now, self, offset))

    def failing_since(self, chain: Chain) -> float:
        """Return the monotonic seconds since when the chain's key has been failing; 0 if it is not."""
        return self.ledger.table.failing.get(chain, _NOT_FAILING)[0]

    def key_of_job(self, offset: int) -> str | None:
        """Return the order key of a released job, or None."""
        chain = self.busy.get(offset)
        return None if chain is None else chain.key

    def is_parked(self, offset: int) -> bool:
        """Whether an operator parked the job's key."""
        chain = self.busy.get(offset)
        return chain is not None and chain.key in self.ledger.parked_keys

    def is_first(self, offset: int) -> bool:
        """Whether no unfinished job is before this one in its chain."""
        chain = self.busy.get(offset)
        return chain is None or chain.head == (self, offset)

    def on_failing(self, offset: int) -> list[int]:
        """Close the chain of a failed job to new followers; return the unfinished jobs released with it and
        behind it, last first."""
        chain = self.busy.get(offset)
        if chain is None:
            return []
        chain.open = False
        return [other for _, other in reversed(chain.heads) if other > offset and other not in self.unstored]

    def put_back(self, offset: int) -> None:
        """Return a job to its chain; if it was the only released one, the chain releases its next jobs."""
        self.drop_ready(offset)
        chain, table = self.busy.pop(offset), self.ledger.table
        table.put_back(chain, self, offset)
        if not chain.heads:
            self.ledger.released.append((chain, list(table.release_next(chain))))

    def pass_over(self, offsets: Sequence[int]) -> None:
        """Drop messages that were finished without a lease from the ready messages; the scope waits until
        those that it has not placed are durably finished."""
        self.hold_unplaced(offsets)
        finished = set(offsets)
        remaining = deque(message for message in self.deliverable if message.offset not in finished)
        self.ledger.take_ready(len(self.deliverable) - len(remaining))
        self.deliverable = remaining

    # --- delivery

    def add_released(self, message: ReadyMessage) -> None:
        """Add a message that its chain has released, with its bytes, to the ready ones."""
        self.unsorted = self.unsorted or bool(self.deliverable)
        self.deliverable.append(message)
        self.ledger.ready += 1

    def take_messages(self, count: int, bytes_max: int) -> list[ReadyMessage]:
        """Remove and return up to `count` ready messages, ascending, at most `bytes_max` bytes (but at least
        one)."""
        deliverable, size = self.deliverable, 0
        messages: list[ReadyMessage] = []
        while deliverable and len(messages) < count:
            size += len(deliverable[0].delivery)
            if messages and size > bytes_max:
                break
            messages.append(deliverable.popleft())
        self.ledger.take_ready(len(messages))
        if self.unsorted:
            messages.sort()
            self.unsorted = bool(deliverable)
        return messages

    def close(self, offsets: Sequence[int]) -> list[int]:
        """Fix which of these messages go into a reply: for each chain only a run from its head, which an
        unstored message ends.

        Returns the other released messages of those chains, which must go back to their chains; for each
        chain the last first.
        """
        behind: list[int] = []
        if self.ledger.table.batch == 1:
            return behind
        answered = set(offsets)
        for chain in {id(chain): chain for o in offsets if (chain := self.busy.get(o))}.values():
            chain.open = False
            going = 0
            while going < len(chain.heads) and chain.heads[going][1] in answered:
                going += 1
            followers = reversed(chain.heads[max(going, 1) :])
            behind += [offset for _, offset in followers if offset not in self.unstored]
        return behind

    def drop_ready(self, offset: int) -> bool:
        """Remove a message from the ready ones; return False if it was not among them."""
        remaining = deque(message for message in self.deliverable if message.offset != offset)
        if len(remaining) == len(self.deliverable):
            return False
        self.ledger.ready -= 1
        self.deliverable = remaining
        return True

    def drop_all_ready(self) -> list[int]:
        """Remove all ready messages; return their offsets."""
        messages, self.deliverable = self.deliverable, deque()
        self.ledger.ready -= len(messages)
        return [message.offset for message in messages]


def _offsets_within(offsets: Collection[int], start: int, end: int) -> Iterable[int]:
    """Return all of `offsets` in `[start, end)`, ascending, and perhaps others in that range."""
    if end - start <= len(offsets):
        return range(start, end)
    return sorted(offset for offset in offsets if start <= offset < end) if offsets else ()
