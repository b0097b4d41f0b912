"""The asyncio client against a proxy in the same thread, in moved time: real frames, no sockets, no waiting.

The event loop's time is the rig's clock. When nobody can go on, the loop moves the clock (by STEP_S at most
while calls are under way) and lets the proxy look at it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from ddmq_client.aio import worker_pool
from ddmq_client.core.frames import REPLY, call_head, reply_head
from ddmq_client.core.nodes import ProxyAddress
from ddmq_rpc.api import Wire
from tests.service.consumer.consumer_rig import CODEC, METHODS, ConsumerRig, FakeCall

STEP_S = 0.02


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still while anybody works."""

    def __init__(self, rig: ConsumerRig) -> None:
        self.rig = rig
        self.calls: list[tuple[FakeCall, asyncio.Future[None]]] = []
        selector = selectors.DefaultSelector()
        super().__init__(selector)
        really = selector.select

        def select(timeout: float | None = None) -> list[Any]:
            if timeout is None or timeout > 0:
                assert timeout is not None or self.calls, "nobody will ever go on"
                self.pass_time(STEP_S if timeout is None else timeout)
            return really(0)

        selector.select = select  # type: ignore[method-assign]

    def time(self) -> float:
        return self.rig.clock.monotonic()

    def pass_time(self, seconds: float) -> None:
        self.rig.settle()
        if not self.resolve_answered():
            self.rig.advance(min(seconds, STEP_S) if self.calls else seconds)
            self.resolve_answered()

    def resolve_answered(self) -> bool:
        """Whether a call has been answered."""
        over = [future for call, future in self.calls if call.answered and not future.done()]
        for future in over:
            future.set_result(None)
        self.calls = [(call, future) for call, future in self.calls if not future.done()]
        return bool(over)


class VirtualConnection:
    """Stands for AsyncFramedConnection."""

    def __init__(self, address: object) -> None:
        self.name = str(address)
        self._sequence_id = 0

    async def call(self, make_frame: Any, deadline: float) -> tuple[bytes, int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._sequence_id += 1
        payload = make_frame(loop.time(), self._sequence_id)[4:]
        method = next(
            name for name in METHODS if payload.startswith(call_head(name.encode(), self._sequence_id))
        )
        at = len(call_head(method.encode(), self._sequence_id))
        call = FakeCall(method, CODEC.decode(Wire.COMPACT, payload, at, METHODS[method].args))
        loop.rig.handlers[method](call)
        answered: asyncio.Future[None] = loop.create_future()
        loop.calls.append((call, answered))
        try:
            await answered
        except asyncio.CancelledError:
            if call.open:
                call.go()
            raise
        assert call.encoded is not None
        answer = call_head(method.encode(), self._sequence_id, REPLY) + call.encoded
        assert reply_head(answer).sequence_id == self._sequence_id
        return answer, self._sequence_id

    def close(self) -> None:
        """Nothing to close."""


def run(rig: ConsumerRig, work: Coroutine[Any, Any, None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `work` in moved time."""
    monkeypatch.setattr(worker_pool, "AsyncFramedConnection", VirtualConnection)
    monkeypatch.setattr(worker_pool, "resolve_addresses", _resolve)
    loop = VirtualLoop(rig)
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def _resolve(proxies: Sequence[ProxyAddress], cached: object) -> list[ProxyAddress]:
    return list(proxies)
