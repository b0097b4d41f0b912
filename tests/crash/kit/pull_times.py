"""When the pulls of a `ddmq_client.Consumer` left and were answered, as its threads make them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from ddmq_client import Message
from ddmq_client.core.acks import AckBatch
from ddmq_client.net import worker_pool
from ddmq_client.net.worker_pool import Puller
from ddmq_client.wire.consuming import Pulled

_installing = threading.Lock()


class PullTimes:
    """Of all consumers that are started within `installed`. Many threads report."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int, int | None], tuple[float, float]] = {}  # by queue, offset, lease

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Consumers started within are noted; one thread installs at a time."""
        times = self

        class TimedPuller(Puller):
            def _call(self, batch: int, linger_ms: int, acks: AckBatch | None) -> Pulled:
                requested = time.monotonic()
                answer = super()._call(batch, linger_ms, acks)
                times.record(answer, requested)
                return answer

        with _installing, mock.patch.object(worker_pool, "Puller", TimedPuller):
            yield

    def record(self, answer: Pulled, requested: float) -> None:
        """An answer has arrived."""
        received, origin = time.monotonic(), answer.origin
        for message in answer.messages:
            delivery_key: Any = (origin.queue, message.offset, message.lease_id)  # type: ignore[union-attr]
            self._times[delivery_key] = requested, received

    def take(self, message: Message) -> tuple[float, float]:
        """Return when the pull of a delivered message left, and when its answer arrived."""
        return self._times.pop((message.queue, message.offset, message.lease_id))
