"""Selects the topics, settings and records of a move. Pure.

Without patterns everything does. With patterns: the topics of applications that one of them matches, the
subscriptions to these, and of the system's own topics (retries, dead letters, delays) what is theirs. Never
taken: which cluster a Kafka installation belongs to (`kafka/`), what clients have at this moment (`leases/`),
what a delay service works out anew (`delay-full/`), how
transactions ended (none may be open when a move is finished), where offsets of the source stand as numbers
(`reset/`), and the progress of moves.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from fnmatch import fnmatchcase

from backend.internal_topics import REAL_TOPIC, read_dead_letter
from backend.records import StoredRecord
from ddmq_common.names import (
    DELAY_FULL_PREFIX,
    DELAY_TOPIC,
    DLQ_PREFIX,
    DONE_GROUP,
    HALF_TOPIC,
    HEARTBEAT_TOPIC,
    HOLD_PREFIX,
    OP_TOPIC,
    OUTCOME_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    WAITING_TOPIC,
    is_dead_letters,
    is_internal,
    retry_topic,
)
from proxy_consumer.groups.group import GROUP_PREFIX, RESET_PREFIX, SUBSCRIPTION_PREFIX
from proxy_consumer.groups.ordering import PARKED_PREFIX
from proxy_consumer.retries.headers import TOPIC as RETRY_OF
from proxy_consumer.retries.retry_queues import SETTING_PREFIX as RETRY_SETTING
from proxy_consumer.subscription.membership import LEASES_PREFIX
from proxy_consumer.subscription.parked_heads import EXHAUSTED_PREFIX

MOVE_SETTINGS_PREFIX = "move/"  # settings of a target about moves into it
EXCLUDED_SETTINGS = (
    MOVE_SETTINGS_PREFIX, "kafka/", LEASES_PREFIX, EXHAUSTED_PREFIX, DELAY_FULL_PREFIX, RESET_PREFIX,
)  # fmt: skip
AT_THE_END = frozenset((SCHEDULE_TOPIC, DELAY_TOPIC))  # what waits there goes when nobody fires it any more
EXCLUDED_TOPICS = frozenset(
    (OUTCOME_TOPIC, HEARTBEAT_TOPIC, WAITING_TOPIC, HALF_TOPIC, OP_TOPIC, TRACE_TOPIC)
)


class Scope:
    """The topics that a move includes. `patterns`: shell patterns with * and ? for their names."""

    def __init__(self, patterns: tuple[str, ...] = ()) -> None:
        self.patterns = patterns

    def takes_topic(self, name: str) -> bool:
        """Return whether the move reads the queues of a topic: to copy all records, or to find those that
        concern an included topic."""
        if name in EXCLUDED_TOPICS:
            return False
        return is_internal(name) or self.takes(name)

    def takes(self, name: str) -> bool:
        """Return whether the move includes this topic of an application."""
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def takes_record(self, record: StoredRecord) -> bool:
        """Return whether the move copies this record of a topic that it reads."""
        return not self.patterns or not is_internal(record.topic) or self.takes(_belongs_to(record))

    def select_settings(self, source_settings: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return those settings of the source that the move copies to the target."""
        selected = {
            key: value for key, value in source_settings.items() if not key.startswith(EXCLUDED_SETTINGS)
        }
        if not self.patterns:
            return selected
        groups = {
            group for group, topics in topics_by_group(selected).items() if any(map(self.takes, topics))
        }
        return {key: value for key, value in selected.items() if self._takes_setting(key, groups)}

    def _takes_setting(self, key: str, groups: Container[str]) -> bool:
        for prefix in (GROUP_PREFIX, SUBSCRIPTION_PREFIX, PARKED_PREFIX, RETRY_SETTING):
            if key.startswith(prefix):
                group, _, rest = key.removeprefix(prefix).partition("/")
                return group in groups and (prefix != SUBSCRIPTION_PREFIX or self.takes(rest))
        return not key.startswith(HOLD_PREFIX) or self.takes(key.removeprefix(HOLD_PREFIX))


def _belongs_to(record: StoredRecord) -> str:
    """Return the application topic that a record of a system topic concerns; "" if the record names none."""
    topic = record.topic
    if topic == SCHEDULE_TOPIC:
        topic = record.system.get(REAL_TOPIC, "")
    if topic.startswith(DLQ_PREFIX):
        return read_dead_letter(record).topic
    return record.system.get(RETRY_OF, "") if topic.startswith(RETRY_PREFIX) else topic


def topics_by_group(settings: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the topics that each group subscribes to, from the settings of the source."""
    by_group: dict[str, list[str]] = {}
    for key in settings:
        if key.startswith(SUBSCRIPTION_PREFIX):
            group, _, topic = key.removeprefix(SUBSCRIPTION_PREFIX).partition("/")
            by_group.setdefault(group, []).append(topic)
    return by_group


def groups_of(settings: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return for each topic the groups that read it: its subscribers or, for a retry topic, the group that it
    belongs to."""
    by_topic: dict[str, list[str]] = {}
    for group, topics in sorted(topics_by_group(settings).items()):
        for topic in (*topics, retry_topic(group)):
            by_topic.setdefault(topic, []).append(group)
    return by_topic


def readers_of(topic: str, groups: Mapping[str, list[str]]) -> list[str]:
    """Return the groups whose progress on a topic is moved. For dead letters, this includes the internal
    group that marks letters as done."""
    return [*groups.get(topic, ()), *((DONE_GROUP,) if is_dead_letters(topic) else ())]
