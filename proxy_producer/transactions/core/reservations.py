"""Messages that a shard has admitted and whose fate is not known yet: they take their room from the start, so
that sends at the same time cannot pass a limit together. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from enum import Enum


class PrepareVerdict(Enum):
    """Whether a shard takes more messages for a transaction."""

    ADMITTED = "admitted"
    FOREIGN = "foreign"  # the transaction is another group's
    ENDED = "ended"
    ENDING = "ending"  # it is being decided
    FULL = "full"  # the group or the shard has as many open transactions as it may
    LARGE = "large"  # it would have more than a transaction may
    CROWDED = "crowded"  # it would, if all that is on its way arrives


class Reservations:
    """The room that prepares on their way take in one shard, by transaction."""

    def __init__(self) -> None:
        self._by_transaction: dict[bytes, tuple[int, int, int]] = {}  # prepares, messages, bytes
        self._new_groups: dict[bytes, str] = {}  # by transactions that are not open yet
        self._new_counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_transaction)

    def room_of(self, transaction: bytes) -> tuple[int, int]:
        """Return how many messages and bytes of a transaction are on their way."""
        return self._by_transaction.get(transaction, (0, 0, 0))[1:]

    def new_group(self, transaction: bytes) -> str | None:
        """Return the group of a transaction that is on its way and not open yet."""
        return self._new_groups.get(transaction)

    def count_new(self, group: str | None = None) -> int:
        """Count the transactions that are on their way and not open yet, of the group or in all."""
        return len(self._new_groups) if group is None else self._new_counts[group]

    def add_prepare(self, transaction: bytes, group: str, messages: int, size: int, *, is_open: bool) -> None:
        """Reserve room for one more prepare; `release_prepare` follows once."""
        prepares, messages_before, bytes_before = self._by_transaction.get(transaction, (0, 0, 0))
        self._by_transaction[transaction] = prepares + 1, messages_before + messages, bytes_before + size
        if not (is_open or transaction in self._new_groups):
            self._new_groups[transaction] = group
            self._new_counts[group] += 1

    def release_prepare(
        self, transaction: bytes, messages: int, size: int, open_ids: Container[bytes]
    ) -> None:
        """Give the room of one prepare back."""
        prepares, messages_before, bytes_before = self._by_transaction.pop(transaction)
        if prepares > 1:
            self._by_transaction[transaction] = prepares - 1, messages_before - messages, bytes_before - size
        if transaction in self._new_groups and (prepares == 1 or transaction in open_ids):
            self.drop_new(transaction)

    def drop_new(self, transaction: bytes) -> None:
        """Count a transaction as new no more: it is among the open ones now, or never will be."""
        group = self._new_groups.pop(transaction, None)
        if group is None:
            return
        self._new_counts[group] -= 1
        if not self._new_counts[group]:
            del self._new_counts[group]
