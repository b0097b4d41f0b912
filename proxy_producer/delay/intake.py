"""What is checked before a delay request is accepted, in wire order: 20, 11, 13, 18, then 30 to 38, then 21.

A change by a caller of ours (cancel, reschedule, fire now) needs neither topic nor body: the id says it all.
Nothing here changes anything: no topic is created, no token taken.
"""

from __future__ import annotations

from ddmq_client.idl.codes import Code
from ddmq_common.schedules import ScheduleLimits, schedule_fault
from proxy_producer.core.delay_checks import DelayRules, delay_fault, timestamp_fault, uuid_fault
from proxy_producer.core.refusal import Refusal, refusal
from proxy_producer.core.validation import content_fault, no_delay_property
from proxy_producer.delay.full import FullTopics
from proxy_producer.delay.presence import Presence
from proxy_producer.delay.wire import Asked
from proxy_producer.intake import DRAINING, Intake
from proxy_producer.messages import DELAY_FULL, NO_DELAY_SERVICE
from proxy_producer.topics import Topic, TopicTable


class DelayIntake:
    """The checks of one proxy."""

    __slots__ = ("_full", "_intake", "_presence", "_topics")

    def __init__(self, intake: Intake, topics: TopicTable, presence: Presence, full: FullTopics) -> None:
        self._full = full
        self._intake = intake
        self._topics = topics
        self._presence = presence

    def look(self, asked: Asked, rules: DelayRules, now_ms: int) -> tuple[Topic | None, Refusal | None]:
        """(the target topic if it exists, the first thing wrong)."""
        bare = asked.ours and not asked.adds and not asked.topic
        topic, fault = self._bare() if bare else self._intake.first_look(asked.topic)
        if fault is None and not (asked.ours and not asked.adds):
            fault = self._content_fault(asked, topic) or self._mode_fault(asked, topic)
        if fault is None:
            fault = self._request_fault(asked, rules, now_ms)
        if fault is None and self._presence.absent():
            fault = NO_DELAY_SERVICE
        if fault is None and asked.adds and topic is not None and topic.name in self._full.names:
            fault = DELAY_FULL
        return topic, fault

    def _bare(self) -> tuple[Topic | None, Refusal | None]:
        return None, DRAINING if self._intake.draining else None

    def _content_fault(self, asked: Asked, topic: Topic | None) -> Refusal | None:
        limits = self._topics.default_limits if topic is None else topic.limits
        fault = content_fault(asked.key, asked.tags, asked.body, asked.properties, limits)
        if fault is None and asked.properties:
            return no_delay_property(asked.properties)
        return fault

    def _mode_fault(self, asked: Asked, topic: Topic | None) -> Refusal | None:
        if topic is None:
            return self._topics.creation_fault(asked.topic_name)
        return topic.write_fault() or topic.delayed_fault()

    def _request_fault(self, asked: Asked, rules: DelayRules, now_ms: int) -> Refusal | None:
        if not asked.adds or asked.schedule is None:
            return delay_fault(asked.request, rules, now_ms)
        fault = None
        if asked.request.due_ms is not None:
            fault = timestamp_fault(asked.request, rules, now_ms)
        if fault is None:
            limits = ScheduleLimits(rules.delay_s_max * 1_000, rules.occurrences_max, rules.period_ms_min)
            wrong = schedule_fault(asked.schedule, limits, now_ms)
            if wrong is not None:
                what, _, allowed = wrong.partition("; ")
                fault = refusal(Code.ILLEGAL_MESSAGE, "delay_schedule", what, allowed)
        return fault or uuid_fault(asked.request.uuid)
