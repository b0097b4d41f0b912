"""Checks of the names in calls of a transaction: its id, its producer group."""

from __future__ import annotations

from ddmq_common.names import group_fault
from proxy_producer.core.refusals import SendRefusal, illegal, shown
from proxy_producer.transactions.codec import parse_id


def legal_id(text: bytes | None) -> bytes | SendRefusal:
    """Parse a transaction id; return its 16 bytes, or a refusal."""
    transaction = parse_id(text or b"")
    if transaction is not None:
        return transaction
    what = f"transactionId is {shown(text or b'')}"
    return illegal("transaction_id", what, "allowed: 32 hexadecimal digits of a UUID of version 7")


def legal_group(name: bytes | None) -> SendRefusal | None:
    """Return the refusal of an invalid producer group name, or None.

    The rules are those of consumer groups.
    """
    fault = group_fault((name or b"").decode("utf-8", "backslashreplace"))
    if fault is None:
        return None
    what, _, allowed = fault.partition("; ")
    return illegal("producer_group", f"producerGroup: {what}", allowed or "allowed: another name")
