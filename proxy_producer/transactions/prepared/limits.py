"""What a transaction may have, in words for its sender."""

from __future__ import annotations

from proxy_producer.config import TransactionLimits
from proxy_producer.core.refusals import SendRefusal, illegal

IMMUNITY = b"CHECK_IMMUNITY_TIME_IN_SECONDS"


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
