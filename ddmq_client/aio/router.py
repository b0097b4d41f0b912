"""The asyncio producer's way to its proxies: addresses, rotation, idle connections, their upkeep.

The twin of `net.router`. Everything runs on one event loop, so nothing needs a lock; the upkeep is a task.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress

from ddmq_client.aio.connection import AsyncFramedConnection
from ddmq_client.aio.resolver import resolve
from ddmq_client.core.addresses import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, ProxyAddress
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import Node, Rotation
from ddmq_client.core.transport import CallFailed
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.errors import BusyError, ClosedError
from ddmq_client.net.router import IDLE_MAX_S, PROBE_TIMEOUT_S, heartbeat_frame
from ddmq_client.wire.producing import ProxyFault, heartbeat_verdict


class AsyncProxyRouter:
    """Nodes, connections and their upkeep, on one event loop."""

    def __init__(self, addresses: Sequence[ProxyAddress], connections_max: int, heartbeat: bytes) -> None:
        self._addresses = addresses
        self._connections_max = connections_max
        self._heartbeat = heartbeat
        self._rotation = Rotation(random.random)
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._idle: dict[Node, list[tuple[float, AsyncFramedConnection]]] = {}
        self._in_use: set[AsyncFramedConnection] = set()
        self._slots = asyncio.Semaphore(connections_max)
        self._wake = asyncio.Event()
        self._resolved = asyncio.Event()  # once; until then sends wait
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def pick(self, avoid: Collection[Node], deadline: float) -> Node | None:
        """The node for the next attempt; None while no name resolves. The first one waits for names."""
        self._check_open()
        if self._task is None:
            self._task = asyncio.create_task(self._upkeep(), name="ddmq-producer-upkeep")
        if not self._resolved.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._resolved.wait()
            self._check_open()
        return self._rotation.pick(avoid)

    def note(self, node: Node, verdict: CallVerdict, tried: Collection[Node]) -> bool:
        """Count an outcome towards the node's health; True where a node in rotation is still untried."""
        was_up = node.up
        self._rotation.note(node, verdict, asyncio.get_running_loop().time())
        if was_up and not node.up:
            self._drop_idle(node)
            self._wake.set()
        return self._rotation.has_fresh(tried)

    def has_fresh(self, tried: Collection[Node]) -> bool:
        """Is a node in rotation still untried?"""
        return self._rotation.has_fresh(tried)

    def nodes(self) -> list[tuple[str, bool]]:
        """("host:port", in rotation) of every known proxy."""
        return [(node.name, node.up) for node in self._rotation.nodes]

    @asynccontextmanager
    async def connection(self, node: Node, deadline: float) -> AsyncIterator[AsyncFramedConnection]:
        """A connection to the node, given back after use; closed when the block raised."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise BusyError(f"all {self._connections_max} connections of this producer are in use") from None
        try:
            connection = self._lease(node)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            finally:
                self._give_back(node, connection)
        finally:
            self._slots.release()

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        self._closed = True
        for connection in [c for entries in self._idle.values() for _, c in entries] + list(self._in_use):
            connection.close()
        self._idle.clear()
        self._resolved.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer has been closed")

    async def _resolve(self) -> None:
        for node in self._rotation.update(await resolve(self._addresses, self._known)):
            self._drop_idle(node)

    def _lease(self, node: Node) -> AsyncFramedConnection:
        self._check_open()
        idle = self._idle.get(node)
        while idle:
            connection = idle.pop()[1]
            if not connection.closed:
                break
        else:
            self._make_room()
            connection = AsyncFramedConnection(node.address)
        self._in_use.add(connection)
        return connection

    def _give_back(self, node: Node, connection: AsyncFramedConnection) -> None:
        self._in_use.discard(connection)
        if connection.closed or node.gone or self._closed:
            connection.close()
        else:
            now = asyncio.get_running_loop().time()
            self._idle.setdefault(node, []).append((now, connection))

    def _make_room(self) -> None:
        """An idle connection to another node makes way, so that open ones stay within the bound."""
        idle = [entries for entries in self._idle.values() if entries]
        if idle and len(self._in_use) + sum(map(len, idle)) >= self._connections_max:
            idle[0].pop(0)[1].close()

    def _drop_idle(self, node: Node) -> None:
        for _, connection in self._idle.pop(node, ()):
            connection.close()

    async def _upkeep(self) -> None:
        loop = asyncio.get_running_loop()
        await self._resolve()
        self._resolved.set()
        resolve_at = loop.time() + self._resolve_in()
        while True:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._next_probe(), resolve_at)):
                    await self._wake.wait()
            for node in self._rotation.due_probes(loop.time()):
                await self._probe(node)
            if loop.time() >= resolve_at:
                self._close_idle(loop.time())
                await self._resolve()
                resolve_at = loop.time() + self._resolve_in()

    def _resolve_in(self) -> float:
        return RESOLVE_EVERY_S if self._rotation.nodes else UNRESOLVED_RETRY_S

    def _next_probe(self) -> float:
        times = [n.retry_at for n in self._rotation.nodes if n.retry_at is not None and not n.probing]
        return min(times, default=float("inf"))

    def _close_idle(self, now: float) -> None:
        for node, entries in list(self._idle.items()):
            while entries and entries[0][0] < now - IDLE_MAX_S:
                entries.pop(0)[1].close()
            if not entries:
                del self._idle[node]

    async def _probe(self, node: Node) -> None:
        connection = AsyncFramedConnection(node.address)
        loop = asyncio.get_running_loop()
        try:
            payload, sequence_id = await connection.call(
                lambda now, number: heartbeat_frame(self._heartbeat, number), loop.time() + PROBE_TIMEOUT_S
            )
            verdict = heartbeat_verdict(payload, sequence_id)
        except (CallFailed, FrameError, ProxyFault):
            verdict = CallVerdict.LOST
        finally:
            connection.close()
        self._rotation.note(node, verdict, loop.time())
