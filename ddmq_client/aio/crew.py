"""Which tasks an asyncio consumer runs: per proxy one flusher and a puller for each topic; workers.

The twin of `net.crew`, `net.puller` and `net.flusher`; each puller and flusher has a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

from ddmq_client.aio.connection import AsyncFramedConnection
from ddmq_client.aio.coordinator import AsyncCoordinator
from ddmq_client.aio.router import resolve
from ddmq_client.core.acks import AckBatch
from ddmq_client.core.addresses import ProxyAddress
from ddmq_client.core.pacing import Pace
from ddmq_client.core.prefetch_buffer import ProxyConnection, Source
from ddmq_client.errors import PullError
from ddmq_client.net.flusher import CLOSING_TRIES
from ddmq_client.net.puller import FAILURES
from ddmq_client.net.resolver import RESOLVE_EVERY_S, UNRESOLVED_RETRY_S, is_literal
from ddmq_client.received import Message
from ddmq_client.teller import UNKNOWN_METHOD
from ddmq_client.wire.consuming import (
    Pulled,
    pull_frame,
    pull_settings,
    read_pulled,
    read_settled,
    read_submitted,
    settle_frame,
    submit_frame,
)
from ddmq_client.wire.producing import ProxyFault

_log = logging.getLogger("ddmq_client.consumer")
CANCEL_S = 1.0  # for a cancelled handler to end
Handle = Callable[[list[Message]], Awaitable[int]]
Task = asyncio.Task[None]


class AsyncCrew:
    """Starts and ends the tasks of one consumer."""

    def __init__(self, coordinator: AsyncCoordinator, proxies: Sequence[ProxyAddress]) -> None:
        self._coordinator = coordinator
        self._proxies = proxies
        self._pulls = pull_settings(coordinator.settings)
        self._known: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._sources: dict[ProxyAddress, list[Source]] = {}
        self._connections: dict[ProxyAddress, ProxyConnection] = {}
        self._pullers: set[Task] = set()
        self._flushers: set[Task] = set()
        self._workers: set[Task] = set()
        self._upkeep: Task | None = None
        self._closing_until = 0.0
        self._keepers: set[Task] = set()

    async def start(self, workers: int, batch: int, handle: Handle | None) -> None:
        """Start pulling; with `handle`, also workers that feed it `batch` messages at most."""
        if all(map(is_literal, self._proxies)):
            await self._refresh()
        self._upkeep = asyncio.create_task(self._keep_up(), name="ddmq-consumer-upkeep")
        if not self._coordinator.settings.broadcasting:
            spawn(self._keepers, self._keep_leases(), "ddmq-consumer-leases")
        if handle is not None:
            for number in range(workers):
                spawn(self._workers, self._work(batch, handle), f"ddmq-worker-{number}")

    async def stop(self, until: float, flush_until: float) -> bool:
        """Finish in order: pulls, handlers, results. False where something was broken off at its deadline."""
        coordinator = self._coordinator
        try:
            if self._upkeep is not None:
                self._upkeep.cancel()
            coordinator.stop_pulling()
            clean = await _finish(self._pullers, until)
            alone = self.is_worker() and len(self._workers) == 1
            clean = await coordinator.wait_handled(until, alone) and clean
            coordinator.stop_handing()
            clean = await _finish(self._workers - {asyncio.current_task()}, until) and clean
            await _finish(self._keepers, 0.0)
            self._closing_until = flush_until
            coordinator.stop_flushing()
            clean = await _finish(self._flushers, flush_until) and clean
            return not coordinator.abandon() and clean
        finally:
            for task in self._pullers | self._workers | self._flushers | self._keepers:
                if task is not asyncio.current_task():
                    task.cancel()

    async def _keep_leases(self) -> None:
        while await self._coordinator.keep():
            pass

    def is_worker(self) -> bool:
        """Called by a handler."""
        return asyncio.current_task() in self._workers

    async def _keep_up(self) -> None:
        """Names are resolved here from the first time on: a name server may take its time."""
        if not self._sources:
            await self._refresh()
        while True:
            await asyncio.sleep(RESOLVE_EVERY_S if self._sources else UNRESOLVED_RETRY_S)
            await self._refresh()

    async def _refresh(self) -> None:
        addresses = await resolve(self._proxies, self._known)
        if not addresses:
            self._coordinator.last_error = "no proxy address is known: no name resolves"
            _log.warning("none of %s resolves", ", ".join(map(str, self._proxies)))
            return
        for address in addresses:
            if address not in self._sources:
                self._hire(address)
        for address in set(self._sources) - set(addresses):
            for source in self._sources.pop(address):
                self._coordinator.end(source)
            self._coordinator.retire(self._connections.pop(address), self._connections[addresses[0]])

    def _hire(self, address: ProxyAddress) -> None:
        proxy = self._connections[address] = self._coordinator.proxy(str(address))
        spawn(self._flushers, self._flush(proxy, address), f"ddmq-acks-{address}")
        topics = self._coordinator.settings.topics or (None,)
        self._sources[address] = [Source(proxy, topic) for topic in topics]
        for source in self._sources[address]:
            spawn(self._pullers, self._pull_all(source, address), f"ddmq-pull-{address}")

    async def _pull_all(self, source: Source, address: ProxyAddress) -> None:
        connection = AsyncFramedConnection(address)
        pace = Pace(self._pulls.linger_ms / 1000, random.random)
        try:
            while (work := await self._coordinator.wait_room(source)) is not None:
                pause = await self._pull(connection, source, pace, *work)
                if pause:
                    await self._coordinator.pause(source, pause)
        finally:
            connection.close()

    async def _pull(
        self,
        connection: AsyncFramedConnection,
        source: Source,
        pace: Pace,
        batch: int,
        linger_ms: int,
        acks: AckBatch | None,
    ) -> float:
        """One pull; seconds to pause after it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            answer = await self._call(connection, source.topic, batch, linger_ms, acks)
        except FAILURES as error:
            if isinstance(error, PullError):
                error.proxy = source.proxy.name
            else:
                connection.close()
            self._coordinator.pull_failed(source, acks, error)
            if not (pace.failing or self._coordinator.pulling_stopped or source.ended):
                self._coordinator.teller.failed(source.proxy.name, error)
            return pace.failed()
        except BaseException as error:
            self._coordinator.pull_failed(source, acks, error)
            raise
        self._coordinator.pulled(source, answer)
        self._coordinator.told(acks, answer.told)
        self._coordinator.teller.notice(source.proxy.name, answer.notice)
        return pace.answered(len(answer.messages), loop.time() - started, linger_ms / 1000)

    async def _call(
        self,
        connection: AsyncFramedConnection,
        topic: str | None,
        batch: int,
        linger_ms: int,
        acks: AckBatch | None,
    ) -> Pulled:
        pulls = self._pulls._replace(linger_ms=linger_ms)
        timeout_s = (linger_ms + self._coordinator.settings.timeout_ms) / 1000
        payload, sequence_id = await connection.call(
            lambda now, number: pull_frame(pulls, topic, batch, acks, number),
            asyncio.get_running_loop().time() + timeout_s,
        )
        return read_pulled(payload, sequence_id)

    async def _flush(self, proxy: ProxyConnection, address: ProxyAddress) -> None:
        coordinator, loop = self._coordinator, asyncio.get_running_loop()
        connection, pace = AsyncFramedConnection(address), Pace(0.0, random.random)
        try:
            while (acks := await coordinator.wait_due(proxy)) is not None:
                until = loop.time() + coordinator.settings.timeout_ms / 1000
                if await self._submit(connection, proxy, acks, until):
                    pace.answered(1, 0.0)
                else:
                    await coordinator.pause_flusher(proxy, pace.failed())
            failures = 0
            while loop.time() < self._closing_until and failures < CLOSING_TRIES:
                if (acks := coordinator.take_rest(proxy)) is None:
                    return
                failures += not await self._submit(connection, proxy, acks, self._closing_until)
        finally:
            connection.close()

    async def _submit(
        self, connection: AsyncFramedConnection, proxy: ProxyConnection, acks: AckBatch, until: float
    ) -> bool:
        """True when the proxy has taken the results."""
        failure: BaseException | None = None
        try:
            if not (proxy.settles and await self._settle(connection, proxy, acks, until)):
                payload, sequence_id = await connection.call(
                    lambda now, number: submit_frame(acks, number), until
                )
                if not read_submitted(payload, sequence_id):
                    failure = PullError("proxy answered false to submit")
        except FAILURES as error:
            connection.close()
            failure = error
            _log.warning("submit to %s failed: %s", proxy.name, error)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._coordinator.submitted(proxy, acks, failure)
        return failure is None

    async def _settle(
        self, connection: AsyncFramedConnection, proxy: ProxyConnection, acks: AckBatch, until: float
    ) -> bool:
        """Submit and hear what came too late; False where the proxy has only `submit`."""
        leave = self._coordinator.pulling_stopped
        try:
            answer = await connection.call(
                lambda now, number: settle_frame(self._pulls, acks, leave, number), until
            )
            self._coordinator.told(acks, read_settled(*answer))
        except ProxyFault as fault:
            if fault.kind != UNKNOWN_METHOD:
                raise
            proxy.settles = False
        return proxy.settles or not acks

    async def _work(self, batch: int, handle: Handle) -> None:
        while messages := await self._coordinator.next(batch):
            errors = 0
            try:
                errors = await handle(messages)
            finally:
                self._coordinator.handled(messages, errors)


def spawn(tasks: set[Task], work: Coroutine[None, None, None], name: str) -> None:
    """Start a task that is in `tasks` as long as it runs."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _finish(tasks: Iterable[Task], until: float) -> bool:
    """Wait for them until the loop's time `until`, then cancel; whether all ended by themselves."""
    waiting = set(tasks)
    if not waiting:
        return True
    timeout = max(0.0, until - asyncio.get_running_loop().time())
    _, late = await asyncio.wait(waiting, timeout=timeout)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=CANCEL_S)
    return not late
