"""A function that cannot be called with what the client passes is rejected at construction."""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from ddmq_client import Consumer, OptionError, Producer
from ddmq_client.aio import AsyncConsumer
from ddmq_client.testing import TestBroker

NOWHERE = "127.0.0.1:9"


def inject_database(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that passes one more argument, under the name and signature of `function`."""

    @functools.wraps(function)
    def call(*arguments: object) -> object:
        return function("database", *arguments)

    return call


class MessageCounter:
    def __call__(self, message: object) -> None: ...

    def handle(self, message: object) -> None: ...

    def stop(self) -> None: ...


async def handle_nothing() -> None: ...


MISFITS: list[Any] = [
    lambda: None,
    lambda message, database: None,
    lambda *, message: None,
    MessageCounter().stop,
    MessageCounter.handle,
    functools.partial(lambda message: None, "message"),
    threading.Event().set,
]
FITS: list[Any] = [
    lambda message: None,
    lambda message, retries=3: None,
    lambda *arguments: None,
    MessageCounter(),
    MessageCounter().handle,
    functools.partial(lambda database, message: None, "database"),
    inject_database(lambda database, message: None),
    [].append,
    queue.Queue().put,
    print,
    type,
    MagicMock(),
]


@pytest.mark.parametrize("function", MISFITS)
def test_a_handler_with_other_arguments_is_rejected(function: Any) -> None:
    text = r"is called with one argument, the message: .*; allowed: a function of one positional argument"
    with pytest.raises(OptionError, match=rf"^handler=.* {text}"):
        Consumer(NOWHERE, "billing", "orders", handler=function)
    with pytest.raises(OptionError, match=rf"^handler=.* {text}"):
        AsyncConsumer(NOWHERE, "billing", "orders", handler=function)
    with TestBroker() as broker, pytest.raises(OptionError, match=rf"^handler=.* {text}"):
        broker.consumer("billing", "orders", function)


@pytest.mark.parametrize("function", FITS)
def test_a_handler_that_takes_the_message_is_accepted(function: Any) -> None:
    Consumer(NOWHERE, "billing", "orders", handler=function)
    AsyncConsumer(NOWHERE, "billing", "orders", handler=function)


def test_the_other_functions_of_a_client_are_checked_as_well() -> None:
    with pytest.raises(OptionError, match=r"^batch_handler=.* one argument, the list of messages: "):
        Consumer(NOWHERE, "billing", "orders", batch_handler=lambda: None)  # type: ignore[misc, arg-type]
    with pytest.raises(OptionError, match=r"^on_late=.* one argument, a LateResult: "):
        Consumer(NOWHERE, "billing", "orders", on_late=lambda: None)  # type: ignore[misc, arg-type]
    with pytest.raises(OptionError, match=r"^on_error=.* one argument, the error: "):
        Consumer(NOWHERE, "billing", "orders", on_error=lambda: None)  # type: ignore[misc, arg-type]
    with pytest.raises(OptionError, match=r"^check=.* one argument, an UndecidedTransaction: "):
        Producer(NOWHERE, producer_group="bank", check=lambda: None)  # type: ignore[misc, arg-type]


def test_an_async_handler_without_arguments_is_rejected_by_the_test_broker() -> None:
    async def consume() -> None:
        with TestBroker() as broker:
            await broker.aio.consumer("billing", "orders", handle_nothing)

    with pytest.raises(OptionError, match="one argument, the message: "):
        asyncio.run(consume())
