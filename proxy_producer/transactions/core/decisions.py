"""The newest decisions of one shard: how its transactions ended. The oldest are dropped first.

`covers` tells "never there" from "no longer known": every decision made at or after `covered_from_ms` is
here. A transaction's id says when it began, by the clock of its maker.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ddmq_client.idl.codes import TransactionOutcome

CLOCKS_APART_MS = 3_600_000  # by which the clock of an id's maker may be wrong


class TransactionDecision(NamedTuple):
    """The outcome of a decided transaction, commit or rollback, and its time `at_ms` on the store's clock.

    `end`: half messages at or above this offset of the shard came too late for it; -1: unknown.
    """

    outcome: TransactionOutcome
    group: str
    at_ms: int
    end: int = -1


class DecisionHistory:
    """The newest decisions of one shard, at most `count_max`.

    Every decision at or after `covered_from_ms` is here; 0: none was ever dropped. `damaged_ms`: decisions up
    to this time may be lost and cannot be looked up; 0: none.
    """

    def __init__(self, count_max: int, covered_from_ms: int = 0) -> None:
        self._count_max = count_max
        self._by_id: OrderedDict[bytes, TransactionDecision] = OrderedDict()
        self.covered_from_ms = covered_from_ms
        self.damaged_ms = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, transaction: bytes) -> TransactionDecision | None:
        return self._by_id.get(transaction)

    def record_decision(self, transaction: bytes, decision: TransactionDecision) -> None:
        """Add the decision of a transaction. If it has one already, the first one stays."""
        if transaction in self._by_id:
            return
        self._by_id[transaction] = decision
        if len(self._by_id) > self._count_max:
            _, oldest = self._by_id.popitem(last=False)
            self.covered_from_ms = max(self.covered_from_ms, oldest.at_ms + 1)

    def record_damage(self, until_ms: int) -> None:
        """Record that some decisions up to `until_ms` cannot be read."""
        self.damaged_ms = max(self.damaged_ms, until_ms)
        self.covered_from_ms = max(self.covered_from_ms, until_ms + 1)

    def covers_transaction(self, began_ms: int, now_ms: int) -> bool:
        """Return whether the decision of a transaction that began at `began_ms` would be here."""
        return not self.covered_from_ms or began_after(self.covered_from_ms, began_ms, now_ms)


def began_after(at_ms: int, began_ms: int, now_ms: int) -> bool:
    """Return whether a transaction surely began at `at_ms` or later.

    `began_ms`: its start by the client's clock.
    """
    return at_ms + CLOCKS_APART_MS <= began_ms <= now_ms + CLOCKS_APART_MS
