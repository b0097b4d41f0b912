"""DueService: what both services of due messages do alike: own queues of a topic, and check every second."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.ownership.claims import RETRY_S
from backend.ownership.owner import QueueOwner, QueueWork
from backend.port import Backend, Health, Join
from backend.records import TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.hub_timer import HubTimer
from delay_service.config import DelayConfig
from delay_service.due.counts import DueCounts

log = logging.getLogger("ddmq.delay")
CHECK_INTERVAL_S = 1.0  # between two looks at how much waits, and how long it has been due


class Alarm(Protocol):
    """The one-shot timer that the services use. Tests have one that is rung by hand."""

    def once(self, seconds: float, ring: Callable[[], None]) -> None:
        """Call `ring` after `seconds`. An earlier setting is dropped."""

    def stop(self) -> None:
        """Cancel the timer. May be called twice."""


def hub_alarm() -> Alarm:
    """Return a timer on the calling thread's hub that does not keep the loop alive."""
    return HubTimer(ref=False)


W = TypeVar("W", bound=QueueWork)


class DueService(QueueOwner[W]):
    """The base of the two services that own queues and fire their messages when they are due.

    It is a group member from `start` to `drain` or `close`, and must be created on the hub that runs it.
    `name`: used in health and logs. `join`: the group and topic to join. `load`: see QueueClaims. `alarm`:
    the timer for retries, `check_alarm`: for the check every second. `started` settles once, when the
    subclass says.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        config: DelayConfig,
        clock: Clock,
        counts: DueCounts,
        join: Join,
        alarm: Alarm,
        check_alarm: Alarm,
        *,
        load: bool,
    ) -> None:
        super().__init__(backend, clock.monotonic, load=load)
        self._name = name
        self._backend = backend
        self._config = config
        self._clock = clock
        self._counts = counts
        self._join_as = join
        self._alarm = alarm
        self._check_alarm = check_alarm
        self._is_started = False
        self._why = "it has not started"
        self.started: Completion[None] = Completion()

    # --- what a service does its own way

    @abstractmethod
    def _queue_count(self) -> int:
        """Return the number of queues that the topic must have."""

    @abstractmethod
    def _check_work(self) -> None:
        """Report the number of waiting messages and how long the first one has been overdue."""

    # --- start, health, end

    def start(self) -> None:
        """Create the topic and join the group. A failed start is retried until the backend is available."""
        if not self._is_started:
            self._is_started = True
            self._check_alarm.once(CHECK_INTERVAL_S, self._check_and_rearm)
        deadline = self._clock.monotonic() + self._config.commit_timeout_ms / 1e3
        try:
            topic = ready_topic(self._backend, self._join_as.topic, self._queue_count(), deadline)
            topic.then(self._on_topic_ready)
        except Exception as error:
            self._on_start_failed(error)

    def _on_topic_ready(self, answer: Completion[TopicInfo]) -> None:
        if self._stopping:
            return
        if answer.error is not None:
            self._on_start_failed(answer.error)
        else:
            self.acquire()

    def _join_request(self) -> Join:
        return self._join_as

    def on_failed(self, doing: str, error: Exception) -> None:
        """Retry the start after a pause, because joining failed."""
        self._on_start_failed(error)

    def _on_start_failed(self, error: Exception) -> None:
        self._why = str(error)
        self._counts.count_failure("start", error)
        log.warning("no %s yet, tried again: %s", self._name, self._why)
        self._start_later()

    def _start_later(self) -> None:
        self._alarm.once(RETRY_S, self.start)

    def health(self) -> Health:
        """Return ready while the service is a member of its group."""
        if self._claims.joined and not self._stopping:
            return Health(True, "")
        return Health(False, f"no {self._name}: {self._why}")

    def drain(self, deadline: float) -> Completion[None]:
        """Start nothing new, let commits in flight finish, then leave the group.

        Each commit has its own deadline. The caller may stop waiting at `deadline` (monotonic seconds).
        """
        if self._drained is None:
            self._why = "it is draining"
            self._stop_alarms()
        return self._drain()

    def close(self) -> None:
        self._stop_alarms()
        super().close()

    def _stop_alarms(self) -> None:
        self._alarm.stop()
        self._check_alarm.stop()

    def _check_and_rearm(self) -> None:
        if not self._stopping:
            self._check_alarm.once(CHECK_INTERVAL_S, self._check_and_rearm)
            self._check_work()
