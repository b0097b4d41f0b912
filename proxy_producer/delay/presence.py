"""Is there a delay service that would fire what this proxy takes? Asked for code 21, from a cache.

The backend is asked who holds the shards, when this proxy starts and now and then while delay requests come.
As long as it has not answered, or cannot, the answer is yes: an order is durable all the same. Once a service
has been seen, none for a short time is a takeover, not an absence.
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC

ASK_S = 2.0  # between two questions while one is there
ASK_ABSENT_S = 0.1  # and while none is: a request waits for nobody, the next one is told the news
ANSWER_S = 5.0


class Presence:
    """Of one producer proxy. `grace_s`: so long a service that was seen may be away."""

    __slots__ = ("_absent_since", "_ask_at", "_asking", "_backend", "_grace_s", "_monotonic", "_seen")

    def __init__(self, backend: Backend, clock: Clock, grace_s: float) -> None:
        self._backend = backend
        self._monotonic = clock.monotonic
        self._grace_s = grace_s
        self._absent_since: float | None = None
        self._seen = False
        self._asking = False
        self._ask_at = 0.0
        self._ask(clock.monotonic())

    def absent(self) -> bool:
        """No delay service is running, as far as is known."""
        now = self._monotonic()
        if now >= self._ask_at and not self._asking:
            self._ask(now)
        since = self._absent_since
        return since is not None and (not self._seen or now - since > self._grace_s)

    def _ask(self, now: float) -> None:
        if self._backend.topic(DELAY_TOPIC) is None:
            self._heard({}, now)  # nobody can hold a shard of it
            return
        self._asking = True
        try:
            self._backend.holders(DELAY_GROUP, DELAY_TOPIC, now + ANSWER_S).then(self._answered)
        except DdmqError:
            self._asking = False
            self._ask_at = now + ASK_S

    def _answered(self, answer: Completion[Mapping[QueueRef, str]]) -> None:
        self._asking = False
        now = self._monotonic()
        if answer.error is None:
            self._heard(answer.value, now)
        else:
            self._absent_since = None  # not known: try
            self._ask_at = now + ASK_S

    def _heard(self, holders: Mapping[QueueRef, str], now: float) -> None:
        if holders:
            self._seen = True
            self._absent_since = None
            self._ask_at = now + ASK_S
        else:
            if self._absent_since is None:
                self._absent_since = now
            self._ask_at = now + ASK_ABSENT_S
