"""Whether anybody runs the delay levels, for the health of a process that does not run them itself."""

from __future__ import annotations

import gevent

from backend.port import Backend, Health
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC

ASK_S = 1.0  # how long health waits for the answer
FRESH_S = 1.0  # an answer is good for so long


class SchedulerWatch:
    """Asks the backend who holds the levels. What cannot be found out counts as well."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._asked_at = float("-inf")
        self._last = Health(True, "")

    def health(self) -> Health:
        """Return the health as it is now, in a greenlet; on the hub, where nothing may wait, as it was
        when last asked."""
        now = self._clock.monotonic()
        if now - self._asked_at >= FRESH_S and gevent.getcurrent() is not gevent.get_hub():
            self._asked_at = now
            self._last = self._ask(now)
        return self._last

    def _ask(self, now: float) -> Health:
        if self._backend.topic(SCHEDULE_TOPIC) is None:
            return NO_SCHEDULER
        try:
            held = self._backend.holders(LEVELS_GROUP, SCHEDULE_TOPIC, now + ASK_S).wait(ASK_S)
        except (DdmqError, TimeoutError):
            return Health(True, "")
        return Health(True, "") if held else NO_SCHEDULER


NO_SCHEDULER = Health(
    False,
    "no level scheduler: delayed messages and retries are stored and wait; run `ddmq delay-service` over "
    "this directory",
)
