"""An internal topic that is made when it is first needed: orders to the delay service, and their outcomes.

Whoever starts first makes it; it grows to as many queues as somebody wants, and never shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backend.capabilities import Durability
from backend.completion import Completion, succeeded
from backend.port import Backend
from backend.records import TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from proxy_producer.core.outcomes import refusal_of
from proxy_producer.core.refusal import Refusal

Ready = Callable[[Refusal | None], None]


class InnerTopic:
    """One such topic, as one proxy sees it. `queues`: how many it has, at least so many as this proxy wants;
    `ready`: it is there with all of them. The hot path looks at both.
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
        """`call(None)` follows, at once when it is there; else a refusal."""
        if self.look():
            call(None)
        elif self._waiting is not None:
            self._waiting.append(call)
        else:
            self._waiting = [call]
            try:
                self._made_of(self._clock.monotonic() + self._timeout_s).then(self._made)
            except DdmqError as error:
                self._tell(refusal_of(error))

    def _made_of(self, deadline: float) -> Completion[TopicInfo]:
        """Creating gives an existing one back as it is, so growing it is a second step."""
        found = self._backend.topic(self._name)
        if found is None:
            wanted = TopicInfo(self._name, 0, self._queues, durability=Durability.DURABLE)
        elif found.queues < self._queues:
            wanted = replace(found, queues=self._queues)
        else:
            return succeeded(found)
        return self._backend.put_topic(wanted, deadline)

    def _made(self, made: Completion[TopicInfo]) -> None:
        if made.error is None:
            self.look()
        self._tell(None if made.error is None else refusal_of(made.error))

    def _tell(self, fault: Refusal | None) -> None:
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            call(fault)
