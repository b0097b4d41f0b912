"""The producer's way to its proxies: addresses, rotation, idle connections, their upkeep.

The upkeep resolves names again every 30 s, closes connections idle for a minute, and sends a heartbeat to
each proxy that is out of rotation and whose back-off is over. It starts with the first use and ends with
`close`. One lock guards everything here; no call to the network is made under it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from ddmq_client.aio.connection import AsyncFramedConnection, resolve_addresses
from ddmq_client.aio.sync import AsyncActivity, Condition, Lock, join_activities, now
from ddmq_client.core import frames
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import (
    RESOLVE_EVERY_S,
    UNRESOLVED_RETRY_S,
    Node,
    ProxyAddress,
    Rotation,
    describe_unresolved,
)
from ddmq_client.core.sending import SEND_ONE
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.errors import BusyError, ClosedError
from ddmq_client.wire.producing import ProxyCallError, heartbeat_verdict

IDLE_MAX_S = 60.0
PROBE_TIMEOUT_S = 2.0


class AsyncProxyRouter:
    """The producer's proxies with their connections and upkeep. Safe for many threads."""

    def __init__(self, addresses: Sequence[ProxyAddress], connections_max: int, heartbeat: bytes) -> None:
        self._addresses = addresses
        self._connections_max = connections_max
        self._heartbeat = heartbeat
        self._lock = Lock()
        self._freed = Condition(self._lock)
        self._upkeep_due = Condition(self._lock)
        self._rotation = Rotation(random.random)
        self._address_cache: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._idle: dict[Node, list[tuple[float, AsyncFramedConnection]]] = {}
        self._in_use: set[AsyncFramedConnection] = set()
        self._ending = Condition(self._lock)
        self._first_resolved = Condition(self._lock)
        self._resolved = False  # the names have been, for the first time
        self._upkeep = AsyncActivity(self._keep_up, "ddmq-producer-upkeep")
        self._upkeep_started = False
        self._closed = False

    async def pick_node(self, avoid: Collection[Node], deadline: float) -> Node | None:
        """Return the node for the next attempt; None while no name resolves.

        The first call waits for that.
        """
        with self._lock:
            if not self._resolved:
                await self._wait_resolved(deadline)
            if self._closed:
                raise ClosedError("the producer has been closed")
            return self._rotation.pick_node(avoid)

    def describe_unresolved(self) -> str:
        """Return why `pick_node` returned None: no name resolves, or the time-out came before the answer."""
        with self._lock:
            in_time = self._resolved and not self._rotation.nodes
            return describe_unresolved(self._addresses, in_time=in_time)

    def record_outcome(self, node: Node, verdict: CallVerdict, tried: Collection[Node]) -> bool:
        """Count an outcome towards the node's health; return whether an untried node is in rotation."""
        with self._lock:
            was_up = node.is_up
            self._rotation.record_outcome(node, verdict, now())
            if was_up and not node.is_up:
                self._drop_idle(node)
                self._upkeep_due.notify()
            return self._rotation.has_fresh(tried)

    def has_fresh(self, tried: Collection[Node]) -> bool:
        """Return whether a node in rotation has not been tried yet."""
        with self._lock:
            return self._rotation.has_fresh(tried)

    def recognises_resends(self) -> bool | None:
        """Return whether proxies recognise resent messages by their numbers; None if that is unknown."""
        with self._lock:
            return self._rotation.recognises_resends()

    def recognises_keys(self) -> bool | None:
        """Return whether proxies recognise resent messages by idempotency keys; None if that is unknown."""
        with self._lock:
            return self._rotation.recognises_keys()

    def nodes(self) -> list[tuple[str, bool]]:
        """Return ("host:port", whether it is in rotation) of every known proxy."""
        with self._lock:
            return [(node.name, node.is_up) for node in self._rotation.nodes]

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt; returns early when the router is closed."""
        until = now() + seconds
        with self._lock:
            while not self._closed and now() < until:
                await self._ending.wait(until - now())

    async def close(self, deadline: float) -> None:
        """Close every connection, so that calls in progress fail.

        Wait until `deadline` for the upkeep to end.
        """
        with self._lock:
            self._closed = True
            connections = [c for entries in self._idle.values() for _, c in entries]
            connections += self._in_use
            self._idle.clear()
            for condition in (self._upkeep_due, self._freed, self._first_resolved, self._ending):
                condition.notify_all()
        for connection in connections:
            connection.close()
        self._upkeep.cancel()
        await join_activities([self._upkeep], min(deadline, now() + PROBE_TIMEOUT_S))

    async def _wait_resolved(self, deadline: float) -> None:
        if not (self._upkeep_started or self._closed):
            self._upkeep.start()
            self._upkeep_started = True
        while not (self._resolved or self._closed):
            if not await self._first_resolved.wait(deadline - now()):
                return

    async def _resolve_addresses(self) -> None:
        addresses = await resolve_addresses(self._addresses, self._address_cache)
        with self._lock:
            for node in self._rotation.update(addresses):
                self._drop_idle(node)

    async def lease(self, node: Node, deadline: float) -> AsyncFramedConnection:
        """Return a connection to the node for exclusive use; wait while all are in use.

        Return it with `give_back`.
        """
        with self._lock:
            while not self._closed:
                connection = self._connection_to(node)
                if connection is not None:
                    self._in_use.add(connection)
                    return connection
                if not await self._freed.wait(deadline - now()):
                    raise BusyError(f"all {self._connections_max} connections of this producer are in use")
            raise ClosedError("the producer has been closed")

    def give_back(self, node: Node, connection: AsyncFramedConnection) -> None:
        """Return a leased connection; it is closed if its call failed."""
        with self._lock:
            self._in_use.discard(connection)
            keep = not (connection.closed or node.removed or self._closed)
            if keep:
                self._idle.setdefault(node, []).append((now(), connection))
            self._freed.notify()
        if not keep:
            connection.close()

    def _connection_to(self, node: Node) -> AsyncFramedConnection | None:
        idle = self._idle.get(node)
        while idle:
            connection = idle.pop()[1]
            if not connection.closed:
                return connection
        if len(self._in_use) >= self._connections_max:
            return None
        self._evict_idle()
        return AsyncFramedConnection(node.address)

    def _evict_idle(self) -> None:
        """Close an idle connection to another node, to keep the number of open ones within its bound."""
        idle = [entries for entries in self._idle.values() if entries]
        if idle and len(self._in_use) + sum(map(len, idle)) >= self._connections_max:
            idle[0].pop(0)[1].close()

    def _drop_idle(self, node: Node) -> None:
        for _, connection in self._idle.pop(node, ()):
            connection.close()

    async def _keep_up(self) -> None:
        await self._resolve_addresses()
        with self._lock:
            self._resolved = True
            self._first_resolved.notify_all()
        resolve_at = now() + self._resolve_in()
        while True:
            time = now()
            with self._lock:
                if self._closed:
                    return
                probes = self._rotation.due_probes(time)
                if not probes and time < resolve_at:
                    await self._upkeep_due.wait(min(self._next_probe(), resolve_at) - time)
                    continue
                self._close_idle(time)
            for node in probes:
                await self._probe_node(node)
            if time >= resolve_at:
                await self._resolve_addresses()
                resolve_at = now() + self._resolve_in()

    def _resolve_in(self) -> float:
        return RESOLVE_EVERY_S if self._rotation.nodes else UNRESOLVED_RETRY_S

    def _next_probe(self) -> float:
        times = [n.retry_at for n in self._rotation.nodes if n.retry_at is not None and not n.probing]
        return min(times, default=float("inf"))

    def _close_idle(self, time: float) -> None:
        for node, entries in list(self._idle.items()):
            while entries and entries[0][0] < time - IDLE_MAX_S:
                entries.pop(0)[1].close()
            if not entries:
                del self._idle[node]

    async def _probe_node(self, node: Node) -> None:
        connection = AsyncFramedConnection(node.address)
        try:
            payload, sequence_id = await connection.call(self._probe_frame, now() + PROBE_TIMEOUT_S)
            verdict = heartbeat_verdict(payload, sequence_id)
        except (CallFailed, FrameError, ProxyCallError):
            verdict = CallVerdict.LOST
        finally:
            connection.close()
        with self._lock:
            self._rotation.record_outcome(node, verdict, now())

    def _probe_frame(self, at: float, sequence_id: int) -> bytes:
        return heartbeat_frame(self._heartbeat, sequence_id)


def heartbeat_frame(heartbeat: bytes, sequence_id: int) -> bytes:
    """Encode the request of a heartbeat."""
    args = frames.one_message_args(heartbeat, int(PROBE_TIMEOUT_S * 1000))
    return frames.build_frame((frames.call_head(SEND_ONE, sequence_id), *args))
