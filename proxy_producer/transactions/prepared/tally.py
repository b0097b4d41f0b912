"""How much of which transaction went through a proxy that does not own its shard, so that none becomes too
large; the owner counts what is there."""

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

    def add(self, transaction: bytes, messages: int, size: int) -> None:
        """So much of it is on its way."""
        known = self._known.get(transaction)
        if known is not None:
            messages, size = messages + known[0], size + known[1]
            self._known.move_to_end(transaction)
        self._known[transaction] = messages, size
        if len(self._known) > TALLIED_MAX:
            self._known.popitem(last=False)

    def take_back(self, transaction: bytes, messages: int, size: int) -> None:
        """So much of it was not stored, or had been before."""
        known = self._known.get(transaction)
        if known is not None:
            self._known[transaction] = max(known[0] - messages, 0), max(known[1] - size, 0)

    def fault(self, transaction: bytes, messages: int, size: int) -> SendRefusal | None:
        """Whether so much more would be too much."""
        return long_fault(self._limits, *self._known.get(transaction, (0, 0)), messages, size)


def long_fault(
    limits: TransactionLimits, known: int, known_bytes: int, messages: int, size: int
) -> SendRefusal | None:
    """Whether a transaction of `known` messages takes so many more."""
    if known + messages <= limits.messages_max and known_bytes + size <= limits.bytes_max:
        return None
    what = f"the transaction would have {known + messages} messages with {known_bytes + size} bytes"
    if known:
        what += f", {known} of them from before"
    allowed = f"allowed: at most {limits.messages_max} messages and {limits.bytes_max} bytes together"
    return illegal("transaction_long", what, allowed)
