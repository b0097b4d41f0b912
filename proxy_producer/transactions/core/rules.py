"""What the owner of a shard of transactions allows, and when it asks. Pure."""

from __future__ import annotations

from typing import NamedTuple


class TransactionRules(NamedTuple):
    """Bounds and periods. `age_ms_max`: who was open for so long becomes a dead letter. `messages_max`,
    `bytes_max`: what one commit can hold; proxies that do not own the shard may let more in than they may."""

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
        """Open ones of one producer group."""
        return max(1, self.open_max // 2)
