"""A broadcasting asyncio consumer's tasks: the twin of `net.broadcast`. The file is written in a thread."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from ddmq_client.aio.connection import AsyncFramedConnection
from ddmq_client.aio.coordinator import AsyncCoordinator
from ddmq_client.aio.crew import AsyncCrew, spawn
from ddmq_client.aio.router import resolve
from ddmq_client.core.addresses import ProxyAddress
from ddmq_client.core.pacing import Pace
from ddmq_client.core.prefetch_buffer import Source
from ddmq_client.errors import PullError
from ddmq_client.net.broadcast import SAVE_EVERY_S
from ddmq_client.net.puller import FAILURES
from ddmq_client.offsets_file import OffsetsFile
from ddmq_client.received import FetchedQueue
from ddmq_client.wire.fetching import FetchSettings, fetch_frame, read_fetched

_log = logging.getLogger("ddmq_client.consumer")


class AsyncBroadcastCrew(AsyncCrew):
    """The crew of an asyncio consumer with model="broadcasting"."""

    def __init__(
        self,
        coordinator: AsyncCoordinator,
        proxies: Sequence[ProxyAddress],
        settings: FetchSettings,
        file: OffsetsFile | None,
    ) -> None:
        super().__init__(coordinator, proxies)
        self._settings = settings
        self._file = file
        self._turn = 0
        self._source = Source(coordinator.proxy("broadcast"), None)
        self._connection: AsyncFramedConnection | None = None
        self._started = False
        if file is not None and coordinator.places is not None:
            coordinator.places.start(file.take())

    async def stop(self, until: float, flush_until: float) -> bool:
        """As AsyncCrew.stop, but without waiting for a fetch: it holds no lease. Then store the place."""
        self._coordinator.stop_pulling()
        for task in self._pullers if self._source.parked else ():
            task.cancel()
        try:
            clean = await super().stop(until, flush_until)
            return await self._save() and clean
        finally:
            if self._file is not None:
                self._file.leave()

    async def _refresh(self) -> None:
        if not self._started:
            self._started = True
            spawn(self._pullers, self._fetch_all(), "ddmq-broadcast")

    async def _save(self) -> bool:
        if self._file is None:
            return True
        try:
            await asyncio.to_thread(self._file.save, self._coordinator.places_now())
        except OSError as error:
            self._coordinator.last_error = f"the offsets file cannot be written: {error}"
            _log.error("the offsets file cannot be written: %s", error)
            return False
        return True

    async def _fetch_all(self) -> None:
        source, loop = self._source, asyncio.get_running_loop()
        pace = Pace(self._coordinator.settings.linger_ms / 1000, random.random)
        saved_at = 0.0
        try:
            while (work := await self._coordinator.wait_room(source)) is not None:
                pause = await self._fetch(source, pace, work[0], work[1])
                if loop.time() - saved_at >= SAVE_EVERY_S:
                    saved_at = loop.time()
                    await self._save()
                if pause:
                    await self._coordinator.pause(source, pause)
        finally:
            self._drop_connection()

    async def _fetch(self, source: Source, pace: Pace, batch: int, linger_ms: int) -> float:
        """One fetch; seconds to pause after it."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            queues = await self._ask(batch, linger_ms)
        except FAILURES as error:
            self._coordinator.pull_failed(source, None, error)
            if not (pace.failing or self._coordinator.pulling_stopped or source.ended):
                name = "" if self._connection is None else self._connection.name
                self._coordinator.teller.failed(name, error)
            if isinstance(error, PullError):
                error.proxy = "" if self._connection is None else self._connection.name
            else:
                self._turn += 1
                self._drop_connection()
            return pace.failed()
        count = self._coordinator.fetched(source, self._settings.group, queues)
        return pace.answered(count, loop.time() - started, linger_ms / 1000)

    async def _ask(self, batch: int, linger_ms: int) -> list[FetchedQueue]:
        offsets = self._coordinator.fetch_from()
        each = max(1, batch // max(1, sum(map(len, offsets.values()))))
        if self._connection is None:
            addresses = await resolve(self._proxies, self._known)
            if not addresses:
                raise PullError("no proxy address is known: no name resolves")
            self._connection = AsyncFramedConnection(addresses[self._turn % len(addresses)])
        timeout_s = (linger_ms + self._coordinator.settings.timeout_ms) / 1000
        payload, sequence_id = await self._connection.call(
            lambda now, number: fetch_frame(self._settings, offsets, each, linger_ms, number),
            asyncio.get_running_loop().time() + timeout_s,
        )
        return read_fetched(payload, sequence_id)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
