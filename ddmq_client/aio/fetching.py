"""AsyncFetchConsumer: the asyncio twin of `ddmq_client.FetchConsumer`. For one task at a time.

A fetch that is cancelled loses nothing: what its calls bring is given to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from ddmq_client.aio.connection import AsyncFramedConnection, resolve
from ddmq_client.core.fetching import Assignments, FetchAnswer, Queue, Round
from ddmq_client.core.nodes import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, ProxyAddress, parse_addresses
from ddmq_client.core.settings import check
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.fetching import ACK_TRIES, FAILURES, LEAVE_S, LINGER_MS_MAX, fetch_settings
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.net.connection import AGAIN_S
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.consuming import ack_frame, fetch_frame, leave_frame, read_acked, read_fetched


class AsyncFetchConsumer:
    """Fetches and acknowledges by offset; arguments and methods as of `ddmq_client.FetchConsumer`."""

    def __init__(
        self,
        proxies: str | Sequence[str],
        group: str,
        *,
        consumer_id: str | None = None,
        timeout_ms: int = 5_000,
    ) -> None:
        """Checks its arguments (OptionError); connects with the first fetch."""
        self._proxies = parse_addresses(proxies, CONSUMER_PORT)
        self._settings = fetch_settings(group, consumer_id, timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._assignments = Assignments(group)
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._addresses: dict[str, ProxyAddress] = {}
        self._connections: dict[str, AsyncFramedConnection] = {}
        self._for_acks: dict[str, AsyncFramedConnection] = {}  # of their own: a fetch may be waiting
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._since: dict[str, float] = {}  # when a proxy was asked whose answer was not taken
        self._ended: list[FetchAnswer] = []
        self._arrived = asyncio.Event()
        self._resolve_at = 0.0
        self._closed = False

    @property
    def consumer_id(self) -> str:
        """Who this is among the group's consumers."""
        return self._settings.consumer_id

    @property
    def assignments(self) -> list[Queue]:
        """(topic, queue) of what the proxies gave to this consumer, as of the last fetch."""
        return self._assignments.queues()

    def seek(self, topic: str, queue: str, offset: int) -> None:
        """Fetch this queue from `offset` next."""
        self._assignments.seek(topic, queue, offset)
        for name in self._since.keys() - {answer.proxy for answer in self._ended}:
            self._drop(name)

    async def fetch(self, max_messages: int = 32, linger_ms: int = 500) -> list[FetchedQueue]:
        """What there is, up to `max_messages` of each queue; as `FetchConsumer.fetch`."""
        check("max_messages", max_messages, 1, 1_000_000)
        check("linger_ms", linger_ms, 1, LINGER_MS_MAX)
        loop = asyncio.get_running_loop()
        proxies = await self._connected()
        now = loop.time()
        fetch = Round(self._assignments, proxies, max_messages, now, linger_ms / 1000)
        while True:
            for name in fetch.to_ask(self._since):
                self._start(name, max_messages, fetch.linger_ms(now))
            if not self._ended:
                until = fetch.wait_until(loop.time(), self._since)
                if until is None:
                    return fetch.result(now)
                await self._wait(until)
            now = loop.time()
            taken, self._ended = self._ended, []
            for answer in taken:
                self._since.pop(answer.proxy)
                fetch.take(answer, now)

    async def ack(self, offsets: Mapping[str, Mapping[str, int]] | None = None) -> bool:
        """Store where the group is; as `FetchConsumer.ack`."""
        stored = True
        for name, mine in self._assignments.acks(offsets).items():
            deadline = asyncio.get_running_loop().time() + self._timeout_s
            for _ in range(ACK_TRIES):
                if await self._ack_at(name, mine, deadline):
                    self._assignments.acked(mine)
                    break
            else:
                stored = False
        return stored

    async def aclose(self) -> None:
        """Leave, so that the queues go to the others at once, and close. The end of an `async with` block."""
        asked, left = list(self._connections), self._closed
        self.close()
        for name in [] if left else asked:
            address = self._addresses.get(name)
            if address is None:
                continue
            connection, until = AsyncFramedConnection(address), asyncio.get_running_loop().time() + LEAVE_S
            with suppress(*FAILURES):
                await connection.call(lambda now, number: leave_frame(self._settings, number), until)
            connection.close()

    def close(self) -> None:
        """Close the connections; the queues go to others after 30 s (`aclose`: at once). Again: nothing."""
        self._closed = True
        for name in list(self._connections):
            self._drop(name)
        for connection in self._for_acks.values():
            connection.close()
        self._for_acks.clear()

    async def __aenter__(self) -> AsyncFetchConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _connected(self) -> dict[str, ProxyAddress]:
        if self._closed:
            raise ClosedError("the consumer has been closed")
        now = asyncio.get_running_loop().time()
        if now >= self._resolve_at or not self._addresses:
            found = self._addresses
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S if found else self._timeout_s):
                    found = {str(address): address for address in await resolve(self._proxies, self._known)}
            self._resolve_at = now + (RESOLVE_EVERY_S if found else UNRESOLVED_RETRY_S)
            for name in self._addresses.keys() - found.keys():
                self._drop(name)
                self._assignments.lost(name)
            self._addresses = found
        if not self._addresses:
            raise PullError("no proxy address is known: no name resolves")
        return self._addresses

    def _start(self, name: str, max_messages: int, linger_ms: int) -> None:
        """Ask this proxy, in a task of its own: it may outlast the fetch that started it."""
        self._since[name] = asyncio.get_running_loop().time()
        connection = self._connections.setdefault(name, AsyncFramedConnection(self._addresses[name]))
        call = self._call(name, connection, max_messages, linger_ms, self._since[name])
        self._tasks[name] = asyncio.create_task(call, name=f"ddmq-fetch-{name}")

    async def _call(
        self, name: str, connection: AsyncFramedConnection, max_messages: int, linger_ms: int, started: float
    ) -> None:
        asked, loop = self._assignments.ask(name), asyncio.get_running_loop()
        outcome: Sequence[FetchedQueue] | Exception
        try:
            payload, sequence_id = await connection.call(
                lambda now, number: fetch_frame(self._settings, asked, max_messages, linger_ms, number),
                started + linger_ms / 1000 + self._timeout_s,
            )
            outcome = read_fetched(payload, sequence_id)
        except asyncio.CancelledError:
            if self._since.get(name) == started:  # by whoever cancels every task
                del self._since[name]
                self._arrived.set()
            raise
        except Exception as error:
            if not isinstance(error, PullError):
                connection.close()
            outcome = error
        self._ended.append(FetchAnswer(name, asked, max_messages, started, loop.time(), outcome))
        self._arrived.set()

    async def _wait(self, until: float) -> None:
        """Until an answer has come, at most until the loop's time `until`."""
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._arrived.wait()

    def _drop(self, name: str) -> None:
        """Nobody waits for this proxy's answer any more."""
        self._since.pop(name, None)
        self._ended = [answer for answer in self._ended if answer.proxy != name]
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    async def _ack_at(self, name: str, offsets: Mapping[str, Mapping[str, int]], deadline: float) -> bool:
        address = self._addresses.get(name)
        if address is None or self._closed:
            return False
        connection = self._for_acks.setdefault(name, AsyncFramedConnection(address))
        try:
            payload, sequence_id = await connection.call(
                lambda now, number: ack_frame(self._settings, offsets, number), deadline
            )
            return read_acked(payload, sequence_id)
        except FAILURES:
            connection.close()
            return False
