"""UnavailableTopics: the topics to which no transaction should write now, and why. Pure.

A transaction that waits for a partition which does not answer blocks its transactional id, its group and
queue, and the records behind it in its other partitions. So such topics are set aside:

| observation                                              | until                                     |
|----------------------------------------------------------|-------------------------------------------|
| SURVEYS_MIN surveys in a row: no leader, or too few      | a survey finds it available               |
| replicas in sync                                         |                                           |
| the leader of a partition, which has its only replica in | a survey that tries to connect to such    |
| sync, accepts no connection                              | leaders finds it available                |
| a transaction was aborted for such a reason, or because  | PAUSE_S, twice as long each time, at most |
| its records were not answered                            | PAUSE_MAX_S                               |

For some seconds after a broker is lost, the metadata still state that its partitions are available. If a
transaction tried again after each survey, each try would cost a transactional id, and soon the process would
have none left. So surveys try to connect (`needs_probe`), and the first pause because of metadata is STALE_S.

Commits to a topic that is set aside fail at once. After that, and while a commit waits for an answer longer
than normal, the topic is a suspect until a transaction with it is stored: its commits go one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

log = logging.getLogger(__name__)
SURVEYS_MIN = 2  # a topic that was just made has no leader for a moment
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
STALE_S = 3.0
_UNTIL_SEEN = float("inf")  # until a survey finds the topic available
TOPICS_MAX = 10_000  # suspects; beyond that the oldest is forgotten
TIMED_OUT = "a partition does not answer"
NO_LEADER = "a partition has no leader"
TOO_FEW_IN_SYNC = "too few replicas are in sync"
UNREACHABLE = "the leader of a partition, which has its only replica in sync, accepts no connection"
_METADATA_REASONS = (NO_LEADER, TOO_FEW_IN_SYNC)


def why_blocked(
    partitions: Mapping[int, Any],
    numbers: Iterable[int],
    min_insync: int,
    unreachable: Collection[int] = (),
) -> str:
    """Return why one of these partitions can take no record now, by their metadata; "" if all can.

    `unreachable`: brokers that accept no connection.
    """
    for number in numbers:
        partition = partitions.get(number)
        if partition is None:
            continue
        if partition.leader < 0:
            return NO_LEADER
        if len(partition.isrs) < min(
            min_insync, len(partition.replicas)
        ):  # with fewer replicas, Kafka needs all
            return TOO_FEW_IN_SYNC
        if partition.leader in unreachable and _is_sole(partition):
            return UNREACHABLE
    return ""


def sole_leaders(partitions: Iterable[Any]) -> set[int]:
    """Return the leaders of partitions that no other broker can lead, by their metadata."""
    return {partition.leader for partition in partitions if _is_sole(partition)}


def _is_sole(partition: Any) -> bool:
    return partition.leader >= 0 and list(partition.isrs) == [partition.leader]


class _Suspect:
    """The observations about a topic that may be unavailable.

    `until`: it is treated as unavailable until then. `pause_s`: for how long the next time.
    """

    __slots__ = ("is_slow", "pause_s", "reason", "surveys", "until")

    def __init__(self) -> None:
        self.reason = ""
        self.until = 0.0
        self.pause_s = PAUSE_S
        self.surveys = 0  # in a row that saw a reason
        self.is_slow = False  # a transaction waits for it, or did so


class UnavailableTopics:
    """Records which topics are unavailable or may be, because a partition has no leader or does not answer.

    `now()`: monotonic seconds. `count`: how often a topic was set aside.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._topics: dict[str, _Suspect] = {}
        self.count = 0
        self._listeners: list[Callable[[], object]] = []

    def add_listener(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever a topic may be written to again."""
        self._listeners.append(listener)

    def reason_of(self, topic: str) -> str:
        """Return why a topic is treated as unavailable; "" if it is not."""
        suspect = self._topics.get(topic) if self._topics else None
        return "" if suspect is None or suspect.until <= self._now() else suspect.reason

    def is_suspect(self, topic: str) -> bool:
        """Return whether a transaction with the topic must go by itself."""
        return topic in self._topics

    def was_set_aside(self, topic: str) -> bool:
        """Return whether a suspect topic has failed before, so that a transaction should not wait long."""
        suspect = self._topics.get(topic)
        return suspect is not None and bool(suspect.reason)

    @property
    def needs_probe(self) -> bool:
        """Whether the next survey must try to connect to leaders, because a topic may be unavailable."""
        return bool(self._topics)

    def on_survey(self, blocked: Mapping[str, str], has_probed: bool = True) -> None:
        """Note the topics with partitions that can take no record, and the reasons, as a survey saw them.

        `has_probed`: it has tried to connect to the leaders that no other broker can replace.
        """
        for topic, reason in blocked.items():
            suspect = self._find_suspect(topic)
            suspect.surveys += 1
            if suspect.surveys >= SURVEYS_MIN or reason == UNREACHABLE:
                self._set_aside(topic, suspect, reason, _UNTIL_SEEN)
        for topic in self._topics.keys() - blocked.keys():
            suspect = self._topics[topic]
            if suspect.reason == UNREACHABLE and not has_probed:
                continue
            suspect.surveys = 0
            if suspect.until == _UNTIL_SEEN or not (suspect.reason or suspect.is_slow):
                self._clear(topic)

    def on_slow(self, topics: Iterable[str]) -> None:
        """Note topics that have not answered a transaction for a while."""
        for topic in topics:
            self._find_suspect(topic).is_slow = True

    def on_blocked(self, topics: Mapping[str, str]) -> None:
        """Note the topics because of which a transaction was aborted, and the reasons."""
        for topic, reason in topics.items():
            suspect = self._find_suspect(topic)
            if suspect.until == _UNTIL_SEEN:
                continue
            if reason == UNREACHABLE:
                self._set_aside(topic, suspect, reason, _UNTIL_SEEN)
                continue
            if reason in _METADATA_REASONS:
                suspect.pause_s = max(suspect.pause_s, STALE_S)
            self._set_aside(topic, suspect, reason, self._now() + suspect.pause_s)
            suspect.pause_s = min(suspect.pause_s * 2, PAUSE_MAX_S)

    def on_stored(self, topics: Iterable[str]) -> None:
        """Note topics that a transaction has written to."""
        if not self._topics:
            return
        for topic in topics:
            if topic in self._topics:
                self._clear(topic)

    def _clear(self, topic: str) -> None:
        reason = self._topics.pop(topic).reason
        if reason:
            log.warning("topic %s: it can be written to again (%s)", topic, reason)
        for listener in self._listeners:
            listener()

    def _find_suspect(self, topic: str) -> _Suspect:
        suspect = self._topics.get(topic)
        if suspect is None:
            if len(self._topics) >= TOPICS_MAX:
                del self._topics[next(iter(self._topics))]
            suspect = self._topics[topic] = _Suspect()
        return suspect

    def _set_aside(self, topic: str, suspect: _Suspect, reason: str, until: float) -> None:
        if suspect.reason != reason:
            log.warning("topic %s is set aside, nothing is committed to it: %s", topic, reason)
            self.count += 1
        suspect.reason, suspect.until = reason, until
