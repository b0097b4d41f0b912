"""Is there a delay service that would fire what this proxy takes? Asked for code 21, from a cache.

The backend is asked who holds the shards, when this proxy starts and now and then while delay requests come.
As long as it has not answered, or cannot, the answer is yes: a command is durable all the same. Where a
service has ever run, as its inner topic tells, none for a short time is a takeover or a restart, not an
absence; we may have started first. Before a request is refused the backend is asked again, so that a service
that has just begun is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC

ASK_S = 2.0  # between two questions while one is there
ANSWER_S = 0.5
WAITERS_MAX = 1_000


class Presence:
    """What one producer proxy knows of it. `grace_s`: for so long a service may be away."""

    __slots__ = (
        "_absent_since", "_ask_at", "_asking", "_backend", "_grace_s", "_monotonic", "_ran", "_telling",
        "_waiting",
    )  # fmt: skip

    def __init__(self, backend: Backend, clock: Clock, grace_s: float) -> None:
        self._backend = backend
        self._monotonic = clock.monotonic
        self._grace_s = grace_s
        self._absent_since: float | None = None
        self._ran = False
        self._asking = False
        self._ask_at = 0.0
        self._telling = False
        self._waiting: list[Callable[[], object]] = []
        self._ask(clock.monotonic())

    def absent(self) -> bool:
        """No delay service is running, as far as is known."""
        now = self._monotonic()
        if now >= self._ask_at and not self._asking:
            self._ask(now)
        since = self._absent_since
        return since is not None and (not self._ran or now - since > self._grace_s)

    def look_again(self, call: Callable[[], object]) -> bool:
        """True: `call` follows, when the backend has been asked after this; False: it is such a call."""
        if self._telling or len(self._waiting) >= WAITERS_MAX:
            return False
        self._waiting.append(call)
        if not self._asking:
            self._ask(self._monotonic())
        return True

    def _ask(self, now: float) -> None:
        if self._backend.topic(DELAY_TOPIC) is None:
            self._heard({}, now)  # nobody can hold a shard of it
            return
        self._ran = self._asking = True
        try:
            self._backend.holders(DELAY_GROUP, DELAY_TOPIC, now + ANSWER_S).then(self._answered)
        except DdmqError:
            self._unknown(now)

    def _answered(self, answer: Completion[Mapping[QueueRef, str]]) -> None:
        now = self._monotonic()
        if answer.error is None:
            self._heard(answer.value, now)
        else:
            self._unknown(now)

    def _heard(self, holders: Mapping[QueueRef, str], now: float) -> None:
        if holders:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        self._tell(now)

    def _unknown(self, now: float) -> None:
        """Then a command is worth a try."""
        self._absent_since = None
        self._tell(now)

    def _tell(self, now: float) -> None:
        self._asking = False
        self._ask_at = now + ASK_S
        waiting, self._waiting = self._waiting, []
        self._telling = True
        try:
            for call in waiting:
                call()
        finally:
            self._telling = False
