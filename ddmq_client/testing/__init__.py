"""The test kit: messages for handlers, and a broker in the test's process whose clock the test moves.

    from ddmq_client.testing import TestBroker, make_message

docs/testing-handlers.md shows both. The pytest fixtures `ddmq_broker` and `ddmq_server` come with the
installation (plugin.py). The broker is the server's own code over its engine in memory; it needs the packages
of the extra `testing`, which are loaded with the first broker.
"""

from __future__ import annotations

from ddmq_client.testing.broker import AsyncBroker, BrokerClock, BusyBrokerError, TestBroker
from ddmq_client.testing.messages import Settlement, make_message, settlement
from ddmq_client.testing.views import BlockedKey, DeadLetter, DelayedMessage, StoredMessage

__all__ = [
    "AsyncBroker",
    "BlockedKey",
    "BrokerClock",
    "BusyBrokerError",
    "DeadLetter",
    "DelayedMessage",
    "Settlement",
    "StoredMessage",
    "TestBroker",
    "make_message",
    "settlement",
]
