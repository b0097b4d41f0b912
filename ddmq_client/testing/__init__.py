"""The test kit: messages for handlers, and a broker in the test's process whose clock the test moves.

    from ddmq_client.testing import TestBroker, make_message

docs/testing-handlers.md shows both. The pytest fixtures `ddmq_broker` and `ddmq_server` come with the
installation (plugin.py). The broker is the server's own code over its engine in memory; it needs the packages
of the extra `testing`. Names are loaded when they are first used: pytest loads the plugin of every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddmq_client.testing.broker import AsyncBroker, BrokerClock, BusyBrokerError, TestBroker
    from ddmq_client.testing.messages import RecordedOutcome, make_message, read_outcome
    from ddmq_client.testing.views import DeadLetterView, DelayedMessageView, KeyView, MessageView

__all__ = [
    "AsyncBroker",
    "BrokerClock",
    "BusyBrokerError",
    "DeadLetterView",
    "DelayedMessageView",
    "KeyView",
    "MessageView",
    "RecordedOutcome",
    "TestBroker",
    "make_message",
    "read_outcome",
]

_HOMES = {
    "AsyncBroker": "broker",
    "BrokerClock": "broker",
    "BusyBrokerError": "broker",
    "TestBroker": "broker",
    "RecordedOutcome": "messages",
    "make_message": "messages",
    "read_outcome": "messages",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'views')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
