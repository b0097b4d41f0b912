"""The client library of the message queue: what an application installs.

    from ddmq_client import Producer, Consumer, FetchConsumer

The asyncio twins are in `ddmq_client.aio`, the wire contract in `ddmq_client.idl`. Names are loaded when
they are first used: servers take only the contract from here.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddmq_client.delays import CancelOutcome, DelayResult, DelayStatus
    from ddmq_client.errors import (
        AccessError,
        AdminError,
        BusyError,
        ClientError,
        ClosedError,
        InvalidMessageError,
        LeaseOverError,
        LoginError,
        NoSuchTopicError,
        NotAllowedError,
        NotCommittedError,
        NotFoundError,
        NotStoredError,
        OptionError,
        PullError,
        RejectedError,
        SendError,
        SubscriptionError,
        ThrottledError,
        TransactionError,
        UnavailableError,
        UnknownChangeError,
        UnknownEndError,
        UnknownOutcomeError,
    )
    from ddmq_client.idl.codes import Durability
    from ddmq_client.net.admin.client import Admin
    from ddmq_client.net.consumer import Consumer
    from ddmq_client.net.fetching import FetchConsumer
    from ddmq_client.net.transactions import Transaction
    from ddmq_client.outgoing import OutgoingMessage, SendResult
    from ddmq_client.producer import Producer
    from ddmq_client.ranges import QueueBounds, RangeReader
    from ddmq_client.received import FetchedQueue, LateResult, Message, Outcome
    from ddmq_client.replies import Replies
    from ddmq_client.security.tls import TlsOptions
    from ddmq_client.serializers import JsonSerializer, MsgspecSerializer, Serializer
    from ddmq_client.transactions import CheckCounts, Decision, UndecidedTransaction

__all__ = [
    "AccessError",
    "Admin",
    "AdminError",
    "BusyError",
    "CancelOutcome",
    "CheckCounts",
    "ClientError",
    "ClosedError",
    "Consumer",
    "Decision",
    "DelayResult",
    "DelayStatus",
    "Durability",
    "FetchConsumer",
    "FetchedQueue",
    "InvalidMessageError",
    "JsonSerializer",
    "LateResult",
    "LeaseOverError",
    "LoginError",
    "Message",
    "MsgspecSerializer",
    "NoSuchTopicError",
    "NotAllowedError",
    "NotCommittedError",
    "NotFoundError",
    "NotStoredError",
    "OptionError",
    "Outcome",
    "OutgoingMessage",
    "Producer",
    "PullError",
    "QueueBounds",
    "RangeReader",
    "RejectedError",
    "Replies",
    "SendError",
    "SendResult",
    "Serializer",
    "SubscriptionError",
    "ThrottledError",
    "TlsOptions",
    "Transaction",
    "TransactionError",
    "UnavailableError",
    "UndecidedTransaction",
    "UnknownChangeError",
    "UnknownEndError",
    "UnknownOutcomeError",
]

_HOMES = {
    "Admin": "net.admin.client",
    "CancelOutcome": "delays",
    "DelayResult": "delays",
    "DelayStatus": "delays",
    "CheckCounts": "transactions",
    "Decision": "transactions",
    "UndecidedTransaction": "transactions",
    "Transaction": "net.transactions",
    "Consumer": "net.consumer",
    "Durability": "idl.codes",
    "FetchConsumer": "net.fetching",
    "FetchedQueue": "received",
    "LateResult": "received",
    "Message": "received",
    "Outcome": "received",
    "OutgoingMessage": "outgoing",
    "Producer": "producer",
    "QueueBounds": "ranges",
    "RangeReader": "ranges",
    "Replies": "replies",
    "TlsOptions": "security.tls",
    "JsonSerializer": "serializers",
    "MsgspecSerializer": "serializers",
    "Serializer": "serializers",
    "SendResult": "outgoing",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _read_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _read_version() -> str:
    """Return the release of the installed package: the client alone, or the server that contains it."""
    for package in ("ddmq-client", "ddmq-proxy"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "0+unknown"
