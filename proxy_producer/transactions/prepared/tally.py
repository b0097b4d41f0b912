"""How much of which transaction went through this proxy, so that none becomes too large."""

from __future__ import annotations

from collections import OrderedDict

from proxy_producer.config import TransactionLimits
from proxy_producer.core.refusals import SendRefusal, illegal

IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
TALLIED_MAX = 10_000  # transactions; above, those that were added to longest ago are forgotten


class PreparedTally:
    """Messages and delivery bytes by transaction, of the latest."""

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __contains__(self, transaction: bytes) -> bool:
        return transaction in self._known

    def over(self, transaction: bytes, messages: int, size: int) -> bool:
        """Whether it would have more than it may."""
        known = self._known.get(transaction)
        if known is not None:
            messages, size = messages + known[0], size + known[1]
        return messages > self._limits.messages_max or size > self._limits.bytes_max

    def add(self, transaction: bytes, messages: int, size: int) -> None:
        """So much of it is on its way."""
        known = self._known.get(transaction)
        if known is not None:
            messages, size = messages + known[0], size + known[1]
            self._known.move_to_end(transaction)
        self._known[transaction] = messages, size
        if len(self._known) > TALLIED_MAX:
            self._known.popitem(last=False)

    def fault(self, transaction: bytes, messages: int, size: int) -> SendRefusal | None:
        """`over` in words."""
        if not self.over(transaction, messages, size):
            return None
        limits, (known, known_bytes) = self._limits, self._known.get(transaction, (0, 0))
        what = f"the transaction would have {known + messages} messages with {known_bytes + size} bytes"
        if known:
            what += f", {known} of them from before"
        allowed = f"allowed: at most {limits.messages_max} messages and {limits.bytes_max} bytes together"
        return illegal("transaction_long", what, allowed)
