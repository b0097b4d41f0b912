"""Bounds and periods of the transactions in one shard. Pure."""

from __future__ import annotations

from typing import NamedTuple


class TransactionRules(NamedTuple):
    """The limits and intervals of one shard. `messages_max`, `bytes_max`: for one transaction.

    `age_ms_max`: a transaction open for this long, whose group does not poll, becomes a dead letter.
    """

    open_max: int
    decisions_max: int
    checks_max: int
    check_after_ms: int
    check_interval_ms: int
    age_ms_max: int
    messages_max: int
    bytes_max: int

    @property
    def group_max(self) -> int:
        """Return the maximum number of open transactions of one producer group."""
        return max(1, self.open_max // 2)

    @property
    def commit_messages_max(self) -> int:
        """Return the most messages that one commit can hold: two owners in a row may each admit
        `messages_max`."""
        return 2 * self.messages_max

    @property
    def commit_bytes_max(self) -> int:
        """Return the most bytes that one commit can hold: two owners in a row may each admit `bytes_max`."""
        return 2 * self.bytes_max

    @property
    def offer_ms_min(self) -> int:
        """Return for how long a transaction is offered to its group before its age alone may end it.

        The group's members need this time to come back after a restart of the whole system.
        """
        return self.age_ms_max // 24

    def began_ms(self, stored_ms: int, wall_ms: int, now_ms: int) -> int:
        """Convert a store time to the shard's clock, where `wall_ms` and `now_ms` are the current times of
        both.

        Time before this owner counts as age, but leaves at least `offer_ms_min` of `age_ms_max`.
        """
        age_ms = min(max(wall_ms - stored_ms, 0), self.age_ms_max - self.offer_ms_min)
        return now_ms - age_ms
