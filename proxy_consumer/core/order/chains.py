"""The chain table: jobs that share an order key stand in a chain, and only its head is let out.

A *stream* is one queue of the scope; a *spot* is (stream, offset). Spots arrive in the order in which they
are to be finished. The first of a key is let out at once, later ones are kept until the one before is
finished. `batch` spots may be let out together when they are consecutive in their chain, in one stream,
and go into one answer.

A chain keeps a few of its waiting spots in `kept`. Further ones are forgotten: the chain only
notes, per stream, from which offset on there may be some (`unindexed`), and they are found again by
reading (rescan.py) when `kept` runs dry; until then the chain is *starving*. Everything in `unindexed`
comes after everything in `kept`. So memory is bounded by the number of busy keys, however many
messages wait behind them.

Identity is the key itself. The table knows nothing of leases, retries or time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Stream = TypeVar("Stream", bound=Hashable)

KEPT_PER_CHAIN = 16
KEPT_IN_ALL = 100_000
_NO_SPOTS: list[Any] = []
_NOWHERE: dict[Any, int] = {}


class Chain(Generic[Stream]):
    """One key's jobs. `heads`: let out and unfinished, first to last."""

    __slots__ = ("heads", "kept", "key", "mark", "open", "unindexed")

    def __init__(self, key: str, stream: Stream, offset: int) -> None:
        self.key = key
        self.heads: list[tuple[Stream, int]] = [(stream, offset)]
        self.open = True  # the heads are not in an answer yet: followers may join them
        self.kept: list[tuple[Stream, int]] = _NO_SPOTS  # both shared while empty: most keys never wait
        self.unindexed: dict[Stream, int] = _NOWHERE
        self.mark = 0  # the rescan that has left one of its spots unindexed

    @property
    def waits(self) -> bool:
        """Whether anything stands behind the heads, as far as is known."""
        return bool(self.kept or self.unindexed)


Spots = Iterable[tuple[Stream, int]]


class ChainTable(Generic[Stream]):
    """All chains of one scope. `chains`, by key, is for the two places where most messages pass."""

    def __init__(
        self, batch: int = 1, kept_per_chain: int = KEPT_PER_CHAIN, kept_in_all: int = KEPT_IN_ALL
    ) -> None:
        self.batch = batch  # the largest of all streams
        self.batches: dict[Stream, int] = {}  # of streams with one of their own
        self.kept = 0  # spots, over all chains
        self.starving: dict[str, Chain[Stream]] = {}
        self.chains: dict[str, Chain[Stream]] = {}
        self._kept_per_chain = kept_per_chain
        self._kept_in_all = kept_in_all

    def __len__(self) -> int:
        return len(self.chains)

    def __iter__(self) -> Iterator[Chain[Stream]]:
        return iter(self.chains.values())

    def get(self, key: str) -> Chain[Stream] | None:
        """The chain of a key that is busy."""
        return self.chains.get(key)

    def arrive(self, key: str, stream: Stream, offset: int) -> Chain[Stream] | None:
        """The next job of `key`: its chain when it is let out now, None when it has to wait."""
        chain = self.chains.get(key)
        if chain is None:
            chain = self.chains[key] = Chain(key, stream, offset)
            return chain
        if self.batch > 1 and self._follows(chain, stream):
            chain.heads.append((stream, offset))
            return chain
        if chain.unindexed or not self._room(chain):
            chain.unindexed = {stream: offset} | chain.unindexed
        else:
            self._keep(chain, stream, offset)
        return None

    def _follows(self, chain: Chain[Stream], stream: Stream) -> bool:
        heads = chain.heads
        most = self.batches.get(stream, self.batch)
        return chain.open and 0 < len(heads) < most and heads[0][0] is stream and not chain.waits

    def _room(self, chain: Chain[Stream]) -> bool:
        return len(chain.kept) < self._kept_per_chain and self.kept < self._kept_in_all

    def _keep(self, chain: Chain[Stream], stream: Stream, offset: int) -> None:
        if chain.kept:
            chain.kept.append((stream, offset))
        else:
            chain.kept = [(stream, offset)]
        self.kept += 1

    def finish(self, chain: Chain[Stream], stream: Stream, offset: int) -> Spots[Stream]:
        """A job that was let out is done for good: the spots let out next (their heads are set)."""
        heads = chain.heads
        if len(heads) > 1:
            heads.remove((stream, offset))
            return ()
        heads.clear()
        return self.let_out(chain)

    def let_out(self, chain: Chain[Stream]) -> Spots[Stream]:
        """Let the next of a chain without heads out; it starves, or ends, when there is none."""
        kept = chain.kept
        if kept:
            stream, count = kept[0][0], 1
            most = self.batches.get(stream, self.batch)
            while count < most and count < len(kept) and kept[count][0] is stream:
                count += 1
            chain.heads = kept[:count]
            chain.open = True
            del kept[:count]
            self.kept -= count
            self.starving.pop(chain.key, None)
            return chain.heads
        if chain.unindexed:
            self.starving[chain.key] = chain
        elif self.chains.get(chain.key) is chain:
            del self.chains[chain.key]
            self.starving.pop(chain.key, None)
        return ()

    def leads(self, chain: Chain[Stream], stream: Stream, offset: int) -> bool:
        """Whether no unfinished job of the chain stands before this one."""
        return bool(chain.heads) and chain.heads[0] == (stream, offset)

    def after(self, chain: Chain[Stream], stream: Stream, offset: int) -> list[int]:
        """Offsets let out together with this one and behind it."""
        return [other for where, other in chain.heads if where is stream and other > offset]

    def put_back(self, chain: Chain[Stream], stream: Stream, offset: int) -> None:
        """A job that was let out, and does not lead, waits again in its old place."""
        chain.heads.remove((stream, offset))
        at, kept = 0, chain.kept
        while at < len(kept) and kept[at][0] is stream and kept[at][1] < offset:
            at += 1
        chain.kept = [*kept[:at], (stream, offset), *kept[at:]]
        self.kept += 1

    # --- for the rescan

    def index(self, chain: Chain[Stream], stream: Stream, offset: int, scan: int) -> None:
        """A waiting job found again: keep it, or leave it and all after it for the next rescan."""
        if chain.unindexed.get(stream, offset + 1) > offset or chain.mark == scan:
            return
        if self._room(chain) or not (chain.kept or chain.heads):
            self._keep(chain, stream, offset)
            chain.unindexed[stream] = offset + 1
        else:
            chain.unindexed[stream] = offset
            chain.mark = scan

    def scanned(self, chain: Chain[Stream], stream: Stream, until: int, end: int, scan: int) -> None:
        """A rescan has seen all of `stream` below `until`; nothing waits at or above `end`."""
        if chain.mark == scan or stream not in chain.unindexed:
            return
        if until >= end:
            del chain.unindexed[stream]
        else:
            chain.unindexed[stream] = max(chain.unindexed[stream], until)

    # --- streams that go

    def drop_stream(self, stream: Stream) -> list[Chain[Stream]]:
        """Forget a stream's spots; the chains that let something out in other streams by that."""
        going: list[Chain[Stream]] = []
        for chain in list(self.chains.values()):
            left = [spot for spot in chain.kept if spot[0] is not stream]
            self.kept -= len(chain.kept) - len(left)
            chain.kept = left
            chain.unindexed.pop(stream, None)
            had = bool(chain.heads)
            chain.heads = [spot for spot in chain.heads if spot[0] is not stream]
            if not chain.heads and (had or not chain.waits) and self.let_out(chain):
                going.append(chain)
        return going
