"""The flow of requests through one producer proxy: bounds, deferral, and the sweep that answers in time.

* A request is *accepted* once it has passed every check; from then on it counts against the bounds until
  the backend has settled it, even if it was answered before that.
* Every accepted request is in `unanswered` until it is answered. One sweep, not a timer for each message,
  answers code 12 to the overdue ones; it scans all of them only when the earliest deadline has come. It
  runs only while a request waits.
* A request over a rate limit waits in `_deferred` (a heap by the time its tokens come) if that is soon
  enough, and is appended by the sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from backend.completion import Completion
from backend.port import Backend
from ddmq_client.idl.codes import Code
from ddmq_common.clock import Clock
from proxy_producer.config import ProducerConfig
from proxy_producer.core.rejections import SendRejection, build_rejection
from proxy_producer.counts import SendCounts
from proxy_producer.delay.context import DelayContext, DelayLevels
from proxy_producer.topics import RateLimiter, TopicTable

_NEVER = float("inf")


class Unanswered(Protocol):
    """An accepted request whose caller has not been answered yet."""

    @property
    def deadline(self) -> float:
        """Return the deadline in monotonic seconds."""

    def expire(self) -> None:
        """Answer the caller now, because the deadline has come."""


class Deferrable(Protocol):
    """An accepted request that waits for a rate limit."""

    answered: bool

    def release(self) -> None:
        """Append the request's records now, because the rate limit allows it."""


class SweepTimer(Protocol):
    """A repeating timer that drives the sweep (ddmq_common.hub_timer)."""

    def every(self, seconds: float, ring: Callable[[], object]) -> None: ...

    def stop(self) -> None: ...


class Flow:
    """The state that all requests of one proxy share: bounds, deferred requests, deadlines.

    Fields are public for speed.
    """

    __slots__ = (
        "_config", "_deferred", "_drain_deadline", "_drained", "_period", "_sequence", "_timer", "backend",
        "counts", "delay", "draining", "earliest", "inflight", "inflight_bytes", "levels", "monotonic",
        "ticking", "topics", "unanswered",
    )  # fmt: skip

    def __init__(
        self,
        backend: Backend,
        config: ProducerConfig,
        clock: Clock,
        counts: SendCounts,
        topics: TopicTable,
        delay: DelayContext,
        levels: DelayLevels,
        timer: SweepTimer,
    ) -> None:
        self.backend = backend
        self.delay = delay
        self.levels = levels
        self.monotonic = clock.monotonic
        self.counts = counts
        self.topics = topics
        self.draining = False
        self.inflight = 0
        self.inflight_bytes = 0
        self.unanswered: set[Unanswered] = set()
        self.earliest = _NEVER
        self.ticking = False
        self._config = config
        self._period = config.sweep_ms / 1_000
        self._timer = timer
        self._deferred: list[tuple[float, int, Deferrable]] = []
        self._sequence = 0
        self._drained: Completion[None] | None = None
        self._drain_deadline = _NEVER

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the bounds of `config` for all later requests."""
        self._config = config

    def check_bounds(self, frame_bytes: int) -> SendRejection | None:
        """Return code 15 if one more request of `frame_bytes` would exceed the in-flight bounds, else
        None."""
        config = self._config
        if self.inflight >= config.inflight_requests_max:
            what = f"{self.inflight} requests are in flight"
            allowed = f"allowed: {config.inflight_requests_max}; send it again"
            return build_rejection(Code.BUSY, "inflight_requests", what, allowed)
        if self.inflight_bytes + frame_bytes > config.inflight_bytes_max:
            what = f"{self.inflight_bytes} bytes are in flight and this request has {frame_bytes}"
            allowed = f"allowed: {config.inflight_bytes_max} together; send it again"
            return build_rejection(Code.BUSY, "inflight_bytes", what, allowed)
        return None

    def watch(self, request: Unanswered) -> None:
        """Register a request, so that the sweep answers it at its deadline."""
        self.unanswered.add(request)
        if request.deadline < self.earliest:
            self.earliest = request.deadline
        if not self.ticking:
            self.start_ticking()

    def leave(self, request: Unanswered, frame_bytes: int) -> None:
        """Remove a request from the in-flight counts after the backend settled it or it was rejected."""
        self.inflight -= 1
        self.inflight_bytes -= frame_bytes
        self.unanswered.discard(request)

    def check_rate(
        self, wait_s: float, limiter: RateLimiter | None, deadline: float, now: float
    ) -> SendRejection | None:
        """Return code 15 if `wait_s` is too long or too many requests are deferred already, else None."""
        if wait_s <= 0 or limiter is None:
            return None
        patience_s = min(self._config.defer_ms_max / 1_000, (deadline - now) / 2)
        if wait_s > patience_s:
            allowed = f"send it again in {int(wait_s * 1_000) + 1} ms"
            return build_rejection(Code.BUSY, "rate", limiter.describe(), allowed)
        if len(self._deferred) >= self._config.deferred_max:
            what = f"{limiter.describe()} and {len(self._deferred)} requests wait for rate limits"
            return build_rejection(Code.BUSY, "deferred_max", what, "send it again (deferred_max)")
        return None

    def defer(self, request: Deferrable, wait_s: float) -> None:
        """Append `request` after `wait_s` seconds. Call check_rate first."""
        self._sequence += 1
        self.counts.deferred.value += 1
        heappush(self._deferred, (self.monotonic() + wait_s, self._sequence, request))

    def start_ticking(self) -> None:
        self.ticking = True
        self._timer.every(self._period, self.sweep)

    def sweep(self) -> None:
        """Append deferred requests that may go, answer overdue ones, and stop the timer when no request is
        left."""
        now = self.monotonic()
        self.counts.inflight.value = self.inflight
        while self._deferred and self._deferred[0][0] <= now:
            request = heappop(self._deferred)[2]
            if not request.answered:
                request.release()
        if self.earliest <= now + self._period:
            self._expire_overdue(now + self._period)
        if self._drained is not None:
            self._continue_drain(now)
        if not self.unanswered and not self._deferred and self._drained is None:
            self._stop_idle()

    def _expire_overdue(self, horizon: float) -> None:
        """Answer the requests whose deadline is at or before `horizon`, that is, before the next sweep."""
        overdue = [request for request in self.unanswered if request.deadline <= horizon]
        for request in overdue:
            request.expire()
        self.earliest = min((request.deadline for request in self.unanswered), default=_NEVER)

    def _stop_idle(self) -> None:
        self.earliest = _NEVER
        self.stop()

    def stop(self) -> None:
        """Stop the sweep timer until the next request."""
        if self.ticking:
            self.ticking = False
            self._timer.stop()

    def drain(self, deadline: float) -> Completion[None]:
        """Reject new requests (code 20).

        The result settles when all are answered, at the latest at `deadline`.
        """
        self.draining = True
        if self._drained is None:
            self._drained = Completion()
        drained = self._drained
        self._drain_deadline = deadline
        if not self.ticking:
            self.start_ticking()
        self.sweep()
        return drained

    def _continue_drain(self, now: float) -> None:
        if self.unanswered and now >= self._drain_deadline:
            self._expire_overdue(_NEVER)
        if not self.unanswered and self._drained is not None:
            drained, self._drained = self._drained, None
            drained.succeed(None)
