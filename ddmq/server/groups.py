"""Consumer groups as the admin API shows and changes them, over one process's consumer proxy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ddmq.server.queries import WAIT_S
from ddmq_common import names
from ddmq_common.config.loader import Place, build
from ddmq_common.errors import CallerError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from proxy_consumer.stats import SubscriptionStats

_CONFIG = (
    "ack_timeout_ms",
    "retry_intervals_ms",
    "max_timeout_redeliveries",
    "concurrency",
    "batch_max",
    "start",
)


def rows(consumer: ConsumerService) -> list[dict[str, Any]]:
    """One row a subscription, over all groups."""
    found: list[dict[str, Any]] = []
    for group in consumer.groups():
        found += [_row(each) for each in consumer.group_stats(group.name).wait(WAIT_S)]
    return found


def detail(consumer: ConsumerService, group: str) -> dict[str, Any]:
    """One group: each subscription with its queues and settings."""
    _known(consumer, group)
    subscriptions = consumer.group_stats(group).wait(WAIT_S)
    return {"group": group, "subscriptions": [_detail(each) for each in subscriptions]}


def create(consumer: ConsumerService, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Subscribe a group to `topics`; other keys are settings, and go before the configured defaults."""
    fault = names.group_fault(group)
    if fault:
        raise CallerError(fault)
    settings = dict(body)
    topics = settings.pop("topics", [])
    if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
        raise CallerError(f"topics is {topics!r}; a list with at least one topic name is wanted")
    config = build(
        SubscriptionDefaults, dataclasses.asdict(consumer.defaults) | settings, Place("request", group)
    )
    created = all(found.name != group for found in consumer.groups())
    for topic in topics:
        consumer.subscribe(group, topic, config).wait(WAIT_S)
    return detail(consumer, group) | {"created": created}


def delete(consumer: ConsumerService, group: str) -> None:
    """Forget a group: its subscriptions and the right to its progress."""
    _known(consumer, group)
    consumer.delete_group(group).wait(WAIT_S)


def _known(consumer: ConsumerService, group: str) -> None:
    if all(found.name != group for found in consumer.groups()):
        raise LookupError(f"group {group!r} does not exist; `ddmq group list` shows those that do")


def _row(each: SubscriptionStats) -> dict[str, Any]:
    return {
        "group": each.group,
        "topic": each.topic,
        "lag": each.lag,
        "in_flight": each.in_flight,
        "retrying": each.retrying,
        "dead_letters": each.dead_lettered,
        "ack_span": each.ack_span,
        "waiters": each.waiters,
    }


def _detail(each: SubscriptionStats) -> dict[str, Any]:
    queues = [
        {
            "queue": queue.queue_id,
            "qid": queue.qid,
            "committed": queue.committed,
            "next": queue.next,
            "lag": queue.lag,
            "in_flight": queue.in_flight,
            "retrying": queue.retrying,
            "ack_span": queue.ack_span,
            "held": queue.held,
        }
        for queue in each.queues
    ]
    return _row(each) | {"settings": {name: getattr(each.config, name) for name in _CONFIG}, "queues": queues}
