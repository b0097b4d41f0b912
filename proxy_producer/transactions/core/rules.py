"""Bounds and periods of the transactions in one shard. Pure."""

from __future__ import annotations

from typing import NamedTuple


class TransactionRules(NamedTuple):
    """Bounds and periods. `age_ms_max`: a transaction that is open for so long, and about which nobody polls,
    becomes a dead letter. `messages_max`, `bytes_max`: of one transaction."""

    open_max: int
    ended_max: int
    checks_max: int
    check_after_ms: int
    check_interval_ms: int
    age_ms_max: int
    messages_max: int
    bytes_max: int

    @property
    def group_max(self) -> int:
        """Return how many transactions of one producer group may be open."""
        return max(1, self.open_max // 2)

    @property
    def commit_messages_max(self) -> int:
        """Return how many messages one commit can hold: two owners in a row may each admit `messages_max`."""
        return 2 * self.messages_max

    @property
    def commit_bytes_max(self) -> int:
        """Return how many bytes one commit can hold, for the same reason."""
        return 2 * self.bytes_max

    @property
    def offer_ms_min(self) -> int:
        """Return how long an owner offers a transaction to its group before the age alone ends it: time for
        the group's members to come back after a restart of everything."""
        return self.age_ms_max // 24

    def began_ms(self, stored_ms: int, wall_ms: int, now_ms: int) -> int:
        """Convert a store time to the shard's clock, which reads `now_ms` where the store's reads `wall_ms`.
        Time that this owner did not see counts, but for the last `offer_ms_min` of `age_ms_max`."""
        age_ms = min(max(wall_ms - stored_ms, 0), self.age_ms_max - self.offer_ms_min)
        return now_ms - age_ms
