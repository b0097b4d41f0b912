"""What is due on the retry paths and not finished: the lag of the retry topics, by group and topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from ddmq_common.errors import DamagedError
from ddmq_common.names import RETRY_PREFIX
from proxy_consumer.completions import gather
from proxy_consumer.core.level_tally import Name, RetryWaiting
from proxy_consumer.retries.headers import since_ms
from proxy_consumer.retries.retry_queues import retry_queues
from proxy_consumer.runtime import Runtime

FIRST_BYTES = 1 << 20


class _Late(NamedTuple):
    """A retry queue with messages that are not finished; the first of them is at `committed`."""

    name: Name
    queue: QueueRef
    committed: int
    messages: int


class RetryDue(Completion[Mapping[Name, RetryWaiting]]):
    """Asks the backend: progress by group, bounds in bulk, and the first message of each queue with a lag.

    `start` once. Fails when the backend cannot be read.
    """

    __slots__ = ("_late", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._late: list[_Late] = []

    def start(self) -> None:
        """Ask about every group that ever had a retry queue."""
        backend = self._runtime.backend
        groups = [
            name.removeprefix(RETRY_PREFIX) for name in backend.topics() if name.startswith(RETRY_PREFIX)
        ]
        owners = {
            (group, topic): queue
            for group in groups
            for topic, queue in retry_queues(self._runtime, group).items()
        }
        names, queues = list(owners), list(owners.values())
        views = gather([backend.progress(group, [queue]) for (group, _), queue in owners.items()])
        bounds = backend.bounds(queues)
        views.then(lambda _: bounds.then(lambda _: self._found(names, queues, views, bounds)))

    def _found(
        self,
        names: list[Name],
        queues: list[QueueRef],
        views: Completion[list[list[ProgressView]]],
        bounds: Completion[list[Bounds | None]],
    ) -> None:
        error = views.error or bounds.error
        if error is not None:
            self.fail(error)
            return
        for name, queue, (view,), limits in zip(names, queues, views.value, bounds.value, strict=True):
            if limits is not None:
                committed = limits.min if view.committed is None else view.committed
                done = sum(end - start for start, end in view.finished)
                if limits.next - committed - done > 0:
                    self._late.append(_Late(name, queue, committed, limits.next - committed - done))
        read = self._runtime.backend.read
        firsts = gather([read(late.queue, late.committed, 1, FIRST_BYTES) for late in self._late])
        firsts.then(self._read)

    def _read(self, firsts: Completion[list[ReadBatch]]) -> None:
        if firsts.error is not None:
            self.fail(firsts.error)
            return
        now_ms = self._runtime.clock.wall_ms()
        self.succeed(
            {
                late.name: RetryWaiting(late.messages, _since_ms(first, now_ms), now_ms)
                for late, first in zip(self._late, firsts.value, strict=True)
            }
        )


def _since_ms(first: ReadBatch, now_ms: int) -> int:
    """Since when its first message is on the retry path; now, where that cannot be read."""
    if first.status is not ReadStatus.DATA or not first.offsets:
        return now_ms
    try:
        return since_ms(first.record(0))
    except DamagedError:
        return now_ms
