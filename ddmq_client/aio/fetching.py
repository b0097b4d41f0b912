"""AsyncFetchConsumer: the asyncio twin of `ddmq_client.FetchConsumer`. For one task at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType

from ddmq_client.aio.connection import AsyncConnection
from ddmq_client.aio.router import resolve
from ddmq_client.core import addresses
from ddmq_client.core.addresses import Address
from ddmq_client.core.fetching import Assignments, Queue
from ddmq_client.core.settings import check
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.fetching import ACK_TRIES, FAILURES, LINGER_MS_MAX, fetch_settings
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.net.resolver import RESOLVE_EVERY_S
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.fetching import ack_frame, fetch_frame, read_acked, read_fetched


class AsyncFetchConsumer:
    """Fetches and acknowledges by offset; arguments and methods as of `ddmq_client.FetchConsumer`.

    All proxies are asked at the same time.
    """

    def __init__(
        self,
        proxies: str | Sequence[str],
        group: str,
        *,
        consumer_id: str | None = None,
        timeout_ms: int = 5_000,
    ) -> None:
        """Checks its arguments (OptionError); connects with the first fetch."""
        self._proxies = addresses.parse(proxies, CONSUMER_PORT)
        self._settings = fetch_settings(group, consumer_id, timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._assignments = Assignments(group)
        self._known: dict[Address, list[Address]] = {}
        self._connections: dict[str, AsyncConnection] = {}
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

    async def fetch(self, max_messages: int = 32, linger_ms: int = 500) -> list[FetchedQueue]:
        """What there is, up to `max_messages` of each queue; as `FetchConsumer.fetch`."""
        check("max_messages", max_messages, 1, 1_000_000)
        check("linger_ms", linger_ms, 1, LINGER_MS_MAX)
        connections = await self._connected()
        wait_ms = linger_ms if len(connections) == 1 else max(1, linger_ms // 2)
        calls = [self._fetch_from(name, one, max_messages, wait_ms) for name, one in connections.items()]
        found: list[FetchedQueue] = []
        failures: list[Exception] = []
        for (name, one), answer in zip(
            list(connections.items()), await asyncio.gather(*calls, return_exceptions=True), strict=True
        ):
            if isinstance(answer, FAILURES):
                failures.append(answer)
                if not isinstance(answer, PullError):
                    one.close()
                    self._assignments.lost(name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += answer
        self._raise_refusal(failures, found, len(connections))
        return found

    def _raise_refusal(self, failures: list[Exception], found: Sequence[FetchedQueue], asked: int) -> None:
        refusal = next((error for error in failures if isinstance(error, PullError)), None)
        if not found and refusal is not None:
            raise refusal
        if len(failures) == asked:
            raise PullError(f"no proxy answers: {failures[-1]}")

    async def ack(self, offsets: Mapping[str, Mapping[str, int]] | None = None) -> bool:
        """Store where the group is; as `FetchConsumer.ack`."""
        stored = True
        for name, mine in self._assignments.acks(offsets).items():
            for _ in range(ACK_TRIES):
                if await self._ack_at(name, mine):
                    self._assignments.acked(mine)
                    break
            else:
                stored = False
        return stored

    def close(self) -> None:
        """Close the connections; the queues go to others after 30 s. May be called twice."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def __aenter__(self) -> AsyncFetchConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _connected(self) -> dict[str, AsyncConnection]:
        if self._closed:
            raise ClosedError("the consumer has been closed")
        now = asyncio.get_running_loop().time()
        if now >= self._resolve_at or not self._connections:
            self._resolve_at = now + RESOLVE_EVERY_S
            found = {str(address): address for address in await resolve(self._proxies, self._known)}
            for name in self._connections.keys() - found.keys():
                self._connections.pop(name).close()
                self._assignments.lost(name)
            for name, address in found.items():
                self._connections.setdefault(name, AsyncConnection(address))
        if not self._connections:
            raise PullError("no proxy address is known: no name resolves")
        return self._connections

    async def _fetch_from(
        self, name: str, connection: AsyncConnection, max_messages: int, linger_ms: int
    ) -> list[FetchedQueue]:
        offsets, loop = self._assignments.ask(name), asyncio.get_running_loop()
        payload, sequence_id = await connection.call(
            lambda now, number: fetch_frame(self._settings, offsets, max_messages, linger_ms, number),
            loop.time() + linger_ms / 1000 + self._timeout_s,
        )
        queues = read_fetched(payload, sequence_id)
        self._assignments.answered(name, queues, loop.time())
        return [each for each in queues if each.messages]

    async def _ack_at(self, name: str, offsets: Mapping[str, Mapping[str, int]]) -> bool:
        connection = self._connections.get(name)
        if connection is None:
            return False
        try:
            payload, sequence_id = await connection.call(
                lambda now, number: ack_frame(self._settings, offsets, number),
                asyncio.get_running_loop().time() + self._timeout_s,
            )
            return read_acked(payload, sequence_id)
        except FAILURES:
            connection.close()
            return False
