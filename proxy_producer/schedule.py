"""The way of DELAY=n: the delay levels as this proxy knows them, and their topic, made when it is missing.

Whoever starts first makes the topic, a scheduler or the first delayed send; so a delayed message is stored
also while no scheduler runs, and fires when one does.
"""

from __future__ import annotations

from typing import Protocol

from backend.completion import Completion
from backend.levels import ready_schedule_topic, schedule_record
from backend.port import Backend
from backend.records import NewRecord, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError
from ddmq_common.levels import Levels
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_producer.core.outcomes import refusal_of
from proxy_producer.core.refusal import Refusal


class Delayed(Protocol):
    """A send that waits for the topic."""

    def schedule_ready(self, fault: Refusal | None) -> None:
        """The topic is there (None), or cannot be made."""


class Schedule:
    """Of one producer proxy."""

    __slots__ = ("_backend", "_clock", "_levels", "_timeout_s", "_waiting")

    def __init__(self, backend: Backend, levels: Levels, clock: Clock, timeout_s: float) -> None:
        self._backend = backend
        self._levels = levels
        self._clock = clock
        self._timeout_s = timeout_s
        self._waiting: list[Delayed] | None = (
            None  # a list: the topic is being made; bounded as all in flight
        )

    def wrap(self, record: NewRecord, level: int) -> NewRecord:
        """The schedule record of `record`, whose queue has been chosen."""
        return schedule_record(record, level, self._levels)

    def when_ready(self, send: Delayed) -> None:
        """`send.schedule_ready` follows, mostly at once."""
        info = self._backend.topic(SCHEDULE_TOPIC)
        if info is not None and info.queues >= len(self._levels):
            send.schedule_ready(None)
        elif self._waiting is not None:
            self._waiting.append(send)
        else:
            self._make(send)

    def _make(self, send: Delayed) -> None:
        self._waiting = [send]
        deadline = self._clock.monotonic() + self._timeout_s
        try:
            ready_schedule_topic(self._backend, self._levels, deadline).then(self._made)
        except DdmqError as error:
            self._tell(refusal_of(error))

    def _made(self, made: Completion[TopicInfo]) -> None:
        self._tell(None if made.error is None else refusal_of(made.error))

    def _tell(self, fault: Refusal | None) -> None:
        waiting, self._waiting = self._waiting or [], None
        for send in waiting:
            send.schedule_ready(fault)
