"""Checks of the names in calls of a transaction: its id, its producer group."""

from __future__ import annotations

from ddmq_common.names import find_group_name_error
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, quote_text
from proxy_producer.transactions.codec import parse_id


def parse_transaction_id(text: bytes | None) -> bytes | SendRejection:
    """Parse a transaction id; return its 16 bytes, or a rejection."""
    transaction = parse_id(text or b"")
    if transaction is not None:
        return transaction
    what = f"transactionId is {quote_text(text or b'')}"
    return build_illegal_rejection(
        "transaction_id", what, "allowed: 32 hexadecimal digits of a UUID of version 7"
    )


def check_group_name(name: bytes | None) -> SendRejection | None:
    """Return the rejection of an invalid producer group name, or None.

    The rules are those of consumer groups.
    """
    error = find_group_name_error((name or b"").decode("utf-8", "backslashreplace"))
    if error is None:
        return None
    what, _, allowed = error.partition("; ")
    return build_illegal_rejection(
        "producer_group", f"producerGroup: {what}", allowed or "allowed: another name"
    )
