"""An internal topic as one proxy sees it: the delay levels', the delay commands', their outcomes'.

Whoever needs it first makes it, a delay service or a proxy; so a delayed message is stored also while no
service runs, and fires when one does. It grows to as many queues as somebody wants, and never shrinks.
"""

from __future__ import annotations

from collections.abc import Callable

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Backend
from backend.records import TopicInfo
from ddmq_common.clock import Clock
from proxy_producer.core.failures import refusal_of
from proxy_producer.core.refusal import SendRefusal

Ready = Callable[[SendRefusal | None], None]


class InternalTopic:
    """Made when it is first needed. `queues`: how many it has, at least so many as this proxy wants; `ready`:
    it is there with all of them. The hot path looks at both. `timeout_s`: how long making it may take.
    """

    __slots__ = (
        "_backend", "_clock", "_name", "_queues", "_timeout_s", "_unwatch", "_waiting", "queues", "ready",
    )  # fmt: skip

    def __init__(self, backend: Backend, name: str, queues: int, clock: Clock, timeout_s: float) -> None:
        self._backend = backend
        self._name = name
        self._queues = queues
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting: list[Ready] | None = None  # a list: being made; bounded as all in flight
        self.queues = queues
        self.ready = False
        self._unwatch: Callable[[], None] = backend.watch_settings(self._changed)
        self.look()

    def close(self) -> None:
        """Hear of no more changes."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        if key == f"topic/{self._name}":
            self.look()

    def look(self) -> bool:
        """Is it there? From the backend's memory."""
        info = self._backend.topic(self._name)
        self.ready = info is not None and info.queues >= self._queues
        if info is not None:
            self.queues = max(self._queues, info.queues)
        return self.ready

    def when_ready(self, call: Ready) -> None:
        """`call(None)` follows, at once when the topic is there; else a refusal follows."""
        if self.ready or self.look():
            call(None)
        elif self._waiting is not None:
            self._waiting.append(call)
        else:
            self._waiting = [call]
            deadline = self._clock.monotonic() + self._timeout_s
            ready_topic(self._backend, self._name, self._queues, deadline).then(self._made)

    def _made(self, made: Completion[TopicInfo]) -> None:
        if made.error is None:
            self.look()
        fault = None if made.error is None else refusal_of(made.error)
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            call(fault)
