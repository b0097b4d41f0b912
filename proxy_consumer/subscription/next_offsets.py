"""Where queues end, as known lately: what clients of ours are told beside their messages."""

from __future__ import annotations

from backend.completion import Completion
from backend.records import Bounds, QueueRef
from proxy_consumer.runtime import Runtime

AGE_S = 0.1  # after which the backend is asked again


class NextOffsets:
    """The next offsets of one subscription's queues."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[QueueRef, tuple[float, int]] = {}  # as of when

    def of(self, queue: QueueRef, now: float) -> int:
        """As known; where that is some time ago the backend is asked, for the next who wants to know."""
        known = self._known.get(queue)
        if known is None or now - known[0] > AGE_S:
            self._known[queue] = (now, 0 if known is None else known[1])
            asked = self._runtime.backend.bounds((queue,))
            asked.then(lambda found: self._told(queue, found))
        return self._known[queue][1]

    def _told(self, queue: QueueRef, found: Completion[list[Bounds | None]]) -> None:
        known = self._known.get(queue)
        if known is not None and found.error is None and found.value[0] is not None:
            self._known[queue] = (known[0], found.value[0].next)

    def note(self, queue: QueueRef, offset: int) -> None:
        """It is known otherwise."""
        self._known[queue] = (self._runtime.now(), offset)

    def forget(self, queue: QueueRef) -> None:
        """A queue is not ours any more."""
        self._known.pop(queue, None)
