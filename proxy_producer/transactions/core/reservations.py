"""Reservations for messages that a shard has admitted and whose outcome is open.

They count from the start, so that concurrent sends cannot pass a limit together. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from enum import Enum


class PrepareVerdict(Enum):
    """Whether a shard admits a prepare, or why it does not."""

    ADMITTED = "admitted"
    FOREIGN = "foreign"  # the transaction is another group's
    DECIDED = "ended"
    DECIDING = "ending"  # it is being decided
    FULL = "full"  # the group or the shard has as many open transactions as it may
    LARGE = "large"  # the transaction would exceed its bounds
    CROWDED = "crowded"  # it would exceed them if all prepares under way succeed


class Reservations:
    """The capacity that prepares under way have reserved in one shard, by transaction."""

    def __init__(self) -> None:
        self._by_transaction: dict[bytes, tuple[int, int, int]] = {}  # prepares, messages, bytes
        self._new_groups: dict[bytes, str] = {}  # by transactions that are not open yet
        self._new_counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_transaction)

    def get_reserved(self, transaction: bytes) -> tuple[int, int]:
        """Return the reserved messages and bytes of a transaction."""
        return self._by_transaction.get(transaction, (0, 0, 0))[1:]

    def new_group(self, transaction: bytes) -> str | None:
        """Return the producer group of a transaction that has only reservations and is not open yet, else
        None."""
        return self._new_groups.get(transaction)

    def count_new(self, group: str | None = None) -> int:
        """Count the transactions that have only reservations and are not open yet, of `group` or of all
        groups."""
        return len(self._new_groups) if group is None else self._new_counts[group]

    def add_prepare(self, transaction: bytes, group: str, messages: int, size: int, *, is_open: bool) -> None:
        """Reserve capacity for one prepare. The caller must call `release_prepare` once."""
        prepares, messages_before, bytes_before = self._by_transaction.get(transaction, (0, 0, 0))
        self._by_transaction[transaction] = prepares + 1, messages_before + messages, bytes_before + size
        if not (is_open or transaction in self._new_groups):
            self._new_groups[transaction] = group
            self._new_counts[group] += 1

    def release_prepare(
        self, transaction: bytes, messages: int, size: int, open_ids: Container[bytes]
    ) -> None:
        """Release the capacity that was reserved for one prepare of a transaction.

        `open_ids`: the open transactions of the shard.
        """
        prepares, messages_before, bytes_before = self._by_transaction.pop(transaction)
        if prepares > 1:
            self._by_transaction[transaction] = prepares - 1, messages_before - messages, bytes_before - size
        if transaction in self._new_groups and (prepares == 1 or transaction in open_ids):
            self.drop_new(transaction)

    def drop_new(self, transaction: bytes) -> None:
        """Stop counting a transaction as new, because it is open now or its last prepare has ended."""
        group = self._new_groups.pop(transaction, None)
        if group is None:
            return
        self._new_counts[group] -= 1
        if not self._new_counts[group]:
            del self._new_counts[group]
