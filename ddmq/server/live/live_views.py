"""GET /snapshot, /events and /history of one process, and of the other processes of its server.

A snapshot is made by one greenlet at a time, which is charged to the account of the event feed, also for GET
/snapshot: a client with a large debt must not hold up the viewers. The subscriptions that are furthest behind
take the longest to find, so they are read every BEHIND_S only, with an account of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from backend.port import Backend
from ddmq.server.admin.contract.queries import HistoryQuery
from ddmq.server.admin.contract.structs.live_answers import HistoryAnswer, SubscriptionName
from ddmq.server.admin.figures import OtherAnswers
from ddmq.server.findings.watch import merge_findings
from ddmq.server.http.connection import JSON
from ddmq.server.http.pace import Account, PacedGreenlet, paced, yield_if_long
from ddmq.server.http.routing import AdminRequest, NoSuchGroupError, Text
from ddmq.server.http.streams import PERIOD_S, EventFeed, EventStream, encode_event
from ddmq.server.live.core.rings import HistoryRange, plan_range
from ddmq.server.live.core.series import SeriesKey, Steps, combine_steps, series_of
from ddmq.server.live.core.snapshot import (
    BEHIND_MAX,
    Behind,
    ProcessShare,
    build_snapshot,
    combine_shares,
    round_value,
)
from ddmq.server.live.sampler import Sampler
from ddmq.server.live.versions import ListVersions
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError, UnknownTopicError
from ddmq_common.metrics.registry import Registry

BEHIND_S = 5.0
BEHIND_WAIT_S = 0.3
FINDINGS_S = 10.0  # conditions must hold for longer than that anyway
FRESH_S = 0.9 * PERIOD_S  # a snapshot of this age is given again; the next event has a new one
FORWARDED_VALUES_MAX = 10_000  # of a series, in an answer to another process, which has planned the range
STOPPING = "the server is stopping"
RIGHTS_CHANGED = "rights have changed; connect again"
Rows = list[dict[str, Any]]


class AnswerSource(Protocol):
    """The other processes whose answers are combined with those of this one."""

    def fetch_answers(self, path: str, *keys: str, query: Mapping[str, str] = ...) -> OtherAnswers:
        """Request `path` from all of them."""


class HistoryRequest(NamedTuple):
    """A request for the history. `names`: of the series; empty: all that the subscription, the topic (no
    group) or the server (neither) has. `from_ms`, `step_s` None: not stated."""

    names: tuple[str, ...] = ()
    group: str = ""
    topic: str = ""
    from_ms: int | None = None
    step_s: int | None = None


class EncodedSnapshot(NamedTuple):
    """A snapshot that was made at a time, as JSON."""

    at_ms: int
    payload: bytes


class LiveViews:
    """Snapshots, events and history.

    `find_behind`: returns so many rows of the subscriptions that are furthest behind; None if the consumer
    proxy runs elsewhere. `list_findings`: returns what is wrong at this process. `count_next_hour`: returns
    how many delayed messages of this process are due within an hour; None if it has none to count.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: Registry,
        clock: Clock,
        health_fields: Callable[[], dict[str, Any]],
        others: AnswerSource,
        find_behind: Callable[[int], Rows] | None,
        list_findings: Callable[[], dict[str, Any]],
        count_next_hour: Callable[[], int | None],
    ) -> None:
        self._clock = clock
        self._health_fields = health_fields
        self._others = others
        self._find_behind = find_behind
        self._list_findings = list_findings
        self._count_next_hour = count_next_hour
        self._findings: dict[str, Any] = {}
        self._findings_at = float("-inf")
        self._behind, self._behind_at = Behind(), float("-inf")
        self._snapshot = EncodedSnapshot(0, b"")
        self._made_at = float("-inf")
        self._making: Any = None  # greenlet
        self._reading: Any = None  # greenlet
        self._reading_account = Account()
        self._number = 0
        self.sampler = Sampler(metrics, clock, with_consumer=find_behind is not None)
        self.versions = ListVersions(backend, metrics, clock)
        self.feed = EventFeed(self._make_event, metrics)

    def start(self) -> None:
        """Begin to record the history."""
        self.sampler.start()

    def close(self) -> None:
        """End all streams of events with a last event, and record no further history."""
        self.sampler.stop()
        self.versions.close()
        self.feed.end(STOPPING, encode_event("end", msgspec.json.encode({"reason": STOPPING})))

    def end_streams(self) -> None:
        """End the open streams, because rights have changed. Viewers connect again, and are checked again."""
        self.feed.end_viewers(encode_event("end", msgspec.json.encode({"reason": RIGHTS_CHANGED})))

    def open_stream(self) -> EventStream:
        """Return a stream of snapshots. Raises TryLaterError at the limit of viewers, or if the server
        stops."""
        return self.feed.open()

    # --- snapshots

    def answer_snapshot(self, request: AdminRequest) -> Any:
        """Answer GET /snapshot; to another process, with the share of this one."""
        return self.build_share() if request.is_forwarded else Text(JSON, self.fetch_snapshot().payload)

    def build_share(self) -> ProcessShare:
        """Return the share of this process in a snapshot."""
        self.sampler.note_watched()
        start_s, tails = self.sampler.read_tails()
        return ProcessShare(
            self.sampler.totals, start_s, tails, self.versions.read(), self._read_findings(),
            self._read_due_next_hour(),
        )  # fmt: skip

    def _read_due_next_hour(self) -> int | None:
        try:
            return self._count_next_hour()
        except (DdmqError, TimeoutError):
            return None

    def _read_findings(self) -> dict[str, Any]:
        """Return what is wrong at this process, found now or at most FINDINGS_S ago."""
        now = self._clock.monotonic()
        if now >= self._findings_at + FINDINGS_S:
            self._findings = self._list_findings()
            self._findings_at = now
        return self._findings

    def fetch_snapshot(self) -> EncodedSnapshot:
        """Return a snapshot that is at most FRESH_S old. Waits while one is made."""
        if self._making is None and self._clock.monotonic() >= self._made_at + FRESH_S:
            self._making = PacedGreenlet(self._make_snapshot)
            self._making.account = self.feed.account
            self._making.start()
        if self._making is not None:
            self._making.get()
        return self._snapshot

    def _make_event(self) -> bytes:
        snapshot = self.fetch_snapshot()
        self._number = max(self._number + 1, snapshot.at_ms)
        return encode_event("snapshot", snapshot.payload, self._number)

    def _make_snapshot(self) -> None:
        try:
            self._made_at = self._clock.monotonic()
            shares, missing = self._collect_shares()
            behind = self._read_behind()
            health, at_ms = self._read_health(), self._clock.wall_ms()
            findings = merge_findings(shares[0].findings, [each.findings for each in shares[1:]], missing)
            share = combine_shares(shares)
            snapshot = build_snapshot(at_ms, health, share, behind, missing, findings["items"])
            self._snapshot = EncodedSnapshot(at_ms, msgspec.json.encode(snapshot))
        finally:
            self._making = None

    def _collect_shares(self) -> tuple[list[ProcessShare], dict[str, str]]:
        others = self._others.fetch_answers("/snapshot", *ProcessShare.__struct_fields__)
        shares = [msgspec.convert(each, ProcessShare) for each in others.answers]
        return [self.build_share(), *shares], others.silent

    def _read_health(self) -> dict[str, Any] | None:
        try:
            return self._health_fields()
        except (DdmqError, TimeoutError):
            return None

    def _read_behind(self) -> Behind:
        """Return the subscriptions that are furthest behind, as of the last reading.

        A new reading begins every BEHIND_S. With very many subscriptions it takes longer than a snapshot may
        wait; then a later snapshot has its result.
        """
        now = self._clock.monotonic()
        if self._find_behind is None:
            return self._behind
        if self._reading is None and now >= self._behind_at + BEHIND_S:
            self._behind_at = now
            self._reading = PacedGreenlet(self._refresh_behind, self._find_behind)
            self._reading.account = self._reading_account
            self._reading.start()
        if self._reading is not None:
            self._reading.join(BEHIND_WAIT_S)
        return self._behind

    def _refresh_behind(self, find_behind: Callable[[int], Rows]) -> None:
        try:
            self._behind = Behind(find_behind(BEHIND_MAX), self._clock.wall_ms())
        except (DdmqError, TimeoutError) as error:
            self._behind = self._behind._replace(error=str(error) or type(error).__name__)
        finally:
            self._reading = None

    # --- history

    def answer_history(self, request: AdminRequest) -> Text:
        """Answer GET /history, also to another process."""
        return Text(JSON, _encode_answer(self._find_history(request)))

    def _find_history(self, request: AdminRequest) -> HistoryAnswer:
        parameters = read_history_request(request.query)
        _check_names(parameters)
        if not request.is_forwarded:
            return self.collect_history(parameters)
        period = HistoryRange((parameters.from_ms or 0) // 1000, parameters.step_s or 1)
        if (self._clock.wall_ms() // 1000 - period.start_s) // period.step_s > FORWARDED_VALUES_MAX:
            raise CallerError(f"from_ms is {parameters.from_ms}, which is too long ago")
        return self.own_history(parameters, period)

    def collect_history(self, request: HistoryRequest) -> HistoryAnswer:
        """Return the history as recorded by all processes. Raises CallerError if none is recorded of this
        topic or subscription."""
        from_s = None if request.from_ms is None else request.from_ms // 1000
        period = plan_range(from_s, request.step_s, self._clock.wall_ms() // 1000)
        own = self.own_history(request, period)
        texts = {"series": ",".join(request.names), "group": request.group, "topic": request.topic}
        query = {name: text for name, text in texts.items() if text}
        query |= {"from_ms": str(period.start_s * 1000), "step_s": str(period.step_s)}
        others = self._others.fetch_answers("/history", *HistoryAnswer.__struct_fields__, query=query)
        answers = [msgspec.convert(each, HistoryAnswer) for each in others.answers]
        answer = _combine_answers(request, period, [own, *answers])
        answer.missing = others.silent
        if request.topic and not answer.series:
            raise (NoSuchGroupError if request.group else UnknownTopicError)(_describe_missing(request))
        return answer

    def own_history(self, request: HistoryRequest, period: HistoryRange) -> HistoryAnswer:
        """Return the history as recorded by this process; a series that it does not have is left out."""
        history = self.sampler.history
        series = {}
        for name in paced(_names_of(request)):
            key = SeriesKey(name, request.group, request.topic)
            if key in history:
                values = history.read(key, period)
                yield_if_long()
                series[name] = list(map(round_value, values))
        return _build_answer(
            period, series, self.sampler.recorded_topics, self.sampler.recorded_subscriptions
        )


def read_history_request(query: HistoryQuery) -> HistoryRequest:
    """Return the parameters of a request for the history."""
    names = tuple(query.series.split(",")) if query.series else ()
    return HistoryRequest(names, query.group or "", query.topic or "", query.from_ms, query.step_s)


def _names_of(request: HistoryRequest) -> Sequence[str]:
    return request.names or [series.name for series in series_of(request.group, request.topic)]


def _check_names(request: HistoryRequest) -> None:
    """Raise CallerError if a series does not exist."""
    if request.group and not request.topic:
        raise CallerError("topic is missing; the history of a group is that of its subscription to a topic")
    names = [series.name for series in series_of(request.group, request.topic)]
    for name in request.names:
        if name not in names:
            raise CallerError(f"series is {name!r}; allowed: {', '.join(names)}")


def _describe_missing(request: HistoryRequest) -> str:
    name_text = f"topic {request.topic!r}"
    if request.group:
        name_text = f"the subscription of group {request.group!r} to {name_text}"
    return f"no history of {name_text} is recorded: it does not exist, or others are busier"


def _encode_answer(answer: HistoryAnswer) -> bytes:
    """Encode an answer series by series. Other greenlets run in between."""
    series = {name: msgspec.Raw(msgspec.json.encode(values)) for name, values in paced(answer.series.items())}
    return msgspec.json.encode(msgspec.structs.asdict(answer) | {"series": series})


def _combine_answers(
    request: HistoryRequest, period: HistoryRange, answers: Sequence[HistoryAnswer]
) -> HistoryAnswer:
    """Combine the answers of several processes; their steps begin at the same time."""
    if len(answers) == 1:
        return answers[0]
    combined: dict[str, list[float | None]] = {}
    for series in paced(series_of(request.group, request.topic)):
        steps: list[Steps] = [
            (answer.from_ms // 1000, answer.series[series.name])
            for answer in answers
            if series.name in answer.series
        ]
        if steps:
            count = max(len(values) for _, values in steps)
            values = combine_steps(series, period.start_s, count, period.step_s, steps)
            combined[series.name] = list(map(round_value, values))
    topics = sorted({topic for answer in answers for topic in answer.topics})
    pairs = sorted({(each.group, each.topic) for answer in answers for each in answer.subscriptions})
    return _build_answer(period, combined, topics, pairs)


def _build_answer(
    period: HistoryRange,
    series: dict[str, list[float | None]],
    topics: list[str],
    subscriptions: Sequence[tuple[str, str]],
) -> HistoryAnswer:
    return HistoryAnswer(
        from_ms=period.start_s * 1000,
        step_s=period.step_s,
        series=series,
        topics=topics,
        subscriptions=[SubscriptionName(group=group, topic=topic) for group, topic in subscriptions],
        missing={},
    )
