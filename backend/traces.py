"""TraceWriter: trace events of one process on their way to RMQ_SYS_TRACE_TOPIC (docs/formats-trace.md).

`add` keeps an event in memory; a second later, or when many bytes are waiting, events go into records, one
for each message, and are appended. Rules:
* A trace never slows, refuses or loses a message: nobody waits for anything here. What does not fit (in
  memory, in what a day may take, in the store) is dropped and counted with its reason.
* One append is under way at a time; at the end of the process `drain` appends what there is.
* Of how many messages one is traced stands in the settings, by topic (`trace/TOPIC`), and is followed here.
Times are those of the store's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from zlib import crc32

from backend.completion import Completion, succeeded
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.delivery import encode
from ddmq_common.errors import DdmqError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import TRACE_PREFIX, TRACE_TOPIC
from ddmq_common.token_bucket import TokenBucket
from ddmq_common.trace.events import TEXT_MAX, Fact, TraceBatch, TraceEvent, TraceKind, encode_batch
from ddmq_common.trace.sampling import OFF, limit_of

log = logging.getLogger("ddmq.trace")
QUEUES = 4
EVENTS_MAX = 20_000  # in memory
BYTES_MAX = 20 << 20  # the same, at most
FLUSH_S = 1.0
FLUSH_BYTES = 2 << 20  # so many waiting go at once
APPEND_RECORDS = 1_000  # of one append
APPEND_S = 10.0
RETENTION_MS = 3 * 24 * 3_600_000  # on an engine that keeps topics by themselves
DAY_S = 86_400.0
EVENT_BYTES = 1_000  # of one event in memory, without its texts and waits
WAIT_BYTES = 160  # of one wait there
Facts = dict[str, Fact]


class TraceTimer(Protocol):
    """Rings once (ddmq_common.hub_timer)."""

    def once(self, seconds: float, ring: Callable[[], object]) -> None: ...

    def stop(self) -> None: ...


class _Kept(NamedTuple):
    """An event in memory. `later`: facts that were not known yet."""

    number: int
    kind: TraceKind
    at_ms: int
    group: str
    facts: Facts
    later: Callable[[], Facts] | None
    size: int


class TraceWriter:
    """Of one process, named `process`; `instance` tells its starts apart.

    `limits`: by topic, which ids are traced (sampling.py); without an entry none is.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: Registry,
        clock: Clock,
        process: str,
        instance: str,
        bytes_per_day: int,
        timer: TraceTimer | None = None,
    ) -> None:
        self.limits: dict[str, int] = {}
        self.process = process[:TEXT_MAX]
        self._instance = instance
        self._backend = backend
        self._metrics = metrics
        self._clock = clock
        self._timer = timer or HubTimer(ref=False)
        self._kept: dict[bytes, list[_Kept]] = {}
        self._count = self._bytes = self._number = 0
        self._ringing = self._hurried = False
        self._appending: Completion[list[AppendResult]] | None = None
        now = clock.monotonic()
        self._day = TokenBucket(bytes_per_day / 2 / DAY_S, bytes_per_day / 2, now)
        self._stored = metrics.cell(catalogue.TRACE_STORED)
        self.now_ms = backend.clock_ms
        for key in backend.settings(TRACE_PREFIX):
            self._changed(key)
        self._unwatch = backend.watch_settings(self._changed, TRACE_PREFIX)

    def close(self) -> None:
        """Follow the settings no more, append no more."""
        self._unwatch()
        self._timer.stop()

    def _changed(self, key: str) -> None:
        topic = key.removeprefix(TRACE_PREFIX)
        limit = limit_of(one_in_of(self._backend, topic))
        if limit == OFF:
            self.limits.pop(topic, None)
        else:
            self.limits[topic] = limit

    # --- taking events

    def add(
        self,
        message_id: bytes,
        kind: TraceKind,
        group: str,
        facts: Facts,
        at_ms: int | None = None,
        later: Callable[[], Facts] | None = None,
    ) -> None:
        """What happened to a message, now or at `at_ms`. `later` is asked for more facts within a second."""
        if self._count >= EVENTS_MAX or self._bytes >= BYTES_MAX:
            self.dropped("memory")
            return
        self._number += 1
        self._count += 1
        size = EVENT_BYTES
        for value in facts.values():
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, list):
                size += WAIT_BYTES * len(value)
        self._bytes += size
        at_ms = self.now_ms() if at_ms is None else at_ms
        event = _Kept(self._number, kind, at_ms, group, facts, later, size)
        known = self._kept.get(message_id)
        if known is None:
            self._kept[message_id] = [event]
        else:
            known.append(event)
        if not self._ringing or (self._bytes >= FLUSH_BYTES and not self._hurried):
            self._ring()

    def dropped(self, reason: str, count: int = 1) -> None:
        """Events that are not stored."""
        self._metrics.cell(catalogue.TRACE_DROPPED, reason).value += count

    def _ring(self) -> None:
        if self._appending is None:
            self._ringing, self._hurried = True, self._bytes >= FLUSH_BYTES
            self._timer.once(0.0 if self._hurried else FLUSH_S, self.flush)

    # --- storing them

    def flush(self) -> None:
        """Append what there is, if nothing is being appended."""
        self._ringing = self._hurried = False
        if self._kept and self._appending is None:
            self._append(self._take())

    def _take(self) -> list[tuple[int, NewRecord]]:
        """The oldest, as records, each with how many events it holds."""
        found: list[tuple[int, NewRecord]] = []
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        for message_id in list(self._kept)[:APPEND_RECORDS]:
            events = self._kept.pop(message_id)
            self._count -= len(events)
            self._bytes -= sum([event.size for event in events])
            record = self._record(message_id, events, wall_ms)
            if self._day.wait_s(len(record.delivery), now):
                self.dropped("day", len(events))
                continue
            self._day.take_tokens(len(record.delivery))
            found.append((len(events), record))
        return found

    def _record(self, message_id: bytes, events: list[_Kept], wall_ms: int) -> NewRecord:
        whole = [
            TraceEvent(number, int(kind), at_ms, group, _short(facts if later is None else facts | later()))
            for number, kind, at_ms, group, facts, later, _ in events
        ]
        body = encode_batch(TraceBatch(self.process, self._instance, whole))
        return NewRecord(
            TRACE_TOPIC, queue_of(message_id, QUEUES), message_id, wall_ms, encode(b"", body, b"", None)
        )

    def _append(self, taken: list[tuple[int, NewRecord]]) -> None:
        if not taken:
            self._ended([], None)
            return
        self._appending = Completion()
        deadline = self._clock.monotonic() + APPEND_S
        if self._backend.topic(TRACE_TOPIC) is not None:
            self._send(taken, deadline)
            return

        def made(topic: Completion[TopicInfo]) -> None:
            if topic.error is None:
                self._send(taken, deadline)
            else:
                self._ended(taken, topic.error)

        try:
            self._backend.put_topic(topic_info(self._backend), deadline).then(made)
        except DdmqError as error:
            self._ended(taken, error)

    def _send(self, taken: list[tuple[int, NewRecord]], deadline: float) -> None:
        try:
            appended = self._backend.append([record for _, record in taken], deadline)
        except DdmqError as error:
            self._ended(taken, error)
            return
        appended.then(lambda done: self._ended(taken, done.error, None if done.error else done.value))

    def _ended(
        self,
        taken: list[tuple[int, NewRecord]],
        error: Exception | None,
        results: list[AppendResult] | None = None,
    ) -> None:
        if error is not None:
            log.warning("trace events not stored", extra={"error": str(error)})
            self.dropped("failed", sum(count for count, _ in taken))
        for (count, _), result in zip(taken, results or (), strict=False):
            if result.status is AppendStatus.STORED:
                self._stored.value += count
            else:
                refused = result.status is AppendStatus.REFUSED
                gone = isinstance(result.error, UnknownTopicError)
                self.dropped("refused" if refused and not gone else "failed", count)
        appending, self._appending = self._appending, None
        if self._kept:
            self._ring()
        if appending is not None:
            appending.succeed([])

    def drain(self, deadline: float) -> Completion[None]:
        """Append what there is; succeeds in any case. `deadline`: monotonic seconds."""
        drained: Completion[None] = Completion()

        def again(_: object = None) -> None:
            if self._appending is not None:
                self._appending.then(again)
            elif self._kept and self._clock.monotonic() < deadline:
                self.flush()
                again()
            else:
                drained.succeed(None)

        if not self._kept and self._appending is None:
            return succeeded(None)
        again()
        return drained


def queue_of(message_id: bytes, queues: int) -> int:
    """Where the events of a message stand."""
    return crc32(message_id) % queues


def one_in_of(backend: Backend, topic: str) -> int:
    """Of how many messages of a topic one is traced, as the settings have it; 0: none."""
    text = backend.setting(TRACE_PREFIX + topic) or b""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def topic_info(backend: Backend) -> TopicInfo:
    """The trace topic as it is made: no send waits for a sync of its own."""
    can = backend.capabilities
    durability = Durability.WRITTEN if Durability.WRITTEN in can.durability else min(can.durability)
    retention_ms = RETENTION_MS if can.engine == "kafka" else None
    return TopicInfo(TRACE_TOPIC, 0, QUEUES, durability, delay="none", retention_ms=retention_ms)


def _short(facts: Mapping[str, Fact]) -> Facts:
    return {
        name: value[:TEXT_MAX] if isinstance(value, str) else value
        for name, value in facts.items()
        if value not in ("", None)
    }
