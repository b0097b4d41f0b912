"""A producer of either kind, blocking or asyncio, for tests that hold for both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from ddmq_client import Producer
from ddmq_client.aio import AsyncProducer

KINDS = ("blocking", "asyncio")


class Either:
    """A producer of either kind, called alike."""

    def __init__(self, kind: str, proxies: str | list[str], **settings: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "asyncio" else None
        made = AsyncProducer if kind == "asyncio" else Producer
        self._producer: Any = made(proxies, client_id="me", **settings)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **fields: Any) -> Any:
            found = getattr(self._producer, name)(*args, **fields)
            if self._loop is None or not inspect.isawaitable(found):
                return found
            return self._loop.run_until_complete(found)

        return call

    def end(self) -> None:
        self.close()
        if self._loop is not None:
            self._loop.close()
