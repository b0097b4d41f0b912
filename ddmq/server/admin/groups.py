"""Consumer groups as the admin API lists and changes them, over one process's consumer proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.port import Backend
from ddmq.server.admin.group_view import RetryPathView, open_letters, row, values
from ddmq.server.admin.keys import known
from ddmq.server.admin.queries import WAIT_S
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import WHOLE, NoSuchGroupError, Page
from ddmq.settings import BY_NAME
from ddmq_common import names
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.changes import Change, owned
from proxy_consumer.service import ConsumerService


def rows(
    backend: Backend, consumer: ConsumerService, clock: Clock, page: Page = WHOLE
) -> list[dict[str, Any]]:
    """Return a row a subscription, by group; a page is of groups. `dead_letters_open`: of its whole group."""
    retries, letters = RetryPathView(consumer, clock), open_letters(backend)
    found: list[dict[str, Any]] = []
    for group in paced(page.of(consumer.groups(), lambda group: group.name)):
        own = {"dead_letters_open": letters.get(group.name, 0)}
        for each in consumer.group_stats(group.name).wait(WAIT_S):
            found.append(row(each) | own | retries.row(each.group, each.topic))
    return found


def create(consumer: ConsumerService, group: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Subscribe a group to `topics`; other keys are settings. What exists stays.

    `created`: whether the group is new; `subscribed`: the topics that are new to it.
    """
    settings = dict(body)
    topics = settings.pop("topics", [])
    if not isinstance(topics, list) or not topics or not all(isinstance(topic, str) for topic in topics):
        raise CallerError(f"topics is {topics!r}; a list with at least one topic name is wanted")
    _check_names(group, *topics)
    summary = next((found for found in consumer.groups() if found.name == group), None)
    there = () if summary is None else summary.topics
    missing = [topic for topic in dict.fromkeys(topics) if topic not in there]
    for topic in missing:
        consumer.change_subscription(group, topic, settings).wait(WAIT_S)
    return {"created": summary is None, "subscribed": missing}


def change(consumer: ConsumerService, group: str, topic: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Make a subscription, or change what the body names; `unset`: keys that go back to the defaults."""
    _check_names(group, topic)
    settings = dict(body)
    unset = settings.pop("unset", [])
    if not isinstance(unset, list) or not all(isinstance(name, str) for name in unset):
        raise CallerError(f"unset is {unset!r}; a list of setting names is wanted")
    done = consumer.change_subscription(group, topic, settings, unset).wait(WAIT_S)
    return {
        "group": group,
        "topic": topic,
        "created": done.before is None,
        "changed": _differences(done),
        "settings": values(done.after),
        "set_here": sorted(done.given),
        "notes": [*_notes(group, topic, settings, done), *_held_back(consumer, group, topic)],
    }


def _differences(done: Change) -> list[dict[str, Any]]:
    if done.before is None:
        return []
    before, after = values(done.before), values(done.after)
    return [
        {"key": name, "before": before[name], "after": after[name]}
        for name in BY_NAME
        if before[name] != after[name]
    ]


def _notes(group: str, topic: str, settings: Mapping[str, Any], done: Change) -> list[str]:
    notes = []
    if "start" in settings and done.before is not None:
        notes.append(
            "start only says where a new subscription begins: offsets do not move; "
            f"`ddmq offset reset {group} --topic {topic} --to {settings['start']}` moves them"
        )
    if done.after.scope == "group" and _order(done.before) != _order(done.after):
        notes.append(
            "order over the whole group: all queues of all its ordered topics belong to one proxy at a time"
        )
    return notes


def _order(config: SubscriptionDefaults | None) -> tuple[str, str] | None:
    return None if config is None else (config.order_key, config.scope)


def _held_back(consumer: ConsumerService, group: str, topic: str) -> list[str]:
    why = consumer.push_fault(group, topic)
    return [f"the push is held back, its messages stay where they are: {why}"] if why else []


def delete(consumer: ConsumerService, group: str, topic: str | None = None) -> None:
    """Forget a group (or one subscription) and the right to its progress; not what stands in a file."""
    summary = known(consumer, group)
    if topic is not None and topic not in summary.topics:
        consumes = ", ".join(summary.topics) or "nothing"
        raise NoSuchGroupError(f"group {group!r} does not consume topic {topic!r}; it consumes: {consumes}")
    for each in summary.topics if topic is None else (topic,):
        source = consumer.source_of(group, each)
        if source is not None:
            raise CallerError(owned(group, each, source))
    consumer.delete_group(group, topic).wait(WAIT_S)


def _check_names(group: str, *topics: str) -> None:
    for fault in (names.group_fault(group), *map(names.topic_fault, topics)):
        if fault:
            raise CallerError(fault)
