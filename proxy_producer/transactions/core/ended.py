"""How transactions ended, as far as it is remembered: the newest of one shard, oldest forgotten first.

`covers` tells "never there" from "no longer known": every transaction that ended at or after
`covered_from_ms` is here. When one began is what its id says, by the clock of whoever made it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ddmq_client.idl.codes import TransactionOutcome

CLOCKS_APART_MS = 3_600_000  # that the clock of who made an id may be wrong by


class Ended(NamedTuple):
    """How one ended. `at_ms`: when, on the store's clock. `end`: what is at this offset of the shard or above
    came too late for it; -1: that is not known."""

    outcome: TransactionOutcome
    group: str
    at_ms: int
    end: int = -1


class EndedTransactions:
    """At most `count_max`. `covered_from_ms` 0: nothing was ever forgotten. `damaged_ms`: how one ended that
    did so by then may be lost, and cannot be looked up; 0: none is."""

    def __init__(self, count_max: int, covered_from_ms: int = 0) -> None:
        self._count_max = count_max
        self._known: OrderedDict[bytes, Ended] = OrderedDict()
        self.covered_from_ms = covered_from_ms
        self.damaged_ms = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, transaction: bytes) -> Ended | None:
        return self._known.get(transaction)

    def remember(self, transaction: bytes, ended: Ended) -> None:
        """The first end of a transaction is the one that counts."""
        if transaction in self._known:
            return
        self._known[transaction] = ended
        if len(self._known) > self._count_max:
            _, oldest = self._known.popitem(last=False)
            self.covered_from_ms = max(self.covered_from_ms, oldest.at_ms + 1)

    def damaged(self, until_ms: int) -> None:
        """How some ended that did so by then cannot be read."""
        self.damaged_ms = max(self.damaged_ms, until_ms)
        self.covered_from_ms = max(self.covered_from_ms, until_ms + 1)

    def covers(self, began_ms: int, now_ms: int) -> bool:
        """Whether one that began then would be known here if it had ended."""
        return not self.covered_from_ms or began_after(self.covered_from_ms, began_ms, now_ms)


def began_after(at_ms: int, began_ms: int, now_ms: int) -> bool:
    """Whether what began then by its maker's clock did so at `at_ms` or later by the store's."""
    return at_ms + CLOCKS_APART_MS <= began_ms <= now_ms + CLOCKS_APART_MS
