"""GET /log and POST /log/clean: the disk of the log, what fills it, and what keeps its segments.

Only the process that writes the log knows its segments. Other processes ask it; only those are asked whose
admin addresses are known (processes/views.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from backend.engines import FILE_LOG
from backend.log_state import LogFilesState, LogSegment
from backend.port import Backend
from ddmq.address import HostPort
from ddmq.server.admin.contract.bodies import LogCleanBody
from ddmq.server.admin.contract.structs.log_answers import (
    LogAnswer,
    LogCleanedAnswer,
    LogDiskRow,
    LogHoldRow,
    LogSegmentRow,
    LogWriterRow,
    UnreadRow,
)
from ddmq.server.admin.processes.views import ProcessViews
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import AdminRequest, Text, forward_request
from ddmq.server.live.live_views import HistoryRequest, LiveViews
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, TryLaterError, UnsupportedError
from ddmq_common.metrics.catalogue import SEND_BYTES
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import in_thread
from proxy_consumer.service import ConsumerService

FILL_MS = 600_000  # the fill rate is the mean of so long
WRITERS_MAX = 20
SEGMENTS_MAX = 1_000
SUBSCRIPTIONS_MAX = 1_000  # whose unread messages one answer counts
NOT_HERE = (
    "this process does not write the log, and none that it knows does; ask the admin port of the writer"
)


class LogFiles:
    """Answers requests about the files of the log. `consumer` None: unread messages are not counted."""

    def __init__(
        self,
        backend: Backend,
        consumer: ConsumerService | None,
        metrics: Registry,
        clock: Clock,
        live: LiveViews,
        processes: ProcessViews,
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._metrics = metrics
        self._clock = clock
        self._live = live
        self._processes = processes

    def answer(self, request: AdminRequest) -> LogAnswer:
        """Answer GET /log; to another process, with what this one knows."""
        state = self._backend.read_log_state()
        answer = LogAnswer(
            engine=self._backend.capabilities.engine, disk=None, log_bytes=None, fill_bytes_per_s=None,
            full_at_ms=None, writers=[], holds=[], items=[], next=None, total=0, exact=True, missing={},
        )  # fmt: skip
        written = Counter({labels[0]: int(cell.value) for labels, cell in self._written_by_topic().items()})
        if state is not None:
            _describe_state(answer, state)
        if not request.is_forwarded:
            self._add_others(answer, written)
            self._add_fill_rate(answer)
        most = written.most_common(None if request.is_forwarded else WRITERS_MAX)
        answer.writers = [LogWriterRow(topic=topic, bytes=size) for topic, size in most if size]
        return answer

    def _written_by_topic(self) -> Mapping[tuple[str, ...], Any]:
        return self._metrics.cells_of(SEND_BYTES)

    def _add_others(self, answer: LogAnswer, written: Counter[str]) -> None:
        others = self._processes.fetch_answers("/log", *LogAnswer.__struct_fields__)
        for each in others.answers:
            other = msgspec.convert(each, LogAnswer)
            written.update({row.topic: row.bytes for row in other.writers})
            if answer.disk is None and other.disk is not None:
                for name in ("disk", "log_bytes", "holds", "items", "total"):
                    setattr(answer, name, getattr(other, name))
        answer.missing = others.silent
        answer.exact = not others.silent

    def _add_fill_rate(self, answer: LogAnswer) -> None:
        now_ms = self._clock.wall_ms()
        request = HistoryRequest(("in_bytes_per_s",), from_ms=now_ms - FILL_MS)
        series = self._live.collect_history(request).series.get("in_bytes_per_s", [])
        values = [value for value in series if value is not None]
        if not values or answer.disk is None:
            return
        rate = sum(values) / len(values)
        answer.fill_bytes_per_s = round(rate)
        free = answer.disk.free_bytes - answer.disk.refuse_bytes
        answer.full_at_ms = now_ms + round(max(free, 0) / rate * 1000) if rate >= 1 else None

    # --- cleaning

    def clean(self, request: AdminRequest) -> Any:
        """Answer POST /log/clean. Raises CallerError, UnsupportedError, or TryLaterError if no process that
        writes the log answers."""
        body: LogCleanBody = request.body
        if body.before_ms > self._clock.wall_ms():
            raise CallerError(f"before_ms is {body.before_ms}; allowed: a time in the past")
        segments = self._backend.clean_log(body.before_ms, body.dry_run)
        if segments is None:
            return self._forward_request(request)
        state = self._backend.read_log_state()
        old_segments = (
            [] if state is None else [each for each in state.segments if each.newest_ms < body.before_ms]
        )
        held_segments = [each for each in old_segments if each.held_by and each not in segments]
        unread, whole = self._count_unread(max((each.newest_ms for each in segments), default=0))
        return LogCleanedAnswer(
            dry_run=body.dry_run, segments=len(segments), bytes=sum(each.bytes_on_disk for each in segments),
            newest_ms=max((each.newest_ms for each in segments), default=None),
            held=[_segment_row(each) for each in held_segments[:SEGMENTS_MAX]], unread=unread, exact=whole,
        )  # fmt: skip

    def _forward_request(self, request: AdminRequest) -> Any:
        if not request.is_forwarded:
            for address in self._processes.list_other_addresses():
                answer = _try_forward(address, request, self._processes.read_token())
                if answer is not None:
                    return answer
        if self._backend.capabilities.engine != FILE_LOG:
            raise UnsupportedError("the engine deletes old messages itself: set the retention of its topics")
        raise TryLaterError(NOT_HERE)

    def _count_unread(self, newest_ms: int) -> tuple[list[UnreadRow], bool]:
        """Return how many messages that were stored until `newest_ms` each group has not finished, and
        whether all subscriptions were counted."""
        if not newest_ms or self._consumer is None:
            return [], self._consumer is not None
        pairs = [(group.name, topic) for group in self._consumer.groups() for topic in group.topics]
        rows = []
        for group, topic in paced(pairs[:SUBSCRIPTIONS_MAX]):
            info = self._backend.topic(topic)
            refs = [] if info is None else info.refs()
            views = self._backend.progress(group, refs).wait(WAIT_S)
            bounds = self._backend.bounds(refs).wait(WAIT_S)
            ends = [self._backend.offset_for_time(ref, newest_ms + 1) for ref in refs]
            count = sum(
                max(end.wait(WAIT_S) - max(view.committed or 0, limits.min), 0)
                for view, limits, end in zip(views, bounds, ends, strict=True)
                if limits is not None
            )
            if count:
                rows.append(UnreadRow(group=group, topic=topic, messages=count))
        rows.sort(key=lambda row: -row.messages)
        return rows[:SEGMENTS_MAX], len(pairs) <= SUBSCRIPTIONS_MAX


def _try_forward(address: HostPort, request: AdminRequest, token: bytes) -> Text | None:
    try:
        answer: Text = in_thread(forward_request, str(address), request, token)
    except TryLaterError:
        return None
    return answer if answer.status != 503 else None


def _describe_state(answer: LogAnswer, state: LogFilesState) -> None:
    answer.disk = LogDiskRow(
        free_bytes=state.free_bytes, total_bytes=state.total_bytes, clean_bytes=state.clean_bytes,
        refuse_bytes=state.refuse_bytes, reserve_bytes=state.reserve_bytes,
        accepts_sends=state.accepts_sends, age_ms=state.age_ms, log_bytes_max=state.log_bytes_max,
    )  # fmt: skip
    answer.log_bytes = sum(each.bytes_on_disk for each in state.segments)
    answer.holds = [LogHoldRow(position=position, reason=reason) for position, reason in state.holds]
    answer.items = [_segment_row(each) for each in state.segments[:SEGMENTS_MAX]]
    answer.total = len(state.segments)


def _segment_row(segment: LogSegment) -> LogSegmentRow:
    return LogSegmentRow(
        start=segment.start, end=segment.end, bytes=segment.bytes_on_disk, newest_ms=segment.newest_ms,
        held_by=segment.held_by or msgspec.UNSET, dead_letters_only=segment.dead_letters_only,
    )  # fmt: skip
