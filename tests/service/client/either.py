"""A producer of either kind, blocking or asyncio, for tests that hold for both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ddmq_client import Producer
from ddmq_client.aio import AsyncProducer

KINDS = ("blocking", "asyncio")
PATIENCE_MS = 60_000


class Either:
    """A producer of either kind, called alike."""

    def __init__(self, kind: str, proxies: str | list[str], **settings: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "asyncio" else None
        producer_class = AsyncProducer if kind == "asyncio" else Producer
        self._producer: Any = producer_class(proxies, client_id="me", **settings)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **fields: Any) -> Any:
            outcome = getattr(self._producer, name)(*args, **fields)
            if self._loop is None or not inspect.isawaitable(outcome):
                return outcome
            return self._loop.run_until_complete(outcome)

        return call

    def end(self) -> None:
        self.close()
        if self._loop is not None:
            self._loop.close()


class Going:
    """An object of either kind, called alike; the asyncio one lives on a loop that runs all the time."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **fields: Any) -> Any:
            result = self._on_loop(attribute, *args, **fields)
            return Going(result, self._loop) if name == "transaction" else result

        return call

    def __enter__(self) -> Going:
        self._on_loop(self._inner.__enter__ if self._loop is None else self._inner.__aenter__)
        return self

    def __exit__(self, *error: Any) -> None:
        self._on_loop(self._inner.__exit__ if self._loop is None else self._inner.__aexit__, *error)

    def _on_loop(self, function: Any, *args: Any, **fields: Any) -> Any:
        if self._loop is None:
            return function(*args, **fields)

        async def called() -> Any:
            outcome = function(*args, **fields)
            return await outcome if inspect.isawaitable(outcome) else outcome

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result()


@contextmanager
def going(kind: str, proxies: str | list[str], **settings: Any) -> Iterator[Going]:
    """A producer of this kind, until the end of the block; it is not entered."""
    settings = {"client_id": "me"} | settings
    if kind == "blocking":
        producer = Going(Producer(proxies, **settings), None)
        try:
            yield producer
        finally:
            producer.close()
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    producer = Going(AsyncProducer(proxies, **settings), loop)
    try:
        yield producer
    finally:
        producer.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


Make = Callable[..., Going]


@contextmanager
def bank(kind: str, proxy: str, *, entered: bool) -> Iterator[Make]:
    """Makes producers of this kind and of the group bank, until the end of the block."""
    with ExitStack() as ends:

        def make(proxies: str | list[str] = "", **settings: Any) -> Going:
            settings = {"timeout_ms": PATIENCE_MS, "producer_group": "bank"} | settings
            producer = ends.enter_context(going(kind, proxies or proxy, **settings))
            return producer.__enter__() if entered else producer

        yield make
