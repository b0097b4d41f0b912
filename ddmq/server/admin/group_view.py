"""A consumer group in full: where it stands, what it waits for, what holds it up.

Committed and next offsets, lag and lag age are the same whoever is asked. In flight, retrying, waiting
pulls, blocked keys and clients that subscribe differently are those of this process's consumer proxy;
`holder` says which proxy has a queue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from backend.port import Backend
from backend.records import QueueRef, ReadStatus, TopicInfo
from ddmq.server.admin import keys
from ddmq.server.admin.dlq import rows as dead_letter_rows
from ddmq.server.admin.queries import WAIT_S
from ddmq.server.admin.rates import Rates
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import COUNT_MAX
from ddmq.settings import BY_NAME
from ddmq_common import names
from ddmq_common.clock import Clock
from ddmq_common.config.loader import resolved
from ddmq_common.errors import DdmqError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from proxy_consumer.groups.retry_waiting import RetryPath
from proxy_consumer.groups.stats import QueueStats, SubscriptionStats
from proxy_consumer.service import ConsumerService

AGED_MAX = 50  # subscriptions of a list whose oldest waiting message is looked at
CLIENTS_MAX = 200  # of a group that are listed, those with most in flight
DIFFERENCES_MAX = 100  # clients that subscribe differently
RETRY_DETAILS = ("retry_waiting_whole", "retry_oldest_s", "retry_next_s")
AGES_MAX = 64  # queues of one topic whose oldest waiting message is looked at


class RetryPathView:
    """The messages that wait in the delay levels, as rows show them; what cannot be read just now is
    unknown."""

    def __init__(self, consumer: ConsumerService, clock: Clock) -> None:
        self._now_ms = clock.wall_ms()
        try:
            self._found: RetryPath | None = consumer.retry_paths().wait(WAIT_S)
        except (DdmqError, TimeoutError):
            self._found = None

    def row(self, group: str, topic: str) -> dict[str, Any]:
        """`retry_waiting`: messages, at least, where `retry_waiting_whole` is false; null: not known."""
        if self._found is None:
            return {"retry_waiting": None} | dict.fromkeys(RETRY_DETAILS)
        found = self._found.waiting.get((group, topic))
        if found is None:
            return dict.fromkeys(RETRY_DETAILS) | {
                "retry_waiting": 0,
                "retry_waiting_whole": self._found.whole,
            }
        return {
            "retry_waiting": found.messages,
            "retry_waiting_whole": self._found.whole,
            "retry_oldest_s": max(0, self._now_ms - found.since_ms) / 1000,
            "retry_next_s": max(0, found.due_ms - self._now_ms) / 1000,
        }


def row(each: SubscriptionStats) -> dict[str, Any]:
    """Return a subscription as a list shows it."""
    return {
        "group": each.group,
        "topic": each.topic,
        "lag": each.lag,
        "in_flight": each.in_flight,
        "retrying": each.retrying,
        "retry_lag": each.retry_lag,
        "dead_letters": each.dead_lettered,
        "ack_span": each.ack_span,
        "waiters": each.waiters,
        "order_key": each.config.order_key,
    }


def open_letters(backend: Backend) -> dict[str, int]:
    """Dead letters that were neither sent again nor purged, by group."""
    found: dict[str, int] = {}
    for each in dead_letter_rows(backend):
        found[each["group"]] = found.get(each["group"], 0) + int(each["letters"])
    return found


def values(config: Any) -> dict[str, Any]:
    """Every setting in force, secrets masked."""
    found = resolved(config)
    return {name: found[name] for name in BY_NAME}


class GroupView:
    """Answers about groups from one process's parts."""

    def __init__(
        self, backend: Backend, consumer: ConsumerService, metrics: Registry, clock: Clock, rates: Rates
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._metrics = metrics
        self._clock = clock
        self._rates = rates

    def detail(self, group: str, keys_limit: int = keys.LIMIT_DEFAULT) -> dict[str, Any]:
        """Return a group: each subscription with its queues and settings, and the blocked keys."""
        summary = keys.known(self._consumer, group)
        found = self._consumer.group_stats(group).wait(WAIT_S)
        retries = RetryPathView(self._consumer, self._clock)
        clients = self._consumer.clients(group)
        ordered = any(each.config.order_key for each in found)
        blocked = keys.rows(self._consumer, group, keys_limit + 1) if ordered else []
        return {
            "group": group,
            "source": summary.source,
            "created_ms": summary.created_ms,
            "waiters": summary.waiters,
            "dead_letters_open": self._dead_letters(group),
            "subscriptions": [
                self._subscription(each) | retries.row(each.group, each.topic) for each in found
            ],
            "clients": [dataclasses.asdict(each) for each in clients[:CLIENTS_MAX]],
            "clients_more": max(0, len(clients) - CLIENTS_MAX),
            "differences": [
                dataclasses.asdict(each) for each in self._consumer.differences(group)[:DIFFERENCES_MAX]
            ],
            "stalled": self._stalled(group),
            "blocked_keys": blocked[:keys_limit],
            "blocked_keys_more": len(blocked) > keys_limit,
        }

    def lag(self, group: str | None, count: int = COUNT_MAX) -> list[dict[str, Any]]:
        """Return how far behind `count` subscriptions are, the furthest first; how long, for the first
        AGED_MAX."""
        if group is not None:
            keys.known(self._consumer, group)
        wanted = [each.name for each in self._consumer.groups() if group in (None, each.name)]
        found = [each for name in paced(wanted) for each in self._consumer.group_stats(name).wait(WAIT_S)]
        found.sort(key=lambda each: (-each.lag, each.group, each.topic))
        retries = RetryPathView(self._consumer, self._clock)
        return [
            row(each)
            | retries.row(each.group, each.topic)
            | self._per_second(each)
            | {"lag_age_s": self._oldest_s(each) if at < AGED_MAX else None}
            for at, each in enumerate(paced(found[:count]))
        ]

    def _oldest_s(self, each: SubscriptionStats) -> float | None:
        ages = (self._age_s(each.topic, queue) for queue in each.queues[:AGES_MAX] if queue.lag)
        return max((age for age in ages if age is not None), default=None)

    def _per_second(self, each: SubscriptionStats) -> dict[str, float | None]:
        counts = counted(self._metrics, each.group, each.topic)
        rates = self._rates.rates(self._clock.monotonic(), (each.group, each.topic), counts)
        return {
            "delivered_per_s": None if rates is None else rates[0],
            "acked_per_s": None if rates is None else rates[1],
        }

    def _stalled(self, group: str) -> list[dict[str, Any]]:
        self._metrics.fill()
        return [
            {
                "topic": each.topic,
                "queues": list(each.queue_ids),
                "seconds": round(each.seconds, 1),
                "held_up_by": list(each.held_up_by),
            }
            for each in self._consumer.stalled(group)
        ]

    def _dead_letters(self, group: str) -> int:
        if self._backend.topic(names.dlq_topic(group)) is None:
            return 0
        return open_letters(self._backend).get(group, 0)

    def _subscription(self, each: SubscriptionStats) -> dict[str, Any]:
        group, topic = each.group, each.topic
        holders = self._holders(group, topic)
        queues = [
            self._queue(each, queue, holders, with_age=index < AGES_MAX)
            for index, queue in enumerate(paced(each.queues))
        ]
        ages = [queue["lag_age_s"] for queue in queues if queue["lag_age_s"] is not None]
        found = self._consumer.subscription_source(group, topic)
        return (
            row(each)
            | self._per_second(each)
            | {
                "lag_age_s": max(ages, default=None),
                "order_scope": each.config.scope,
                "filter": each.config.sql or each.config.tags,
                "source": found.source,
                "set_here": sorted(found.given),
                "settings": values(each.config),
                "inconsistent": int(self._metrics.cell(catalogue.INCONSISTENT, group, topic).value),
                "push_fault": self._consumer.push_fault(group, topic),
                "queues": queues,
            }
        )

    def _queue(
        self, each: SubscriptionStats, queue: QueueStats, holders: Mapping[int, str], *, with_age: bool
    ) -> dict[str, Any]:
        age = self._age_s(each.topic, queue) if with_age and queue.lag else None
        return {
            "queue": queue.queue_id,
            "qid": queue.qid,
            "committed": queue.committed,
            "next": queue.next,
            "lag": queue.lag,
            "lag_age_s": age,
            "in_flight": queue.in_flight,
            "retrying": queue.retrying,
            "ack_span": queue.ack_span,
            "held": queue.held,
            "holder": holders.get(queue.queue_id),
        }

    def _age_s(self, topic: str, queue: QueueStats) -> float | None:
        """Return how long the message at the committed offset has been stored, in seconds."""
        info = self._backend.topic(topic)
        if info is None:
            return None
        batch = self._backend.read(_ref(info, queue.queue_id), queue.committed, 1, 1).wait(WAIT_S)
        if batch.status is not ReadStatus.DATA:
            return None
        return max(0, self._backend.clock_ms() - batch.record(0).stored_ms) / 1000

    def _holders(self, group: str, topic: str) -> dict[int, str]:
        """Return which proxy has which queue; nothing where the engine cannot say just now."""
        try:
            found = self._backend.holders(group, topic, self._clock.monotonic() + WAIT_S).wait(WAIT_S + 1)
        except (DdmqError, TimeoutError):
            return {}
        return {queue.queue_id: address for queue, address in found.items()}


def _ref(info: TopicInfo, queue_id: int) -> QueueRef:
    return QueueRef(info.name, info.incarnation, queue_id)


def counted(metrics: Registry, group: str, topic: str) -> tuple[float, float]:
    """Delivered and acknowledged since this process started."""
    return (
        metrics.cell(catalogue.DELIVERED, group, topic).value,
        metrics.cell(catalogue.ACKED, group, topic).value,
    )
