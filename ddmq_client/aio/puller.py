"""Pulls from one proxy, over a connection of its own.

A puller is bound to one connection; results ride on its pulls. A call that failed is followed by a pause
and a new connection; the results that it carried are sent again: the proxy takes repeated ones as said.
"""

from __future__ import annotations

import logging
import random

from ddmq_client.aio.connection import AsyncFramedConnection
from ddmq_client.aio.coordinator import AsyncCoordinator
from ddmq_client.aio.sync import AsyncActivity, clock
from ddmq_client.core.acks import AckBatch
from ddmq_client.core.addresses import ProxyAddress
from ddmq_client.core.frames import FrameError
from ddmq_client.core.pacing import Pace
from ddmq_client.core.prefetch_buffer import Source
from ddmq_client.core.transport import CallFailed
from ddmq_client.errors import PullError
from ddmq_client.wire.consuming import Pulled, PullSettings, pull_frame, read_pulled
from ddmq_client.wire.producing import ProxyFault

_log = logging.getLogger("ddmq_client.consumer")
FAILURES = (CallFailed, FrameError, ProxyFault, PullError)


class AsyncPuller:
    """Pulls one topic (or all of the group's) from one proxy."""

    def __init__(
        self, coordinator: AsyncCoordinator, source: Source, address: ProxyAddress, pulls: PullSettings
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._pulls = pulls
        self._clock = clock()
        self._connection = AsyncFramedConnection(address)
        self._pace = Pace(pulls.linger_ms / 1000, random.random)
        self.activity = AsyncActivity(self._run, f"ddmq-pull-{address}")

    def end(self) -> None:
        """End after the pull that is under way."""
        self._coordinator.end(self._source)

    def abort(self) -> None:
        """Break off the pull that is under way."""
        self._coordinator.end(self._source)
        self._connection.close()

    async def _run(self) -> None:
        try:
            while (work := await self._coordinator.wait_room(self._source)) is not None:
                pause = await self._pull(*work)
                if pause:
                    await self._coordinator.pause(self._source, pause)
        finally:
            self._connection.close()

    async def _pull(self, batch: int, linger_ms: int, acks: AckBatch | None) -> float:
        """One pull; seconds to pause after it."""
        started = self._clock()
        try:
            answer = await self._call(batch, linger_ms, acks)
        except FAILURES as error:
            if isinstance(error, PullError):
                error.proxy = self._source.proxy.name
            else:
                self._connection.close()
            self._coordinator.pull_failed(self._source, acks, error)
            self._log_failure(error)
            return self._pace.failed()
        except BaseException as error:
            self._coordinator.pull_failed(self._source, acks, error)
            raise
        self._coordinator.pulled(self._source, answer)
        self._coordinator.told(acks, answer.told)
        self._coordinator.teller.notice(self._source.proxy.name, answer.notice)
        return self._pace.answered(len(answer.messages), self._clock() - started, linger_ms / 1000)

    async def _call(self, batch: int, linger_ms: int, acks: AckBatch | None) -> Pulled:
        pulls = self._pulls._replace(linger_ms=linger_ms)

        def frame(now: float, sequence_id: int) -> bytes:
            return pull_frame(pulls, self._source.topic, batch, acks, sequence_id)

        timeout_s = (linger_ms + self._coordinator.settings.timeout_ms) / 1000
        payload, sequence_id = await self._connection.call(frame, self._clock() + timeout_s)
        return read_pulled(payload, sequence_id)

    def _log_failure(self, error: Exception) -> None:
        if self._coordinator.pulling_stopped or self._source.ended:
            return
        if self._pace.failing:
            _log.debug("pull from %s failed: %s", self._source.proxy.name, error)
        else:
            self._coordinator.teller.failed(self._source.proxy.name, error)
