"""Consumer groups as an operator sees and changes them, over one process's consumer proxy.

Committed and next offsets, lag and lag age are the same whoever is asked. In flight, retrying, waiting
pulls, blocked keys and clients that subscribe differently are those of this process's consumer proxy;
`holder` says which proxy has a queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from backend.completion import Completion
from backend.port import Backend
from backend.records import QueueRef, ReadStatus, TopicInfo
from ddmq.server.admin import keys
from ddmq.server.admin.consumed import Owners, find_owners, is_consumed, is_held_elsewhere
from ddmq.server.admin.dlq import count_open
from ddmq.server.admin.dlq import list_dead_letters as dead_letter_rows
from ddmq.server.admin.keys import require_group
from ddmq.server.admin.lag.causes import LagFacts, drain_seconds, find_lag_cause
from ddmq.server.admin.lag.order import LagOrder
from ddmq.server.admin.lag.rates import ProgressSample, ProgressSampler
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import ALL_ITEMS, NoSuchGroupError, Page
from ddmq.settings import BY_NAME
from ddmq_client.application.tags import find_tag_note
from ddmq_common import names
from ddmq_common.clock import Clock
from ddmq_common.config import resolved
from ddmq_common.errors import CallerError, DdmqError, TryLaterError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.changes import PAUSED, SubscriptionChange, ownership_text
from proxy_consumer.groups.group import SOURCE_LOG
from proxy_consumer.groups.retry_waiting import RetryPath
from proxy_consumer.groups.stats import QueueStats, SubscriptionStats
from proxy_consumer.service import ConsumerService

AGED_MAX = 50  # subscriptions of a list whose oldest waiting message is looked at
CLIENTS_MAX = 200  # of a group that are listed, those with most in flight
DIFFERENCES_MAX = 100  # clients that subscribe differently
RETRY_DETAILS = ("retry_waiting_whole", "retry_oldest_s", "retry_next_s")
ROW = ("group", "topic", "lag", "in_flight", "retrying", "retry_lag", "ack_span", "waiters")
QUEUE_ROW = ("qid", "committed", "next", "lag", "in_flight", "retrying", "ack_span", "held")
AGES_MAX = 64  # queues of one topic whose oldest waiting message is looked at
PERIOD_S = 5.0  # between two samples of the counters


def _changed_settings(done: SubscriptionChange) -> list[dict[str, Any]]:
    if done.before is None:
        return []
    paused = {PAUSED: bool(done.paused_before_ms)}, {PAUSED: bool(done.paused_ms)}
    before, after = settings_in_force(done.before) | paused[0], settings_in_force(done.after) | paused[1]
    return [
        {"key": name, "before": before[name], "after": after[name]}
        for name in (*BY_NAME, PAUSED)
        if before[name] != after[name]
    ]


def _change_hints(group: str, topic: str, settings: Mapping[str, Any], done: SubscriptionChange) -> list[str]:
    hints = []
    if "start" in settings and done.before is not None:
        hints.append(
            "start only says where a new subscription begins: offsets do not move; "
            f"`ddmq offset reset {group} --topic {topic} --to {settings['start']}` moves them"
        )
    if done.after.scope == "group" and _order_terms(done.before) != _order_terms(done.after):
        hints.append(
            "order over the whole group: all queues of all its ordered topics belong to one proxy at a time"
        )
    if note := find_tag_note(settings.get("tags")):
        hints.append(note)
    return hints


def _order_terms(config: SubscriptionDefaults | None) -> tuple[str, str] | None:
    return None if config is None else (config.order_key, config.scope)


def _check_names(group: str, *topics: str) -> None:
    for error in (names.find_group_name_error(group), *map(names.find_topic_name_error, topics)):
        if error:
            raise CallerError(error)


class RetryPathView:
    """The numbers of messages that wait in the delay levels for a retry, by subscription, for rows of
    listings; unknown while the levels cannot be read."""

    def __init__(self, consumer: ConsumerService, clock: Clock) -> None:
        self._now_ms = clock.wall_ms()
        try:
            self._retry_path: RetryPath | None = consumer.retry_paths().wait(WAIT_S)
        except (DdmqError, TimeoutError):
            self._retry_path = None

    def row(self, group: str, topic: str) -> dict[str, Any]:
        """Return the retry columns of a subscription's row. `retry_waiting` is null if unknown, and only a
        minimum if `retry_waiting_whole` is false."""
        if self._retry_path is None:
            return {"retry_waiting": None} | dict.fromkeys(RETRY_DETAILS)
        waiting = self._retry_path.waiting.get((group, topic))
        if waiting is None:
            return dict.fromkeys(RETRY_DETAILS) | {
                "retry_waiting": 0,
                "retry_waiting_whole": self._retry_path.complete,
            }
        return {
            "retry_waiting": waiting.messages,
            "retry_waiting_whole": self._retry_path.complete,
            "retry_oldest_s": max(0, self._now_ms - waiting.since_ms) / 1000,
            "retry_next_s": max(0, waiting.due_ms - self._now_ms) / 1000,
        }


def subscription_row(each: SubscriptionStats, dead_letters: Mapping[str, int]) -> dict[str, Any]:
    """Return a subscription as a row of a listing. `dead_letters`: the number of open ones of each
    group."""
    columns = {name: getattr(each, name) for name in ROW}
    return columns | {
        "dead_letters": dead_letters.get(each.group, 0),
        "dead_letters_open": dead_letters.get(each.group, 0),
        "dead_letters_since_start": each.dead_lettered,
        "order_key": each.config.order_key,
        "paused": bool(each.paused_ms),
        "paused_since_ms": each.paused_ms or None,
    }


def count_open_dead_letters(backend: Backend) -> dict[str, int]:
    """Count the dead letters that were neither resent nor purged, by group."""
    counts: dict[str, int] = {}
    for each in dead_letter_rows(backend):
        counts[each["group"]] = counts.get(each["group"], 0) + int(each["letters"])
    return counts


def settings_in_force(config: Any) -> dict[str, Any]:
    """Return every setting in force, with secrets masked."""
    settings = resolved(config)
    return {name: settings[name] for name in BY_NAME}


class AdminGroups:
    """Answers requests about groups, and changes groups, with the parts of one process."""

    def __init__(self, backend: Backend, consumer: ConsumerService, metrics: Registry, clock: Clock) -> None:
        self._backend = backend
        self._consumer = consumer
        self._metrics = metrics
        self._clock = clock
        self._rates = Rates()
        self._sampler = ProgressSampler(backend, consumer, clock.monotonic)
        self.lags = LagOrder(lambda group: consumer.group_stats(group).wait(WAIT_S), clock)

    def sample(self) -> None:
        """Sample the counters and the progress of all groups. Must be called every PERIOD_S seconds."""
        self._rates.sample(self._clock.monotonic(), self._consumer.counts())
        self._sampler.start_round()

    def list_subscriptions(self, page: Page = ALL_ITEMS) -> list[dict[str, Any]]:
        """Return one row per subscription, sorted by group. A page contains whole groups."""
        retries = RetryPathView(self._consumer, self._clock)
        dead_letters = count_open_dead_letters(self._backend)
        subscriptions: list[dict[str, Any]] = []
        for group in paced(page.of(self._consumer.groups(), lambda group: group.name)):
            for each in self._consumer.group_stats(group.name).wait(WAIT_S):
                row = subscription_row(each, dead_letters) | retries.row(each.group, each.topic)
                subscriptions.append(row | {"clients": self._count_clients(each)})
        return subscriptions

    def list_names(self, group: str | None = None) -> Sequence[tuple[str, str]]:
        """Return the (group, topic) of all subscriptions, or of those of one group, sorted. Raises
        NoSuchGroupError."""
        if group is not None:
            return sorted((group, topic) for topic in require_group(self._consumer, group).topics)
        return self._consumer.subscription_names()

    def describe_subscriptions(
        self, names: Sequence[tuple[str, str]], *, with_lag: bool = False
    ) -> list[dict[str, Any]]:
        """Return the rows of these subscriptions, as far as they still exist. `with_lag`: with lag age and
        rates; only the first AGED_MAX rows contain the age of the lag."""
        retries = RetryPathView(self._consumer, self._clock)
        groups = list(dict.fromkeys(group for group, _ in names))
        pending: list[Completion[list[SubscriptionStats]]] = []
        for group in paced(groups):
            with suppress(CallerError):  # it was deleted meanwhile
                pending.append(self._consumer.group_stats(group))
        dead_letters = count_open(self._backend, groups)
        stats = {(each.group, each.topic): each for counted in pending for each in counted.wait(WAIT_S)}
        rows: list[dict[str, Any]] = []
        for each in paced([stats[name] for name in names if name in stats]):
            row = subscription_row(each, dead_letters) | retries.row(each.group, each.topic)
            row["clients"] = self._count_clients(each)
            if with_lag:
                row |= self._lag_columns(each, with_lookups=len(rows) < AGED_MAX)
            rows.append(row)
        return rows

    def show_group(self, group: str, keys_limit: int) -> dict[str, Any]:
        """Load the keys of a group, and return it. If loading fails, `blocked_keys_error` says so."""
        error = ""
        try:
            keys.load_keys(self._consumer, group)
        except TryLaterError as failure:
            error = str(failure)
        return self.detail(group, keys_limit) | {"blocked_keys_error": error}

    def detail(self, group: str, keys_limit: int = keys.LIMIT_DEFAULT) -> dict[str, Any]:
        """Return a group: each subscription with its queues and settings, and the blocked keys in memory."""
        summary = require_group(self._consumer, group)
        subscriptions = self._consumer.group_stats(group).wait(WAIT_S)
        retries = RetryPathView(self._consumer, self._clock)
        dead_letters = count_open_dead_letters(self._backend)
        clients = self._consumer.clients(group)
        ordered = any(each.config.order_key for each in subscriptions)
        ordering = self._consumer.order_keys(group)
        blocked = (
            keys.describe_blocked_keys(self._consumer, group, ordering, keys_limit + 1) if ordered else []
        )
        return {
            "group": group,
            "source": summary.source,
            "created_ms": summary.created_ms,
            "waiters": summary.waiters,
            "dead_letters_open": dead_letters.get(group, 0),
            "subscriptions": [
                self._subscription_detail(each, dead_letters) | retries.row(each.group, each.topic)
                for each in subscriptions
            ],
            "clients": [dataclasses.asdict(each) for each in clients[:CLIENTS_MAX]],
            "clients_more": max(0, len(clients) - CLIENTS_MAX),
            "differences": [
                dataclasses.asdict(each) for each in self._consumer.differences(group)[:DIFFERENCES_MAX]
            ],
            "stalled": self._stalled_queues(group),
            "blocked_keys": blocked[:keys_limit],
            "blocked_keys_more": len(blocked) > keys_limit,
        }

    def list_lags(
        self, group: str | None, count: int | None = None, allows: Callable[[str], bool] | None = None
    ) -> list[dict[str, Any]]:
        """Return the lag of the `count` subscriptions (None: all) that are furthest behind, the largest
        first. Only the first AGED_MAX rows contain the age of the lag. `allows`: whether the caller may see a
        group; None: it may see all."""
        if group is not None:
            require_group(self._consumer, group)
        group_names = [
            each.name
            for each in self._consumer.groups()
            if group in (None, each.name) and (allows is None or allows(each.name))
        ]
        subscriptions = [
            each for name in paced(group_names) for each in self._consumer.group_stats(name).wait(WAIT_S)
        ]
        subscriptions.sort(key=lambda each: (-each.lag, each.group, each.topic))
        retries = RetryPathView(self._consumer, self._clock)
        dead_letters = count_open_dead_letters(self._backend)
        return [
            subscription_row(each, dead_letters)
            | retries.row(each.group, each.topic)
            | {"clients": self._count_clients(each)}
            | self._lag_columns(each, with_lookups=at < AGED_MAX)
            for at, each in enumerate(paced(subscriptions[:count]))
        ]

    def _count_clients(self, stats: SubscriptionStats) -> int:
        """Count the connected clients that pull a subscription at this proxy."""
        clients = self._consumer.clients(stats.group)
        return sum(each.connected and (not each.topics or stats.topic in each.topics) for each in clients)

    def create(self, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Subscribe a group to `topics` of the body; the body's other keys are settings. Existing
        subscriptions are not changed.

        The answer contains the group, `created` (whether the group is new), `subscribed` (the topics that are
        new to it) and `notes` (texts for people).
        """
        settings = dict(body)
        topics = settings.pop("topics", [])
        if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
            raise CallerError(f"topics is {topics!r}; a list with at least one topic name is wanted")
        _check_names(group, *topics)
        summary = self._consumer.find_group(group)
        there = () if summary is None else summary.topics
        missing = [topic for topic in dict.fromkeys(topics) if topic not in there]
        for topic in missing:
            self._consumer.change_subscription(group, topic, settings).wait(WAIT_S)
        note = find_tag_note(settings.get("tags")) if missing else ""
        return self.detail(group) | {
            "created": summary is None,
            "subscribed": missing,
            "notes": [note] if note else [],
        }

    def change(self, group: str, topic: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a subscription, or change the settings that the body names. `unset` in the body: the keys
        that return to their defaults."""
        _check_names(group, topic)
        self._catch_up(group, topic)
        settings = dict(body)
        unset = settings.pop("unset", [])
        if not isinstance(unset, list) or not all(isinstance(name, str) for name in unset):
            raise CallerError(f"unset is {unset!r}; a list of setting names is wanted")
        change = self._consumer.change_subscription(group, topic, settings, unset).wait(WAIT_S)
        return {
            "group": group,
            "topic": topic,
            "created": change.before is None,
            "changed": _changed_settings(change),
            "settings": settings_in_force(change.after),
            "paused": bool(change.paused_ms),
            "set_here": sorted(change.overrides),
            "notes": [*_change_hints(group, topic, settings, change), *self._push_hints(group, topic)],
        }

    def _catch_up(self, group: str, topic: str) -> None:
        """Wait until changes that other proxies have answered are visible here, so that this change does not
        undo them. If that fails, the change itself reports it."""
        find_owners(self._backend, self._clock, group, topic)

    def _push_hints(self, group: str, topic: str) -> list[str]:
        why = self._consumer.find_push_error(group, topic)
        return [f"the push is held back, its messages stay where they are: {why}"] if why else []

    def delete(self, group: str, topic: str | None = None) -> None:
        """Delete a group, or one of its subscriptions, with its progress. Rejects a subscription that a file
        declares."""
        summary = require_group(self._consumer, group)
        if topic is not None and topic not in summary.topics:
            consumes = ", ".join(summary.topics) or "nothing"
            raise NoSuchGroupError(
                f"group {group!r} does not consume topic {topic!r}; it consumes: {consumes}"
            )
        for each in summary.topics if topic is None else (topic,):
            source = self._consumer.subscription_source(group, each).source
            if source != SOURCE_LOG:
                raise CallerError(ownership_text(group, each, source))
        self._consumer.delete_group(group, topic).wait(WAIT_S)

    def _oldest_s(self, each: SubscriptionStats) -> float | None:
        ages = (self._age_s(each.topic, queue) for queue in each.queues[:AGES_MAX] if queue.lag)
        return max((age for age in ages if age is not None), default=None)

    def _lag_columns(self, each: SubscriptionStats, *, with_lookups: bool) -> dict[str, Any]:
        """Return the age, the rates and the cause of a subscription's lag. Without lookups in the backend,
        the age is None (unknown), and some causes are not known."""
        owners = cache(partial(find_owners, self._backend, self._clock, each.group, each.topic))
        return {"lag_age_s": self._oldest_s(each) if with_lookups else None} | self._rate_columns(
            each, owners if with_lookups else lambda: None
        )

    def _rate_columns(self, each: SubscriptionStats, owners: Callable[[], Owners | None]) -> dict[str, Any]:
        """Return how many messages are unfinished, how fast that changes, why, and whether they are consumed.

        What is not known is None; `owners` returns None if the owners of the queues are not known.
        """
        per_second = self._per_second(each)
        now = ProgressSample(
            self._clock.monotonic(),
            sum(queue.next for queue in each.queues),
            self._consumer.finished_positions(each.group, each.topic),
        )
        arriving, finished = self._sampler.samples.read_rates((each.group, each.topic), now)
        if not all(queue.held for queue in each.queues):
            finished = None  # other proxies finish messages, too
        consumed = is_consumed(self._consumer, each, owners)
        info, config = self._backend.topic(each.topic), each.config
        facts = LagFacts(
            unfinished=each.unfinished,
            concurrency=config.concurrency,
            retrying_max=config.retrying_max,
            ack_span_max=config.ack_span_max,
            rate_max=config.rate_max,
            ordered=bool(config.order_key),
            readable=info is None or info.readable,
            paused=bool(each.paused_ms),
            consumed=consumed,
            held_elsewhere=is_held_elsewhere(each, self._consumer.address, owners),
            push_held_back=bool(self._consumer.find_push_error(each.group, each.topic)),
            stalled=any(stall.topic == each.topic for stall in self._consumer.stalled(each.group)),
            clients_differ=self._has_differing_clients(each),
            in_flight=each.in_flight,
            retrying=each.retrying,
            ack_span=each.ack_span,
            delivered_per_s=per_second["delivered_per_s"],
            arriving_per_s=arriving,
            finished_per_s=finished,
        )
        return per_second | {
            "consumed": consumed,
            "unfinished": each.unfinished,
            "arriving_per_s": arriving,
            "finished_per_s": finished,
            "drain_s": drain_seconds(each.unfinished, arriving, finished),
            "why": find_lag_cause(facts),
        }

    def _has_differing_clients(self, each: SubscriptionStats) -> bool:
        """Return whether clients of the group subscribe to the topic in different ways."""
        return any(row.topic in ("", each.topic) for row in self._consumer.differences(each.group))

    def _per_second(self, each: SubscriptionStats) -> dict[str, float | None]:
        counts = read_counts(self._metrics, each.group, each.topic)
        rates = self._rates.rates(self._clock.monotonic(), (each.group, each.topic), counts)
        return {
            "delivered_per_s": None if rates is None else rates[0],
            "acked_per_s": None if rates is None else rates[1],
        }

    def _stalled_queues(self, group: str) -> list[dict[str, Any]]:
        self._metrics.run_collectors()
        return [
            {
                "topic": each.topic,
                "queues": list(each.queue_ids),
                "seconds": round(each.seconds, 1),
                "held_up_by": list(each.held_up_by),
            }
            for each in self._consumer.stalled(group)
        ]

    def _subscription_detail(
        self, each: SubscriptionStats, dead_letters: Mapping[str, int]
    ) -> dict[str, Any]:
        group, topic = each.group, each.topic
        owners = find_owners(self._backend, self._clock, group, topic)
        queues = [
            self._queue_row(each, queue, owners or {}, with_age=index < AGES_MAX)
            for index, queue in enumerate(paced(each.queues))
        ]
        ages = [queue["lag_age_s"] for queue in queues if queue["lag_age_s"] is not None]
        source = self._consumer.subscription_source(group, topic)
        return (
            subscription_row(each, dead_letters)
            | self._rate_columns(each, lambda: owners)
            | {
                "lag_age_s": max(ages, default=None),
                "order_scope": each.config.scope,
                "order_merged": self._backend.capabilities.topic_order,
                "filter": each.config.sql or each.config.tags,
                "source": source.source,
                "set_here": sorted(source.overrides),
                "settings": settings_in_force(each.config),
                "inconsistent": int(self._metrics.cell(catalogue.INCONSISTENT, group, topic).value),
                "push_fault": self._consumer.find_push_error(group, topic),
                "queues": queues,
            }
        )

    def _queue_row(
        self, each: SubscriptionStats, queue: QueueStats, owners: Mapping[int, str], *, with_age: bool
    ) -> dict[str, Any]:
        age = self._age_s(each.topic, queue) if with_age and queue.lag else None
        columns = {name: getattr(queue, name) for name in QUEUE_ROW}
        owner = owners.get(queue.queue_id)
        return {"queue": queue.queue_id} | columns | {"lag_age_s": age, "holder": owner}

    def _age_s(self, topic: str, queue: QueueStats) -> float | None:
        """Return how long the message at the committed offset has been stored, in seconds."""
        info = self._backend.topic(topic)
        if info is None:
            return None
        batch = self._backend.read(_queue_ref(info, queue.queue_id), queue.committed, 1, 1).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            return None
        return max(0, self._backend.clock_ms() - batch.record(0).stored_ms) / 1000


def _queue_ref(info: TopicInfo, queue_id: int) -> QueueRef:
    return QueueRef(info.name, info.incarnation, queue_id)


def read_counts(metrics: Registry, group: str, topic: str) -> tuple[float, float]:
    """Return how many messages were delivered and acknowledged since this process started."""
    return (
        metrics.cell(catalogue.DELIVERED, group, topic).value,
        metrics.cell(catalogue.ACKED, group, topic).value,
    )


class Rates:
    """Rates over 5 to 10 seconds, by (group, topic), from the last two samples of the counters.

    `add_sample` must be called every PERIOD_S; times are monotonic.
    """

    def __init__(self) -> None:
        self._older: tuple[float, Mapping[tuple[str, str], Sequence[float]]] = (0.0, {})
        self._newer: tuple[float, Mapping[tuple[str, str], Sequence[float]]] = (0.0, {})

    def sample(self, now: float, counts: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Record the present counters."""
        self._older, self._newer = self._newer, (now, counts)

    def rates(self, now: float, key: tuple[str, str], counts: Sequence[float]) -> list[float] | None:
        """Return the rates per second, counter by counter; None until a sample is at least a second old."""
        for at, sampled in (self._older, self._newer):
            before = sampled.get(key)
            if before is not None and now - at >= 1.0:
                return [
                    max(0.0, (count - was) / (now - at)) for count, was in zip(counts, before, strict=True)
                ]
        return None
